"""The speech model: layers, temporal and depth transformers, sampling and the codecs, from our own code."""

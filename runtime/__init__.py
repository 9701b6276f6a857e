"""Streaming text-to-speech of the Delayed Streams Modeling kind, served from a directory of verified files."""

VERSION = "0.1.0"

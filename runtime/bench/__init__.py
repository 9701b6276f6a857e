"""`tts bench`: measures a speech server from outside, ours or any other that speaks the Gradium or OpenAI protocol."""

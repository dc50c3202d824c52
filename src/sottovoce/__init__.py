"""Sottovoce: private, personalized federated learning in a whisper of bits."""

__version__ = "0.1.0"

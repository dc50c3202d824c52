"""Engines: what carries messages between clients and server."""

"""Tests of `sottovoce.federation.status`."""

"""Tests of `sottovoce.federation.nvflare`."""

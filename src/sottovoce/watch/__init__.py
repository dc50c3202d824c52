"""A live page for a run, a federation or a client of one, with health and metrics, on this machine only."""

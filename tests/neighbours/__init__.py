"""Neighbours are files: one unit of a client's file becomes another, and everything that would leave is seen.

A sample of pairs is in `make test`; `make neighbours` makes the table of docs/privacy.md.
"""

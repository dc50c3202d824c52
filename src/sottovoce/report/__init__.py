"""A run as one HTML page: accuracy, privacy spent, bytes sent, and what was promised.

The page is a single file without outside resources: text, tables and SVG charts that print and open
offline, plus one small script for the readouts. It shows what files say and computes no result of its own.
`table`, `chart` and `numbers` serve the terminal, Markdown and SVG files as well.
"""

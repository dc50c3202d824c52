"""A run as one HTML page: accuracy, privacy spent, bytes sent, and in plain words what was promised.

The page is a single file without outside resources: text, tables and SVG figures that print and open
offline, plus one small script for the readouts. It shows the run's files and computes no result of its own.
"""

from sottovoce.report.run import write_report

__all__ = ["write_report"]

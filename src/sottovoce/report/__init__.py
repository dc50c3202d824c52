"""A run or a reproduction as one HTML page: accuracy, privacy spent, bytes sent, and what was promised.

The page is a single file without outside resources: text, tables and SVG figures that print and open
offline, plus one small script for the readouts. It shows what files say and computes no result of its own.
"""

from sottovoce.report.reproduction import write_reproduction
from sottovoce.report.run import write_report

__all__ = ["write_report", "write_reproduction"]

"""A federation across machines, whatever carries its messages: agreement, enrolment, and both ends' memory.

The server coordinates and forgets nothing that was applied; each node keeps key, ledger and messages in a
directory of its own. The roles behind them are the very `Client` and `Server` of the simulator.
"""

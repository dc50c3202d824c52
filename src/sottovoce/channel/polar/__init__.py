"""Channel simulation with polar codes, in the order a statistic travels.

rotation → offsets → model → (folding, screen) states → cancellation → surprises; codec ties them together.
"""

"""For people who do not believe us: is an ε as large as the ledger says, and no larger?

`neighbours` changes one record and looks at everything that would leave; `game` lets an adversary who knows
everything else guess which of two records a file holds; `recount` adds a finished run's ledger up again, by
code that is not ours.
"""

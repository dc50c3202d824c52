"""What a client's records have spent, and who releases when: accounting, schedule and ledger.

Nothing here imports torch, so that the promise can be read, checked and audited by itself.
"""

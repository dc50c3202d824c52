"""The door for future clients: an HTTPS service that turns one context into one personal model.

`create_service` makes the web application of a finished run, `onboard` is the client that computes its
context at home, charges its own ledger, and builds the model from the coefficients it gets back.
"""

"""Future clients: one context in, one personal model out, in this process or over the network.

`create_service` makes the web application of a finished run; `obtain_model` is the client that computes its
context at home, charges its own ledger, and builds the model from the coefficients it gets back.
"""

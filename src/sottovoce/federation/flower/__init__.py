"""Flower as the engine: its SuperLink and SuperNodes carry the messages between coordinator and members.

`server_app` and `client_app` make the two halves of a Flower app; `write_app` writes an app directory for
`flwr run`, on Flower's simulation engine or on a SuperLink with SuperNodes.
"""

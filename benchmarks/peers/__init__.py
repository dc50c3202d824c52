"""The contenders of `benchmarks.round`, each a program that makes one round a turn.

All train the paper's LeNet on two of the same eight clients a round, 333 CIFAR-10-sized records each, with
one gradient over all of them.
"""

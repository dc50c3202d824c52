"""`python -m sottovoce` is the command `sottovoce`."""

from sottovoce.cli import main

main()

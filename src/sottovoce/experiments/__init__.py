"""The paper's evaluation as data and code: every table a TOML with the published values beside its plans.

`cells` reads the tables, `grid` turns cells and seeds into runs, `runner` carries them out, `summary` keeps
what a run leaves behind, `index` makes results/index.json of it, `document` the tables in docs/results.md.
All runs are seeded simulations on public data: they reproduce, and they protect nobody.
"""

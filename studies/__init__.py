"""Studies made with the package, which live in a clone and not in the wheel.

The paper's evaluation is data and code: every table a TOML with the published values beside its plans.

`cells` reads the tables, `grid` turns cells and seeds into runs, `execution` hands them to workers (`work`)
in a `pool` of processes here or on the machines of a `cluster`, `summary` keeps what a run leaves behind,
`index` makes results/index.json of it, `tables` and `figures` show it, `reproduction` as a page and `merge`
in docs/results.md. `standalone` is a plain entry, `reproduce` a command of `sottovoce`. `sweep` trains many
runs in lockstep, `law` without messages (its ledger lies in `memory`). `bench` measures what the command of
that name shows, `exactness` a channel's errors; `pretrain` makes the weights of the
feature map `patterns` from generated pictures (`images`).
All runs are seeded simulations on public data: they reproduce, and they protect nobody.
"""

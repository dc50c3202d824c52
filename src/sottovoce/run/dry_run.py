"""The dry run: what could fail in a run is tried on every client's records before the first charge.

One forward, one loss, one clipped gradient and one context of each client. Nothing of it leaves or is
charged, and what fails names the client, for whoever holds the records.
"""

from __future__ import annotations

import numpy as np
import torch

from sottovoce.blueprint import Blueprint
from sottovoce.data import ClientRecords, FederatedDataset, Records, description
from sottovoce.data.own import DataError
from sottovoce.errors import SottovoceError
from sottovoce.models import logits

TRIED = 32
"""Records, or units, whose gradient is tried."""


def dry_run(blueprint: Blueprint, federation: FederatedDataset, *, own: bool) -> None:
    """Refuses a run that some client could not make; `own` records are all tried, public ones once a role."""
    roles = ((federation.names, federation.participants), (federation.future_names, federation.future))
    for role, (names, clients) in enumerate(roles):
        for i, name in enumerate(names if own else names[:1]):
            dry_client(name, clients[i], blueprint, i if role == 0 else None, own=own)


def dry_client(
    name: str, records: ClientRecords, blueprint: Blueprint, participant: int | None, *, own: bool = True
) -> None:
    """The same for one client, a participant or a future one (None)."""
    if own:
        for part in (records.train, records.context, records.held_out):
            _check_usable(name, part, blueprint)
    try:
        _try(records, blueprint, participant)
    except SottovoceError as error:
        raise SottovoceError(f"{name}: {error}") from None
    except Exception as error:  # whatever a stranger's forward raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        model = type(blueprint.module).__name__
        raise SottovoceError(f"{name}: {model} fails on its records: {reason}") from None


def _try(records: ClientRecords, blueprint: Blueprint, participant: int | None) -> None:
    releases = blueprint.releases_of(participant)
    zero = torch.zeros(blueprint.coefficients, device=blueprint.model.reference.device)
    plan = blueprint.plan
    if participant is not None:
        few = records.train.of_units(torch.arange(min(TRIED, records.train.units)))
        with torch.no_grad():
            outputs = logits(blueprint.module, blueprint.theta(zero), few[few.usable].x.to(zero.device))
        if not bool(outputs.isfinite().all()):
            raise SottovoceError(
                f"{type(blueprint.module).__name__} gives outputs that are not finite: check its "
                "normalization and its bounds"
            )
        _check_finite(releases["gradient"].statistic(few, zero))
        uses_model = plan.context_traits.uses_model
    else:
        uses_model = plan.future_uses_model
    if plan.releases_context:
        _check_finite(releases["context"].statistic(records.context, zero if uses_model else None))


def _check_finite(statistic: torch.Tensor) -> None:
    if not bool(statistic.isfinite().all()):
        raise SottovoceError("its statistic is not finite, which no noise covers: report this as a bug")


def _check_usable(name: str, records: Records, blueprint: Blueprint) -> None:
    """Refuses a client too many of whose records could contribute nothing but their share of the noise."""
    agreed = description.of(blueprint.facts.source or blueprint.facts)
    allowed = description.UNUSABLE if agreed is None else agreed.unusable
    lost = int((~records.usable).sum())
    # A few of few records may be more than the share that the whole file may have.
    if lost <= 2 or lost <= 2 * allowed * len(records):
        return
    flat = records.x.flatten(1)
    missing = (~flat.isfinite()).float().mean(dim=0).cpu().numpy()
    worst, where = int(np.argmax(missing)), ""
    if missing[worst] > 0:
        inputs = () if agreed is None or agreed.array is not None else agreed.inputs
        column = repr(inputs[worst]) if inputs else f"number {worst}"
        where = f", most of them in column {column}"
    raise DataError(
        f"{name} has {lost} of {len(records)} records that cannot be used{where}: correct them, for they add "
        "nothing and cost as much"
    )

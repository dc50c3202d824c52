"""The server's part under NVFlare: a member is its certificate, and a site that falls out ends the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation.nvflare import LOST, controller
from sottovoce.federation.nvflare.controller import SiteLost
from sottovoce.report.look import look
from tests.federation.test_engines import Nodes, charges, settings
from tests.federation.world import QUICK, World

from .inside import Inside


def cohort(folder: Path, **changes: Any) -> tuple[World, Nodes]:
    world = World(folder, **{**QUICK, **changes})
    world.kill()
    names = [f"client-{index}" for index in range(world.agreement.plan.participants)]
    clients = folder / "clients"
    files = [(clients / f"{name}.npz", folder / f"{name}.ledger.sqlite") for name in names]
    return world, settings(world, names, files)


def test_an_index_that_belongs_to_another_certificate_is_refused(tmp_path: Path) -> None:
    world, nodes = cohort(tmp_path)

    def lies(site: str, what: str, said: dict[str, Any]) -> dict[str, Any]:
        if (site, what) == ("client-2", "enrolment") and "participant" in said:
            return {**said, "participant": 0}
        return said

    inside = Inside(world.agreement, tmp_path, nodes, lies)
    inside._options = controller.Options(patience=0.5)
    inside.train()
    assert "belongs to another certificate" in (tmp_path / "run" / "federation.log").read_text()
    assert ("client-2", "refusal") in {(site, what) for site, what, _ in inside.told}
    assert [bool(charges(tmp_path / f"client-{i}.ledger.sqlite")) for i in range(3)] == [True, True, False]


def test_a_member_is_called_as_its_certificate_whatever_it_says(tmp_path: Path) -> None:
    world, nodes = cohort(tmp_path)

    def lies(site: str, what: str, said: dict[str, Any]) -> dict[str, Any]:
        return {**said, "name": "client-0"} if what == "enrolment" else said

    Inside(world.agreement, tmp_path, nodes, lies).train()
    found = look(tmp_path / "run")
    assert [client["name"] for client in found.clients] == ["client-0", "client-1", "client-2"]
    assert found.phase == "finished"


def test_a_site_that_fetches_nothing_any_more_ends_the_job_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = cohort(tmp_path)
    monkeypatch.setattr(controller, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(controller, "LOST_POLLS", 0)
    inside = Inside(world.agreement, tmp_path, nodes)
    carry = inside.broadcast

    def silent(task: Any, *arguments: Any, **options: Any) -> None:
        if task.name != "enrolment" and task.props["site"] == "client-1":
            return
        carry(task, *arguments, **options)

    monkeypatch.setattr(inside, "broadcast", silent)
    with pytest.raises(SiteLost, match="client-1"):
        inside.train()
    assert (tmp_path / "run" / LOST).read_text() == "client-1"

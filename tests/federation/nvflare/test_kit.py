"""A prepared kit runs exactly our part, brings no code and sends no log; the executor answers in no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation.nvflare import CONTROLLER, EXECUTOR, write_job
from sottovoce.federation.nvflare.executor import REFUSALS, answered
from sottovoce.federation.nvflare.kit import KitError, prepare, problems, settings_of
from sottovoce.federation.settings import CANNOT, SettingsError
from tests.federation.world import QUICK, World

from .inside import site_kit


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """An owner's node.toml, with its records."""
    World(tmp_path, **QUICK, seeded=False).kill()
    file = tmp_path / "clients" / "node.toml"
    file.write_text(
        'agreement = "agreement.toml"\ndirectory = "state"\nrecords = "client-0.npz"\nindex = 0\n'
    )
    return file


def local(kit: Path, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((kit / "local" / name).read_text())
    return values


def test_a_site_s_kit_runs_our_executor_alone_and_says_nothing_to_the_server(
    tmp_path: Path, node: Path
) -> None:
    kit = site_kit(tmp_path / "kit")
    assert len(list(problems(kit / "local"))) == 4
    written = prepare(kit, node)
    assert {path.parent for path in written} == {kit / "local"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)
    assert list(problems(kit / "local")) == []
    resources = local(kit, "resources.json")
    assert resources["class_allow_list"] == [EXECUTOR]
    assert resources["allow_log_streaming"] is False
    assert [each["id"] for each in resources["components"]] == ["resource_manager"]
    # What stands in resources.json beside NVFlare's own keys is sent to the server: nothing of ours does.
    assert str(node) not in (kit / "local" / "resources.json").read_text()
    roles = local(kit, "authorization.json")["permissions"]
    assert {role: (rights["byoc"], rights["shell_commands"]) for role, rights in roles.items()} == {
        "project_admin": ("none", "none"),
        "lead": ("none", "none"),
    }
    assert roles["project_admin"]["submit_job"] == roles["lead"]["submit_job"] == "any"


def test_a_server_s_kit_runs_our_controller_alone_and_keeps_its_jobs(tmp_path: Path) -> None:
    kit = site_kit(tmp_path / "kit")
    (kit / "startup" / "fed_client.json").rename(kit / "startup" / "fed_server.json")
    storage = {"path": "x", "args": {"storage": {"path": "y", "args": {"root_dir": "/tmp/nvflare"}}}}
    manager = {"id": "job_manager", "args": {"uri_root": "/tmp/nvflare/jobs-storage"}}
    receiver = {"id": "log_receiver", "path": "nvflare.app_common.logging.job_log_receiver.JobLogReceiver"}
    resources = {"servers": [{"max_num_clients": 100}], "snapshot_persistor": storage}
    (kit / "local" / "resources.json.default").write_text(
        json.dumps({**resources, "components": [manager, receiver]})
    )
    prepare(kit)
    found = local(kit, "resources.json")
    assert found["class_allow_list"] == [CONTROLLER]
    assert found["servers"][0]["max_num_clients"] >= 1000
    assert "/tmp/nvflare" not in json.dumps(found)
    assert [each["id"] for each in found["components"]] == ["job_manager"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("resources.json", {"allow_log_streaming": True}),
        ("resources.json", {"class_allow_list": [EXECUTOR, "a.B"]}),
        ("resources.json", {"class_allow_list": ["*"]}),
        ("resources.json", {"class_list_enforcement_mode": "warn"}),
        ("resources.json", {"components": [{"id": "x", "path": "nvflare.app_common.logging.x.Y"}]}),
        ("authorization.json", {"permissions": {"lead": {"byoc": "any"}}}),
        ("authorization.json", {"permissions": {"project_admin": "any"}}),
    ],
)
def test_a_kit_that_is_open_gets_no_answer_and_only_its_owner_reads_why(
    tmp_path: Path, node: Path, name: str, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kit = site_kit(tmp_path / "kit")
    prepare(kit, node)
    (kit / "local" / name).write_text(json.dumps({**local(kit, name), **change}))
    assert answered(kit / "local", "enrolment", {"run": "r"}) == {"error": CANNOT}
    assert caplog.text == ""  # a line of a log might be sent
    assert "refused to answer" in (kit / "local" / REFUSALS).read_text()
    assert not (node.parent / "state").exists()


def test_a_site_takes_part_in_several_runs_each_with_its_own_settings(tmp_path: Path, node: Path) -> None:
    kit, other = site_kit(tmp_path / "kit"), node.with_name("other.toml")
    other.write_text(node.read_text().replace('"state"', '"elsewhere"'))
    for file in (node, other, node):
        prepare(kit, file)
    assert [each.directory for each in settings_of(kit / "local")] == [
        node.parent / "elsewhere",
        node.parent / "state",
    ]


def test_what_is_no_kit_is_refused_in_one_line(tmp_path: Path, node: Path) -> None:
    with pytest.raises(KitError, match="no startup kit"):
        prepare(tmp_path, node)
    kit = site_kit(tmp_path / "kit")
    with pytest.raises(KitError, match=r"say where its owner's node\.toml is"):
        prepare(kit)
    with pytest.raises(SettingsError, match="no settings"):
        prepare(kit, tmp_path / "nothing.toml")
    (kit / "local" / "resources.json.default").write_text("{")
    with pytest.raises(KitError, match="is not JSON"):
        prepare(kit, node)
    assert not (kit / "local" / "resources.json").exists()


def test_a_job_holds_no_code_and_nothing_for_a_site_to_obey(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK, seeded=False)
    job = write_job(world.agreement, tmp_path / "job", run_directory=tmp_path / "run")
    files = sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file())
    assert files == [
        "app/config/agreement.toml",
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    site = json.loads((job / "app/config/config_fed_client.json").read_text())
    assert site["executors"] == [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}]

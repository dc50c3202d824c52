"""What a service states about its run, and what a client takes from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import Specification, SpecificationError, remote
from sottovoce.federation.onboarding.remote import onboard
from sottovoce.federation.onboarding.service import create_service
from sottovoce.machine.determinism import derived_seed
from tests.federation.world import World

from .live import live


def test_a_specification_that_contradicts_its_plan_is_refused_before_anything_is_charged(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("version", 1), ("context", {"sigma": 1e-9}), ("coefficients", 7)):
        with live(create_service(run, open_to_all=True)) as url:
            honest = remote.Connection.get

            def lie(door: remote.Connection, path: str, name: str = name, value: object = value) -> bytes:
                body = honest(door, path)  # noqa: B023
                return json.dumps({**json.loads(body), name: value}).encode()

            with monkeypatch.context() as patch:
                patch.setattr(remote.Connection, "get", lie)
                with pytest.raises(SpecificationError):
                    onboard(url, records, records.with_name("one"))
    assert not records.with_suffix(".ledger.sqlite").exists()


@pytest.fixture
def example(finished: World) -> Specification:
    return Specification("0123", finished.agreement, bytes(32))


def test_a_specification_survives_json_and_means_what_its_plan_means(example: Specification) -> None:
    blueprint = example.agreement.blueprint()
    stated = json.loads(json.dumps(example.fields(blueprint)))
    parsed = Specification.parse(stated)
    assert parsed == example
    parsed.check(stated, blueprint)
    assert stated["context"]["sensitivity"] == blueprint.releases["context"].sensitivity
    assert stated["context"]["sigma"] == blueprint.releases["context"].sigma
    seed = blueprint.plan.seed
    assert stated["seeds"] == {name: derived_seed(seed, name) for name in ("reference", "basis")}


def test_clients_in_other_languages_find_what_version_3_says(example: Specification) -> None:
    stated = example.fields(example.agreement.blueprint())
    assert (stated["version"], stated["context"]["bucket"], len(stated["digest"])) == (3, 256, 32)


@pytest.mark.parametrize("name", ["digest", "seeds", "coefficients", "context"])
def test_a_stated_value_that_the_plan_does_not_mean_is_refused(example: Specification, name: str) -> None:
    blueprint = example.agreement.blueprint()
    stated = json.loads(json.dumps(example.fields(blueprint)))
    with pytest.raises(SpecificationError, match=f"states {name}"):
        example.check({**stated, name: None}, blueprint)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "not the specification"),
        ([], "not the specification"),
        ({}, "not the specification"),
        ({"version": 1}, "speaks version 1"),
        ({"version": 3}, "lacks its agreement"),
        ({"version": 3, "agreement": "x = "}, "lacks its agreement or its key"),
        ({"version": 3, "service_key": "00" * 32}, "lacks its agreement"),
        ({"version": 3, "agreement": "x = ", "service_key": "00" * 31}, "not an X25519"),
        ({"version": 3, "agreement": "x = ", "service_key": "0G" * 32}, "not an X25519"),
        ({"version": 3, "agreement": "x = ", "service_key": "00" * 32}, "cannot name a run"),
        ({"version": 3, "agreement": "x = ", "service_key": "00" * 32, "run": "a"}, "not TOML"),
    ],
)
def test_what_is_not_a_specification_is_refused(fields: object, said: str) -> None:
    with pytest.raises(SottovoceError, match=said):
        Specification.parse(fields)


def test_another_run_plan_or_key_has_another_digest(example: Specification) -> None:
    others = [
        replace(example, run="4567"),
        replace(example, key=b"\x01" * 32),
        replace(example, agreement=replace(example.agreement, plan=example.agreement.plan.replace(clip=0.5))),
    ]
    assert len({one.digest() for one in (example, *others)}) == 4

"""What both ends hold before anything is released."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import division, load, read_client
from sottovoce.errors import SottovoceError
from sottovoce.federation import MOST_RECORDS, Agreement, AgreementError, agree, write_client_files
from sottovoce.federation.flower import write_app
from sottovoce.machine.documents import MOST_TEXT, ForeignError
from sottovoce.plan.keys import FirstKeys
from tests.run.test_folder import planned, sites
from tests.small import federated_plan


def test_an_agreement_survives_its_file_and_every_key_counts(tmp_path: Path) -> None:
    agreement = agree(federated_plan())
    file = tmp_path / "agreement.toml"
    file.write_text(agreement.to_toml())
    assert Agreement.load(file, simulation=True) == agreement
    assert Agreement.load(file, simulation=True).digest() == agreement.digest()
    other = agree(federated_plan(clip=0.5))
    assert other.digest() != agreement.digest()
    assert agreement.difference(other) == "clip is 1.0 here and 0.5 there"
    rescaled = replace(agreement, facts=replace(agreement.facts, mean=(0.5,)))
    assert "mean" in (agreement.difference(rescaled) or "")
    assert rescaled.digest() != agreement.digest()


@pytest.mark.parametrize("text", ["", "not toml [", "epsilon = 8.0", "[records]\nshape = 3", "\x00"])
def test_what_is_no_agreement_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agreement.toml"
    file.write_text(text)
    with pytest.raises(AgreementError, match="is not an agreement"):
        Agreement.load(file)


def test_an_agreement_says_what_its_records_are() -> None:
    text, table = real().to_toml().split("[records]")
    assert Agreement.parse(f"{text}[records]{table}") == real()
    for without in (text, f"records = 3\n{text}"):
        with pytest.raises(AgreementError, match=r"the table \[records\] is missing"):
            Agreement.parse(without)


def test_an_agreement_about_more_than_fits_into_memory_is_refused_before_anything_is_built() -> None:
    text = real(context_groups=28).to_toml()
    assert "shape = [1, 28, 28]" in text
    with pytest.raises(ForeignError, match="groups of moments over records of 4000000 numbers need too much"):
        Agreement.parse(text.replace("shape = [1, 28, 28]", "shape = [1, 2000, 2000]"))


def test_a_missing_agreement_says_whom_to_ask(tmp_path: Path) -> None:
    with pytest.raises(AgreementError, match="ask the server"):
        Agreement.load(tmp_path / "none.toml")


def test_a_federation_needs_noise() -> None:
    agreement = agree(federated_plan())
    with pytest.raises(AgreementError, match="simulator only"):
        replace(agreement, plan=agreement.plan.replace(epsilon=float("inf")))


def test_features_travel_by_name_and_must_be_those_of_the_plan() -> None:
    plan = federated_plan(features="scattering", feature_size=200, model="linear", coefficients=2010)
    agreement = agree(plan)
    assert agreement.facts.shape == (200,)
    assert agreement.facts.source is not None
    assert agreement.facts.source.shape == (1, 28, 28)
    text = agreement.to_toml()
    assert Agreement.parse(text, simulation=True) == agreement
    for change in (
        ('features = "scattering"', 'features = "none"'),
        ('features = "scattering"', 'features = "os:system"'),
        ("feature_size = 200", "feature_size = 100"),
        ("shape = [1, 28, 28]", "shape = [1, 8192, 8192]"),
        ("shape = [1, 28, 28]", "shape = [784]"),
    ):
        assert change[0] in text
        with pytest.raises(SottovoceError):
            Agreement.parse(text.replace(*change), simulation=True)
    with pytest.raises(SottovoceError, match="does not fit"):
        Agreement.parse(text.split("[records.source]")[0], simulation=True)


def test_agreements_of_version_0_1_keep_their_digest() -> None:
    """Clients that enrolled then hold that digest; keys that came later count when they are set."""
    agreement = agree(federated_plan())
    values = dataclasses.asdict(agreement.plan)
    for later in values.keys() - {field.name for field in dataclasses.fields(FirstKeys)}:
        del values[later]
    values["replay_gains"] = ""  # a key that version 0.1 had
    facts = {name: getattr(agreement.facts, name) for name in ("shape", "classes", "mean", "std")}
    text = json.dumps({**values, **facts}, sort_keys=True)
    assert agreement.digest() == hashlib.sha256(text.encode()).hexdigest()[:32]
    later = replace(agreement, plan=agreement.plan.replace(repeat=1))
    assert later.digest() != agreement.digest()
    assert "repeat" in (agreement.difference(later) or "")


def test_a_seeded_agreement_is_a_simulation_and_no_file_can_say_so(tmp_path: Path) -> None:
    agreement, file = agree(federated_plan()), tmp_path / "agreement.toml"
    file.write_text(agreement.to_toml())
    assert agreement.simulation
    with pytest.raises(AgreementError, match="simulations only"):
        Agreement(agreement.plan, agreement.facts)
    with pytest.raises(AgreementError, match="simulations only"):
        Agreement.load(file)
    file.write_text("simulation = true\n" + agreement.to_toml())
    with pytest.raises(AgreementError, match="unknown plan key"):
        Agreement.load(file, simulation=True)


def test_an_app_for_real_clients_is_not_written_for_a_seeded_plan(tmp_path: Path) -> None:
    agreement = agree(federated_plan())
    with pytest.raises(SottovoceError, match="for real ones"):
        write_app(agreement, tmp_path / "app", run_directory=tmp_path / "run")
    write_app(agreement, tmp_path / "app", run_directory=tmp_path / "run", simulated_clients=tmp_path)


def real(**changes: object) -> Agreement:
    """An agreement between real clients, whose noise is not seeded."""
    agreed = agree(federated_plan(seeded=False))
    return replace(agreed, plan=agreed.plan.replace(**changes), model=None)


def test_what_this_machine_says_of_an_agreement_is_no_part_of_it() -> None:
    agreement = real()
    assert replace(agreement, simulation=True) == agreement == replace(agreement, model="lenet")
    assert not agreement.simulation
    with pytest.raises(AgreementError, match="simulations only"):
        Agreement.parse(agree(federated_plan()).to_toml())


def test_pictures_that_are_turned_are_for_simulations() -> None:
    with pytest.raises(AgreementError, match="shift=turns is for simulations"):
        real(shift="turns")


def test_an_agreement_may_be_as_long_as_is_said_and_no_longer(tmp_path: Path) -> None:
    agreement, file = real(), tmp_path / "agreement.toml"
    text = agreement.to_toml()
    room = MOST_TEXT - len(text) - 1
    file.write_text("#" * room + "\n" + text)  # what counts comes last
    assert Agreement.load(file) == agreement
    file.write_text("#" * (room + 1) + "\n" + text)
    with pytest.raises(AgreementError, match="at most"):
        Agreement.load(file)
    for letters in ("é", "#é"):  # two bytes each: wherever the file is cut, it is not taken without its end
        file.write_text(text + "#" + letters + "é" * MOST_TEXT)
        with pytest.raises(AgreementError, match="not an agreement"):
            Agreement.load(file)


@pytest.mark.parametrize(
    ("gradients", "contexts", "context", "open_"),
    [
        (80, 40, "labels", False),
        (0, 40, "labels", True),
        (80, 0, "labels", True),
        (80, 0, "public", False),
        (0, 0, "public", True),
    ],
)
def test_an_agreement_is_open_while_a_number_of_records_is_left_to_the_clients(
    gradients: int, contexts: int, context: str, open_: bool
) -> None:
    agreement = real(gradient_records=gradients, context_records=contexts, context=context)
    assert agreement.open == open_
    if not open_:
        assert agreement.alone(99) is agreement
        return
    with pytest.raises(AgreementError, match="not declared"):
        agreement.blueprint()
    frozen = agreement.frozen([90, 80, 100])
    assert not frozen.open
    assert frozen.sizes == (90, 80, 100)
    assert (frozen.plan.gradient_records, frozen.plan.context_records) == (gradients, contexts)
    assert "sizes = [90, 80, 100]" in frozen.to_toml()
    assert Agreement.parse(frozen.to_toml()) == frozen
    assert frozen.digest() != agreement.digest()
    alike = agreement.alone(95)
    assert alike.sizes == (95, 95, 95)
    assert alike.plan.gradient_records == (gradients or 95)
    assert alike.plan.context_records == (contexts or 95)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [90, 90],
        [90] * 4,
        [90, 90, 0],
        [90, 90, -1],
        [90, 90, True],
        [90, 90, 90.0],
        [90, 90, MOST_RECORDS + 1],
    ],
)
def test_an_agreement_is_frozen_with_whole_numbers_of_all_participants(sizes: list[int]) -> None:
    with pytest.raises(AgreementError, match="frozen with the training records of its 3"):
        real(gradient_records=0).frozen(sizes)


def test_the_smallest_participant_has_as_many_records_as_the_plan_averages_over() -> None:
    agreement = real(gradient_records=0, context_records=40)
    assert agreement.frozen([40, 50, MOST_RECORDS]).sizes == (40, 50, 2_147_483_648)
    with pytest.raises(AgreementError, match="smallest participant has 39"):
        agreement.frozen([39, 50, 60])
    everything = real(gradient_records=0, context="public", context_records=0)
    assert everything.frozen([1, 2, 3]).sizes == (1, 2, 3)


def test_a_delta_that_nobody_set_is_settled_with_the_sizes_at_both_ends_alike() -> None:
    agreement = real(gradient_records=0)
    assert "\ndelta =" not in agreement.to_toml()
    received = Agreement.parse(agreement.to_toml())
    assert received.digest() == agreement.digest()
    frozen = agreement.frozen([80_000, 90_000, 100_000])
    assert frozen.plan.delta == pytest.approx(1e-6)
    assert received.frozen([80_000, 90_000, 100_000]).digest() == frozen.digest()
    assert Agreement.parse(frozen.to_toml()) == frozen
    assert agreement.frozen([80, 90, 100]).plan.delta == 1e-5


def test_an_agreement_is_not_frozen_with_a_delta_that_may_give_a_record_away() -> None:
    agreement = Agreement.parse(real(gradient_records=0, delta=0.009).to_toml())
    assert agreement.plan.delta == 0.009
    assert agreement.frozen([80, 90, 100]).plan.delta == 0.009
    with pytest.raises(SottovoceError, match=r"delta=0.009 is above one over the records of the smallest"):
        agreement.frozen([90, 90, 100])


def test_an_agreement_that_states_its_records_has_no_delta_that_may_give_one_away() -> None:
    sizes = {"gradient_records": 100, "context_records": 50}
    assert Agreement.parse(real(**sizes, delta=0.01).to_toml()).plan.delta == 0.01
    text = real(**sizes, delta=0.01).to_toml()
    with pytest.raises(AgreementError, match=r"delta=0.5 is above one over gradient_records=100"):
        Agreement.parse(text.replace("delta = 0.01", "delta = 0.5"))


@pytest.mark.parametrize("noise", ["client", "server"])
def test_a_client_that_declares_any_number_of_records_does_not_get_the_model_to_itself(noise: str) -> None:
    plan = federated_plan(
        seeded=False,
        method="blend",
        context="public",
        noise=noise,
        weighting=1.0,
        participants=12,
        clients_per_round=12,
        model="linear",
        features="none",
        gradient_records=0,
    )
    facts = agree(federated_plan(seeded=False)).facts
    honest, lying = [100] * 11, MOST_RECORDS
    blueprint = Agreement(plan, facts, model="linear").frozen([*honest, lying]).blueprint()
    assert blueprint.blending.weights[-1] == pytest.approx(10 / 21)
    if blueprint.round_sum is not None:
        weights = blueprint.round_sum.weights(blueprint.counted)
        assert weights[-1] / weights.sum() == pytest.approx(10 / 21)
        moved = weights * 2 * plan.clip / np.asarray(blueprint.sizes)
        assert moved.max() <= blueprint.releases_of(0)["gradient"].sensitivity * (1 + 1e-12)
    stated = Agreement(plan.replace(counted_records=100), facts, model="linear").frozen([*honest, lying])
    assert stated.blueprint().blending.weights.tolist() == pytest.approx([1 / 12] * 12)


def test_the_files_are_the_simulators_clients_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    agreement, dataset = agree(federated_plan()), load("mnist-small")
    files = write_client_files(agreement, tmp_path / "clients")
    assert [file.name for file in files] == ["client-0.npz", "client-1.npz", "client-2.npz", "future-0.npz"]
    for file, index in zip(files, division(dataset, agreement.plan), strict=True):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with np.load(file) as arrays:
            assert (arrays["x"] == dataset.x[index].numpy()).all()
        records = read_client(file, facts=agreement.facts, needed=1)
        assert torch.equal(records.y, dataset.y[index])
    assert Agreement.load(tmp_path / "clients" / "agreement.toml", simulation=True) == agreement


def test_an_agreement_is_resolved_as_the_simulator_resolves_its_plan() -> None:
    agreement = agree(federated_plan(gradient_records=0))
    assert agreement.plan.gradient_records == 80


def test_sites_that_have_their_files_are_not_given_others(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites", sizes={"north": 10, "west": 10})
    with pytest.raises(SottovoceError, match=f"which have their files already: give its agreement {folder}"):
        agree(planned(folder))

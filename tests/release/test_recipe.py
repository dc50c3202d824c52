"""How much each part of a blended coefficient vector moves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce.data import Dataset, Facts
from sottovoce.data.tables.schema import Description
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.plan.recipes import V0_2
from sottovoce.release.recipe import Blending, blending, bounds, clip_bound, kept_parts
from sottovoce.run.prepare import prepare, resolve
from sottovoce.run.training import train
from sottovoce.training.generator import Blend

TABLE = """
task = "{}"
[target]
{}
[columns.age]
kind = "number"
low = 0
high = 100
"""
TARGETS = {
    "classes": 'column = "ill"\nvalues = ["no", "yes"]',
    "number": 'column = "cost"\nlow = 0\nhigh = 9',
    "labels": 'columns = ["ill", "old"]',
}
BLEND = {
    "preset": "tuned",
    "method": "blend",
    "context": "public",
    "participants": 3,
    "clients_per_round": 3,
    "learning_rate": 0.0,
    "weighting": 1.5,
}
FEATURES = bounds(Plan(), Facts((1,), 2))
SIZES, SIGMAS = (800, 400, 100), (0.05, 0.1, 0.4)


def blend_plan(**changes: object) -> Plan:
    return Plan.load(overrides={**BLEND, **changes})


def test_a_larger_client_counts_more_and_keeps_a_larger_own_part() -> None:
    found = blending(blend_plan(), SIZES, SIGMAS, releases=40)
    assert found.weights.sum() == pytest.approx(1)
    assert found.weights[0] > found.weights[1] > found.weights[2]
    assert found.individual[0] > found.individual[1] > found.individual[2] > 0
    assert (found.shared + found.individual + found.generated).tolist() == pytest.approx([1, 1, 1])


def test_noise_alone_moves_the_shared_part_alike_whatever_its_scale() -> None:
    one = blending(blend_plan(), SIZES, SIGMAS, releases=40)
    other = blending(blend_plan(), SIZES, [3 * sigma for sigma in SIGMAS], releases=40)
    assert one.step == pytest.approx(3 * other.step)
    assert one.individual.tolist() == pytest.approx(other.individual.tolist())


def test_without_noise_the_step_is_bounded() -> None:
    found = blending(blend_plan(), SIZES, (0.0, 0.0, 0.0), releases=40)
    assert found.step == V0_2.tasks["classes"].largest_step


def test_momentum_in_sums_is_made_up_for_by_the_step() -> None:
    plain, heavy = (
        blending(blend_plan(momentum=beta), SIZES, SIGMAS, releases=40).step for beta in (0.0, 0.9)
    )
    assert heavy == pytest.approx(0.1 * plain)


def test_shares_beyond_one_are_refused() -> None:
    with pytest.raises(PlanError, match="shares of 1"):
        blend_plan(context="moments", generated=0.6, individual=0.5)


def generator(individual: float, generated: float = 0.0) -> Blend:
    context = "moments" if generated else "public"
    plan = blend_plan(individual=individual, generated=generated, context=context, learning_rate=1.0)
    return Blend(torch.ones(4), 8, 5, blending(plan, SIZES, SIGMAS, releases=40))


def test_an_own_part_moves_by_its_own_release_undivided_and_by_no_other() -> None:
    blend = generator(individual=0.25)
    releases = torch.randn(2, 5)
    blend.vjp(torch.ones(2, 4), releases / 2, releases, [0, 2])
    assert set(blend.own) == {"0", "2"}
    assert blend.own["0"].grad is not None
    assert torch.allclose(blend.own["0"].grad, 0.5 * releases[0])
    assert blend.shared.grad is not None
    assert torch.allclose(blend.shared.grad, 0.75**0.5 * releases.mean(dim=0))


def test_the_parts_of_a_coefficient_vector_are_the_papers_map_with_a_fixed_h() -> None:
    """a_i = W h_i: one step along a release moves client j by ⟨h_j, h_i⟩ times it (own columns unscaled)."""
    blend = generator(individual=0.0, generated=0.5)
    contexts = torch.randn(2, 4)
    release = torch.randn(1, 5)
    blend.vjp(contexts[:1], release, release, [0])
    with torch.no_grad():
        for parameter in blend.parameters():
            if parameter.grad is not None:
                parameter -= parameter.grad
    h = torch.cat([torch.full((2, 1), 0.5**0.5), blend._features(contexts)], dim=1)
    assert torch.allclose(h.norm(dim=1), torch.ones(2), atol=1e-6)
    assert torch.allclose(blend(contexts, [0, 1]), -(h @ h[0])[:, None] * release, atol=1e-5)


def test_a_future_client_has_no_own_part() -> None:
    blend = generator(individual=1.0)
    releases = torch.ones(1, 5)
    blend.vjp(torch.ones(1, 4), releases, releases, [1])
    with torch.no_grad():
        blend.own["1"] -= 1.0
    assert torch.equal(blend(torch.ones(1, 4)), torch.zeros(1, 5))
    assert torch.equal(blend(torch.ones(1, 4), [1]), -torch.ones(1, 5))


def test_a_future_client_gets_the_mean_of_what_participants_have() -> None:
    """The shared part alone would be longer than anybody's: it was made to stand beside own parts."""
    blend = generator(individual=0.5, generated=0.2)
    contexts, releases = torch.randn(3, 4), torch.randn(3, 5)
    blend.vjp(contexts, releases / 3, releases, [0, 1, 2])
    with torch.no_grad():
        for parameter in blend.parameters():
            if parameter.grad is not None:
                parameter -= parameter.grad
    alike = contexts[:1].expand(3, -1)  # what is generated follows one's own context
    mean = torch.as_tensor(blend._blending.weights).float() @ blend(alike, [0, 1, 2])
    assert torch.allclose(blend(contexts[:1])[0], mean, atol=1e-6)


def test_a_run_keeps_the_own_shares_that_it_was_trained_with() -> None:
    """A later recipe may have others, and its models would not be those that were judged."""
    trained, later = generator(0.5), generator(0.25)
    trained.admitted("0", torch.arange(5.0))
    context = torch.zeros(1, 4)
    later.load_state_dict(trained.state_dict())
    assert torch.equal(later(context, [0]), trained(context, [0]))
    assert later.state_dict()["individual"].tolist() == trained.state_dict()["individual"].tolist()
    before = {name: value for name, value in trained.state_dict().items() if name != "individual"}
    other = generator(0.25)
    other.load_state_dict(before)  # of version 0.1: the recipe's
    assert not torch.equal(other(context, [0]), trained(context, [0]))
    for value in (-0.1, 1.5, float("nan")):
        state = trained.state_dict() | {"individual": torch.full_like(trained.individual, value)}
        with pytest.raises(RuntimeError, match="shares"):
            generator(0.25).load_state_dict(state)


def test_own_parts_survive_saving_and_loading() -> None:
    blend, again = generator(individual=0.5), generator(individual=0.5)
    blend.vjp(torch.ones(1, 4), torch.ones(1, 5), torch.ones(1, 5), [2])
    with torch.no_grad():
        blend.own["2"] += 3.0
    again.load_state_dict(blend.state_dict())
    assert torch.equal(blend(torch.ones(1, 4), [2]), again(torch.ones(1, 4), [2]))


@pytest.fixture(scope="module")
def sites() -> Dataset:
    """Three sites of 400, 200 and 100 records whose rule is shifted from site to site."""
    rng = np.random.default_rng(4)
    owner = np.repeat([0, 1, 2], [400, 200, 100])
    z = rng.standard_normal((700, 6))
    y = ((z + rng.standard_normal((3, 6))[owner]) @ rng.standard_normal((6, 3))).argmax(axis=1)
    x = torch.from_numpy(z / 6**0.5).float()
    return Dataset("sites", x, torch.from_numpy(y), Facts((6,), 3), torch.from_numpy(owner))


def site_plan(**changes: object) -> Plan:
    own = {"partition": "client", "future_clients": 0, "records_per_client": 0, "model": "linear"}
    run = {"rounds": 20, "coefficients": 21, "context_records": 50, "channel": "direct", "seeded": True}
    return blend_plan(**own, **run, momentum=0.9, averaging=0.3, clip=0.5, evaluate_every=0, **changes)


def test_every_site_spends_the_budget_with_noise_of_its_own_size(tmp_path, sites) -> None:
    result = train(site_plan(epsilon=4.0), tmp_path / "run", dataset=sites)
    spent = result["epsilon"]["per_client"].values()
    assert all(3.99 < epsilon <= 4.0 for epsilon in spent)
    plan = Plan.load(tmp_path / "run" / "plan.toml")
    assert plan.gradient_records == 0  # each its own


def test_blend_learns_what_neither_one_model_nor_a_site_alone_does(tmp_path, sites) -> None:
    """In the mean over five draws of the held-out records, of which there are 140: 88.3, 87.2 and 78.1 %."""
    accuracy: dict[str, float] = {}
    for name, individual in {"alone": 1.0, "shared": 0.0, "blend": -1.0}.items():
        for seed in range(41, 46):
            plan = site_plan(epsilon=8.0, individual=individual, seed=seed)
            result = train(plan, tmp_path / f"{name}-{seed}", dataset=sites)
            accuracy[name] = accuracy.get(name, 0.0) + result["accuracy"]["seen"] / 5
    assert accuracy["blend"] > max(accuracy["alone"], accuracy["shared"])


def test_a_resumed_blend_gives_the_same_numbers(tmp_path, sites) -> None:
    whole = train(site_plan(epsilon=8.0), tmp_path / "whole", dataset=sites)

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 13:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        train(site_plan(epsilon=8.0), tmp_path / "cut", dataset=sites, on_round=stop)
    resumed = train(site_plan(epsilon=8.0), tmp_path / "cut", dataset=sites, resume=True)
    assert resumed["accuracy"] == whole["accuracy"]
    assert resolve(site_plan(), [320, 160, 80], Facts((6,), 3)).gradient_records == 0


def test_with_noise_at_the_server_own_parts_get_shorter_steps_not_smaller_shares() -> None:
    plan = blend_plan(noise="server", weighting=1.0)
    found = blending(plan, SIZES, [0.001 * 1300 / size for size in SIZES], releases=40, summed=0.001)
    assert found.individual.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert found.step >= found.own_steps[0] > found.own_steps[1] > found.own_steps[2] > 0
    assert found.step <= V0_2.summed_step


def table(task: str = "classes") -> Facts:
    return Description.parse(TABLE.format(task, TARGETS[task])).facts()


def table_plan(**changes: object) -> Plan:
    return Plan.load(overrides={"preset": "best", "dataset": "mine.npz", "participants": 3, **changes})


def test_tables_have_a_recipe_of_their_own_and_nothing_else_has() -> None:
    found = bounds(table_plan(), table())
    assert found.largest_step < FEATURES.largest_step
    assert bounds(table_plan(), table("number")).drift < found.drift
    array = Description.parse(
        'task = "classes"\n[target]\ncolumn = "y"\nvalues = ["a", "b"]\n[array]\nshape = [6]'
    )
    for other in (array.facts(), Facts((20,), 2), Facts((20,), 2, source=table())):
        assert bounds(table_plan(), other) == FEATURES
    assert bounds(table_plan(), table("labels")) == FEATURES
    assert bounds(table_plan(model="mlp"), table()) == FEATURES


@pytest.mark.parametrize(
    ("task", "momentum", "largest"), [("classes", 0.9, 1.9), ("number", 0.9, 0.95), ("number", 0.0, 0.5)]
)
def test_without_noise_no_step_on_a_table_is_longer_than_the_curvature_bears(
    task: str, momentum: float, largest: float
) -> None:
    plan = table_plan(momentum=momentum)
    for summed in (None, 0.0):
        found = blending(plan, SIZES, (0.0, 0.0, 0.0), 40, summed, bounds(plan, table(task)))
        assert found.step == pytest.approx(largest)
        assert (found.own_steps <= found.step).all()


def test_the_clip_bound_of_a_table_grows_as_noise_falls_and_what_is_set_stays() -> None:
    clips = [resolve(table_plan(epsilon=epsilon), [400] * 3, table()).clip for epsilon in (1, 8, 16, 64)]
    assert clips[0] == 0.15
    assert sorted(clips) == clips
    assert resolve(table_plan(epsilon=1, calibration=0), [400] * 3, table()).clip == 1.0
    assert clips[-1] == 2.0
    assert resolve(table_plan(epsilon=1), [400] * 3, table("number")).clip == 0.25
    assert resolve(table_plan(epsilon=1, clip=0.7), [400] * 3, table()).clip == 0.7
    assert resolve(table_plan(epsilon=1), [400] * 3, Facts((20,), 2)).clip == 0.5
    found = bounds(table_plan(), table())
    at = {noise: clip_bound(found, table_plan(noise=noise), SIZES, 2.0) for noise in ("client", "server")}
    assert at["server"] > at["client"]


@pytest.mark.parametrize("summed", [None, 0.001])
def test_own_parts_of_few_records_stay_small_on_tables_however_little_noise_there_is(
    summed: float | None,
) -> None:
    """Which records a site happens to have is noise to its own part that no epsilon takes away."""
    plan, sizes, quiet = table_plan(), (4000, 400, 40), (1e-6, 1e-6, 1e-6)
    found = blending(plan, sizes, quiet, 40, summed, bounds(plan, table("number")))
    moved = found.individual * found.own_steps
    assert moved[0] > moved[1] > moved[2]
    none = blending(plan, sizes, quiet, 40, summed, replace(bounds(plan, table("number")), luck=0.0))
    assert none.individual.tolist() == [0.15 if summed is None else 0.2] * 3


def test_own_shares_of_tables_fall_with_the_steps_that_noise_in_a_sum_leaves_the_shared_part() -> None:
    plan, shares = table_plan(noise="server", weighting=1.0), []
    for summed in (1e-6, 0.03, 0.3):
        sigmas = [summed * sum(SIZES) / size for size in SIZES]
        found = blending(plan, SIZES, sigmas, 40, summed, bounds(plan, table()))
        assert found.individual[0] == pytest.approx(0.2 * found.step / 1.9)
        shares.append(found.individual[0])
    assert shares[0] == 0.2 > shares[1] > shares[2] > 0


def test_a_bias_is_scaled_on_tables_whose_linear_model_adapts_as_a_whole_and_nowhere_else() -> None:
    def scale(facts: Facts, **changes: object) -> float:
        return resolve(table_plan(**changes), [400] * 3, facts).bias_scale

    assert (scale(table()), scale(table("number")), scale(table(), bias_scale=0.9)) == (0.4, 0.7, 0.9)
    assert scale(table("labels")) == scale(Facts((20,), 2)) == scale(table(), model="mlp") == 1.0
    assert scale(table(), coefficients=2) == scale(table(), preset="tuned", context="public") == 1.0
    for bad in (1.5, -0.5, float("nan")):
        with pytest.raises(PlanError, match="bias_scale"):
            table_plan(bias_scale=bad)


def test_a_bias_counts_in_full_where_columns_state_how_far_they_spread() -> None:
    text = TABLE.format("classes", TARGETS["classes"])
    stated, some = (
        f"{text}mean = 50\nstd = 20\n",
        f'{text}[columns.b]\nkind = "number"\nlow = 0\nhigh = 9\nstd = 2\n',
    )
    found = [resolve(table_plan(), [400] * 3, Description.parse(each).facts()) for each in (stated, some)]
    assert [plan.bias_scale for plan in found] == [1.0, 0.4]


def of_categories(task: str, *, numbers: bool) -> Facts:
    """A table of two categories, or of one beside its number."""
    names = '[columns.{}]\nkind = "category"\nvalues = ["a", "b"]\n'
    text = TABLE.format(task, TARGETS[task])
    if numbers:
        return Description.parse(text + names.format("sex")).facts()
    return Description.parse(
        text.partition("[columns.age]")[0] + names.format("sex") + names.format("side")
    ).facts()


def far(facts: Facts, noise: float, size: int = 4000, **changes: object) -> float:
    """Step × rounds of the shared part of three sites, as far as a constant gradient would move it."""
    plan = table_plan(rounds=100, **{"clip": 0.5, **changes})
    sigmas = [noise * math.sqrt(3 * 100)] * 3
    return blending(plan, [size] * 3, sigmas, 100, within=bounds(plan, facts)).step * 100 / 0.1


def test_a_table_of_categories_goes_a_third_as_far_and_a_number_task_does_not_care() -> None:
    mixed, alone = (of_categories("classes", numbers=numbers) for numbers in (True, False))
    told = [far(facts, 0.002) / far(table(), 0.002) for facts in (mixed, alone)]
    share = bounds(table_plan(), mixed).categorical
    assert 0 < share < 1
    assert told == pytest.approx([0.35**share, 0.35])
    assert far(of_categories("number", numbers=False), 0.002) == far(table("number"), 0.002)


def test_no_table_of_classes_leads_a_run_further_than_its_records_tell_however_little_noise_there_is() -> (
    None
):
    categories = of_categories("classes", numbers=False)
    assert [far(table(), 1e-6, size) for size in (10, 20)] == pytest.approx([4.5 * 30, 4.5 * 60])
    for size, clip, bound in ((100, 0.5, 0.5), (200, 0.5, 0.5), (100, 4.0, 1.0)):
        found = far(categories, 1e-6, size, clip=clip)
        assert found == pytest.approx(0.25 * 3 * size / bound)
    assert far(table(), 1e-6) == far(categories, 1e-6) == pytest.approx(1900)  # what the curvature bears
    assert far(table("number"), 1e-6, 10) == far(table("number"), 1e-6)


def test_drift_grows_as_the_cube_root_of_noise_that_the_least_clip_bound_cannot_take_away() -> None:
    found = [far(table(), noise) * noise for noise in (0.0005, 0.001, 0.008, 0.064)]
    assert found[1:] == pytest.approx([1.4, 2.8, 5.6])
    assert found[0] == pytest.approx(min(1.4, 1900 * 0.0005))


def test_in_a_sum_half_of_what_luck_allows_is_kept_of_own_parts() -> None:
    plan, sizes = table_plan(noise="server", weighting=1.0), [20] * 3
    sigmas = [1e-9 * 3] * 3
    found = blending(plan, sizes, sigmas, 40, 1e-9, bounds(plan, table()))
    free = blending(plan, [10**12] * 3, sigmas, 40, 1e-9, bounds(plan, table()))
    assert free.least_kept == pytest.approx([0.5] * 3)
    assert (found.least_kept < 0.5).all()


def parts(signal: float, seed: int = 0) -> tuple[Blending, np.ndarray]:
    """A blend of forty sites, and own parts of noise with something common and biases that differ."""
    rng, sizes = np.random.default_rng(seed), [400] * 40
    plan = table_plan(participants=40)
    found = blending(plan, sizes, [0.02] * 40, 40, within=bounds(plan, table()))
    drawn = rng.normal(size=(40, 42)) * found.own_noise[:, :1]
    drawn[:, -2:] *= found.own_noise[:, 1:] / found.own_noise[:, :1]
    sign = rng.choice([-1.0, 1.0], size=40) * signal
    drawn[:, -2:] += np.stack([sign, -sign], axis=1)
    return found, drawn + np.linspace(-1, 1, 42)


def test_own_parts_that_noise_alone_explains_keep_no_more_than_luck_allows() -> None:
    found, drawn = parts(signal=0.0)
    kept = kept_parts(found, drawn, range(40), classes=2)
    common = drawn.mean(axis=0)
    assert np.allclose(kept.mean(axis=0), common)
    share = np.linalg.norm(kept - common) / np.linalg.norm(drawn - common)
    assert share == pytest.approx(found.least_kept[0], abs=0.05)
    assert found.least_kept[0] < 0.5


def test_own_biases_that_differ_are_kept_though_weights_are_noise() -> None:
    found, drawn = parts(signal=5.0 * float(parts(0.0)[0].own_noise[0, 1]))
    kept, common = kept_parts(found, drawn, range(40), classes=2), drawn.mean(axis=0)
    biases, weights = slice(-2, None), slice(None, -2)
    shares = [
        float(np.linalg.norm((kept - common)[:, block]) / np.linalg.norm((drawn - common)[:, block]))
        for block in (biases, weights)
    ]
    assert shares[0] > 0.9
    assert shares[1] < 0.5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_noise_alone_moves_is_what_torchs_descent_makes_of_it(momentum: float) -> None:
    plan = table_plan(momentum=momentum)
    without_luck = replace(bounds(plan, table()), curvatures=(1e9, 1e9))
    found = blending(plan, SIZES, SIGMAS, 40, within=without_luck)
    rng, moving = torch.Generator().manual_seed(0), torch.zeros(20_000, requires_grad=True)
    step = float(found.own_steps[0] * found.individual[0])
    descent, mean = torch.optim.SGD([moving], lr=step, momentum=momentum), torch.zeros(20_000)
    for number in range(40):
        moving.grad = SIGMAS[0] * torch.randn(20_000, generator=rng)
        descent.step()
        mean += moving.detach() / 12 if number >= 28 else 0.0
    # 20,000 draws: a standard error of half a percent.
    assert float(mean.std()) == pytest.approx(found.own_noise[0, 0], rel=0.025)


def test_luck_leads_an_own_part_no_further_than_the_best_fit_of_its_records_lies() -> None:
    """Of m records the mean that fits best lies 1/√(curvature · m) from the true one; without noise."""
    plan, sizes = table_plan(), (4000, 400, 40)
    steep = replace(bounds(plan, table()), curvatures=(0.5, 2.0))
    found = blending(plan, sizes, (1e-9, 1e-9, 1e-9), 40, within=steep)
    assert found.own_noise == pytest.approx(
        np.array([[(h * m) ** -0.5 for h in (0.5, 2.0)] for m in sizes]), rel=1e-6
    )
    flat = replace(bounds(plan, table()), curvatures=(1e-9, 1e-9))
    assert (blending(plan, sizes, (1e-9, 1e-9, 1e-9), 40, within=flat).own_noise < found.own_noise).all()


def test_own_parts_are_shrunk_by_the_recipe_of_tables_of_classes_alone() -> None:
    def least(facts: Facts, **changes: object) -> float:
        plan = table_plan(**changes)
        return float(blending(plan, SIZES, SIGMAS, 40, within=bounds(plan, facts)).least_kept.min())

    assert least(table()) < 1
    assert least(table("number")) == least(Facts((20,), 2)) == least(table(), individual=0.1) == 1
    assert least(table(), averaging=0.0) == least(table(), coefficients=2) == 1


def test_keys_that_somebody_sets_win_over_the_recipe() -> None:
    plan = table_plan(learning_rate=0.3, individual=0.1)
    found = blending(plan, SIZES, SIGMAS, 40, within=bounds(plan, table()))
    assert found.step == 0.3
    assert found.individual.tolist() == [0.1] * 3


def test_the_recipe_knows_how_many_records_there_are_and_nothing_of_what_they_hold() -> None:
    """It is given facts, sizes and the plan: other records of these sizes train by the same numbers."""
    generator, owner, plans = torch.Generator().manual_seed(0), torch.arange(3).repeat_interleave(100), []
    for share in (0.02, 0.5):
        x, y = (
            torch.rand(300, 1, generator=generator) * share,
            (torch.rand(300, generator=generator) < share).long(),
        )
        prepared = prepare(
            table_plan(participants=0, partition="client", future_clients=0),
            Dataset("mine.npz", x, y, table(), owner),
        )
        plans.append((prepared.plan, prepared.blueprint.blending))
    (one, first), (other, second) = plans
    assert one == other
    assert (first.step, first.individual.tolist(), first.own_steps.tolist()) == (
        second.step,
        second.individual.tolist(),
        second.own_steps.tolist(),
    )

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sottovoce.models import (
    ModelError,
    flat_parameters,
    import_model,
    lenet,
    logits,
    open_model,
    state_dict_at,
)


@pytest.mark.parametrize(("shape", "size"), [((1, 28, 28), 85_822), ((3, 32, 32), 121_182)])
def test_lenet_has_the_papers_number_of_parameters(shape: tuple[int, ...], size: int) -> None:
    assert flat_parameters(lenet(shape, 10)).numel() == size


def test_the_reference_follows_from_the_public_seed_alone() -> None:
    torch.manual_seed(123)
    first = flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))
    state = torch.random.get_rng_state()
    again = flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))
    assert torch.equal(first, again)
    assert not torch.equal(first, flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=6)))
    assert torch.equal(state, torch.random.get_rng_state())


def test_threads_open_the_same_reference() -> None:
    def reference(_: int) -> torch.Tensor:
        return flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(reference, range(40))
    assert all(torch.equal(first, other) for other in others)


def test_a_flat_vector_and_a_loaded_module_are_the_same_model() -> None:
    module = lenet((1, 28, 28), 10)
    theta = torch.randn(flat_parameters(module).numel()) * 0.05
    x = torch.randn(3, 1, 28, 28)
    fresh = lenet((1, 28, 28), 10)
    fresh.load_state_dict(state_dict_at(module, theta))
    assert torch.allclose(logits(module, theta, x), fresh(x), atol=1e-6)


@pytest.mark.parametrize("name", ["resnet", "no.such.module:build", "sottovoce.models:nothing"])
def test_unknown_models_are_refused(name: str) -> None:
    for opened in (open_model, import_model):
        with pytest.raises(ModelError):
            opened(name, (1, 28, 28), 10, seed=0)


def test_opening_a_model_imports_nothing_and_importing_one_is_asked_for_by_name() -> None:
    with pytest.raises(ModelError, match="not a built-in"):
        open_model("tests.small:tiny", (1, 28, 28), 10, seed=0)
    assert len(flat_parameters(import_model("tests.small:tiny", (1, 28, 28), 10, seed=0))) == 12_730


def test_records_that_do_not_fit_lenet_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 16"):
        lenet((1, 8, 8), 10)
    with pytest.raises(ModelError, match="images"):
        lenet((20,), 2)

"""The benchmark measures what its keys say."""

from __future__ import annotations

import torch

from studies.bench import gradients


def test_the_benchmark_names_its_ratios_and_leaves_the_threads_as_they_were() -> None:
    threads = torch.get_num_threads()
    ratios = gradients.measure(records=4, repeats=1)
    keys = {"structured_over_plain", "unstructured_over_plain", "vmap_over_plain", "identity_over_plain"}
    assert keys <= ratios.keys()
    assert all(ratio > 0 for ratio in ratios.values())
    assert torch.get_num_threads() == threads

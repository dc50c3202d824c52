"""The server's steps beside torch's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from sottovoce.training.optimizers import Descent


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torchs_sgd_bit_for_bit(momentum: float) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    theirs.load_state_dict(ours.state_dict())
    descent = Descent(ours, 0.3, momentum)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=momentum)
    for _ in range(20):
        x = torch.randn(3, 7)
        for module, forget, step in (
            (ours, descent.zero, descent.step),
            (theirs, optimizer.zero_grad, optimizer.step),
        ):
            forget()
            module(x).square().sum().backward()
            step()
    assert all(ours.state_dict()[name].equal(value) for name, value in theirs.state_dict().items())


def test_means_are_those_of_all_rounds_though_a_parameter_that_stays_is_not_looked_at() -> None:
    torch.manual_seed(1)
    module = nn.ParameterDict({name: nn.Parameter(torch.randn(4)) for name in ("often", "seldom", "never")})
    descent, first = Descent(module, 0.3, 0.9), 5
    history: dict[str, list[torch.Tensor]] = {name: [] for name in (*module, "late")}
    for number in range(20):
        if number == 12:
            module["late"] = nn.Parameter(torch.zeros(4))
        descent.zero()
        for name in ["often", *(["seldom"] if number in (3, 8, 9, 17) else []), *(["late"] * (number > 12))]:
            module[name].grad = torch.randn(4)
        descent.step()
        descent.averaged = max(0, number + 1 - first)
        if number >= first:
            for name, values in history.items():
                values.append(module[name].detach().clone() if name in module else torch.zeros(4))
    assert descent.rounds["seldom"] == 17 - first  # not since it moved last
    for name, mean in descent.final_means().items():
        assert torch.allclose(mean, torch.stack(history[name]).mean(dim=0), atol=1e-6)


def test_a_server_does_not_load_torchs_compiler() -> None:
    code = (
        "import sys; from sottovoce.release.blueprint import build; from sottovoce.plan import Plan\n"
        "from sottovoce.data import Facts; from sottovoce.training.server import Server\n"
        "given = {'preset': 'tuned', 'gradient_records': 40, 'coefficients': 256, 'basis': 'unstructured'}\n"
        "plan = Plan.load(overrides=given)\n"
        "Server(build(plan, Facts((1, 28, 28), 10))); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

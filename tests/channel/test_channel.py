"""What every channel promises its caller, whatever code is behind it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from sottovoce.channel import CHANNELS, ChannelError, SeededRandomness, channel_class, open_channel

SECRET = bytes(range(32))


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("make", [np.float32, np.float64, torch.float32, torch.float64], ids=str)
def test_numpy_and_torch_inputs_of_both_precisions_are_carried(name: str, make: type) -> None:
    values = [0.5, -0.25, 1.0, 0.0, 2.0]
    u = torch.tensor(values, dtype=make) if isinstance(make, torch.dtype) else np.array(values, dtype=make)
    channel = open_channel(name, size=5, sigma=1e-4)
    message = channel.encode(u, secret=SECRET, stream=("c", 1), private=SeededRandomness(b"1"))
    y = open_channel(name, size=5, sigma=1e-4).decode(message, secret=SECRET, stream=("c", 1))
    assert y.dtype == np.float64
    # Six σ, and half of direct-q12's step of 2/2047.
    np.testing.assert_allclose(y, values, atol=6e-4 + 5e-4)


@pytest.mark.parametrize("name", CHANNELS)
def test_only_centres_that_are_rounded_are_charged_as_farther_apart(name: str) -> None:
    assert (open_channel(name, size=5, sigma=1.0).widening > 0) is (name == "integers")


@pytest.mark.parametrize("name", CHANNELS)
def test_a_stream_is_used_once(name: str) -> None:
    channel = open_channel(name, size=4, sigma=1.0)
    channel.encode(np.zeros(4), secret=SECRET, stream=("c", 1))
    with pytest.raises(ChannelError, match="used before"):
        channel.encode(np.ones(4), secret=SECRET, stream=("c", 1))
    channel.encode(np.zeros(4), secret=SECRET, stream=("c", 2))
    channel.encode(np.zeros(4), secret=bytes(32), stream=("c", 1))


SIZE = 4096
ALIKE = 0.1
"""What correlation of 4,096 errors is beyond chance: 6.4 standard deviations, p < 2e-10."""


def noise(name: str, u: np.ndarray, request: bytes, private: bytes | None = None) -> tuple[bytes, np.ndarray]:
    """The header of an encoding under one stream, and the noise with which it decodes."""
    source = None if private is None else SeededRandomness(private)
    said = {"secret": SECRET, "stream": ("c", 1), "request": request}
    message = open_channel(name, size=SIZE, sigma=0.1).encode(u, **said, private=source)  # type: ignore[arg-type]
    decoded = open_channel(name, size=SIZE, sigma=0.1).decode(message, **said)  # type: ignore[arg-type]
    return message[:7], decoded - u


def alike(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", CHANNELS)
def test_a_second_encoding_and_another_request_have_noise_of_their_own(name: str) -> None:
    u = SeededRandomness(b"u").normal(SIZE) / 64
    first, second = noise(name, u, b"asked"), noise(name, u, b"asked")
    while channel_class(name).bound and first[0][5:] == second[0][5:]:  # a coincidence, once in 65,536
        second = noise(name, u, b"asked")
    assert abs(alike(first[1], second[1])) < ALIKE
    if channel_class(name).bound:  # a lying server: another model for a client that draws the same
        same, other = noise(name, u, b"asked", b"s"), noise(name, u, b"asked otherwise", b"s")
        assert same[0][5:] == other[0][5:]
        assert abs(alike(same[1], other[1])) < ALIKE
        assert alike(same[1], noise(name, u, b"asked", b"s")[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_header_says_nothing_of_the_statistic(name: str) -> None:
    """But for the tag, which is that of the payload beside it."""
    heads = set()
    for u in (np.zeros(SIZE), np.ones(SIZE), SeededRandomness(b"u").normal(SIZE)):
        head, _ = noise(name, u, b"asked", b"s")
        heads.add(head[:1] + (head[5:] if channel_class(name).bound else b""))
    assert len(heads) == 1


@pytest.mark.parametrize("name", CHANNELS)
def test_what_the_operating_system_draws_is_bound_to_no_request(name: str) -> None:
    channel = open_channel(name, size=3, sigma=1.0)
    message = channel.encode(np.zeros(3), secret=SECRET, stream=(1,), request=b"asked")
    assert message[0] >> 4 == (2 if channel.bound else 1)
    if channel.bound:
        for request in (b"", b"other", None):
            with pytest.raises(ChannelError, match="does not match its tag"):
                channel.decode(message, secret=SECRET, stream=(1,), request=request)
    else:
        channel.decode(message, secret=SECRET, stream=(1,), request=b"other")


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_statistic_that_no_float_can_carry_is_refused(name: str, bad: float) -> None:
    channel = open_channel(name, size=3, sigma=1.0)
    with pytest.raises(ChannelError, match="clip it"):
        channel.encode(np.array([0.0, bad, 0.0]), secret=SECRET, stream=(1,))


@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1), ()])
def test_a_statistic_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ChannelError, match="shape"):
        open_channel("direct", size=4, sigma=1.0).encode(np.zeros(shape), secret=SECRET, stream=(1,))


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("direct", {"size": 0}, "at least one"),
        ("direct", {"sigma": 0.0}, "positive"),
        ("direct", {"sigma": float("nan")}, "positive"),
        ("direct", {"lattice": "Z4"}, "no option 'lattice'"),
        ("lrsuq", {"latice": "Z4"}, "did you mean 'lattice'"),
        ("lrsuq", {"lattice": "A2"}, "D4, E8, Z4"),
    ],
)
def test_a_channel_that_cannot_be_opened_says_what_to_do(
    name: str, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ChannelError, match=complaint):
        open_channel(name, **({"size": 4, "sigma": 1.0} | arguments))  # type: ignore[arg-type]


def test_a_channel_carries_one_coordinate_and_statistics_up_to_two_to_the_forty_sigma() -> None:
    assert open_channel("direct", size=1, sigma=0.5).size == 1
    largest = 0.25 * 2.0**40
    channel = open_channel("direct", size=2, sigma=0.25)
    channel.encode(np.array([0.0, -largest]), secret=SECRET, stream=(1,))
    with pytest.raises(ChannelError, match="over 2"):
        channel.encode(np.array([0.0, -np.nextafter(largest, np.inf)]), secret=SECRET, stream=(2,))
    channel.encode(np.zeros(2), secret=SECRET, stream=(2,))  # what was refused has used no stream


@pytest.mark.parametrize("name", CHANNELS)
def test_what_is_decoded_is_statistic_and_noise_up_to_the_stated_rounding(name: str) -> None:
    most = {"direct-q12": 1e-2, "integers": 2e-2}.get(name, 1e-5)
    assert 0 < open_channel(name, size=800, sigma=1.0).rounding < most


@pytest.mark.parametrize("name", ["direct", "integers"])
def test_channels_of_plain_noise_open_without_numba_and_cryptography(name: str) -> None:
    script = (
        "import sys\n"
        "sys.modules['numba'] = sys.modules['cryptography'] = None\n"
        "from sottovoce.channel import open_channel\n"
        "import numpy as np\n"
        f"c = open_channel('{name}', size=2, sigma=1.0)\n"
        "c.decode(c.encode(np.zeros(2), secret=bytes(32), stream=(1,)), secret=bytes(32), stream=(1,))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)

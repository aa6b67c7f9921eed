"""First values of parameters: their statistics, and what they depend on."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.errors import OptionError
from blobnet.layers import initializers
from blobnet.layers.base import ParameterSpec
from blobnet.layers.initializers import INITIALIZERS, FirstWeights, initialize

Float64Array = npt.NDArray[np.float64]

#: OIHW, (O, I, width) and (O, I): shape, fan_in, fan_out.
SHAPES = [((40, 30, 3, 5), 450, 600), ((50, 60, 7), 420, 350), ((300, 200), 200, 300), ((90, 1, 11, 11), 121, 10890)]


def draw(shape: tuple[int, ...], initializer: str, name: str = "conv/weight", seed: int = 0) -> Float64Array:
    values = initialize(ParameterSpec("weight", shape, initializer), name, seed)
    assert values.dtype == np.float32
    assert values.shape == shape
    return values.astype(np.float64)


def test_constants() -> None:
    for shape in ((3,), (2, 3, 4, 5), (1,)):
        assert (draw(shape, "zeros") == 0).all()
        for text, value in (("0.25", 0.25), ("-3", -3), ("1e-06", 1e-6), ("2.5e3", 2500)):
            assert (draw(shape, f"constant({text})") == np.float32(value)).all()
        assert (draw(shape, "ones") == 1).all()


@pytest.mark.parametrize(("shape", "fan_in", "fan_out"), SHAPES)
@pytest.mark.parametrize("initializer", ["he_uniform", "glorot_uniform", "fan_in_uniform"])
def test_uniform(initializer: str, shape: tuple[int, ...], fan_in: int, fan_out: int) -> None:
    bounds = {
        "he_uniform": math.sqrt(6 / fan_in),
        "glorot_uniform": math.sqrt(6 / (fan_in + fan_out)),
        "fan_in_uniform": 1 / math.sqrt(fan_in),
    }
    check_uniform(draw(shape, initializer), bounds[initializer])


def check_uniform(values: Float64Array, bound: float) -> None:
    """Bounds, mean, variance, and the share of each tenth, within five standard errors."""
    scaled = values.reshape(-1) / bound
    assert np.abs(scaled).max() <= 1 + 1e-7
    assert np.abs(scaled).max() > 1 - 20 / scaled.size
    assert abs(scaled.mean()) < 5 / math.sqrt(3 * scaled.size)
    assert abs((scaled**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / scaled.size)
    shares = np.histogram(scaled, 10, (-1, 1))[0] / scaled.size
    assert np.abs(shares - 0.1).max() < 5 * math.sqrt(0.09 / scaled.size)


@pytest.mark.parametrize(("shape", "fan_in", "fan_out"), SHAPES)
def test_he_normal(shape: tuple[int, ...], fan_in: int, fan_out: int) -> None:
    scaled = draw(shape, "he_normal").reshape(-1) / math.sqrt(2 / fan_in)
    error = 5 / math.sqrt(scaled.size)
    assert abs(scaled.mean()) < error
    assert abs((scaled**2).mean() - 1) < error * math.sqrt(2)
    assert abs((scaled**4).mean() - 3) < error * math.sqrt(96)
    assert abs((np.abs(scaled) < 1).mean() - 0.682689) < error


def test_torch_starts_within_the_same_bounds() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Conv2d(12, 400, (3, 5), groups=2)
    bound = float(np.abs(draw(tuple(layer.weight.shape), "fan_in_uniform")).max())
    assert math.isclose(layer.weight.abs().max().item(), bound, rel_tol=1e-3)
    bias = float(np.abs(draw((400,), f"fan_in_uniform({6 * 3 * 5})")).max())
    assert math.isclose(layer.bias.abs().max().item(), bias, rel_tol=0.05)


def test_fan_of_a_bias() -> None:
    check_uniform(draw((20_000,), "fan_in_uniform(25)"), 0.2)
    check_uniform(draw((20, 30, 40), "he_uniform(24)"), 0.5)
    check_uniform(draw((20_000,), "glorot_uniform(12)"), 0.5)
    assert (draw((3,), "zeros(7)") == 0).all()


def test_streams_are_independent() -> None:
    """The seed, the full name and nothing else decide; neighbours in seed or name are uncorrelated."""
    first = draw((100, 100), "he_normal")
    draw((3, 3), "he_normal", "other/weight")
    np.random.default_rng(0).random(5)
    assert (draw((100, 100), "he_normal") == first).all()
    others = [draw((100, 100), "he_normal", "conv/weights"), draw((100, 100), "he_normal", "conv2/weight")]
    others += [draw((100, 100), "he_normal", seed=seed) for seed in (1, 2, 1 << 40)]
    for index, other in enumerate(others):
        for another in [first, *others[:index]]:
            assert abs(np.corrcoef(other.reshape(-1), another.reshape(-1))[0, 1]) < 0.05


def test_values_stay_what_they_are() -> None:
    """A seed means the same weights in every release and with every NumPy."""
    np.testing.assert_array_equal(
        draw((1, 3), "fan_in_uniform", "dense_1/weight", 7),
        np.array([[0.41769725, -0.1503022, -0.3037319]], np.float32),
    )
    normal = [[-0.9042211, -1.3384255, 0.9060343]]
    np.testing.assert_allclose(draw((1, 3), "he_normal", "dense_1/weight", 7), normal, rtol=1e-6)


def test_layers_keep_the_variance() -> None:
    """He's initializers keep the mean square through ReLU layers."""
    for initializer in ("he_normal", "he_uniform"):
        x = np.random.default_rng(0).standard_normal((500, 400))
        for layer in range(5):
            x = np.maximum(x, 0) @ draw((400, 400), initializer, f"dense_{layer}/weight").T
        assert 0.7 < (x**2).mean() < 1.4


@pytest.mark.parametrize(
    ("initializer", "shape", "seed", "message"),
    [
        (
            "he_norml",
            (2, 2),
            0,
            "a/w: the initializer must be a known one. Received initializer=he_norml. Hint: .*'he_normal'",
        ),
        ("", (2, 2), 0, "a/w: the initializer must be a known one. Received initializer=. Hint: known names: "),
        ("he_normal(0)", (2, 2), 0, "a/w: the initializer must be a known one"),
        ("he_normal(-3)", (2, 2), 0, "a/w: the initializer must be a known one"),
        ("he_normal()x", (2, 2), 0, "a/w: the initializer must be a known one"),
        ("_uniform", (2, 2), 0, "a/w: the initializer must be a known one"),
        (
            "fan_in_uniform",
            (4,),
            0,
            r"a/w: this initializer needs a parameter of at least 2 axes, or its fan_in. "
            r"Received initializer=fan_in_uniform, shape=\(4,\). Hint: write 'fan_in_uniform\(N\)'",
        ),
        ("zeros", (4,), -1, "a/w: the seed must be an int of at least 0. Received seed=-1."),
        ("zeros", (4,), 1.5, "a/w: the seed must be an int of at least 0. Received seed=1.5."),
        ("zeros", (4,), True, "a/w: the seed must be an int of at least 0. Received seed=True."),
    ],
)
def test_options(initializer: str, shape: tuple[int, ...], seed: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        initialize(ParameterSpec("w", shape, initializer), "a/w", seed)


def test_first_weights_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {"a/w": ParameterSpec("w", (3, 4), "he_normal"), "b/w": ParameterSpec("w", (2, 2), "he_uniform")}
    drawn = []

    def noted(spec: ParameterSpec, name: str, seed: int, place: np.ndarray | None) -> np.ndarray:
        drawn.append(name)
        return initialize(spec, name, seed, place)

    monkeypatch.setattr(initializers, "initialize", noted)
    weights = FirstWeights(specs, 5)
    assert (list(weights), len(weights), drawn) == (["a/w", "b/w"], 2, [])
    np.testing.assert_array_equal(weights["b/w"], draw((2, 2), "he_uniform", "b/w", 5))
    assert weights["b/w"] is weights["b/w"]
    assert drawn == ["b/w"]
    monkeypatch.setattr(initializers, "_LARGE", 12)
    np.testing.assert_array_equal(weights["a/w"], draw((3, 4), "he_normal", "a/w", 5))
    assert drawn == ["b/w", "a/w"]
    with pytest.raises(OptionError, match="a/w: the seed must be an int"):
        FirstWeights(specs, -1)


def test_who_asks_for_a_large_weight_gets_all_of_them_drawn_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {f"{name}/w": ParameterSpec("w", (30, 40 + number), "he_normal") for number, name in enumerate("abcdef")}
    specs["g/b"] = ParameterSpec("b", (3,), "ones")
    weights, alone = FirstWeights(specs, 5), {name: initialize(spec, name, 5) for name, spec in specs.items()}
    np.testing.assert_array_equal(weights["c/w"], alone["c/w"])
    monkeypatch.setattr(initializers, "initialize", None)
    for name, values in alone.items():
        np.testing.assert_array_equal(weights[name], values)


def test_weights_are_drawn_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {"a/w": ParameterSpec("w", (30, 40), "he_normal"), "b/w": ParameterSpec("w", (2, 2), "he_uniform")}
    alone = {name: initialize(spec, name, 5) for name, spec in specs.items()}
    weights = FirstWeights(specs, 5)
    np.testing.assert_array_equal(weights["b/w"], alone["b/w"])  # It is drawn by itself.
    flat, again = np.zeros(1300, np.float32), np.zeros(1300, np.float32)
    for whole in (flat, again):
        weights.put_into({"a/w": whole[:1200], "b/w": whole[1216:1220]})
        monkeypatch.setattr(initializers, "initialize", None)  # The second time all are there.
        np.testing.assert_array_equal(whole[:1200].reshape(30, 40), alone["a/w"])
        np.testing.assert_array_equal(whole[1216:1220].reshape(2, 2), alone["b/w"])
        assert not whole[1200:1216].any()
        assert not whole[1220:].any()
    assert np.shares_memory(weights["a/w"], flat)
    for name, values in alone.items():
        np.testing.assert_array_equal(weights[name], values)


@pytest.mark.parametrize("initializer", ["he_normal", "glorot_uniform"])
def test_pieces_are_those_of_one_draw(monkeypatch: pytest.MonkeyPatch, initializer: str) -> None:
    wanted = draw((7, 5, 3), initializer, "a/w")
    monkeypatch.setattr(initializers, "_PIECE", 4)
    np.testing.assert_array_equal(draw((7, 5, 3), initializer, "a/w"), wanted)


def test_every_initializer_is_tested() -> None:
    names = ["fan_in_uniform", "given", "glorot_uniform", "he_normal", "he_uniform", "ones", "zeros"]
    assert sorted(INITIALIZERS) == names


def test_what_is_given_is_zero_until_it_is() -> None:
    assert not draw((3,), "given").any()

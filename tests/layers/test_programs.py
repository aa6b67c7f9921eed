"""What is a convolution by its maps gets the kernels of convolutions, whoever wrote it; other statements do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.contraction import function
from blobnet.contraction.derivatives import differentiate
from blobnet.device import Device
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.implementations.recognition import convolution_of
from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from blobnet.memory.windows import WindowAxis
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.layers.test_operators import functional
from tests.layers.torch_contract import run_torch_contract

TEXT = """function (I[N, U, Y, X], weight[F, C, {taps}], bias[F]) -> (O) {{
  T[n, {filters}, y, x : N, F, {height}, {width}] = +(I[n, {units}, {cell}] * weight[{filters}, c, a, b]){bounds};
  O[n, f, y, x] = +(T[n, f, y, x] + bias[f]);
}}"""


def written(shape: Shape, filters: int, axes: tuple[WindowAxis, WindowAxis], groups: int = 1) -> str:
    """A convolution as a user would write it."""
    each, own = shape.units // groups, filters // groups
    grouped = {
        "filters": f"{own}*g + f",
        "units": f"{each}*g + c",
        "bounds": f", g < {groups}, f < {own}, c < {each}",
    }
    plain = {"filters": "f", "units": "c", "bounds": ""}
    height, width = (axis.output_size(size) for axis, size in zip(axes, (shape.height, shape.width), strict=True))
    cell = ", ".join(
        f"{axis.stride}*{place} + {axis.dilation}*{tap} - {axis.padding[0]}"
        for axis, place, tap in zip(axes, "yx", "ab", strict=True)
    )
    taps = f"{axes[0].kernel}, {axes[1].kernel}"
    return TEXT.format(taps=taps, height=height, width=width, cell=cell, **(grouped if groups > 1 else plain))


def random_window(random: np.random.Generator, size: int) -> WindowAxis:
    while True:
        kernel, stride, dilation = (int(random.integers(1, most)) for most in (5, 4, 3))
        before, behind = (int(number) for number in random.integers(0, kernel, 2))
        window = WindowAxis(kernel, stride, dilation, (before, behind))
        if window.fits(size):
            # What no window reaches behind is no padding.
            count = window.output_size(size)
            reached = (count - 1) * stride + window.span - size - before
            window = WindowAxis(kernel, stride, dilation, (before, max(0, reached)))
            # Taps that meet nothing but zeros are no part of a statement, which is another convolution's then.
            alone = [WindowAxis(1, stride, 1, (before - dilation * tap, 0)) for tap in range(kernel)]
            if all(tap.meets(count, size) for tap in alone):
                return window


@pytest.mark.parametrize("seed", range(60))
def test_a_convolution_is_found_whatever_its_window(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = int(random.choice([1, 1, 2, 3]))
    shape = Shape(groups * int(random.integers(1, 4)), *(int(size) for size in random.integers(4, 12, 2)))
    filters = groups * int(random.integers(1, 4))
    axes = random_window(random, shape.height), random_window(random, shape.width)
    layer = layers.Contraction(written(shape, filters, axes, groups), sizes={"F": filters, "C": shape.units // groups})
    forward = layer.bound([shape], 3).program
    statements = [forward.statements[0]]
    statements += [differentiate(forward, [name]).statements[-1] for name in ("I", "weight")]
    for statement, direction in zip(statements, (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS), strict=True):
        found = convolution_of(statement)
        assert found, statement
        assert (found.direction, found.groups, found.vertical, found.horizontal) == (direction, groups, *axes)
        assert found.result == statement.output.tensor


PLAIN = "function (I[N, C, X], W[F, C, K]) -> (O) {{ {} }}"


@pytest.mark.parametrize(
    "statement",
    [
        "O[n, f, x : N, F, 6] = +(I[n, c, x + k] * W[f, c, k]), x + 2*k < 7;",  # not all of its terms
        "O[n, f, x : N, F, 6] = +(I[n, c, x + k] * W[f, c, k]), c < 2;",  # not all units
        "O[n, f, x : N, F, 7] = +(I[n, c, x - k] * W[f, c, k]);",  # taps backwards
        "O[n, f, x : N, F, 6] = >(I[n, c, x + k] * W[f, c, k]);",  # a maximum
        "O[n, f, x : N, F, 6] = +(I[n, c, x + k] + W[f, c, k]);",  # no product
        "O[n, f, x : N, F, 6] = +(I[n, c, x + k] * W[f, c, k] * W[f, c, k]);",  # a weight twice
        "O[n, f, x : N, F, 6] = +(I[n, c, x + k] * I[n, c, x]);",  # no weight
        "O[n, x, f : N, 6, F] = +(I[n, c, x + k] * W[f, c, k]);",  # positions as units
        "O[f, n, x : F, N, 6] = +(I[n, c, x + k] * W[f, c, k]);",  # units first
        "O[n, f, x : N, F, 12] = +(I[n, c, x - 2*y + k] * W[f, c, k]), y < 2;",  # a position of two indexes
        "O[n, f, x : N, F, 3] = +(I[n, c, x + k + 2] * W[f, c, k]);",  # what is cut off before the first window
    ],
)
def test_what_only_looks_like_a_convolution_is_none(statement: str) -> None:
    program = function(PLAIN.format(statement)).program(I=(2, 3, 8), W=(4, 3, 3))
    assert [convolution_of(item) for item in program.statements] == [None] * len(program.statements)


CASES = {
    "written": (
        layers.Contraction(
            written(Shape(4, 7, 9), 6, (WindowAxis(3, padding=(1, 1)), WindowAxis(3, padding=(1, 1)))),
            sizes={"F": 6, "C": 4},
        ),
        Shape(4, 7, 9),
        lambda x, p: functional().conv2d(x[0], p["weight"], p["bias"], padding=1),
    ),
    "transposed": (
        layers.ConvTranspose2D(6, 3, 2, 1),
        Shape(4, 7, 9),
        lambda x, p: functional().conv_transpose2d(x[0], p["weight"], p["bias"], 2, 1),
    ),
    "transposed, in a row": (
        layers.ConvTranspose1D(6, 4, 2, bias=False, groups=2),
        Shape(4, 9),
        lambda x, p: functional().conv_transpose1d(x[0], p["weight"], None, 2, groups=2),
    ),
}


@pytest.mark.parametrize(("name", "activation"), list(product(CASES, ["relu", None])))
def test_it_computes_the_same(device: Device, name: str, activation: str | None) -> None:
    layer, shape, reference = CASES[name]
    run_torch_contract(device, layer, [shape], reference, fused=[activation] if activation else [])


def test_all_directions_are_tasks() -> None:
    """Also those of projections within a layer, between which others are compiled."""

    def tasks(layer: Layer, shape: Shape) -> list[str]:
        model = bn.Sequential([layers.Input.of(shape), layer])
        plan = make_plan(model.graph, 4, loss=bn.losses.MeanSquaredError(), training=True, input_delta=True)
        return sorted({str(call.task) for _, call in plan.calls if call.task})

    assert tasks(layers.ConvTranspose2D(6, 3, 2, 1), Shape(4, 7, 9)) == [
        "backward data 6x13x17:4k3s2p1 batch 4",
        "backward weights 6x13x17:4k3s2p1 batch 4",
        "forward 6x13x17:4k3s2p1 batch 4",
    ]
    assert tasks(layers.MultiHeadAttention(2), Shape(8, 16)) == [
        "backward data 8x16:8k1 batch 4",
        "backward weights 8x16:8k1 batch 4",
        "forward 8x16:8k1 batch 4",
    ]


def test_gradients_of_weights_are_compiled_where_that_is_faster() -> None:
    def variants(precision: str) -> set[str]:
        model = bn.Sequential([layers.Input.of(Shape(8, 16)), layers.MultiHeadAttention(2)])
        tuning = replace(tuning_for("gpu"), precision=precision)
        loss = bn.losses.MeanSquaredError()
        plan = make_plan(model.graph, 4, loss=loss, training=True, input_delta=True, tuning=tuning)
        return {str(call.way) for _, call in plan.calls if call.task and call.task.direction == BACKWARD_WEIGHTS}

    assert variants("fp32") == set()
    assert all(name.startswith("tensor") for name in variants("tf32"))


BEGUN = """function (I[N, C, Y, X], W[C, C]) -> (O) {
  H[n, c, y, x] = +(tanh(I[n, c, y, x]));
  B[n, c, y, x] = +(H[n, c, y, x] * H[n, c, y, x]);
  A[n, f, y, x] = +(H[n, c, y, x] * W[f, c]);
  O[n, c, y, x] = +(A[n, c, y, x] * B[n, c, y, x]);
}"""


def test_what_a_convolution_begins_to_add_up_goes_on_between_others(device: Device) -> None:
    """The delta of H: a convolution begins it, a compiled statement adds to it, and the next one reads it."""

    torch = pytest.importorskip("torch")

    def reference(x: list[Any], p: dict[str, Any]) -> Any:
        hidden = torch.tanh(x[0])
        return torch.einsum("ncyx,fc->nfyx", hidden, p["W"]) * hidden**2

    run_torch_contract(device, layers.Contraction(BEGUN), [Shape(3, 5, 7)], reference, relative=1e-4, absolute=1e-4)


BEHIND = """function (I[N, C, Y, X], W[F, C], bias[F]) -> (O) {
  M[n, y] = +(I[n, c, y, x]);
  P[n, f, y, x] = +(I[n, c, y, x] * W[f, c]);
  Q[n, f, y, x] = +(P[n, f, y, x] + bias[f]);
  O[n, f, y, x] = +(Q[n, f, y, x] * M[n, y]);
}"""


@pytest.mark.parametrize("activation", ["relu", None])
def test_all_is_compiled_where_pieces_would_share_what_has_no_place(device: Device, activation: str | None) -> None:
    """Sums of a sample, M, stand on both sides of a convolution; its bias must not be lost with it."""

    torch = pytest.importorskip("torch")

    def reference(x: list[Any], p: dict[str, Any]) -> Any:
        made = torch.einsum("ncyx,fc->nfyx", x[0], p["W"]) + p["bias"][:, None, None]
        return made * x[0].sum((1, 3))[:, None, :, None]

    layer = layers.Contraction(BEHIND, sizes={"F": 4})
    fused = [activation] if activation else []
    run_torch_contract(device, layer, [Shape(3, 5, 7)], reference, fused=fused, relative=1e-4, absolute=1e-4)

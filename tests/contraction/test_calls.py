"""Programs on a plan's blobs: as layers in hostile memory, with batches that are not full, under odd schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.contraction import calls as compiled
from blobnet.contraction import function
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning, BuildError, ContractionError, KernelError, ShapeError
from blobnet.hardware.device_model import GENERIC
from blobnet.launch.kernel_call import Array, Blob, KernelCall, Tuning
from blobnet.launch.task import TunedChoices
from blobnet.layers.base import Kept, Layer, LayerContext, ParameterSpec, Placement, Placements
from blobnet.memory.blob import AXES, BlobLayout, Halo, Shape
from tests.contraction.random_schedules import random_schedule
from tests.layers.layer_contract import Float64Array, Inputs, Parameters, run_layer_contract


@dataclass(frozen=True, kw_only=True)
class _Contracted(Layer):
    """``text``, with the input I, the output R and maybe the parameter W, and room for ``spare`` samples more."""

    text: str
    shape: Shape
    weight: tuple[int, ...] = ()
    spare: int = 1
    over_input: bool = False
    kept = Kept(inputs=True, output=True)

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.IN_PLACE, Placement.IN_PLACE) if self.over_input else Placements()

    def program(self, inputs: Sequence[Shape], batch: int) -> Program:
        shapes = {"I": (batch, *inputs[0].dimensions)} | ({"W": self.weight} if self.weight else {})
        return function(self.text).program(**shapes)

    def gradient(self, inputs: Sequence[Shape], name: str, batch: int = 2) -> Program:
        return differentiate(self.program(inputs, batch), [name])

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return self.shape

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return (ParameterSpec("W", self.weight, "he_normal"),) if self.weight else ()

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        found = compiled.halos(self.program(inputs, 2), ["I"])["I"]
        for name in "IW" if self.weight else "I":
            found = found.merged(compiled.halos(self.gradient(inputs, name), ["I"]).get("I", Halo()))
        return found

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        delta, found = delta_names(self.program(inputs, 2))["R"], Halo()
        for name in "IW" if self.weight else "I":
            found = found.merged(compiled.halos(self.gradient(inputs, name), [delta]).get(delta, Halo()))
        return found

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return self.calls(site, self.bound(site), "forward", {"R": site.output})

    def bound(self, site: LayerContext, name: str = "") -> Program:
        rank = self.text.split("]")[0].count(",") - 1
        shape = site.inputs[0].shape
        planes = Shape(shape.units, *shape.axes[AXES - rank :])
        batch = site.batch_size + self.spare
        return self.gradient([planes], name, batch) if name else self.program([planes], batch)

    def calls(
        self, site: LayerContext, program: Program, what: str, results: dict[str, Blob | Array]
    ) -> list[KernelCall]:
        operands: dict[str, Blob | Array] = {"I": site.inputs[0], "R": site.output, **results}
        if self.weight:
            operands["W"] = site.parameter("W")
        if site.output_delta:
            operands[delta_names(self.bound(site))["R"]] = site.output_delta
        return compiled.calls(
            program,
            operands,
            compiled.Context(f"{site.name} {what}", site.batch_size + self.spare, site.memory, site.tuning),
            list(results) if what == "backward data" and site.accumulate[0] else (),
        )

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        if not self.weight:
            return []
        name = delta_names(self.bound(site))["W"]
        return self.calls(site, self.bound(site, "W"), "backward parameters", {name: site.gradient("W")})

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        if site.input_deltas[0] is None:
            return []
        name = delta_names(self.bound(site))["I"]
        return self.calls(site, self.bound(site, "I"), "backward data", {name: site.input_deltas[0]})


#: (text, input's shape, output's shape, weight's shape)
LAYERS = {
    "padded": (
        "R[n, o, y, x : N, 7, 6, 5] = +(I[n, i, y + a - 1, x + b - 1] * W[o, i, a, b])",
        Shape(5, 6, 5), Shape(7, 6, 5), (7, 5, 3, 3),
    ),
    "strided": (
        "R[n, o, y, x : N, 4, 4, 5] = +(I[n, i, 2*y + a - 1, 2*x + b - 1] * W[o, i, a, b])",
        Shape(3, 7, 9), Shape(4, 4, 5), (4, 3, 3, 3),
    ),
    "strided, not all read": (
        "R[n, o, y, x : N, 3, 2, 3] = +(I[n, i, 3*y + a, 3*x + b] * W[o, i, a, b])",
        Shape(4, 6, 10), Shape(3, 2, 3), (3, 4, 2, 1),
    ),
    "dilated": (
        "R[n, o, y, x : N, 3, 5, 7] = +(I[n, i, y + 2*a - 2, x + 3*b - 3] * W[o, i, a, b])",
        Shape(2, 5, 7), Shape(3, 5, 7), (3, 2, 3, 3),
    ),
    "depthwise": (
        "R[n, c, y, x : N, 6, 5, 9] = +(I[n, c, y + a - 2, x + b - 2] * W[c, a, b])",
        Shape(6, 5, 9), Shape(6, 5, 9), (6, 5, 5),
    ),
    "one axis": (
        "R[n, o, x : N, 5, 11] = +(I[n, i, x + b - 2] * W[o, i, b])",
        Shape(3, 11), Shape(5, 11), (5, 3, 5),
    ),
    "three axes": (
        "R[n, o, z, y, x : N, 4, 3, 4, 5] = +(I[n, i, z + c - 1, y + a - 1, x + b - 1] * W[o, i, c, a, b])",
        Shape(2, 3, 4, 5), Shape(4, 3, 4, 5), (4, 2, 3, 3, 3),
    ),
    "three axes, strided": (
        "R[n, o, z, y, x : N, 3, 2, 2, 5] = +(I[n, i, 2*z + c, 2*y + a - 1, x + b] * W[o, i, c, a, b])",
        Shape(2, 5, 4, 5), Shape(3, 2, 2, 5), (3, 2, 2, 3, 1),
    ),
    "maximum of three axes": (
        "R[n, c, z, y, x : N, 2, 2, 2, 3] = >(I[n, c, 2*z + k - 1, 2*y + a, 2*x + b - 1]), k < 3, a < 2, b < 3",
        Shape(2, 3, 4, 5), Shape(2, 2, 2, 3), (),
    ),
    "dense": ("R[n, o] = +(I[n, i] * W[o, i])", Shape.flat(23), Shape.flat(19), (19, 23)),
    "transposed": (
        "R[n, o, 2*y + a, 2*x + b : N, 3, 9, 8] = +(I[n, i, y, x] * W[i, o, a, b])",
        Shape(4, 4, 4), Shape(3, 9, 8), (4, 3, 3, 2),
    ),
    "maximum": (
        "R[n, c, y, x : N, 5, 4, 4] = >(I[n, c, 2*y + a - 1, 2*x + b - 1]), a < 3, b < 3",
        Shape(5, 7, 8), Shape(5, 4, 4), (),
    ),
    "several statements": (
        "function (I[N, C, Y, X], W[C]) -> (R) { M[n, c : N, C] = +(I[n, c, y, x] / (Y * X));"
        " V[n, c : N, C] = +((I[n, c, y, x] - M[n, c]) * (I[n, c, y, x] - M[n, c]) / (Y * X));"
        " R[n, c, y, x : N, C, Y, X] = +((I[n, c, y, x] - M[n, c]) / sqrt(V[n, c] + 0.1) * W[c]); }",
        Shape(4, 5, 3), Shape(4, 5, 3), (4,),
    ),
    "among units": (
        "R[n, c, y, x : N, 6, 3, 4] = +(I[n, c + k - 2, y, x + b - 1]), k < 5, b < 3",
        Shape(6, 3, 4), Shape(6, 3, 4), (),
    ),
}  # fmt: skip


def wrapped(text: str, axes: int, has_weight: bool = True) -> str:
    names = ", ".join("NCYX"[:axes] if axes < 5 else "NCZYX")
    return f"function (I[{names}]{', W' if has_weight else ''}) -> (R) {{ {text}; }}"


def make(name: str, spare: int = 1) -> tuple[_Contracted, Shape]:
    text, shape, output, weight = LAYERS[name]
    text = text if "function" in text else wrapped(text, 1 + len(shape.dimensions), bool(weight))
    return _Contracted(name="tested", text=text, shape=output, weight=weight, spare=spare), shape


def run(device: Device, name: str, **settings: object) -> None:
    layer, shape = make(name, int(settings.pop("spare", 1)))  # type: ignore[call-overload]
    run_layer(device, layer, shape, **settings)


def run_layer(device: Device, layer: _Contracted, shape: Shape, **settings: object) -> None:
    f = function(layer.text)

    def given(inputs: Inputs, parameters: Parameters) -> dict[str, Float64Array]:
        values = inputs[0].reshape(len(inputs[0]), *shape.dimensions)
        return {"I": values} | ({"W": parameters["W"]} if layer.weight else {})

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        return f.reference(**given(inputs, parameters))["R"]

    def backward(inputs: Inputs, parameters: Parameters, delta: Float64Array):  # type: ignore[no-untyped-def]
        arrays = given(inputs, parameters)
        deltas = {"R": delta.reshape(len(delta), *layer.shape.dimensions)}
        found = f.reference_gradients(arrays, deltas)
        return [found["I"]], {"W": found["W"]} if layer.weight else {}

    run_layer_contract(
        device, layer, [shape], reference_forward=forward, reference_backward=backward, relative=1e-4, absolute=1e-4,
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def random_schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Schedules by chance, the same for a table each time."""
    compiled._lowered.cache_clear()

    @cache
    def choose(table: object, hardware: object) -> object:
        return random_schedule(table, rng)  # type: ignore[arg-type]

    rng = np.random.default_rng(7)
    monkeypatch.setattr(compiled, "best_schedule", choose)
    yield
    compiled._lowered.cache_clear()


@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_batches_that_are_not_full(device: Device, name: str) -> None:
    run(device, name)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_made_for_a_gpu(device: Device, name: str) -> None:
    tuning = replace(device.tuning, model=GENERIC["gpu"])
    run(device, name, tuning=tuning, seed=1, count=2, arrangements=["own pitches"])


def test_outputs_in_the_place_of_inputs(device: Device, random_schedules: None) -> None:
    """Forward R lies over I, backward dI over dR; with a text whose derivative does not read I."""
    shape = Shape(5, 4, 7)
    for text, weight in (("R[n, c, y, x : N, C, Y, X] = +(I[n, c, y, x] * 3 + 1)", ()),):
        layer = _Contracted(text=wrapped(text, 4, bool(weight)), shape=shape, weight=weight, over_input=True)
        run_layer(device, layer, shape, count=2)


def test_no_output_over_what_other_cells_read() -> None:
    layer, shape = make("among units")
    blob = Blob("i", BlobLayout.padded(shape, Halo((1, 1), (1, 1))))
    with pytest.raises(ContractionError, match=r"contraction R: it may lie over I only where .* for the same cell"):
        small_calls(layer, shape, I=blob, R=blob)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_under_random_schedules(device: Device, random_schedules: None, name: str) -> None:
    for seed, arrangement in enumerate(("tight", "own pitches")):
        compiled._lowered.cache_clear()
        run(device, name, seed=seed, count=1 + 3 * seed, arrangements=[arrangement])


def test_a_condition_around_a_barrier_ends_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PoCL 3.1 needs it (docs/drivers.md)."""
    layer, shape = make("padded")
    rng, found = np.random.default_rng(0), 0
    monkeypatch.setattr(compiled, "best_schedule", lambda table, model: random_schedule(table, rng))
    for _ in range(50):
        compiled._lowered.cache_clear()
        lines = [line for call in small_calls(layer, shape) for line in call.assemble().splitlines()]
        around: list[int] = []  # The depths of the conditions that are open, and hold a barrier.
        for number, line in enumerate(lines):
            depth = len(line) - len(line.lstrip())
            if around and depth == around[-1] and line.strip() == "}":
                around.pop()
                assert lines[number - 1].strip() == "END_OF_IF;"
                found += 1
            if line.strip().startswith("if (") and line.endswith("{"):
                end = lines.index(" " * depth + "}", number)
                if any("barrier(" in inner for inner in lines[number:end]):
                    around.append(depth)
        assert not around
    compiled._lowered.cache_clear()
    assert found


def test_a_network_whose_last_batch_is_short(device: Device) -> None:
    """Two samples of five, in memory that has held five others."""
    layer, shape = make("padded", spare=0)
    model = bn.Sequential([layers.Input(*shape.dimensions), layer, layers.Flatten(), layers.Dense(3)])
    rng = np.random.default_rng(3)
    x = rng.standard_normal((7, *shape.dimensions)).astype(np.float32)
    x[4] = 3e38  # Infinite, or NaN, from the first layer on.
    whole = model.predict(x, batch_size=5, device=device)
    np.testing.assert_allclose(whole[5:], model.predict(x[5:], batch_size=2, device=device), rtol=1e-5)
    assert not np.isfinite(whole[4]).any()
    assert np.isfinite(np.delete(whole, 4, axis=0)).all()


def test_a_plan_goes_without_what_its_driver_does_not_build(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    text = wrapped("R[n, o, y, x : N, 8, 8, 8] = +(I[n, i, y, x] * W[o, i])", 4)
    layer = _Contracted(text=text, shape=Shape(8, 8, 8), weight=(8, 8), spare=0, name="torn")
    model = bn.Sequential([layers.Input(8, 8, 8), layer])
    x = np.random.default_rng(0).standard_normal((3, 8, 8, 8)).astype(np.float32)
    build, marked, refused = device.programs.build, [], []

    def refuse(source: str, what: str) -> object:
        """Refuses what is made first, whatever this device has: vectors, or groups of threads."""
        if "contraction_R" in source and source in (refused or [source]):
            refused[:] = [source]
            raise BuildError(what, "not this one")
        return build(source, what)

    monkeypatch.setattr(device.programs, "build", refuse)
    monkeypatch.setattr(device.tunings, "mark_broken", lambda *names: marked.extend(names))
    with pytest.warns(BlobnetWarning, match=r"compiled R:[0-9a-f]{8}: .* must build the kernels of this variant"):
        found = model.predict(x, device=device)
    assert [str(fault).rpartition(":")[0] for fault in marked] == ["compiled R"]
    assert refused
    expected = np.einsum("niyx,oi->noyx", x, model.weights["torn/W"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_plan_goes_without_several_kernels_of_a_program(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided adjoint is a kernel a phase, in one program; the driver takes none of them at first."""
    model = bn.Sequential(
        [layers.Input.of(Shape(3, 2, 5, 33)), layers.ConvTranspose3D(4, (1, 3, 3), (1, 2, 2), name="up")]
    )
    x = np.random.default_rng(0).standard_normal((3, 3, 2, 5, 33)).astype(np.float32)
    expected = model.predict(x, device=device)
    build, marked = device.programs.build, []
    simple = "__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void\ncontraction_"

    def refuse(source: str, what: str) -> object:
        is_vector = re.search(r"^// .*vector \w+ \d", source, re.MULTILINE)
        if "contraction_" in source and (is_vector or source.count("contraction_") != source.count(simple)):
            raise BuildError(what, "not these")
        return build(source, what)

    monkeypatch.setattr(device.programs, "build", refuse)
    monkeypatch.setattr(device.tunings, "mark_broken", lambda *names: marked.extend(names))
    with pytest.warns(BlobnetWarning, match=r"must build the kernels of this variant"):
        found = model.predict(x[:2], batch_size=2, device=device)
    assert len(set(marked)) == len(marked) > 1
    np.testing.assert_allclose(found, expected[:2], rtol=1e-4, atol=1e-5)


def test_calls_know_what_they_touch() -> None:
    layer, shape = make("padded")
    calls = small_calls(layer, shape)
    assert {call.kernel.partition("/")[0] for call in calls} == {"contraction"}
    (last,) = (call for call in calls if "r" in call.storages("write"))
    assert {name for call in calls for name in call.storages("read")} >= {"i", "w"}
    assert {name for call in calls for name in call.halos_read} == {"i"}
    assert last.assemble() == last.source.text
    assert "COUNT" in last.source.scalars
    assert last.bytes(2) > last.bytes(1)
    assert [call.moves for call in calls if call is not last] == ["packing W"] * (len(calls) - 1)


def small_calls(layer: _Contracted, shape: Shape, tuning: Tuning | None = None, **changed: Blob | Array):  # type: ignore[no-untyped-def]
    operands: dict[str, Blob | Array] = {
        "I": Blob("i", BlobLayout.padded(shape, Halo((1, 1), (1, 1)))),
        "R": Blob("r", BlobLayout.padded(layer.shape)),
        "W": Array("w", 1000),
    }
    return compiled.calls(
        layer.program([shape], 4),
        {name: blob for name, blob in {**operands, **changed}.items() if blob},
        compiled.Context("conv forward", 4, Array, tuning or Tuning()),
    )


def test_what_a_driver_does_not_build_is_made_without_vectors() -> None:
    layer = _Contracted(text="R[n, o, y, x : N, 8, 8, 8] = +(I[n, i, y, x] * W[o, i])", shape=Shape(8, 8, 8))
    layer, shape = replace(layer, weight=(8, 8), text=wrapped(layer.text, 4)), Shape(8, 8, 8)
    first = small_calls(layer, shape)
    assert "float4" in first[-1].assemble()
    (fault,) = {call.fault for call in first}
    assert fault
    simple = small_calls(layer, shape, Tuning(choices=TunedChoices(broken=frozenset([fault]))))
    assert [call.fault for call in simple] == [fault]
    assert "float4" not in simple[0].assemble()


def test_calls_that_make_no_sense() -> None:
    layer, shape = make("padded")
    wide = Blob("i", BlobLayout.padded(Shape(shape.units, shape.height, 6)))
    with pytest.raises(ShapeError, match=r"tensor I: must have the shape of its operand, samples first. .*6"):
        small_calls(layer, shape, I=wide)
    with pytest.raises(ShapeError, match=r"tensor W: must have the shape of its operand"):
        small_calls(layer, shape, W=Array("w", 10))
    with pytest.raises(KernelError, match=r"conv forward: every input and output .* missing=W"):
        small_calls(layer, shape, W=None)  # type: ignore[arg-type]
    units = layer.shape.units
    whole = BlobLayout.padded(layer.shape.with_units(4 + units), Halo((1, 1), (1, 1)))
    beside = Blob("i", whole.slice_units(4, units))
    with pytest.raises(KernelError, match=r"must not lie over a part of another operand\. .*output=R, operand=I"):
        small_calls(layer, shape, R=beside)
    mixed = function("function (I[N, C]) -> (R) { R[n, c : N, C] = +(I[m, c]); }").program(I=(4, 3))
    blob = Blob("i", BlobLayout.padded(Shape.flat(3)))
    with pytest.raises(ContractionError, match="samples of a batch must be one index"):
        compiled.calls(
            mixed,
            {"I": blob, "R": replace(blob, storage="r")},
            compiled.Context("mix", 4, Array, Tuning()),
        )

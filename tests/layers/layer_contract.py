"""The contract that every layer keeps, as one test (docs/design.md).

A new layer's test calls :func:`run_layer_contract` with a float64 reference, on a few shapes, and
:func:`check_central_differences` once or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.examination.measured import Problem, bits, in_memory
from blobnet.examination.reference.activation import named
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.layers.base import Layer, Placement, Placements
from blobnet.memory.blob import FLOAT32, FloatArray, Shape, StorageType
from tests.layers.arranged import Arrangement, Bench, build_together, function_step, make_problem, placed
from tests.reference.compare import assert_close

Float64Array = npt.NDArray[np.float64]
Inputs = Sequence[Float64Array]
Parameters = Mapping[str, Float64Array]
#: (inputs, parameters) -> output
ReferenceForward = Callable[[Inputs, Parameters], npt.NDArray[Any]]
#: (inputs, parameters, output's delta) -> (a delta for each input, a gradient for each trainable parameter)
ReferenceBackward = Callable[
    [Inputs, Parameters, Float64Array], tuple[Sequence[npt.NDArray[Any]], Mapping[str, npt.NDArray[Any]]]
]
#: (inputs, parameters) -> what the forward pass of training leaves in the parameters that have no gradient
ReferenceState = Callable[[Inputs, Parameters], Mapping[str, npt.NDArray[Any]]]
#: What an output may be away from its value, relative to the largest: OpenCL C allows exp 3 ulp, the most of what
#: layers compute (division 2.5, sums and products half a one), and an ulp is at most 2^-23 of a value.
ROUNDING = 3 * 2.0**-23


@dataclass(frozen=True)
class Run:
    """What a layer launched and computed in one arrangement; ``calls`` has a list for each phase."""

    arrangement: Arrangement
    calls: Mapping[str, list[KernelCall]]
    output: FloatArray
    input_deltas: tuple[FloatArray | None, ...] = ()
    gradients: Mapping[str, FloatArray] | None = None

    @property
    def kernels(self) -> list[str]:
        """The kernels launched, in their order."""
        return [call.kernel for calls in self.calls.values() for call in calls]


@dataclass(frozen=True)
class ContractReport:
    """All runs of a contract test by the name of their arrangement: ``tight``, ``one pitch``, ``own pitches``, ..."""

    runs: Mapping[str, Run]

    @property
    def kernels(self) -> set[str]:
        """All kernels launched."""
        return {kernel for run in self.runs.values() for kernel in run.kernels}

    @property
    def results(self) -> dict[str, bytes | None]:
        """The bits of all that was computed, by arrangement and name."""
        found: dict[str, FloatArray | None] = {}
        for name, run in self.runs.items():
            deltas = {f"delta {number}": delta for number, delta in enumerate(run.input_deltas)}
            found |= {
                f"{name}: {key}": value
                for key, value in {"output": run.output, **deltas, **(run.gradients or {})}.items()
            }
        return {key: None if value is None else value.tobytes() for key, value in found.items()}


def run_layer_contract(
    device: Device,
    layer: Layer,
    input_shapes: Sequence[Shape],
    *,
    reference_forward: ReferenceForward,
    reference_backward: ReferenceBackward | None = None,
    reference_state: ReferenceState | None = None,
    inputs: Sequence[npt.ArrayLike] | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    delta: npt.ArrayLike | None = None,
    shared: Mapping[str, npt.NDArray[Any]] | None = None,
    training: bool = True,
    count: int = 3,
    relative: float = 1e-5,
    absolute: float = 1e-5,
    seed: int = 0,
    ordinal: int = 0,
    tuning: Tuning | None = None,
    weights: StorageType = FLOAT32,
    fused: Sequence[str] = ("relu", "sigmoid"),
    arrangements: Sequence[str | Arrangement] | None = None,
) -> ContractReport:
    """Asserts that a layer keeps the contract, with random data, in several random arrangements of its memory.

    Checked: the declared shape; outputs, deltas and gradients against the reference; ``accumulate`` adds to the old
    delta once; halos are 0 afterwards, and units of others, slack, unused samples and memory behind arrays keep their
    bits; NaN there, in all that must be written, and in blobs that the layer does not claim to read backwards, gets
    into no result; two runs are bit-equal; placements other than SEPARATE work, SHARED and CONCAT without a launch;
    an input that needs no delta gets no call; activations in the epilogue.

    Args:
        layer: with or without a name.
        reference_forward, reference_backward, reference_state: float64, on (N, C, H, W) arrays; results may leave out
            the axes that the layer's shape leaves out. Without ``reference_backward`` only the forward pass runs;
            without ``reference_state`` parameters must keep their bits.
        inputs, parameters, delta: instead of random ones.
        shared: contents of the trainer's arrays: ``samples``, ``step`` (0 by default).
        training: whether as in a training plan; if not, only the forward pass runs.
        count: samples; the buffers have room for one more.
        relative, absolute: tolerance against the references, besides what is lost where numbers are rounded for memory.
        ordinal: the layer's number in its plan.
        tuning: by default that of the device's class. All blobs are of its ``storage``.
        weights: the type of the parameters, and of the numbers of an epilogue.
        fused: activations to try in the epilogue, if the layer has one; by default one that maps 0 to 0, and one that
            does not.
        arrangements: the names of those to run (see ``_arrangements``) where all are too slow, or others than those;
            None: all.
    """
    problem = make_problem(
        layer,
        input_shapes,
        count=count,
        seed=seed,
        inputs=inputs,
        parameters=parameters,
        delta=delta,
        shared=shared,
        ordinal=ordinal,
        storage=tuning.storage if tuning else FLOAT32,
        weights=weights,
    )
    references = _References(problem, reference_forward, reference_backward, reference_state, relative, absolute)
    backward = training and reference_backward is not None
    report: dict[str, Run] = {}
    chosen = _arrangements(problem, training)
    if arrangements is not None:
        chosen = [arrangement for arrangement in chosen if arrangement.name in arrangements]
        chosen += [arrangement for arrangement in arrangements if isinstance(arrangement, Arrangement)]
    epilogues = [
        Arrangement(f"with {name}", same_pitch=True, training=training, activation=name)
        for name in fused
        if problem.layer.fuses((function_step(name),))
    ]
    benches = [Bench(device, problem, arrangement, tuning) for arrangement in (*chosen, *epilogues)]
    build_together(benches)
    for bench in benches:
        is_own = bench.full in chosen
        report[bench.full.name] = _run_twice(bench, references, backward and (is_own or layer.recomputes_output))
        if is_own:
            _check_launches(bench, report[bench.full.name])
    return ContractReport(report)


def _arrangements(problem: Problem, training: bool) -> list[Arrangement]:
    inputs = len(problem.shapes)
    found = [
        Arrangement("tight", tight=True, same_pitch=True, training=training),
        Arrangement("one pitch", same_pitch=True, beside=inputs > 0, training=training),
        Arrangement("own pitches", accumulate=True, training=training),
        Arrangement("own zeros", own_zeros=True, training=training),
    ]
    if inputs > 1 and training:
        found.append(Arrangement("last delta only", wanted=frozenset([inputs - 1])))
    placements = placed(problem, training)
    if placements.output is Placement.IN_PLACE:
        positions = [place for place, shape in enumerate(problem.shapes) if shape == problem.output_shape]
    else:
        positions = [] if placements == Placements() else [0]
    for position in positions:
        name = f"by placement ({placements.output.value} {position}, delta {placements.delta.value})"
        found.append(Arrangement(name, by_placement=True, in_place_of=position, same_pitch=True, training=training))
    if training and placed(problem, False) != placements:
        whole = next((place for place, shape in enumerate(problem.shapes) if shape == problem.output_shape), None)
        found.append(Arrangement("by placement, inference", by_placement=True, in_place_of=whole, training=False))
    return found


class _References:
    """What the reference gives for a problem, computed once, and the comparison with it."""

    def __init__(
        self,
        problem: Problem,
        forward: ReferenceForward,
        backward: ReferenceBackward | None,
        state: ReferenceState | None,
        relative: float,
        absolute: float,
    ) -> None:
        self.problem = problem
        self.relative, self.absolute = relative, absolute
        inputs = [values.astype(np.float64) for values in problem.inputs]
        parameters = {name: values.astype(np.float64) for name, values in problem.parameters.items()}
        delta = problem.delta.astype(np.float64)
        self.output = np.asarray(forward(inputs, parameters))
        declared = problem.output_shape
        full = (problem.count, *in_memory(declared))
        short = (problem.count, *declared.dimensions)
        shape = self.output.shape
        assert shape in (full, short), f"{problem.name}: declared shape {declared}, the reference's is {shape}"
        self.output = self.output.reshape(full)
        self.state = dict(state(inputs, parameters)) if state else {}
        self._inputs, self._parameters, self._delta, self._backward = inputs, parameters, delta, backward

    def backward(self, bench: Bench) -> tuple[list[Float64Array], dict[str, Float64Array]]:
        """Deltas and gradients, through the activation behind the layer if its backward calls go through it."""
        return self._backward_through(bench.full.activation if bench.site.fused_activations else None)

    @cache  # noqa: B019 - it lives as long as one test.
    def _backward_through(self, function: str | None) -> tuple[list[Float64Array], dict[str, Float64Array]]:
        if not self._backward:
            return [], {}
        problem = self.problem
        delta = named(function)[1](self.output, self._delta) if function else self._delta
        deltas, gradients = self._backward(self._inputs, self._parameters, delta)
        assert len(deltas) == len(self._inputs), "the reference must give a delta for each input"
        trainable = {spec.name: spec for spec in problem.specs if spec.trainable}
        assert set(gradients) == set(trainable), f"{problem.name}: gradients {set(gradients)} of {set(trainable)}"
        return (
            [
                np.asarray(values, np.float64).reshape(like.shape)
                for values, like in zip(deltas, self._inputs, strict=True)
            ],
            {name: np.asarray(values, np.float64).reshape(trainable[name].shape) for name, values in gradients.items()},
        )

    def check_output(self, bench: Bench) -> FloatArray:
        expected = bench.finished(self.output)
        actual = bench.values(bench.output).reshape(expected.shape)
        self.close(actual, expected, f"{bench.name}: output", in_blob=True)
        return actual

    def check_state(self, bench: Bench) -> None:
        for spec in self.problem.specs:
            actual = bench.parameter("parameters", spec.name)
            if spec.name in self.state and bench.full.training:
                expected = np.asarray(self.state[spec.name], np.float64).reshape(spec.shape)
                self.close(actual, expected, f"{bench.name}: new {spec.name}")
            else:
                same = np.array_equal(actual, self.problem.parameters[spec.name])
                assert same, f"{bench.name}: parameter {spec.name} must not change"

    def check_gradients(self, bench: Bench) -> dict[str, FloatArray]:
        found = {}
        for name, expected in self.backward(bench)[1].items():
            found[name] = bench.parameter("gradients", name)
            self.close(found[name], expected, f"{bench.name}: gradient of {name}")
        return found

    def check_deltas(self, bench: Bench) -> tuple[FloatArray | None, ...]:
        found: list[FloatArray | None] = []
        for position, blob in enumerate(bench.input_deltas):
            if blob is None:
                found.append(None)
                continue
            expected = self.backward(bench)[0][position]
            if bench.arrangement.accumulate:
                expected = expected + self.problem.old_deltas[position]
            actual = bench.values(blob).reshape(expected.shape)
            self.close(actual, expected, f"{bench.name}: delta of input {position}", in_blob=True)
            found.append(actual)
        return tuple(found)

    def close(self, actual: npt.ArrayLike, expected: npt.ArrayLike, what: str, *, in_blob: bool = False) -> None:
        narrow = in_blob and self.problem.storage != FLOAT32
        rounding = self.problem.storage.epsilon if narrow else 0.0
        assert_close(actual, expected, relative=self.relative + rounding, absolute=self.absolute, what=what)


def _run_twice(bench: Bench, references: _References, backward: bool) -> Run:
    """Runs all phases twice, first with the check of every launch; all buffers must be bit-equal."""
    runs = []
    memories = []
    for debug in (True, False):
        bench.load()
        bench.run("forward", debug=debug)
        run = Run(bench.full, bench.calls, references.check_output(bench))
        references.check_state(bench)
        seen = dict(bench.mirror)
        if backward and bench.full.training:
            bench.load_deltas()
            bench.run("backward parameters", debug=debug)
            run = replace(run, gradients=references.check_gradients(bench))
            bench.run("backward data", debug=debug)
            run = replace(run, input_deltas=references.check_deltas(bench))
            seen |= {f"{name} after backward": values for name, values in bench.mirror.items()}
        runs.append(run)
        memories.append(seen)
    for name, first in memories[0].items():
        same = np.array_equal(bits(first), bits(memories[1][name]))
        assert same, f"{bench.name}: two runs must be bit-equal, but '{name}' differs"
    return runs[0]


def _check_launches(bench: Bench, run: Run) -> None:
    """SHARED and CONCAT need no launch, and an input without a delta gets none."""
    layer, arrangement = bench.problem.layer, bench.full
    free, placements = (Placement.SHARED, Placement.CONCAT), placed(bench.problem, arrangement.training)
    if arrangement.by_placement and placements.output in free:
        assert not run.calls["forward"], f"{bench.name}: forward must launch nothing"
    if arrangement.training:
        repeats = any(shape.elements != bench.problem.output_shape.elements for shape in bench.problem.shapes)
        if arrangement.by_placement and placements.delta in free and not repeats:
            assert not run.calls["backward data"], f"{bench.name}: backward must launch nothing"
        unwanted = replace(
            bench.site, input_deltas=(None,) * len(bench.inputs), accumulate=(False,) * len(bench.inputs)
        )
        assert not layer.backward_data(unwanted), f"{bench.name}: no input needs a delta, so nothing may be launched"


def check_central_differences(
    device: Device,
    layer: Layer,
    input_shapes: Sequence[Shape],
    *,
    inputs: Sequence[npt.ArrayLike] | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    shared: Mapping[str, npt.NDArray[Any]] | None = None,
    count: int = 2,
    coordinates: int = 6,
    step: float = 1e-2,
    tolerance: float = 1e-2,
    seed: int = 0,
    ordinal: int = 0,
    tuning: Tuning | None = None,
) -> None:
    """Asserts that deltas and gradients are the slopes of what the device itself computes forward.

    The loss is sum(output * random weights), summed in float64. ``coordinates`` values of each input and trainable
    parameter move by ``step`` to either side. Where the slopes to both sides differ much there is a kink (ReLU, max)
    between them: such values are passed over, but not more than half of them.

    Differences have noise, for which there is a floor: an output may be r = ROUNDING of the largest one away from its
    value on either side, in opposite directions, and (a + r - (b - r)) / (2 step) is r / step away from (a - b) / (2
    step). What is the same on both sides has none: it cancels.

    Args:
        tolerance: for the error, relative to the slope; a tenth of it relative to the largest of the same array.
    """
    problem = make_problem(
        layer,
        input_shapes,
        count=count,
        seed=seed,
        inputs=inputs,
        parameters=parameters,
        shared=shared,
        ordinal=ordinal,
    )
    bench = Bench(device, problem, Arrangement("central differences", same_pitch=True), tuning)

    def outputs() -> Float64Array:
        bench.run("forward", debug=False)
        return bench.values(bench.output).astype(np.float64).reshape(problem.delta.shape)

    bench.load()
    bench.run("forward")
    bench.load_deltas()
    bench.run("backward parameters")
    bench.run("backward data")
    slopes: dict[str, FloatArray] = {spec.name: bench.parameter("gradients", spec.name) for spec in bench.gradients}
    moved = {spec.name: problem.parameters[spec.name] for spec in bench.gradients}
    setters: dict[str, Callable[[FloatArray], None]] = {}
    for spec in bench.gradients:
        setters[spec.name] = lambda values, name=spec.name: bench.set_parameter(name, values)  # type: ignore[misc]
    for position, blob in enumerate(bench.input_deltas):
        assert blob
        name = f"input {position}"
        slopes[name] = bench.values(blob).reshape(problem.inputs[position].shape)
        moved[name] = problem.inputs[position]
        setters[name] = lambda values, position=position: bench.set_input(position, values)  # type: ignore[misc]
    bench.load()
    middle = outputs()
    generator = np.random.default_rng(seed)
    for name, values in moved.items():
        scale = max(float(np.abs(slopes[name]).max()), 1e-3)
        chosen = generator.choice(values.size, min(coordinates, values.size), replace=False)
        kinks = 0
        for index in chosen:
            sides, found = [], []
            for sign in (1, -1):
                changed = values.copy()
                changed.reshape(-1)[index] += sign * step
                moved_by = float(changed.reshape(-1)[index]) - float(values.reshape(-1)[index])
                setters[name](changed)
                found.append(outputs())
                sides.append(float(((found[-1] - middle) * problem.delta).sum()) / moved_by)
            moving = np.abs(problem.delta)[found[0] != found[1]]
            floor = ROUNDING * float(np.abs(middle).max() * moving.sum()) / step
            if abs(sides[0] - sides[1]) > 0.2 * scale + 4 * floor:
                kinks += 1
                continue
            expected, actual = float(np.mean(sides)), float(slopes[name].reshape(-1)[index])
            place = ", ".join(str(item) for item in np.unravel_index(index, values.shape))
            assert abs(actual - expected) <= tolerance * (abs(expected) + 0.1 * scale) + floor, (
                f"{bench.name}: slope of {name} at ({place}): computed {actual:.6g}, by differences {expected:.6g}"
            )
        setters[name](values)
        assert 2 * kinks <= len(chosen), f"{bench.name}: {kinks} of {len(chosen)} values of {name} lie at a kink"

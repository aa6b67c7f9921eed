"""The contract test itself: it passes a correct layer, and finds each mistake that it is there to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from blobnet.device.device import Device
from blobnet.errors import BlobnetError, OptionError
from blobnet.launch.kernel_call import KernelCall
from blobnet.layers.base import Layer, LayerContext, Placement, Placements
from blobnet.memory.blob import Halo, Shape
from tests.layers.layer_contract import ContractReport, check_central_differences, run_layer_contract
from tests.layers.toy_layer import (
    BACKWARD,
    FORWARD,
    ToyLayer,
    reference_backward,
    reference_forward,
    use_kernels,
)

SHAPE = Shape(3, 4, 5)


def contract(device: Device, layer: Layer) -> ContractReport:
    return run_layer_contract(
        device, layer, [SHAPE], reference_forward=reference_forward, reference_backward=reference_backward
    )


def test_a_correct_layer_passes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch)
    report = contract(device, ToyLayer())
    assert report.kernels == {"toy/forward", "toy/backward"}
    assert list(report.runs) == ["tight", "one pitch", "own pitches", "own zeros"]
    check_central_differences(device, ToyLayer(), [SHAPE])


#: Mistake -> (statement at the end of the forward kernel, what the message says).
FORWARD_MISTAKES = {
    "wrong value": ("output[BLOB_INDEX(OUTPUT, n, 1, 2, 3)] += 0.001f;", r"output: 3 of .* first at .*\(0, 1, 2, 3\)"),
    "cell not written": (
        "output[BLOB_INDEX(OUTPUT, n, 1, 2, 3)] = as_float(0x7fc0dead);",
        "output: actual is NaN in 3 of",
    ),
    "slack in a result": (
        "output[BLOB_INDEX(OUTPUT, n, 0, 0, 0)] += 0 * input[BLOB_INDEX(INPUT, n, INPUT_UNIT_COUNT - 1, 0, 0)"
        " + INPUT_UNIT_MEMORY_WIDTH * (INPUT_UNIT_MEMORY_HEIGHT - INPUT_UNIT_MEMORY_HEIGHT_OFFSET)];",
        "output: actual is NaN",
    ),
    "unused sample in a result": (
        "output[BLOB_INDEX(OUTPUT, n, 0, 0, 0)] += 0 * input[BLOB_INDEX(INPUT, n + 1, 0, 0, 0)];",
        "output: actual is NaN in 1 of",
    ),
    "unused sample written": ("output[BLOB_INDEX(OUTPUT, n + 1, 0, 0, 0)] = 0;", "(may change only|must keep)"),
    "input written": (
        "((__global real_t *)input)[BLOB_INDEX(INPUT, n, 0, 0, 0)] = 0;",
        r"may change only .* storage=input 0, cell=\(n=0, memory unit=",
    ),
    "behind the buffer": (
        "output[BLOB_INDEX(OUTPUT, count + 1, 0, 0, 0)] = 1;",
        "may change only .* storage=output 0",
    ),
}


@pytest.mark.parametrize("mistake", FORWARD_MISTAKES)
def test_mistakes_forward(device: Device, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    statement, message = FORWARD_MISTAKES[mistake]
    use_kernels(monkeypatch, forward=FORWARD.replace("MISTAKE", statement))
    with pytest.raises((AssertionError, BlobnetError), match=message):
        contract(device, ToyLayer())


#: Mistake -> (text to replace in the backward kernel, its replacement, what the message says).
BACKWARD_MISTAKES = {
    "always set": ("ACCUMULATE ?", "0 * ACCUMULATE ?", "own pitches: delta of input 0"),
    "always added": ("ACCUMULATE ?", "1 + ACCUMULATE ?", "tight: delta of input 0: actual is NaN"),
    "added twice": ("input_delta[to] +", "2 * input_delta[to] +", "own pitches: delta of input 0"),
    "wrong factor": ("slope = 2", "slope = 2.001f", "tight: delta of input 0"),
}


@pytest.mark.parametrize("mistake", BACKWARD_MISTAKES)
def test_mistakes_backward(device: Device, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    old, new, message = BACKWARD_MISTAKES[mistake]
    assert old in BACKWARD
    use_kernels(monkeypatch, backward=BACKWARD.replace(old, new))
    with pytest.raises(AssertionError, match=message):
        contract(device, ToyLayer())


def test_central_differences_find_a_wrong_slope(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, backward=BACKWARD.replace("slope = 2", "slope = 2.1f"))
    with pytest.raises(AssertionError, match=r"slope of input 0 at .*: computed .*, by differences"):
        check_central_differences(device, ToyLayer(), [SHAPE])


@pytest.mark.parametrize("bits", [1, 255])
def test_central_differences_know_what_rounding_does(
    device: Device, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """An output that is 1 but for its last bits has no slope, as the first row of a causal attention has none."""
    rounded = f"as_float(as_int(1.0f) + (as_int(input[BLOB_INDEX(INPUT, n, z, y, x)]) & {bits}))"
    forward = FORWARD.replace("2 * input[BLOB_INDEX(INPUT, n, z, y, x)]", rounded)
    use_kernels(monkeypatch, forward, BACKWARD.replace("slope = 2", "slope = 0"))
    if bits == 1:
        check_central_differences(device, ToyLayer(), [SHAPE], coordinates=60)
    else:
        with pytest.raises(AssertionError, match=r"slope of input 0 at .*: computed 0, by differences"):
            check_central_differences(device, ToyLayer(), [SHAPE], coordinates=60)


@dataclass(frozen=True)
class _Wrong(ToyLayer):
    """A toy layer with a wrong declaration."""

    mistake: str = ""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0].with_units(inputs[0].units + 1) if self.mistake == "shape" else inputs[0]

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        wrong = {"shared": Placements(output=Placement.SHARED), "shared delta": Placements(delta=Placement.SHARED)}
        return wrong.get(self.mistake, Placements())

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        return Halo((0, 1)) if self.mistake == "" else Halo()

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        if self.mistake == "unwanted delta" and site.input_deltas[0] is None:
            site = replace(site, input_deltas=(site.inputs[0],))
        if self.mistake == "reads input":
            site = replace(site, output_delta=site.inputs[0])
        return super().backward_data(site)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("shape", "declared shape .*, the reference's is"),
        ("shared", r"by placement \(shared 0, delta separate\)"),
        ("shared delta", r"by placement \(separate 0, delta shared\)"),
        ("unwanted delta", "no input needs a delta, so nothing may be launched"),
        ("reads input", "delta of input 0: actual is NaN in 180 of 180"),
    ],
)
def test_wrong_declarations(device: Device, monkeypatch: pytest.MonkeyPatch, mistake: str, message: str) -> None:
    use_kernels(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        contract(device, _Wrong(mistake=mistake))


def test_a_halo_is_zero_if_it_is_asked_for(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = "for (int z = 0; z < 3; z++) { for (int y = 0; y < 4; y++) { output[BLOB_INDEX(OUTPUT, n, z, y, 4)] +="
    statement += " input[BLOB_INDEX(INPUT, n, z, y, 5)]; } }"
    use_kernels(monkeypatch, forward=FORWARD.replace("MISTAKE", statement))
    contract(device, _Wrong())
    with pytest.raises(AssertionError, match="output: "):
        contract(device, ToyLayer())


@pytest.mark.parametrize(
    ("hook", "hint"),
    [
        ("backward_reads_inputs", r"kept = Kept\(inputs=True\)"),
        ("backward_reads_output", r"kept = Kept\(output=True\)"),
        ("delta_placement", r"def placement\(self, inputs, training\)"),
    ],
)
def test_a_layer_of_former_hooks_is_refused(hook: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"Former: .* Received method={hook}. Hint: {hint}"):
        type("Former", (ToyLayer,), {hook: property(lambda layer: True)})
    assert "Former" not in Layer.kinds

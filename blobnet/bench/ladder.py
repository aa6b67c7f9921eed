"""The kernels of the seeds (docs/sources.md), from the concise one to the fastest.

Each is a rung that is run, tested and timed as it is. Production code does not use them: they show what each idea
brings on a device, and what the production kernel adds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blobnet.bench.shapes import CONVOLUTIONS, Case, parse
from blobnet.blob import Halo, Shape
from blobnet.errors import OptionError
from blobnet.implementations.base import FORWARD
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import Array, GlobalSize, KernelCall, power_of_two, row_group
from blobnet.layers import Conv1D, Conv2D
from blobnet.layers.activation import split
from blobnet.layers.base import Layer, ParameterSpec, Site

#: Taps of seed 000 that fit registers, all of an input unit at once.
_MOST_TAPS = 128
#: Seed 002: positions of a tile and weights in the registers of a work-item, all of them unrolled; work-items of a
#: group; bytes of local memory, less than any GPU of the large vendors has.
_MOST_POSITIONS, _MOST_WEIGHTS = 8, 256
_MOST_ITEMS, _LOCAL_BYTES = 1024, 40 << 10


@dataclass(frozen=True)
class Rung:
    """A kernel with its macros.

    Attributes:
        name: for people; its own among the rungs of a ladder.
        adds: what it does that the rung before does not.
        launch: makes its calls.
        kernel: the file.
        macros: those that tell it from other rungs of the kernel.
        most_taps: of a filter, None: any.
    """

    name: str
    adds: str
    launch: Callable[[Rung, Operation, Array], list[KernelCall]]
    kernel: str
    macros: Mapping[str, int] = field(default_factory=dict)
    most_taps: int | None = None

    def obstacle(self, convolution: Conv1D | Conv2D, shape: Shape) -> str | None:
        """Why the rung cannot compute a convolution that its ladder takes; None if it can."""
        taps = _taps(convolution, shape)
        if self.most_taps is not None and taps > self.most_taps:
            return f"a filter must have at most {self.most_taps} taps to fit registers, not {taps}"
        return None

    def layer(self, convolution: Conv1D | Conv2D, *, preactivation: bool = False) -> Layer:
        """A layer that computes ``convolution``, forward, on this rung.

        Args:
            convolution: of one group; its activation goes into the epilogue.
            preactivation: also store what the activation is applied to, as memory called ``preactivation``.
        """
        return _OnRung(convolution, self, preactivation)


def _a_value(rung: Rung, operation: Operation, preactivation: Array) -> list[KernelCall]:
    """A work-item for each output value."""
    output = operation.output.shape
    size = GlobalSize(output.width, output.height, output.units)
    arrays: dict[str, Array] = {}
    return [_call(rung, operation, preactivation, size, row_group(output.width), arrays)]


def _a_block(rung: Rung, operation: Operation, preactivation: Array) -> list[KernelCall]:
    """A work-item for each block of units and columns; the weights are packed first."""
    output, block = operation.output.shape, rung.macros["BLOCK_UNITS"]
    blocks, columns = -(-output.units // block), -(-output.width // rung.macros["BLOCK_WIDTH"])
    rows, unit_columns = operation.depth, blocks * block
    packed = operation.memory("packed weights", (operation.taps * rows + 1) * unit_columns)
    own = {"DEPTH_ROWS": rows, "UNIT_COLUMNS": unit_columns}
    pack = operation.call(
        "convolution/pack_weight",
        GlobalSize(unit_columns, rows + 1, per_sample=False),
        macros={**own, "GROUP_STRIDE": 0},
        arrays={"PACKED": packed},
        label=f"{operation.label}: pack",
    )
    size = GlobalSize(columns, output.height, blocks)
    return [pack, _call(rung, operation, preactivation, size, row_group(columns), {"PACKED": packed}, own)]


def _a_group(rung: Rung, operation: Operation, preactivation: Array) -> list[KernelCall]:
    """A work-group for each unit and tile of positions."""
    output, axis = operation.output.shape, operation.horizontal
    positions, channels = min(output.width, _MOST_POSITIONS), rung.macros["CHANNELS"]
    run = (positions - 1) * axis.stride + axis.span
    items = power_of_two(-(-operation.depth // channels), _MOST_ITEMS)
    while items > 1 and 4 * items * (channels * max(run, axis.kernel) + 1) > _LOCAL_BYTES:
        items //= 2
    size = GlobalSize(items, -(-output.width // positions), output.units)
    arrays: dict[str, Array] = {}
    return [_call(rung, operation, preactivation, size, (items, 1, 1), arrays, {"POSITIONS": positions})]


def _call(
    rung: Rung,
    operation: Operation,
    preactivation: Array,
    size: GlobalSize,
    local_size: tuple[int, int, int],
    arrays: Mapping[str, Array],
    own: Mapping[str, int] | None = None,
) -> KernelCall:
    facts = {"STORE_PREACTIVATION": int(preactivation.per_sample > 0), **rung.macros, **(own or {})}
    arrays = {**arrays, "PREACTIVATION": preactivation}
    return operation.call(rung.kernel, size, local_size, facts=facts, arrays=arrays)


@dataclass(frozen=True)
class _OnRung(Layer):
    """A convolution that a rung computes. NOTE: the underscore keeps it out of Layer.kinds, and so out of files."""

    convolution: Conv1D | Conv2D
    rung: Rung
    preactivation: bool = False

    @property
    def fuses(self) -> Collection[str]:
        return ("activation",)

    def expanded(self) -> tuple[Layer, ...]:
        plain = replace(self, convolution=replace(self.convolution, activation=None))
        return split(self, plain, self.convolution.activation)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return self.convolution.output_shape(inputs)

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return self.convolution.parameters(inputs)

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        return self.convolution.input_halo(inputs)

    def forward(self, site: Site) -> list[KernelCall]:
        # NOTE: a kernel takes no null array; one element that nobody writes stands in for what is not stored.
        stored = site.output.shape.elements if self.preactivation else 0
        preactivation = site.memory("preactivation", 0 if stored else 1, stored)
        return self.rung.launch(self.rung, self.convolution.operation(site, FORWARD), preactivation)


@dataclass(frozen=True)
class Ladder:
    """The rungs of a seed, from its concise kernel on.

    Attributes:
        seed: its number.
        title: what it computes.
        shapes: what is measured by default, on each class of device.
        batch_size: the seed's own number of samples, None: any.
        rungs: in the order of the seed; each is built on the one before.
        rank, taps: axes and taps that a convolution must have, None: any.
    """

    seed: str
    title: str
    shapes: Mapping[str, str]
    rungs: tuple[Rung, ...]
    batch_size: int | None = None
    rank: int | None = None
    taps: int | None = None

    def obstacle(self, case: Case) -> str | None:
        """Why the ladder does not take a case; None if it does."""
        layer: Any = case.layer
        if layer.kind not in CONVOLUTIONS:
            return "it must be a convolution"
        if layer.groups > 1:
            return "a convolution must have one group"
        if self.rank not in (None, layer.rank):
            return f"a convolution must have {self.rank} axis, such as {self.shapes['cpu']}"
        if self.taps not in (None, _taps(layer, case.input)):
            return f"a filter must have {self.taps} tap, such as {self.shapes['cpu']}"
        return None


def _taps(convolution: Conv1D | Conv2D, shape: Shape) -> int:
    """Taps of a filter."""
    weight = convolution.parameters([shape])[0]
    return weight.elements // (weight.shape[0] * weight.shape[1])


_CONCISE = Rung("concise", "a work-item an output value", _a_value, "ladder/concise")


def _channels(name: str, adds: str, channels: int, *, staged: bool = True) -> Rung:
    macros = {"CHANNELS": channels, "STAGED": int(staged)}
    return Rung(name, adds, _a_group, "ladder/channels", macros, _MOST_WEIGHTS // channels)


def _block(name: str, adds: str, units: int, width: int, unroll: int = 1, most_taps: int | None = None) -> Rung:
    macros = {"BLOCK_UNITS": units, "BLOCK_WIDTH": width, "UNROLL": unroll}
    return Rung(name, adds, _a_block, "ladder/combined", macros, most_taps)


LADDERS = {
    ladder.seed: ladder
    for ladder in (
        Ladder(
            "000",
            "portable convolution layers",
            {"cpu": "32x28x28:32k3p1b", "gpu": "64x56x56:64k3p1b"},
            (
                _CONCISE,
                Rung("weight vectors", "weights of an input unit as vectors",
                     _a_value, "ladder/vectorized", {"VECTOR_INPUT": 0}, _MOST_TAPS),
                Rung("input vectors", "rows of the input as vectors",
                     _a_value, "ladder/vectorized", {"VECTOR_INPUT": 1}, _MOST_TAPS),
                _block("16 units", "16 output units a work-item", 16, 1, most_taps=_MOST_TAPS),
                _block("16 units, 2 columns", "2 columns a work-item", 16, 2, most_taps=_MOST_TAPS),
            ),
        ),
        Ladder(
            "002",
            "1-D convolution, channels a thread",
            {"cpu": "1024x4:1024k5p2b", "gpu": "1024x4:1024k5p2b"},
            (
                _CONCISE,
                _channels("shared units", "a group an output unit, an item an input one", 1, staged=False),
                _channels("local memory", "both come through local memory", 1),
                *(_channels(f"{many} channels", f"{many} input units a work-item", many) for many in (2, 4, 8, 16)),
            ),
            batch_size=1,
            rank=1,
        ),
        Ladder(
            "004",
            "1x1 convolution as an outer product",
            {"cpu": "96x14x14:96k1b", "gpu": "240x28x28:240k1b"},
            (
                _CONCISE,
                _block("4 units", "4 output units a work-item", 4, 1),
                _block("4 units, 2 columns", "2 columns a work-item: an outer product", 4, 2),
                _block("4 input units a step", "the loop over input units unrolled by 4", 4, 2, 4),
            ),
            taps=1,
        ),
    )
}  # fmt: skip


def climbs(
    kind: str, seed: str | None, shape: str | None, bias: bool | str | None, activation: str | None
) -> list[tuple[Ladder, Case]]:
    """What to measure: the ladders, each with its case.

    Args:
        kind: the class of the device, for default shapes.
        seed: of LADDERS; None: all, or with ``shape`` those that take it.
        shape: see blobnet.bench.shapes; None: the default of each ladder.
        bias: instead of the shape's own, if not None.
        activation: for the epilogue, None: none.

    Raises:
        OptionError: no ladder takes the shape, or ``shape`` is not written as one.
        ShapeError: the convolution does not fit its input.
    """
    wanted = list(LADDERS.values()) if seed is None else [LADDERS[seed]]
    pairs = [(ladder, parse(shape or ladder.shapes[kind])) for ladder in wanted]
    obstacles = {ladder.seed: ladder.obstacle(case) for ladder, case in pairs}
    if all(obstacles.values()):
        why = {f"seed {number}": obstacle for number, obstacle in obstacles.items()}
        raise OptionError("SUBJECT", "a seed must have kernels for it", shape=shape, **why)
    changes: dict[str, Any] = {"activation": activation, **({} if bias is None else {"bias": bias})}
    return [
        (ladder, replace(case, layer=replace(case.layer, **changes)))
        for ladder, case in pairs
        if not obstacles[ladder.seed]
    ]

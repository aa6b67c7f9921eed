"""Operations: one direction of a product of a blob and weights, and what launches of it may ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from blobnet.implementations.base import BACKWARD_DATA, FORWARD
from blobnet.implementations.blocking import splits_for
from blobnet.launch.elementwise import EpilogueOp, with_epilogue
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, Blob, GlobalSize, KernelCall, Tuning
from blobnet.launch.kernel_source import Macro, load
from blobnet.launch.work_sizes import elementwise_work, power_of_two, sum_call
from blobnet.memory.blob import FLOAT32, BlobLayout, Shape
from blobnet.memory.windows import Pair, PhaseAxis, WindowAxis

#: Rows of a tile that may lie beyond the last row: one less than its depth.
_MAX_BEHIND = 15


@dataclass(frozen=True)
class Phase:
    """A dense part of an operation, whose results all meet the same taps at the same shifts.

    Forward is one. Of the backward pass of a strided convolution each makes every stride-th cell along both axes.
    """

    vertical: PhaseAxis
    horizontal: PhaseAxis

    @property
    def taps(self) -> int:
        """Taps that its cells meet."""
        return self.vertical.count * self.horizontal.count

    @property
    def filter_taps(self) -> int:
        """Taps of the filter, or of the window that takes its place."""
        return self.vertical.filter_taps * self.horizontal.filter_taps

    @property
    def beside(self) -> int:
        """Cells of a result: of several phases side by side."""
        return self.vertical.beside * self.horizontal.beside

    @property
    def macros(self) -> dict[str, Macro]:
        """The phase as macros."""
        # A phase without taps has rows of none: kernels divide by TAPS_X, and compilers would warn.
        rows, columns = self.vertical.count if self.horizontal.count else 0, max(1, self.horizontal.count)
        macros: dict[str, Macro] = {"TAPS_Y": rows, "TAPS_X": columns}
        macros |= {"FILTER_HEIGHT": self.vertical.filter_taps, "FILTER_WIDTH": self.horizontal.filter_taps}
        for axis, y, row in (self.vertical, "Y", "ROW"), (self.horizontal, "X", "COLUMN"):
            macros |= {f"PHASE_{y}": axis.offset, f"{row}_FIRST": axis.shift, f"{row}_STEP": axis.shift_step}
            macros |= {f"TAP_{y}_FIRST": axis.first, f"TAP_{y}_STEP": axis.step, f"BESIDE_{y}": axis.beside}
        return macros


@dataclass(frozen=True)
class Operation:
    """One of the three contractions of a layer's input, weights and output: it makes one of them of the other two.

        forward           O[n, o, y, x] = +(I[n, i, y*S + a*D - P, x*S + b*D - P] * W[o, i, a, b])
        backward data    dI[n, i, q, r] = +(dO[n, o, (q + P - a*D)/S, (r + P - b*D)/S] * W[o, i, a, b])
        backward weights dW[o, i, a, b] = +(dO[n, o, y, x] * I[n, i, y*S + a*D - P, x*S + b*D - P])

    Units are apart in groups. A dense layer is a convolution whose filters are as large as its input.

    Attributes:
        name: the layer's.
        family: what the kernels are written for, ``convolution`` or ``dense``.
        direction: FORWARD, BACKWARD_DATA or BACKWARD_WEIGHTS.
        input, output: the layer's, or their deltas: what the contraction reads or makes.
        groups: groups of units.
        vertical, horizontal: the window.
        array: finds the layer's parameters and gradients, and makes memory: LayerContext.array.
        tuning: for kernels.
        batch_size: the plan's samples.
        bias_mode: 0 no bias, 1 one a unit, 2 one a position; backward weights: whose gradient is wanted.
        epilogue: operations on a result of the forward pass, after its bias.
        accumulate: backward data: whether to add to what is there.
        keeps_weights: whether the weights are those of the last batch, as in inference.
        label: of its launches, for people; the layer's name and the direction if it is empty.
        source, depth: the blob that it reads, of backward weights the input, and its units of a group.
        result, units, positions: the blob that it makes, of backward weights the output, its units of a group, and
            the positions of a unit.
        taps: of a filter.
        columns, weights: weights of one output unit, and all of them.
        unit_stride: from the weights of a unit of the result to those of the next.
        strides: the vertical and the horizontal one.
        cores: compute units of the device.
    """

    name: str
    family: str
    direction: str
    input: Blob
    output: Blob
    groups: int
    vertical: WindowAxis
    horizontal: WindowAxis
    array: Callable[[ArrayHandle], Array]
    tuning: Tuning = field(default_factory=Tuning)
    batch_size: int = 1
    bias_mode: int = 0
    epilogue: tuple[EpilogueOp, ...] = ()
    accumulate: bool = False
    keeps_weights: bool = False
    label: str = ""

    source: Blob = field(init=False)
    result: Blob = field(init=False)
    depth: int = field(init=False)
    units: int = field(init=False)
    positions: int = field(init=False)
    taps: int = field(init=False)
    columns: int = field(init=False)
    weights: int = field(init=False)
    unit_stride: int = field(init=False)
    strides: Pair = field(init=False)
    cores: int = field(init=False)

    def __post_init__(self) -> None:
        blobs = self.input, self.output
        source, result = blobs[::-1] if self.direction == BACKWARD_DATA else blobs
        taps = self.vertical.kernel * self.horizontal.kernel
        columns = self.input.shape.units // self.groups * taps
        vars(self).update(
            source=source,
            result=result,
            depth=source.shape.units // self.groups,
            units=result.shape.units // self.groups,
            positions=result.shape.height * result.shape.width,
            taps=taps,
            columns=columns,
            weights=self.output.shape.units * columns,
            unit_stride=taps if self.direction == BACKWARD_DATA else columns,
            strides=(self.vertical.stride, self.horizontal.stride),
            cores=self.tuning.model.cores,
            label=self.label or f"{self.name} {self.direction.removesuffix('s')}",
        )

    @cached_property
    def phases(self) -> list[Phase]:
        """The dense parts, without those that add nothing to what is there."""
        backward, shape = self.direction == BACKWARD_DATA, self.result.shape
        sizes = (self.vertical, shape.height), (self.horizontal, shape.width)
        axes = product(*(PhaseAxis.all(axis, size, backward=backward) for axis, size in sizes))
        return [phase for phase in (Phase(*both) for both in axes) if phase.taps or not self.accumulate]

    @cached_property
    def blocks(self) -> Phase | None:
        """All phases of backward data side by side, where that reads no more of the halo."""
        vertical = PhaseAxis.side_by_side(self.vertical, self.result.shape.height)
        horizontal = PhaseAxis.side_by_side(self.horizontal, self.result.shape.width)
        return Phase(vertical, horizontal) if vertical and horizontal else None

    @cached_property
    def phases_side_by_side(self) -> list[list[Phase]]:
        """Other ways to have the phases of backward data at a stride: those of a row side by side, or all of them."""
        if self.direction != BACKWARD_DATA or self.strides == (1, 1):
            return []
        beside = PhaseAxis.side_by_side(self.horizontal, self.result.shape.width)
        rows = PhaseAxis.all(self.vertical, self.result.shape.height, backward=True)
        of_rows = [Phase(axis, beside) for axis in rows] if beside else []
        return [way for way in (of_rows, [self.blocks] if self.blocks else []) if way]

    @property
    def has_cells(self) -> bool:
        """True if a blob has cells for elements."""
        return self.input.type.cell * self.output.type.cell > 1

    @property
    def input_phases(self) -> Shape:
        """A unit of the padded input as planes of stride 1, as many and as large as taps read (input_phases.h)."""
        y, x, shape = self.vertical, self.horizontal, self.output.shape
        sizes = shape.height + (y.span - 1) // y.stride, shape.width + (x.span - 1) // x.stride
        return Shape(min(y.stride, y.span) * min(x.stride, x.span), *sizes)

    @cached_property
    def split_input(self) -> BlobLayout | None:
        """How the input's phases lie in a copy that is read at stride 1; None where the source is.

        Forward at the output's pitch, if rows fit: a plane of positions then is one of results (docs/kernels.md).
        """
        if self.direction == BACKWARD_DATA or self.strides == (1, 1):
            return None
        shape = Shape(self.input.shape.units * self.input_phases.units, *self.input_phases.sizes)
        pitch = self.output.layout.width.memory if self.direction == FORWARD else 0
        return BlobLayout.padded(shape, pitch=max(shape.width, pitch))

    @cached_property
    def taps_inside(self) -> int:
        """Taps that read the source and not its halo, over all positions of a unit."""
        _, height, width = self.source.shape.axes
        return sum(item.vertical.taps_inside(height) * item.horizontal.taps_inside(width) for item in self.phases)

    @property
    def cheap_addresses(self) -> bool:
        """Return True if products of tiles use 32-bit addresses, which take few instructions (kernels/place.h).

        All addresses fit 32 bits then, also those of a tile's rows beyond the last one, which are not read. The numbers
        of rows of all samples fit 24 bits with a sign.
        """
        blobs = self.input, self.output
        sizes = [blob.layout.memory_elements * blob.type.itemsize for blob in blobs]
        largest = max((self.batch_size + _MAX_BEHIND) * max(sizes), self.weights * FLOAT32.itemsize)
        rows = self.batch_size * max(blob.shape.height for blob in blobs)
        return self.tuning.model.prefers_32bit_addresses and largest < 1 << 32 and rows < 1 << 23

    @property
    def geometry(self) -> tuple[object, ...]:
        """Operations with the same geometry take the same time by the same way and tuning.

        The first unit of a blob in its storage is no part of it: a concat has one for each input.
        """
        blobs = self.input, self.output, *(step.blob for step in self.epilogue)
        lie = [(replace(blob.layout, unit_offset=0), blob.type) for blob in blobs if blob]
        window = self.groups, self.vertical, self.horizontal
        others = self.batch_size, self.bias_mode, self.accumulate, self.keeps_weights
        return self.family, self.direction, *lie, *window, *others

    @cached_property
    def plain(self) -> Operation:
        """The contraction alone, without what is done to its results, nor what they are added to."""
        return replace(self, bias_mode=0, epilogue=(), accumulate=False)

    # -- launches ----------------------------------------------------------------------------------------------------

    def memory(self, name: str, elements: int = 0, per_sample: int = 0) -> Array:
        """Memory of the layer's own: LayerContext.memory."""
        return self.array(ArrayHandle(ArrayKind.MEMORY, name, elements, per_sample))

    def parameter(self, role: str) -> Array:
        """The array of a kernel's role ``WEIGHT``, ``BIAS``, ``WEIGHT_GRADIENT`` or ``BIAS_GRADIENT``."""
        # The weights for a bias that there is not: kernels take no null arrays.
        name, _, gradient = role.lower().partition("_")
        known = name if name == "weight" or self.bias_mode else "weight"
        return self.array(ArrayHandle(ArrayKind.GRADIENT if gradient else ArrayKind.PARAMETER, known))

    @cached_property
    def macros(self) -> dict[str, Macro]:
        """All that kernels may ask about it."""
        macros: dict[str, Macro] = {
            "GROUPS": self.groups,
            "GROUP_INPUT_UNITS": self.input.shape.units // self.groups,
            "GROUP_OUTPUT_UNITS": self.output.shape.units // self.groups,
            "GROUP_STRIDE": self.weights // self.groups,
            "UNITS": self.units,
            "DEPTH": self.depth,
            "UNIT_STRIDE": self.unit_stride,
            "DEPTH_STRIDE": self.taps if self.unit_stride == self.columns else self.columns,
            "TAPS": self.taps,
            "BIAS_MODE": self.bias_mode,
            "HAS_BIAS": int(self.bias_mode > 0),
            "ACCUMULATE": int(self.accumulate),
            "CHEAP_ADDRESSES": int(self.cheap_addresses),
        }
        axes = (self.vertical, "Y", "HEIGHT", "TOP"), (self.horizontal, "X", "WIDTH", "LEFT")
        for place, (axis, y, height, top) in enumerate(axes, 1):
            macros |= {f"FILTER_{height}": axis.kernel, f"KERNEL_{height}": axis.kernel}
            macros |= {f"STRIDE_{y}": axis.stride, f"DILATION_{y}": axis.dilation}
            macros |= {f"PAD_{top}": axis.padding[0], f"PHASES_{y}": min(axis.stride, axis.span)}
            for name, shape in ("INPUT", self.input.shape), ("RESULT", self.result.shape), ("PHASE", self.input_phases):
                macros[f"{name}_{height}"] = shape.axes[place]
        return macros

    def call(
        self,
        kernel: str,
        size: GlobalSize,
        local: int | tuple[int, int, int] | None = None,
        label: str = "",
        samples: range | None = None,
        /,
        **given: Blob | Array | Macro,
    ) -> KernelCall:
        """A launch.

        Args:
            kernel: its name. Roles and macros that its header lists are the operation's, unless they are given here.
            size: its work-items.
            local: those of a group, along the width alone if it is an int; None: as the driver likes.
            label: for people, instead of the operation's.
            samples: those that it takes, None: all.
            given: more roles and macros, of which the kernel gets those that its header lists.
        """
        header = load(kernel)
        known = {**self.macros, **self.blobs, **given}
        blobs = {role: item for role in header.blobs if isinstance(item := known.get(role), Blob)}
        arrays = {
            role: item if isinstance(item := given.get(role), Array) else self.parameter(role) for role in header.arrays
        }
        macros: dict[str, Any] = {name: known[name] for name in (*header.macros, *header.sizes) if name in known}
        group = (local, 1, 1) if isinstance(local, int) else local
        tunables = self.tuning.of(kernel)
        call = KernelCall(kernel, label or self.label, size, blobs, arrays, macros, tunables, group, samples=samples)
        return with_epilogue(call, self.epilogue, self.bias_mode) if "FINISHED" in header.macros else call

    def summed(self, name: str, splits: int, /, *launch: Any, **given: Blob | Array | Macro) -> list[KernelCall]:
        """A launch, as for :meth:`call`, that makes a parameter's gradient; in several ``splits``, and their sum's."""
        gradient = partials = self.parameter(f"{name.upper()}_GRADIENT")
        if splits > 1:
            partials = self.memory(f"{name} partials", splits * gradient.elements)
        call = self.call(*launch, SPLITS=splits, PARTIALS=partials, **given)
        return [call, *([sum_call(call.label, partials, gradient, splits, self.tuning)] if splits > 1 else [])]

    def bias_gradient(self) -> list[KernelCall]:
        """The gradient of the bias, if backward weights wants one (``bias_mode``)."""
        label, delta, kernel = f"{self.name} backward bias", self.output.layout.shape, "gradient/unit_bias"
        if self.bias_mode == 2:
            size, local = elementwise_work(delta, self.tuning)
            gradient, size = self.parameter("BIAS_GRADIENT"), replace(size, per_sample=False)
            return [self.call("gradient/position_bias", size, local, label, GRADIENT=gradient)]
        tunables, cells = self.tuning.of(kernel), self.batch_size * delta.positions
        items = power_of_two(cells, tunables["GROUP_WIDTH"])
        # NOTE: a group whose work-items have less than a cell each takes as long, and there are more of them.
        most = min(self.batch_size, -(-cells // items))
        splits = splits_for(delta.units, tunables["TARGET_GROUPS"], most)
        size = GlobalSize(items, splits, delta.units, per_sample=False)
        return self.summed("bias", splits, kernel, size, items, label) if self.bias_mode else []

    @property
    def blobs(self) -> dict[str, Blob]:
        """Its blobs by the roles of kernels."""
        # NOTE: a kernel takes no null arrays: a RESIDUAL that is not read is bound to what is there.
        sides = {"INPUT": self.input, "INPUT_DELTA": self.input, "OUTPUT": self.output, "OUTPUT_DELTA": self.output}
        return {**sides, "RESULT": self.result, "RESIDUAL": self.result}

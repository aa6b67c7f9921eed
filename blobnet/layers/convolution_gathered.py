"""Convolutions whose lanes are samples, or units, which a copy lays side by side: for CPUs, at small planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from blobnet.geometry import Pair
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import READ_COST, lanes_for, reads, splits_for, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Phase, Problem
from blobnet.layers.gradients import split_sum

#: What it costs to copy a value, to store one of another sample each time, and to store a weight's sum, in
#: multiply-adds of a compute unit.
COPY_COST, STORE_COST, WEIGHT_COST = 120, 100, 60
#: Units of a group that lie together, position by position: each tap then reads long runs of memory.
RUN = 16
#: A copy of more elements, which all tiles of the gradient of the weights read, slows their products down by how much.
UNCACHED = (2**19, 2), (2**21, 4)


@dataclass(frozen=True)
class Tile:
    """A tile of sums: ``units`` x ``vectors`` vectors of ``lanes``, and what its product costs for each row."""

    units: int
    vectors: int
    lanes: int
    cost: float

    def __str__(self) -> str:
        return f"{self.units}x{self.vectors}x{self.lanes}"

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {"BLOCK_UNITS": self.units, "BLOCK_VECTORS": self.vectors, "LANES": self.lanes}


def _tiles(site: Site, kernel: str, units: int, inner: int) -> list[Tile]:
    """Tiles for ``units`` x ``inner`` sums, lanes along the latter; the cheapest first."""
    tunables = site.tuning.of(kernel)
    most = tunables["MAXIMUM_LANES"]
    lanes = lanes_for(inner, most)
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    # A vector that is not full takes as long as one that is.
    return [Tile(u, v, lanes, cost * most) for cost, u, v in tiles(units, -(-inner // lanes), *limits)]


@dataclass(frozen=True)
class Gathered:
    """A blob's copy with its samples, or its units, side by side (kernels/blob/gather.cl).

    Attributes:
        blob, role: what is copied, and what it is to the layer.
        samples_inside: whether samples lie side by side; else units do.
        groups: groups of units that are apart.
        inner, outer: samples side by side, padded to whole vectors, and units; or the other way round.
        lanes: values in a vector.
    """

    blob: Blob
    role: str
    samples_inside: bool
    groups: int
    inner: int
    outer: int
    lanes: int

    @classmethod
    def samples(cls, site: Site, blob: Blob, role: str, groups: int, lanes: int) -> Gathered:
        """Samples side by side."""
        inner = -(-site.batch_size // lanes) * lanes
        return cls(blob, role, True, groups, inner, blob.shape.units, lanes)

    @classmethod
    def units(cls, site: Site, blob: Blob, role: str, lanes: int) -> Gathered:
        """Units side by side."""
        inner = -(-blob.shape.units // lanes) * lanes
        return cls(blob, role, False, 1, inner, site.batch_size, lanes)

    @property
    def elements(self) -> int:
        """Values of the copy."""
        layout = self.blob.layout
        positions = (layout.unit_height - 1) * layout.unit_memory_width + layout.unit_width
        outer = self.groups * -(-self.group_units // self.run) * self.run if self.samples_inside else self.outer
        return outer * positions * self.inner

    @property
    def group_units(self) -> int:
        """Units of a group."""
        return self.blob.shape.units // self.groups

    @property
    def run(self) -> int:
        """Units that lie together."""
        return min(RUN, self.group_units)

    @property
    def macros(self) -> dict[str, Macro]:
        """What a kernel that reads the copy must know."""
        layout = self.blob.layout
        planes = {
            "SOURCE_HEIGHT": layout.unit_height,
            "SOURCE_WIDTH": layout.unit_width,
            "SOURCE_PITCH": layout.unit_memory_width,
        }
        return {
            **planes,
            **({"RUN": self.run, "SAMPLES": self.inner} if self.samples_inside else {"UNITS": self.inner}),
        }

    def array(self, site: Site) -> Array:
        """The copy's memory."""
        if self.samples_inside:
            a_sample = self.elements // self.inner
            memory = site.memory(f"{self.role} gathered by samples", (self.lanes - 1) * a_sample, a_sample)
            return replace(memory, side_by_side=True)
        return site.memory(f"{self.role} gathered by units", per_sample=self.elements // self.outer)

    def call(self, site: Site, label: str) -> KernelCall:
        """The launch that copies."""
        vectors = self.inner // self.lanes
        size = GlobalSize(vectors, units=self.outer, per_sample=False)
        if not self.samples_inside:
            size = GlobalSize(vectors)
        return KernelCall(
            "blob/gather",
            f"{label}: gather",
            size,
            blobs={"INPUT": self.blob},
            arrays={"GATHERED": self.array(site)},
            macros={
                "SAMPLES_INSIDE": int(self.samples_inside),
                "GROUP_UNITS": self.group_units,
                "RUN": self.run,
                "INNER": self.inner,
                "LANES": self.lanes,
            },
        )


def _inside(start: int, step: int, count: int, size: int) -> int:
    """Of ``count`` cells, ``start`` and each ``step`` behind the last, those from 0 to ``size`` - 1."""
    return sum(0 <= start + step * i < size for i in range(count))


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Lanes of samples."""
    output = site.output.shape
    source = site.inputs[0].shape
    taps = _taps_inside(problem, (source.height, source.width), (output.height, output.width))
    kernel = "convolution/forward_gathered"
    for tile in _tiles(site, kernel, problem.output_units, site.batch_size):
        gathered = Gathered.samples(site, site.inputs[0], "input", problem.groups, tile.lanes)
        cost = tile.cost * taps * problem.input_units * problem.groups
        cost += COPY_COST * gathered.elements + STORE_COST * output.elements * site.batch_size
        cost += READ_COST * _read(gathered, tile, problem.output_units, problem.taps)
        calls = partial(_forward_calls, site, problem, tile, gathered)
        yield Candidate(f"gathered {tile}", cost / site.tuning.compute_units, calls)


def _read(gathered: Gathered, tile: Tile, units: int, taps: int) -> int:
    """Elements that a product with ``units`` units a group reads from beyond a cache: positions follow one another."""
    of_samples = -(-gathered.inner // (tile.lanes * tile.vectors))
    source = gathered.elements // (gathered.groups * of_samples)
    weights = units * gathered.group_units * taps
    return reads(weights, -(-units // tile.units), source, 1)[1] * gathered.groups * of_samples


def _taps_inside(problem: Problem, source: Pair, output: Pair) -> int:
    """Taps that read the input, over all positions of the output."""
    count = 1
    for axis, size, outputs in zip((problem.vertical, problem.horizontal), source, output, strict=True):
        count *= sum(
            _inside(cell * axis.stride - axis.padding[0], axis.dilation, axis.kernel, size) for cell in range(outputs)
        )
    return count


def _forward_calls(site: Site, problem: Problem, tile: Tile, gathered: Gathered) -> list[KernelCall]:
    kernel = "convolution/forward_gathered"
    label = f"{site.name} forward"
    output = site.output.shape
    size = GlobalSize(
        output.height * output.width,
        problem.groups * -(-problem.output_units // tile.units),
        samples=tile.vectors * tile.lanes,
    )
    product = KernelCall(
        kernel,
        label,
        size,
        blobs={"OUTPUT": site.output, **problem.epilogue_blobs(site)},
        arrays={
            "GATHERED": gathered.array(site),
            "WEIGHT": site.parameter("weight"),
            **problem.epilogue_arrays(site),
        },
        macros={**problem.macros, **problem.epilogue_macros(site), **gathered.macros, **tile.macros},
        tunables=site.tuning.of(kernel),
    )
    return [gathered.call(site, label), product]


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Lanes of samples; a launch for each phase."""
    target = site.input_deltas[0]
    assert target is not None
    phases = list(problem.phases(target.shape, accumulate=site.accumulate[0]))
    taps = sum(_phase_taps(site, phase) for phase in phases)
    kernel = "convolution/backward_data_gathered"
    for tile in _tiles(site, kernel, problem.input_units, site.batch_size):
        gathered = Gathered.samples(site, site.delta, "output delta", problem.groups, tile.lanes)
        cost = tile.cost * taps * problem.output_units * problem.groups
        cost += COPY_COST * gathered.elements + STORE_COST * target.shape.elements * site.batch_size
        cost += READ_COST * sum(_read(gathered, tile, problem.input_units, phase.taps) for phase in phases)
        calls = partial(_backward_data_calls, site, problem, phases, tile, gathered)
        yield Candidate(f"gathered {tile}", cost / site.tuning.compute_units, calls)


def _phase_taps(site: Site, phase: Phase) -> int:
    """Taps that read the delta, over all positions of a phase."""
    count = 1
    for taps, cells, size in (
        (phase.vertical, phase.height, site.delta.shape.height),
        (phase.horizontal, phase.width, site.delta.shape.width),
    ):
        count *= sum(_inside(cell + taps.shift, taps.shift_step, taps.count, size) for cell in range(cells))
    return count


def _backward_data_calls(
    site: Site, problem: Problem, phases: Sequence[Phase], tile: Tile, gathered: Gathered
) -> list[KernelCall]:
    target = site.input_deltas[0]
    assert target is not None
    kernel = "convolution/backward_data_gathered"
    label = f"{site.name} backward data"
    blocks = problem.groups * -(-problem.input_units // tile.units)
    products = [
        KernelCall(
            kernel,
            label,
            GlobalSize(phase.height * phase.width, blocks, samples=tile.vectors * tile.lanes),
            blobs={"INPUT_DELTA": target},
            arrays={"GATHERED": gathered.array(site), "WEIGHT": site.parameter("weight")},
            macros={
                **problem.filter_macros,
                **phase.macros,
                "ACCUMULATE": int(site.accumulate[0]),
                **gathered.macros,
                **tile.macros,
            },
            tunables=site.tuning.of(kernel),
        )
        for phase in phases
    ]
    return [gathered.call(site, label), *products] if products else []


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Lanes of input units."""
    source, delta = site.inputs[0].shape, site.delta.shape
    taps = _taps_inside(problem, (source.height, source.width), (delta.height, delta.width))
    for tile in _tiles(site, "convolution/backward_weight_gathered", problem.output_units, problem.input_units):
        gathered = Gathered.units(site, site.inputs[0], "input", tile.lanes)
        cost = tile.cost * taps * site.batch_size * problem.groups
        cost *= max((factor for elements, factor in UNCACHED if gathered.elements > elements), default=1)
        cost += COPY_COST * gathered.elements + WEIGHT_COST * site.gradient("weight").elements
        calls = partial(_backward_weight_calls, site, problem, tile, gathered)
        yield Candidate(f"gathered {tile}", cost / site.tuning.compute_units, calls)


def _backward_weight_calls(site: Site, problem: Problem, tile: Tile, gathered: Gathered) -> list[KernelCall]:
    kernel = "convolution/backward_weight_gathered"
    tunables = site.tuning.of(kernel)
    label = f"{site.name} backward weight"
    width = problem.taps * -(-problem.input_units // (tile.lanes * tile.vectors))
    height = problem.groups * -(-problem.output_units // tile.units)
    splits = splits_for(width * height, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"])
    partials, reductions = split_sum(site, label, "weight", splits)
    product = KernelCall(
        kernel,
        label,
        GlobalSize(width, height, splits, per_sample=False),
        blobs={"OUTPUT_DELTA": site.delta},
        arrays={"GATHERED": gathered.array(site), "PARTIALS": partials},
        macros={**problem.macros, "GROUPS": problem.groups, "SPLITS": splits, **gathered.macros, **tile.macros},
        tunables=tunables,
    )
    return [gathered.call(site, label), product, *reductions]

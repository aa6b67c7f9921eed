"""Convolutions whose lanes are samples, which a copy lays side by side: for CPUs, at small planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import READ_COST, lanes_for, reads, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Phase, Problem, inside, taps_inside

#: What it costs to copy a value, and to store one of another sample each time, in multiply-adds of a compute unit.
COPY_COST, STORE_COST = 60, 100
#: Units of a group that lie together, position by position: each tap then reads long runs of memory.
RUN = 16


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
    """A blob's copy with its samples side by side (kernels/blob/gather.cl).

    Attributes:
        blob, role: what is copied, and what it is to the layer.
        groups: groups of units that are apart.
        samples: samples side by side, padded to whole vectors.
        lanes: values in a vector.
    """

    blob: Blob
    role: str
    groups: int
    samples: int
    lanes: int

    @classmethod
    def of(cls, site: Site, blob: Blob, role: str, groups: int, lanes: int) -> Gathered:
        """The copy of a blob of the site, for vectors of ``lanes`` samples."""
        return cls(blob, role, groups, -(-site.batch_size // lanes) * lanes, lanes)

    @property
    def elements(self) -> int:
        """Values of the copy."""
        return self.a_sample * self.samples

    @property
    def a_sample(self) -> int:
        """Values of one sample."""
        layout = self.blob.layout
        positions = (layout.unit_height - 1) * layout.unit_memory_width + layout.unit_width
        return self.groups * -(-self.group_units // self.run) * self.run * positions

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
        return {
            "SOURCE_HEIGHT": layout.unit_height,
            "SOURCE_WIDTH": layout.unit_width,
            "SOURCE_PITCH": layout.unit_memory_width,
            "RUN": self.run,
            "SAMPLES": self.samples,
        }

    def array(self, site: Site) -> Array:
        """The copy's memory."""
        memory = site.memory(f"{self.role} gathered by samples", (self.lanes - 1) * self.a_sample, self.a_sample)
        return replace(memory, side_by_side=True)

    def call(self, site: Site, label: str) -> KernelCall:
        """The launch that copies."""
        return KernelCall(
            "blob/gather",
            f"{label}: gather",
            GlobalSize(self.samples // self.lanes, units=self.blob.shape.units, per_sample=False),
            blobs={"INPUT": self.blob},
            arrays={"GATHERED": self.array(site)},
            macros={
                "GROUP_UNITS": self.group_units,
                "RUN": self.run,
                "SAMPLES": self.samples,
                "LANES": self.lanes,
            },
        )


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Lanes of samples."""
    output = site.output.shape
    source = site.inputs[0].shape
    taps = taps_inside(problem, (source.height, source.width), (output.height, output.width))
    kernel = "convolution/forward_gathered"
    for tile in _tiles(site, kernel, problem.output_units, site.batch_size):
        gathered = Gathered.of(site, site.inputs[0], "input", problem.groups, tile.lanes)
        cost = tile.cost * taps * problem.input_units * problem.groups
        cost += COPY_COST * gathered.elements + STORE_COST * output.elements * site.batch_size
        cost += READ_COST * _read(gathered, tile, problem.output_units, problem.taps)
        calls = partial(_forward_calls, site, problem, tile, gathered)
        yield Candidate(f"gathered {tile}", cost / site.tuning.model.cores, calls)


def _read(gathered: Gathered, tile: Tile, units: int, taps: int) -> int:
    """Elements that a product with ``units`` units a group reads from beyond a cache: positions follow one another."""
    of_samples = -(-gathered.samples // (tile.lanes * tile.vectors))
    source = gathered.elements // (gathered.groups * of_samples)
    weights = units * gathered.group_units * taps
    return reads(weights, -(-units // tile.units), source, 1)[1] * gathered.groups * of_samples


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
        gathered = Gathered.of(site, site.delta, "output delta", problem.groups, tile.lanes)
        cost = tile.cost * taps * problem.output_units * problem.groups
        cost += COPY_COST * gathered.elements + STORE_COST * target.shape.elements * site.batch_size
        cost += READ_COST * sum(_read(gathered, tile, problem.input_units, phase.taps) for phase in phases)
        calls = partial(_backward_data_calls, site, problem, phases, tile, gathered)
        yield Candidate(f"gathered {tile}", cost / site.tuning.model.cores, calls)


def _phase_taps(site: Site, phase: Phase) -> int:
    """Taps that read the delta, over all positions of a phase."""
    count = 1
    for taps, cells, size in (
        (phase.vertical, phase.height, site.delta.shape.height),
        (phase.horizontal, phase.width, site.delta.shape.width),
    ):
        count *= sum(inside(cell + taps.shift, taps.shift_step, taps.count, size) for cell in range(cells))
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

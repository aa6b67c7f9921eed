"""From a graph to a plan: which memory every blob gets, and which kernels run in which order.

Pure passes, no device (DESIGN section 3):

1. forward storage: concat and in-place layers join blobs into one storage, through unit offsets (`_assign_forward`);
2. the same for the deltas, with ``=`` or ``+=`` for blobs with several readers (`_assign_deltas`);
3. halos and row pitch: the maximum over all members and readers of a storage (`_lay_out`);
4. kernel calls, from the layers (`_schedule`), of which one may do the work of those behind it (`_fuse`); and 3 again,
   without the halos that none of them reads (`_settle`);
5. the calls whose results depend on parameters alone that no step of training changes (`_with_constants`);
6. lifetimes, reuse of memory, and zeroing of halos where reused memory changes geometry (`_allocate`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from blobnet.blob import BlobLayout, Halo, Shape
from blobnet.device_model import DeviceModel
from blobnet.errors import KernelError, OptionError, PlanError
from blobnet.geometry import check_count
from blobnet.graph import Graph, Vertex
from blobnet.kernel_call import (
    CONSTANT,
    COPYING,
    ZERO_HALO,
    Array,
    Blob,
    GlobalSize,
    KernelCall,
    Tuning,
    for_model,
    row_group,
)
from blobnet.kernel_source import BATCH_SCALARS
from blobnet.layers.base import Placement, Site
from blobnet.layers.candidates import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.losses import Loss
from blobnet.parameters import READ_OVERRUN, ParameterTable, parameter_table
from blobnet.plan_report import report

#: The most elements of a sample in a buffer, and of all parameters: kernels count them, with some to spare, in an int.
MOST_ELEMENTS = 1 << 30
_NEVER = 1 << 30


@dataclass(frozen=True)
class Buffer:
    """One allocation: room for ``elements + count * per_sample`` elements and READ_OVERRUN more."""

    name: str
    elements: int
    per_sample: int

    def bytes(self, count: int) -> int:
        """Bytes for a batch of ``count``."""
        return 4 * (self.size(count) + READ_OVERRUN)

    def size(self, count: int) -> int:
        """Elements that hold something for a batch of ``count``."""
        return self.elements + count * self.per_sample


@dataclass(frozen=True)
class Plan:
    """All that an executor needs to run a graph on a batch of up to ``batch_size`` samples.

    ``placed`` maps a storage to its buffer; ``copies`` names the launches that only move values, where blobs could
    not share memory; ``outputs`` and ``deltas`` give each vertex's blob, and ``sites`` its place, by layer name;
    ``fused`` maps each layer that the kernels of another compute to that one. ``loss``, ``input_delta``,
    ``sample_type``, ``augmented``, ``share``, ``reuse`` and ``every_halo`` are as for make_plan.
    """

    graph: Graph
    batch_size: int
    training: bool
    tuning: Tuning
    calls: tuple[tuple[str, KernelCall], ...]
    buffers: Mapping[str, Buffer]
    placed: Mapping[str, str]
    parameters: ParameterTable
    outputs: Mapping[str, Blob]
    deltas: Mapping[str, Blob]
    fused: Mapping[str, str] = field(default_factory=dict)
    loss: Loss | None = None
    input_delta: bool = False
    sample_type: str = "float32"
    augmented: bool = False
    share: bool = True
    reuse: bool = True
    every_halo: bool = False
    sites: Mapping[str, Site] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return str(report(self))

    def _repr_html_(self) -> str:
        return report(self)._repr_html_()

    def phase(self, name: str) -> list[KernelCall]:
        """The calls of one phase: ``constant``, ``forward``, ``loss`` or ``backward``.

        Those of ``constant`` run whenever parameters changed, but for those that are trained.
        """
        return [call for phase, call in self.calls if phase == name]

    @property
    def copies(self) -> list[str]:
        """Labels of launches that only copy."""
        return [call.label for _, call in self.calls if call.moves == COPYING]

    def bytes(self, count: int | None = None) -> int:
        """Bytes of all buffers for a batch of ``count`` (the planned batch size if None)."""
        return sum(buffer.bytes(count or self.batch_size) for buffer in self.buffers.values())

    def largest_allocation(self, count: int | None = None) -> int:
        """Bytes of the largest buffer."""
        return max(buffer.bytes(count or self.batch_size) for buffer in self.buffers.values())

    def for_batch(self, batch_size: int) -> Plan:
        """The same for another batch size, with the kernels and the work space of that."""
        return make_plan(
            self.graph,
            batch_size,
            loss=self.loss,
            training=self.training,
            tuning=self.tuning,
            input_delta=self.input_delta,
            sample_type=self.sample_type,
            augmented=self.augmented,
            share=self.share,
            reuse=self.reuse,
            every_halo=self.every_halo,
            parameters=self.parameters,
        )

    def fits(self, memory: int, allocation: int, reserved: int = 0, count: int | None = None) -> bool:
        """Whether all buffers fit ``memory`` bytes, besides ``reserved`` ones, each of at most ``allocation`` bytes."""
        return self.bytes(count) + reserved <= memory and self.largest_allocation(count) <= allocation

    def largest_batch(self, memory: int, allocation: int, reserved: int = 0) -> int:
        """The largest batch whose plan fits ``memory`` bytes in buffers of at most ``allocation`` bytes; 0 if none.

        ``reserved`` is what others need besides (optimizer state). For another batch, layers may choose other kernels
        and ask for other work space: so what a plan says is tried, with a plan for that. (Where kernels change, a
        larger batch may fit again.)
        """
        room = memory, allocation, reserved
        plan, fitting, too_large = self, *((self.batch_size, _NEVER) if self.fits(*room) else (0, self.batch_size))
        while fitting + 1 < too_large:
            batch = plan._largest_count(*room)
            if batch == plan.batch_size:
                break
            if not fitting < batch < too_large:
                batch = (fitting + too_large) // 2
            plan = self.for_batch(batch)
            fitting, too_large = (batch, too_large) if plan.fits(*room) else (fitting, batch)
        return fitting

    def _largest_count(self, memory: int, allocation: int, reserved: int) -> int:
        """The same with the work space of this plan."""
        low, high = 0, 1
        while high < _NEVER and self.fits(memory, allocation, reserved, high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(memory, allocation, reserved, middle) else (low, middle)
        return low


def make_plan(
    graph: Graph,
    batch_size: int,
    *,
    loss: Loss | None = None,
    training: bool = False,
    tuning: Tuning | None = None,
    input_delta: bool = False,
    sample_type: str = "float32",
    augmented: bool = False,
    share: bool = True,
    reuse: bool = True,
    every_halo: bool = False,
    parameters: ParameterTable | None = None,
) -> Plan:
    """Plans a graph for training, or for inference.

    What is not trained costs what it costs in inference: a layer whose parameters are all frozen runs as there, and
    where neither a layer nor any before it is trained there are no deltas, and nothing is kept for the backward pass.

    Args:
        graph: what to plan.
        batch_size: the most samples at once.
        training: whether to plan the backward pass too.
        tuning: values for the kernels' tunables.
        loss: what to measure at the output; training needs one.
        input_delta: also compute dL/d input.
        sample_type: NumPy's name for the type of the samples that enter the network.
        augmented: whether samples change on their way in, by rows that are fed to ``augmentation`` for every batch.
        share: let blobs share memory (concat, in place); without it every join is an explicit copy.
        reuse: give memory that is no longer needed to later blobs.
        every_halo: have the zeros that any of a layer's kernels reads, not only those for the ones that were chosen.
        parameters: where the parameters lie, and which of them are trained; if None, all that are trainable.

    Raises:
        OptionError: the batch size is not a positive int, or training has no loss.
        ShapeError: the loss does not fit the output.
        PlanError: a sample or the parameters have more elements than kernels can count.
    """
    batch_size = check_count("plan", "batch_size", batch_size)
    if training and not loss:
        raise OptionError("plan", "training needs a loss", loss=loss)
    if loss:
        loss.check(graph.output.shape)
    table = parameters or parameter_table(graph)
    memory = sample_type, augmented, share, table
    planner = _Planner(graph, batch_size, loss, training, tuning or Tuning(), input_delta, *memory)
    return planner.plan(reuse, every_halo)


@dataclass
class _Region:
    """Where a blob lies before there are layouts: units of a storage."""

    storage: int
    unit_offset: int
    units: int

    def overlaps(self, other: _Region) -> bool:
        return (
            self.storage == other.storage
            and self.unit_offset < other.unit_offset + other.units
            and other.unit_offset < self.unit_offset + self.units
        )


@dataclass
class _Storage:
    name: str
    planes: Shape
    halo: Halo = field(default_factory=Halo)
    pitch: int = 0


#: A vertex whose kernels read the halo of a storage.
_HaloOf = tuple[int, str]


class _Scheduled(NamedTuple):
    """A call, its phase, and the vertex that made it."""

    phase: str
    vertex: int | None
    call: KernelCall


def _halos_read(calls: Iterable[_Scheduled]) -> set[_HaloOf]:
    """Which vertices have calls that read the halo of which storages."""
    return {(item.vertex, name) for item in calls if item.vertex is not None for name in item.call.halos_read}


class _Planner:
    def __init__(
        self,
        graph: Graph,
        batch_size: int,
        loss: Loss | None,
        training: bool,
        tuning: Tuning,
        input_delta: bool,
        sample_type: str,
        augmented: bool,
        share: bool,
        parameters: ParameterTable,
    ) -> None:
        self.graph = graph
        self.batch_size = batch_size
        self.loss = loss
        self.training = training
        self.tuning = tuning
        self.input_delta = input_delta
        self.sample_type = sample_type
        self.augmented = augmented
        self.share = share
        self.storages: list[_Storage] = []
        self.arrays: dict[str, Array] = {}
        self.parameters = parameters
        #: For each vertex whether it runs as in training.
        self.in_training = [training and not self._is_frozen(vertex) for vertex in graph.vertices]
        self.planes = self._physical_planes()
        self.regions: dict[int, _Region] = {}
        self.in_place_of: dict[int, int] = {}
        #: For each vertex the one whose kernels compute it: itself, or one whose epilogue it is.
        self.computed_by = list(range(len(graph.vertices)))
        self.delta_regions: dict[int, _Region] = {}
        self.accumulate: dict[tuple[int, int], bool] = {}
        self.needs_delta = self._needs_delta()
        self.absorbed = self._absorbed_activations()

    def plan(self, reuse: bool, every_halo: bool) -> Plan:
        self._assign_forward()
        if self.training:
            self._assign_deltas()
        sites, scheduled = self._settle(every_halo)
        calls = [(item.phase, item.call) for item in scheduled]
        calls = _with_constants(calls, self.parameters.trainable_elements if self.training else 0)
        slots = _share_buffers(occupants(calls), reuse, self.batch_size)
        if not self.training:
            # Launches that clear halos take time that one sample feels, and memory is no concern then.
            apart = _share_buffers(occupants(calls), reuse, self.batch_size, keep_planes=True)
            extra = _bytes(apart, self.batch_size) - _bytes(slots, self.batch_size)
            slots = apart if extra <= 4 * self.parameters.elements else slots
        calls, placed, buffers = _allocate(calls, slots, self.tuning)
        made = for_model((call for _, call in calls), self.tuning.model)
        # What rarely runs is not worth a program for each size.
        calls = [(phase, call if phase == CONSTANT else fast) for (phase, call), fast in zip(calls, made, strict=True)]
        for name, elements in self._persistent().items():
            buffers[name] = Buffer(name, *elements)
            placed[name] = name
        self._check_counts(buffers)
        vertices = self.graph.vertices
        return Plan(
            graph=self.graph,
            batch_size=self.batch_size,
            training=self.training,
            tuning=self.tuning,
            calls=tuple(calls),
            buffers=buffers,
            placed=placed,
            parameters=self.parameters,
            outputs={vertex.name: self._blob(self.regions[vertex.index]) for vertex in vertices},
            deltas={vertices[index].name: self._blob(region) for index, region in self.delta_regions.items()},
            fused={
                vertex.name: vertices[computer].name
                for vertex, computer in zip(vertices, self.computed_by, strict=True)
                if vertex.index != computer
            },
            loss=self.loss,
            input_delta=self.input_delta,
            sample_type=self.sample_type,
            augmented=self.augmented,
            share=self.share,
            reuse=reuse,
            every_halo=every_halo,
            sites={vertex.name: site for vertex, site in zip(vertices, sites, strict=True)},
        )

    def _arrange(self, halos: Collection[_HaloOf]) -> tuple[list[Site], list[_Scheduled]]:
        """Passes 3 and 4, with these halos."""
        self._lay_out(halos)
        self.arrays.clear()
        self.computed_by = list(range(len(self.graph.vertices)))
        sites = self._fuse([self._site(vertex) for vertex in self.graph.vertices])
        return sites, self._schedule(sites)

    def _settle(self, every_halo: bool) -> tuple[list[Site], list[_Scheduled]]:
        """The same with those halos that the kernels read which layers choose; with all if ``every_halo``.

        What is chosen may depend on how blobs lie, so layers choose again until they miss nothing.
        """
        every = {(vertex.index, storage) for vertex in self.graph.vertices for storage, _ in self._halos(vertex)}
        sites, calls = self._arrange(every)
        halos = _halos_read(calls) & every
        if every_halo or halos == every:
            return sites, calls
        while True:
            sites, calls = self._arrange(halos)
            missing = _halos_read(calls) & every - halos
            if not missing:
                return sites, calls
            halos |= missing

    def _check_counts(self, buffers: Mapping[str, Buffer]) -> None:
        counts = {"parameters": self.parameters.elements}
        counts |= {f"a sample of {name}": buffer.per_sample for name, buffer in buffers.items()}
        largest = max(counts, key=lambda name: counts[name])
        if counts[largest] > MOST_ELEMENTS:
            rule = f"a sample of a blob, with its halo, and all parameters must have at most {MOST_ELEMENTS} elements"
            hint = "use smaller pictures, fewer units, or pool before Flatten."
            raise PlanError("plan", rule, of=largest, elements=counts[largest], hint=hint)

    # -- pass 0: what lies in memory ---------------------------------------------------------------------------------

    def _physical_planes(self) -> list[Shape]:
        """The planes in memory of every vertex: Flatten keeps its input's if all its readers can do with them."""
        planes: list[Shape] = []
        for vertex in self.graph.vertices:
            shape = vertex.shape
            if vertex.layer.elementwise and vertex.inputs and self._any_planes_do(vertex.index):
                shape = planes[vertex.inputs[0]]
            planes.append(shape)
        return planes

    def _any_planes_do(self, index: int) -> bool:
        """Whether all readers of a flat vertex take its elements in any memory shape."""
        if self.graph.vertices[index].shape.rank:
            return True
        readers = [self.graph.vertices[reader] for reader in self.graph.readers[index]]
        return bool(readers) and all(
            reader.layer.flattens_input
            or (reader.layer.elementwise and len(reader.inputs) == 1 and self._any_planes_do(reader.index))
            for reader in readers
        )

    def _trainable(self, vertex: Vertex) -> list[str]:
        return [spec.name for spec in self.graph.parameters(vertex) if spec.trainable]

    def _trained(self, vertex: Vertex) -> list[str]:
        return [name for name in self._trainable(vertex) if self.parameters.trains(f"{vertex.name}/{name}")]

    def _is_frozen(self, vertex: Vertex) -> bool:
        """Whether all parameters that a vertex could train are frozen, of which it has some."""
        return bool(self._trainable(vertex)) and not self._trained(vertex)

    def _needs_delta(self) -> list[bool]:
        needed: list[bool] = []
        for vertex in self.graph.vertices:
            wanted = bool(self._trained(vertex)) or any(needed[source] for source in vertex.inputs)
            needed.append(wanted or (self.input_delta and not vertex.inputs))
        return needed

    def _backward_reads_inputs(self, index: int) -> bool:
        """Whether the backward calls of a vertex read what it reads."""
        layer = self.graph.vertices[index].layer
        reads = layer.backward_reads_inputs if self.in_training[index] else layer.frozen_reads_inputs
        return reads and self.needs_delta[index] and index not in self.absorbed

    def _absorbed_activations(self) -> frozenset[int]:
        """The activations that the layer before them takes on in training, forward and backward: nothing but names.

        Nobody else wants the value before, and nothing comes between the two in the backward pass that could change
        the delta which both read.
        """
        found = set()
        for vertex in self.graph.vertices if self.training and self.share else ():
            readers = self.graph.readers[vertex.index]
            if (
                vertex.layer.fuses_slope
                and self.in_training[vertex.index]
                and readers == (vertex.index + 1,)
                and self.graph.vertices[readers[0]].layer.slope
            ):
                found.add(readers[0])
        return frozenset(found)

    def _placement(self, vertex: Vertex) -> Placement:
        absorbed = vertex.index in self.absorbed
        return Placement.SHARED if absorbed else vertex.layer.placement(self.in_training[vertex.index])

    # -- pass 1: forward storage -------------------------------------------------------------------------------------

    def _new_region(self, vertex: Vertex, kind: str) -> _Region:
        planes = self.planes[vertex.index]
        self.storages.append(_Storage(f"{vertex.name} {kind}", planes))
        return _Region(len(self.storages) - 1, 0, planes.units)

    def _assign_forward(self) -> None:
        """Gives every vertex's output a region, from the output backwards, so that joins pull their inputs in."""
        for vertex in reversed(self.graph.vertices):
            if vertex.index not in self.regions:
                self.regions[vertex.index] = self._new_region(vertex, "output")
            region = self.regions[vertex.index]
            placement = self._placement(vertex)
            if placement is Placement.CONCAT:
                offset = region.unit_offset
                for source in vertex.inputs:
                    units = self.planes[source].units
                    self._join(source, _Region(region.storage, offset, units), vertex)
                    offset += units
            elif placement is not Placement.SEPARATE:
                # NOTE: in place of a third input, a sum would be added up in another order, and round differently. In
                # place of the one that is computed last, its kernels may add the other one.
                for position in sorted(range(len(vertex.inputs[:2])), key=lambda place: -vertex.inputs[place]):
                    if self._join(vertex.inputs[position], region, vertex):
                        self.in_place_of[vertex.index] = position
                        break

    def _join(self, source: int, region: _Region, reader: Vertex) -> bool:
        """Puts ``source`` into ``region`` of its ``reader`` if no value is overwritten before its last read."""
        planes, target = self.planes[source], self.planes[reader.index]
        if not self.share or source in self.regions or reader.inputs.count(source) > 1:
            return False
        if planes.axes != target.axes:
            return False
        overwritten, last_read = self._overwritten(source, region), self._last_read(source)
        # A layer that runs in place of one input may not read the same memory as another input too.
        if overwritten < last_read or overwritten == last_read != reader.index:
            return False
        self.regions[source] = region
        return True

    def _overwritten(self, source: int, region: _Region) -> int:
        """When (at which vertex) a blob that lies in ``region`` from ``source`` on is first overwritten."""
        writers = (
            index
            for index, other in self.regions.items()
            if index > source
            and other.overlaps(region)
            and self._placement(self.graph.vertices[index]) is Placement.IN_PLACE
        )
        return min(writers, default=_NEVER)

    def _last_read(self, source: int) -> int:
        """The last vertex that reads a blob; _NEVER if the backward pass or the caller does."""
        vertex = self.graph.vertices[source]
        readers = self.graph.readers[source]
        if source == self.graph.output.index:
            return _NEVER
        if self.training and (
            (vertex.layer.backward_reads_output and self.needs_delta[source] and source not in self.absorbed)
            or any(self._backward_reads_inputs(reader) for reader in readers)
        ):
            return _NEVER - 1
        last = max(readers, default=source)
        if self._placement(vertex) in (Placement.CONCAT, Placement.SHARED):
            # Its inputs are the same memory, unless they have to be copied for what overwrites it.
            last = max([last, *(self._last_read(item) for item in vertex.inputs)])
        return last

    # -- pass 2: delta storage ---------------------------------------------------------------------------------------

    def _assign_deltas(self) -> None:
        """Gives every delta a region, in the order of the backward pass.

        Backward runs from the last vertex to the first, so 'later' is 'smaller index' here.
        """
        output = self.graph.output
        if self.needs_delta[output.index]:
            self.delta_regions[output.index] = self._new_region(output, "delta")
        for vertex in reversed(self.graph.vertices):
            if not self.needs_delta[vertex.index]:
                continue
            own = self.delta_regions[vertex.index]
            placement = vertex.layer.delta_placement() if self.share else Placement.SEPARATE
            if vertex.index in self.absorbed:
                placement = Placement.SHARED
            offset = own.unit_offset
            for position, source in enumerate(vertex.inputs):
                units = self.planes[source].units
                if self.needs_delta[source]:
                    first = source not in self.delta_regions
                    self.accumulate[vertex.index, position] = not first
                    if first:
                        wanted = replace(own, unit_offset=offset, units=units)
                        region = wanted if placement is Placement.CONCAT else own
                        shareable = placement is not Placement.SEPARATE and self._delta_joins(
                            vertex, source, region, placement
                        )
                        assert shareable or vertex.index not in self.absorbed, f"{vertex.name}: nothing comes between"
                        self.delta_regions[source] = (
                            region if shareable else self._new_region(self.graph.vertices[source], "delta")
                        )
                if placement is Placement.CONCAT or vertex.layer.placement(True) is Placement.CONCAT:
                    offset += units

    def _delta_joins(self, vertex: Vertex, source: int, region: _Region, placement: Placement) -> bool:
        """Whether the delta of ``source`` may lie where the delta of its reader ``vertex`` lies."""
        planes, target = self.planes[source], self.planes[vertex.index]
        if planes.axes != target.axes:
            return False
        pending = [
            index for index, other in self.delta_regions.items() if index < vertex.index and other.overlaps(region)
        ]
        if placement is Placement.IN_PLACE:
            return not pending
        if placement is Placement.SHARED and vertex.inputs.count(source) > 1:
            return False  # A delta that is added to itself doubles, once too often with three readers or two sources.
        # Each delta in the region must have been read before another reader of the other one adds to it.
        return all(
            self._next_addition(source, vertex.index) < self._delta_read(other)
            and self._next_addition(other, vertex.index) < self._delta_read(source)
            for other in pending
        )

    def _delta_read(self, index: int) -> int:
        """The vertex that reads the delta of a vertex: itself, or the one that absorbed it."""
        return self.graph.vertices[index].inputs[0] if index in self.absorbed else index

    def _next_addition(self, source: int, now: int) -> int:
        """The next vertex in backward order, from ``now`` on, that adds to the delta of ``source``; -1 if none."""
        later = [reader for reader in self.graph.readers[source] if reader < now]
        twice = self.graph.vertices[now].inputs.count(source) > 1
        return now if twice else max(later, default=-1)

    # -- pass 3: halos and pitch -------------------------------------------------------------------------------------

    def _halos(self, vertex: Vertex) -> Iterator[tuple[str, Halo]]:
        """The storages around whose planes a layer's kernels may read zeros, and how many."""
        shapes = self.graph.input_shapes(vertex)
        halos = [(self.regions.get(source), vertex.layer.input_halo(shapes)) for source in vertex.inputs]
        if shapes:
            halos.append((self.delta_regions.get(vertex.index), vertex.layer.delta_halo(shapes)))
        for region, halo in halos:
            if region and halo != Halo():
                yield self.storages[region.storage].name, halo

    def _lay_out(self, halos: Collection[_HaloOf]) -> None:
        groups = _Groups(len(self.storages))
        named = {storage.name: storage for storage in self.storages}
        for storage in self.storages:
            storage.halo = Halo()
        for vertex in self.graph.vertices:
            for name, halo in self._halos(vertex):
                if (vertex.index, name) in halos:
                    named[name].halo = named[name].halo.merged(halo)
            shapes = self.graph.input_shapes(vertex)
            linked = []
            for source in vertex.inputs:
                linked += [self.regions.get(source), self.delta_regions.get(source)]
            linked += [self.regions.get(vertex.index), self.delta_regions.get(vertex.index)]
            # NOTE: lanes address cell by cell; one pitch would only give halos to planes that need none.
            if shapes and not self.tuning.model.items_are_lanes and vertex.layer.same_pitch(shapes):
                present = [region.storage for region in linked if region]
                groups.join([item for item in present if self.storages[item].planes.width > 1])
        for members in groups.groups():
            storages = [self.storages[member] for member in members]
            pitch = max(item.planes.width + max(item.halo.left, item.halo.right) for item in storages)
            for item in storages:
                item.pitch = pitch

    def _blob(self, region: _Region) -> Blob:
        storage = self.storages[region.storage]
        layout = BlobLayout.padded(
            storage.planes.with_units(region.units),
            storage.halo,
            pitch=storage.pitch,
            unit_offset=region.unit_offset,
            unit_memory_count=storage.planes.units,
        )
        return Blob(storage.name, layout)

    # -- pass 4: calls -----------------------------------------------------------------------------------------------

    def _site(self, vertex: Vertex) -> Site:
        trained = self._trained(vertex)

        def array(kind: str, name: str, elements: int, per_sample: int) -> Array:
            if kind in ("parameter", "gradient"):
                piece = self.parameters.slices[f"{vertex.name}/{name}"]
                if kind == "parameter" or name in trained:
                    return Array(f"{kind}s", piece.elements, offset=piece.offset, persistent=True)
                name, elements = f"{name} gradient", piece.elements
            if kind == "shared":
                return Array(name, 0, persistent=True)
            key = f"{vertex.name}/{name}"
            asked = Array(key, elements, per_sample)
            found = self.arrays.setdefault(key, asked)
            if found != asked:
                rule = "memory of one name must have one size in all calls of a layer"
                sizes = {"first": _size_text(found), "then": _size_text(asked)}
                raise KernelError(vertex.layer.subject, rule, memory=name, **sizes)
            return found

        deltas = self.delta_regions
        sources = range(len(vertex.inputs))
        wanted = [(vertex.index, position) in self.accumulate for position in sources]
        return Site(
            name=vertex.name,
            inputs=tuple(self._blob(self.regions[source]) for source in vertex.inputs),
            output=self._blob(self.regions[vertex.index]),
            array=array,
            input_deltas=tuple(
                self._blob(deltas[vertex.inputs[position]]) if wanted[position] else None for position in sources
            ),
            output_delta=self._blob(deltas[vertex.index]) if vertex.index in deltas else None,
            accumulate=tuple(self.accumulate.get((vertex.index, position), False) for position in sources),
            training=self.in_training[vertex.index],
            frozen=frozenset(self._trainable(vertex)) - frozenset(trained),
            slope=self.graph.vertices[vertex.index + 1].layer.slope if vertex.index + 1 in self.absorbed else None,
            in_place_of=self.in_place_of.get(vertex.index),
            batch_size=self.batch_size,
            sample_type=self.sample_type,
            augmented=self.augmented,
            tuning=self.tuning,
            ordinal=vertex.index,
        )

    def _fuse(self, sites: Sequence[Site]) -> list[Site]:
        """Gives sites their epilogues: what layers in place behind them do, where nobody wants the values between.

        What else such a layer reads must be there when the kernels with the epilogue run, which is earlier.
        """
        vertices, fused = self.graph.vertices, list(sites)
        for head in vertices:
            if self.computed_by[head.index] != head.index:
                continue
            last = head.index
            while (reader := self._in_place_reader(last)) is not None:
                part = reader.layer.epilogue(sites[reader.index])
                epilogue = part and fused[head.index].epilogue.then(part)
                ready = all(self.computed_by[source] < head.index for source in reader.inputs if source != last)
                if not epilogue or not ready or not set(epilogue.stages) <= set(head.layer.fuses):
                    break
                fused[head.index] = replace(fused[head.index], epilogue=epilogue)
                self.computed_by[reader.index] = head.index
                last = reader.index
        return fused

    def _in_place_reader(self, index: int) -> Vertex | None:
        """The vertex that alone reads the output of another, if it runs in place of it."""
        readers = self.graph.readers[index]
        if len(readers) != 1 or readers[0] not in self.in_place_of:
            return None
        reader = self.graph.vertices[readers[0]]
        return reader if reader.inputs[self.in_place_of[reader.index]] == index else None

    def _schedule(self, sites: Sequence[Site]) -> list[_Scheduled]:
        calls: list[_Scheduled] = []
        for vertex, site in zip(self.graph.vertices, sites, strict=True):
            if self.computed_by[vertex.index] == vertex.index:
                calls += _made("forward", vertex, FORWARD, vertex.layer.forward(site))
        if self.loss:
            output = self.graph.output.index
            delta = self._blob(self.delta_regions[output]) if output in self.delta_regions else None
            made = self.loss.calls(sites[output].output, delta, self.tuning)
            calls += [_Scheduled("loss", None, call) for call in made]
        if self.training:
            for vertex, site in zip(reversed(self.graph.vertices), reversed(sites), strict=True):
                if self.needs_delta[vertex.index] and vertex.index not in self.absorbed:
                    if site.training:
                        calls += _made("backward", vertex, BACKWARD_WEIGHTS, vertex.layer.backward_parameters(site))
                    calls += _made("backward", vertex, BACKWARD_DATA, vertex.layer.backward_data(site))
        return calls

    def _persistent(self) -> dict[str, tuple[int, int]]:
        """Buffers that are not the plan's to reuse: (elements, elements per sample)."""
        sample_bytes = self.graph.input.shape.elements * np.dtype(self.sample_type).itemsize
        buffers = {
            "parameters": (self.parameters.elements, 0),
            "samples": (0, -(-sample_slots(self.tuning.model) * sample_bytes // 4)),
            "rows": (0, 1),
            "step": (STEP_WORDS, 0),
        }
        if self.augmented:
            buffers["augmentation"] = (0, AUGMENTATION_WORDS)
        if self.training:
            buffers["gradients"] = (max(1, self.parameters.trainable_elements), 0)
        if self.loss:
            buffers |= self.loss.memory(self.graph.output.shape)
        return buffers


def sample_slots(model: DeviceModel) -> int:
    """Batches of samples that a device holds: one that is not the host fetches the next one while it works."""
    return 1 if model.is_host else 2


def _made(phase: str, vertex: Vertex, direction: str, calls: Iterable[KernelCall]) -> list[_Scheduled]:
    """The calls of a layer, which are told whose they are."""
    return [_Scheduled(phase, vertex.index, replace(call, layer=vertex.name, direction=direction)) for call in calls]


def _size_text(array: Array) -> str:
    return f"{array.elements} elements and {array.per_sample} a sample"


#: Numbers in a row of the ``augmentation`` array, as kernels/input/augmented.cl reads them.
AUGMENTATION_WORDS = 19
#: Words of the ``step`` array: seed (low, high), step number, and one to spare.
STEP_WORDS = 4


class _Groups:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def root(self, item: int) -> int:
        while self.parent[item] != item:
            item = self.parent[item]
        return item

    def join(self, items: list[int]) -> None:
        for item in items[1:]:
            self.parent[self.root(item)] = self.root(items[0])

    def groups(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for item in range(len(self.parent)):
            found.setdefault(self.root(item), []).append(item)
        return list(found.values())


# -- pass 5: what depends on parameters alone --------------------------------------------------------------------------


#: A storage, and for parameters where one begins in it.
_Place = tuple[str, int]


def _with_constants(calls: list[tuple[str, KernelCall]], trained: int) -> list[tuple[str, KernelCall]]:
    """The calls of a plan, those in front that need not run again until parameters change.

    Their phase is ``constant``: they read parameters that nothing in the plan changes, or what other such calls made of
    them, and nothing about the batch; and nobody else writes where they do.

    Args:
        calls: in their order.
        trained: elements of the parameters that the optimizer changes, which lie in front of all others.
    """
    writers = Counter(place for _, call in calls for place in _places(call, "write", "update"))
    known: set[_Place] = set()

    def changes(place: _Place) -> bool:
        storage, offset = place
        return place not in known and (storage != "parameters" or offset < trained or place in writers)

    first, others = [], []
    for phase, call in calls:
        written = _places(call, "write", "update")
        batch = set(call.source.scalars) & set(BATCH_SCALARS)
        depends = any(map(changes, _places(call, "read", "update"))) or batch or call.global_size.grows
        if depends or not written or any(writers[place] > 1 for place in written):
            others.append((phase, call))
        else:
            known |= written
            first.append((CONSTANT, call))
    return first + others


def _places(call: KernelCall, *accesses: str) -> set[_Place]:
    """What a call uses in one of these ways."""
    arrays = {
        (array.storage, array.offset)
        for role, array in call.arrays.items()
        if array.storage == "parameters" and call.source.arrays[role] in accesses
    }
    return arrays | {(storage, 0) for storage in call.storages(*accesses) if storage != "parameters"}


# -- pass 6: lifetimes and reuse ---------------------------------------------------------------------------------------


@dataclass
class Occupant:
    """A storage or array, and the first and the last of the calls that use it.

    It holds ``elements + count * per_sample`` elements for a batch of ``count``. ``blob`` is all of it, if it has a
    halo.
    """

    name: str
    first: int
    last: int
    elements: int
    per_sample: int
    blob: Blob | None

    def size(self, count: int) -> int:
        """Elements for a batch of ``count``."""
        return self.elements + count * self.per_sample


def occupants(calls: Sequence[tuple[str, KernelCall]]) -> list[Occupant]:
    """Every storage and layer array that the calls name, in the order of first use."""
    found: dict[str, Occupant] = {}
    for position, (_, call) in enumerate(calls):
        for blob in call.blobs.values():
            if blob.storage not in found:
                layout = blob.layout
                whole = Blob(blob.storage, replace(layout, unit_offset=0, unit_count=layout.unit_memory_count))
                found[blob.storage] = Occupant(
                    blob.storage, position, position, 0, layout.memory_elements, None if blob.is_memory else whole
                )
            found[blob.storage].last = max(found[blob.storage].last, position)
        for array in call.arrays.values():
            if not array.persistent:
                if array.storage not in found:
                    found[array.storage] = Occupant(array.storage, position, position, 0, array.per_sample, None)
                occupant = found[array.storage]
                occupant.elements = max(occupant.elements, array.end(0))
                occupant.last = max(occupant.last, position)
    made = {storage for phase, call in calls if phase == CONSTANT for storage in call.storages("write", "update")}
    for storage in made:
        # What other calls read is there for every batch; what only makes more of the kind is not needed any more.
        if calls[found[storage].last][0] != CONSTANT:
            found[storage].last = len(calls)
    return list(found.values())


def _share_buffers(
    occupants: Sequence[Occupant], reuse: bool, batch_size: int, *, keep_planes: bool = False
) -> list[list[Occupant]]:
    """Puts storages whose lifetimes do not meet together, each list for one buffer.

    A storage takes the free buffer of the same plane geometry (its halo is still zero) that wastes least, else any
    free one that is large enough, else the largest free one, grown; with ``keep_planes`` none where a halo would have
    to be cleared.
    """
    slots: list[list[Occupant]] = []
    # The largest arrays first, or one that lives long would take the place of a large one that is needed again.
    arrays = sorted((item for item in occupants if not item.blob), key=lambda item: -item.size(batch_size))
    for occupant in [item for item in occupants if item.blob] + arrays:
        free = [
            slot
            for slot in slots
            if reuse
            # Arrays would leave a blob's halo to be zeroed at every step.
            and (slot[0].blob is None) == (occupant.blob is None)
            and all(item.last < occupant.first or occupant.last < item.first for item in slot)
            and not (keep_planes and _to_clear([*slot, occupant]))
        ]
        size = occupant.size(batch_size)

        def waste(slot: list[Occupant], wanted: Occupant = occupant, size: int = size) -> tuple[bool, bool, int]:
            room = max(item.size(batch_size) for item in slot)
            same = all(_plane(item) == _plane(wanted) for item in slot)
            return room < size, not same, abs(room - size)

        if free:
            min(free, key=waste).append(occupant)
        else:
            slots.append([occupant])
    return slots


def _bytes(slots: Iterable[Sequence[Occupant]], batch_size: int) -> int:
    return sum(4 * max(item.size(batch_size) for item in slot) for slot in slots)


def _to_clear(slot: Sequence[Occupant]) -> list[Blob]:
    """The blobs of a buffer whose halos others leave behind with values."""
    if len({_plane(item) for item in slot}) == 1:
        return []
    blobs = [item.blob for item in slot if item.blob]
    return [blob for blob in blobs if blob.layout.halo_elements]


def _allocate(
    calls: list[tuple[str, KernelCall]], slots: Iterable[Sequence[Occupant]], tuning: Tuning
) -> tuple[list[tuple[str, KernelCall]], dict[str, str], dict[str, Buffer]]:
    """A buffer for each slot; returns calls with zero-halo calls put in."""
    placed: dict[str, str] = {}
    buffers: dict[str, Buffer] = {}
    cleared: dict[int, list[KernelCall]] = {}
    for slot in slots:
        buffer = slot[0].name
        elements, per_sample = (max(getattr(item, part) for item in slot) for part in ("elements", "per_sample"))
        buffers[buffer] = Buffer(buffer, elements, per_sample)
        to_clear = _to_clear(slot)
        for item in slot:
            placed[item.name] = buffer
            if item.blob in to_clear:
                assert item.blob is not None
                cleared.setdefault(item.first, []).append(_zero_halo(item.blob, tuning))
    result = []
    for position, (phase, call) in enumerate(calls):
        result += [(phase, clearing) for clearing in cleared.get(position, [])]
        result.append((phase, call))
    return result, placed, buffers


def _plane(occupant: Occupant) -> tuple[int, ...] | None:
    return occupant.blob.layout.plane if occupant.blob else None


def _zero_halo(blob: Blob, tuning: Tuning) -> KernelCall:
    layout = blob.layout
    leading = layout.unit_memory_height_offset * layout.unit_memory_width + layout.unit_memory_width_offset
    gaps = (layout.unit_height - 1) * (layout.unit_memory_width - layout.unit_width)
    local = row_group(max(leading, gaps, 1)) if tuning.model.items_are_lanes else (1, 1, 1)
    size = GlobalSize(local[0], 1, layout.unit_count * layout.unit_memory_depth)
    return KernelCall(ZERO_HALO, f"{blob.storage} zero halo", size, {"OUTPUT": blob}, local_size=local)

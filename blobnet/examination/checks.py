"""The checks: one variant for one direction of a layer, or a whole layer; and a choice of those that tell most."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from blobnet import layers
from blobnet.implementations import IMPLEMENTATIONS
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import IN_CELLS, BrokenVariant, Task, TunedChoices, Variant
from blobnet.layers.base import Layer, LayerContext
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import Plan, make_plan

#: The phase of a bench for each direction.
PHASE_OF = {FORWARD: "forward", BACKWARD_WEIGHTS: "backward parameters", BACKWARD_DATA: "backward data"}
#: Arrangements of memory (blobnet/examination/measured.py) by name, the most hostile first.
ARRANGEMENTS: Mapping[str, Mapping[str, Any]] = {
    "own pitches": {"accumulate": True},
    "one pitch": {"same_pitch": True, "beside": True},
    "own zeros": {"own_zeros": True},
    "tight": {"tight": True, "same_pitch": True},
}
_VARIANTS = {variant for item in IMPLEMENTATIONS.values() for variant in item.variants}
#: Of a layer that has one way to compute, whatever that is.
_NO_WAY = Variant("")
#: Random layers that are drawn in vain at most: what was not found by then has no candidates on this device.
_DRAWS = 100
#: Samples of a check of a way that was tuned or planned, and the largest odd planes for it.
_COUNT, _ODD_SIDE = 2, 15


class Examinable(Protocol):
    """The protocol of a check that a process of its own may run and a report shows."""

    @property
    def way(self) -> Variant:
        """The variant that computes it, where there are several."""

    @property
    def fault(self) -> BrokenVariant | None:
        """The variant that a planner must avoid if this fails; None if there is no other."""

    @property
    def family(self) -> str:
        """The kind of what is checked."""

    @property
    def title(self) -> str:
        """The title of its row in a report."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for a report."""


@dataclass(frozen=True)
class Check:
    """One thing to examine.

    Attributes:
        layer: what is computed.
        shapes: of its input, or of each of several.
        odd: another shape of the only input, which is taken if there is such a way for it.
        count: samples.
        direction: one of DIRECTIONS; empty: the whole layer, which has one way to compute.
        way: the way; without a tile what is taken of the variant without tuning.
        precision: of its products.
        in_cells: whether its blobs have cells.
        arrangement: the first of ARRANGEMENTS to try.
        seed: of data and memory.
        purpose: why it is checked, where that is not what every device is checked for.
    """

    layer: Layer
    shapes: tuple[Shape, ...]
    odd: Shape | None = None
    count: int = _COUNT
    direction: str = ""
    way: Variant = _NO_WAY
    precision: str = "fp32"
    in_cells: bool = False
    arrangement: str = "own pitches"
    seed: int = 0
    purpose: str = ""

    @property
    def family(self) -> str:
        """The kind of operation, or of layer."""
        return str(getattr(self.layer, "family", self.layer.kind.lower()))

    @property
    def fault(self) -> BrokenVariant | None:
        """The variant that a planner must avoid if this fails; None if there is no other."""
        return BrokenVariant(self.way, self.family, self.direction) if self.direction else None

    @property
    def title(self) -> str:
        """The title of its row in a report."""
        words = [self.family if self.direction else self.layer.kind, self.direction]
        words += [self.precision] if self.precision != "fp32" else []
        words += [f"({self.purpose})"] if self.purpose else []
        return " ".join(word for word in words if word)

    def __str__(self) -> str:
        inputs = " ".join(map(str, self.shapes))
        return f"{self.layer} on {inputs}, {self.count} samples, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Plain data for a report."""
        return {
            **{
                name: getattr(self, name)
                for name in ("count", "direction", "precision", "in_cells", "arrangement", "seed")
            },
            "layer": {"kind": self.layer.kind, "config": self.layer.config()},
            "shapes": [shape.dimensions for shape in self.shapes],
            "odd": self.odd and self.odd.dimensions,
            "way": str(self.way),
            "purpose": self.purpose,
        }


def one_of(generator: np.random.Generator, *choices: Any) -> Any:
    """A random choice that stays a Python value."""
    return choices[int(generator.integers(len(choices)))]


Drawn = tuple[layers.Conv1D | layers.Conv2D | layers.Dense, Shape, int]


def draw(generator: np.random.Generator, families: tuple[str, ...]) -> Drawn:
    """A layer, its input and the samples of a batch."""
    count = one_of(generator, 1, 2, 3, 17)
    if one_of(generator, *families) == "dense":
        shapes = Shape.flat(23), Shape(5, 3, 7), Shape.flat(150)
        return (
            layers.Dense(one_of(generator, 3, 9, 40), bias=one_of(generator, True, False)),
            one_of(generator, *shapes),
            count,
        )
    units, filters, groups = (one_of(generator, *sizes) for sizes in ((1, 2, 5, 9, 130), (1, 3, 7, 21), (1, 1, 2, 3)))
    if units == filters == 1:
        groups = one_of(generator, 3, 5)
    bias = one_of(generator, True, False, "position")
    settings = {"groups": groups, "bias": bias}
    if one_of(generator, False, False, True):
        kernel, stride, padding = (one_of(generator, *sizes) for sizes in ((1, 3, 4), (1, 1, 2), (0, 1, (2, 1))))
        width = one_of(generator, 4, 5, 19)
        return (
            layers.Conv1D(filters * groups, kernel, stride, padding, **settings),
            Shape(units * groups, width),
            count,
        )
    kernel = one_of(generator, 1, 2, 3, 4, (2, 3), (3, 1))
    stride, padding = one_of(generator, 1, 1, 1, 2, (1, 3)), one_of(generator, 0, 1, "same", ((1, 0), (0, 2)))
    dilation = 1 if kernel == 4 else one_of(generator, 1, 1, 1, 2)
    height, width = one_of(generator, 5, 6, 9), one_of(generator, 5, 7, 11)
    layer = layers.Conv2D(filters * groups, kernel, stride, padding, dilation, **settings)
    return layer, Shape(units * groups, height, width), count


def plan_alone(layer: Layer, shape: Shape, count: int, tuning: Tuning) -> tuple[Plan, LayerContext]:
    """The training plan of a layer alone, with the delta of its input, and what the layer is given there."""
    sizes = shape.dimensions
    source = layers.Input(sizes[0], *((None, *sizes[1:]) if shape.rank == 1 else sizes[1:]))()
    graph = from_nodes(source, layer(source))
    plan = make_plan(graph, count, loss=MeanSquaredError(), training=True, input_delta=True, tuning=tuning)
    (site,) = [plan.sites[vertex.name] for vertex in graph.vertices if vertex.name != graph.vertices[0].name]
    return plan, site


# -- what a device is checked for --------------------------------------------------------------------------------------


def checks_of_implementations(tuning: Tuning, times: int, seed: int) -> list[Check]:
    """Each variant of each implementation for a device, in each of its directions, on ``times`` random odd layers.

    At another precision than fp32: those that compute in it alone. Blobs have numbers, so none that needs cells.
    """
    generator, found, reached = np.random.default_rng(seed), list[Check](), Counter[tuple[str, str, str]]()
    plain_tuning = replace(tuning, choices=TunedChoices())
    lanes = tuning.model.is_simt
    every = [item for item in IMPLEMENTATIONS.values() if item.lanes in (None, lanes) and not item.needs_cells]
    own = [item for item in every if tuning.precision in item.precisions]
    wanted = {key for item in own for key in itertools.product(item.families, item.variants, item.directions)}
    in_vain = 0
    while in_vain < _DRAWS and any(reached[key] < times for key in wanted):
        in_vain += 1
        layer, shape, count = draw(generator, ("convolution", "convolution", "dense"))
        site = plan_alone(layer, shape, count, plain_tuning)[1]
        for item, direction in itertools.product(own, PHASE_OF):
            variants = _variants(item, layer.operation(site, direction))
            for key in [(layer.family, variant, direction) for variant in variants]:
                if reached[key] < times:
                    arrangement = list(ARRANGEMENTS)[reached[key] % len(ARRANGEMENTS)]
                    settings: dict[str, Any] = {"precision": tuning.precision, "seed": seed + len(found)}
                    settings |= {"arrangement": arrangement, "way": Variant(key[1])}
                    found.append(Check(layer, (shape,), None, count, direction, **settings))
                    reached[key] += 1
                    in_vain = 0
    order = {name: rank for rank, name in enumerate(IMPLEMENTATIONS)}
    return sorted(found, key=lambda item: (item.family, order.get(item.way.variant, 0), item.way, item.direction))


def _variants(item: type[Implementation], operation: Operation) -> set[str]:
    """Return the variants of an implementation that have a candidate for an operation."""
    if not item.matches(operation):
        return set()
    candidates = item.candidates(operation)
    some = itertools.islice(candidates, 1) if len(item.variants) == 1 else candidates
    return {candidate.way.variant for candidate in some}


def checks_of_layers(*, thorough: bool, seed: int) -> list[Check]:
    """Layers that have one way to compute: those that most networks have, or, if thorough, many."""
    plane = Shape(3, 5, 7)
    some: list[tuple[Layer, tuple[Shape, ...]]] = [
        (layers.Activation("gelu"), (plane,)),
        (layers.Activation("softmax"), (Shape.flat(11),)),
        (layers.BatchNorm(), (plane,)),
        (layers.MaxPool2D(3, 2, 1), (Shape(3, 9, 7),)),
        (layers.AveragePool2D(2), (Shape(3, 9, 7),)),
        (layers.GlobalAveragePool(), (plane,)),
        (layers.GroupNorm(3), (Shape(6, 5, 7),)),
    ]
    more: list[tuple[Layer, tuple[Shape, ...]]] = [
        *((layers.Activation(name), (Shape(2, 33, 17),)) for name in ("relu", "sigmoid", "tanh", "silu", "mish")),
        (layers.BatchNorm(), (Shape(2, 13, 33),)),
        (layers.BatchNorm(), (Shape.flat(50),)),
        (layers.MaxPool1D(2), (Shape(4, 9),)),
        (layers.AveragePool2D(3, 1, 1), (Shape(3, 9, 7),)),
        (layers.LayerNorm(), (plane,)),
        (layers.LocalResponseNorm(5), (Shape(9, 3, 5),)),
        (layers.ConvTranspose2D(4, 3, 2), (plane,)),
        (layers.Conv3D(3, 3, padding=1), (Shape(2, 3, 5, 4),)),
        (layers.Add(), (plane, plane)),
        (layers.LSTM(5, bidirectional=True), (Shape(3, 4),)),
        (layers.GRU(5), (Shape(3, 4),)),
        (layers.MultiHeadAttention(2), (Shape(4, 9),)),
    ]
    return [
        Check(layer, shapes, seed=seed + zlib.crc32(layer.kind.encode()) % 1000)
        for layer, shapes in (some + more if thorough else some)
    ]


# -- ways that were tuned, or are planned ------------------------------------------------------------------------------


def check_of_way(layer: Layer, shape: Shape, task: Task, way: Variant, purpose: str) -> Check:
    """A check of one way for a task of a layer: on small odd planes if it is for those too, else on its own."""
    _, *sides = shape.dimensions
    odd = Shape(shape.units, *(min(size - 1 + size % 2, _ODD_SIDE) or 1 for size in sides))
    return Check(
        layer,
        (shape,),
        odd if odd != shape else None,
        direction=task.direction,
        way=way,
        precision=task.precision.removesuffix(IN_CELLS),
        in_cells=task.precision.endswith(IN_CELLS),
        purpose=purpose,
    )


def checks_of_plan(plan: Plan, known: Iterable[BrokenVariant]) -> Iterator[Check]:
    """Return a check of each variant in a plan that is not ``known``, on a layer that uses it."""
    seen, graph = set(known), plan.request.graph
    for _, call in plan.calls:
        if call.task is None or call.way is None or call.vertex is None:
            continue
        fault = BrokenVariant.of(call.task, call.way)
        if fault in seen or call.way.variant not in _VARIANTS:
            continue
        seen.add(fault)
        vertex = graph.vertices[call.vertex]
        yield check_of_way(vertex.layer, _input_shape(graph, call.vertex), call.task, call.way, "planned")


def _input_shape(graph: Graph, number: int) -> Shape:
    vertex = graph.vertices[number]
    shape = graph.input_shapes(vertex)[0]
    return Shape.flat(shape.elements) if vertex.layer.flattens_input else shape

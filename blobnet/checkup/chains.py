"""Checks of chains of layers: each kind that works on single values, or on units, after every other one.

What a layer alone computes rightly may go wrong where one launch does the work of several, or where one overwrites what
another still needs. A network has many chains of such layers, each twice: of the values between its layers every
second one is read by another layer as well, in the first chain those that are not in the second. So each layer begins
a launch that may do the work of each other one. Results are compared with float64, in hostile memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from blobnet import layers, losses, optimizers
from blobnet.data.samples import sources_for
from blobnet.device.device import Device
from blobnet.examination.examination import Finding, compared
from blobnet.examination.hostile import poison_unset, require_canaries
from blobnet.examination.layer_references import Float64Array, Reference, reference_of
from blobnet.examination.reference import dropout, normalization
from blobnet.execution.inference import Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.launch.task import BrokenVariant, Variant
from blobnet.layers.base import Layer, Node
from blobnet.memory.blob import BlobLayout, Shape
from blobnet.model import Model
from blobnet.network.graph import Vertex
from blobnet.network.parameters import DeviceParameters
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext
from blobnet.training.training_step import TrainingStep

#: The modes in which a network runs: in inference; trained; trained but for the products, the rest being frozen.
PREDICTION, TRAINING, FROZEN = MODES = ("prediction", "training", "frozen")
#: Samples, layers of a chain, and what a result may differ by at most, over its root mean square.
_COUNT, _LENGTH, _TOLERANCE = 3, 5, 1e-4
#: A layer of a user's own that has numbers for each unit.
_OWN = "function (I[N, C, ...], p[C], q[C]) -> (O) { O[n, c, ...] = +(tanh(I[n, c, ...] * p[c]) + q[c]); }"


def _product(shape: Shape) -> Layer:
    if not shape.rank:
        return layers.Dense(shape.units)
    kind: Any = (layers.Conv1D, layers.Conv2D, layers.Conv3D)[shape.rank - 1]
    made: Layer = kind(shape.units, 3, padding=1)
    return made


#: The links of a chain, for values of a shape; joins also take the network's input, or numbers that are learned.
LINKS: Mapping[str, Callable[[Shape], Layer]] = {
    "relu": lambda shape: layers.Activation("relu"),
    "gelu": lambda shape: layers.Activation("gelu"),
    "softmax": lambda shape: layers.Activation("softmax"),
    "dropout": lambda shape: layers.Dropout(0.4),
    "depth": lambda shape: layers.StochasticDepth(0.4),
    "sum": lambda shape: layers.Add(),
    "shifts": lambda shape: layers.Add(),
    "mask": lambda shape: layers.Multiply(),
    "gates": lambda shape: layers.Multiply(),
    "norm": lambda shape: layers.BatchNorm(epsilon=0.1),
    "known": lambda shape: layers.Standardize(),
    "scale": lambda shape: layers.Scale(),
    "prelu": lambda shape: layers.PReLU(),
    "rows": lambda shape: layers.LayerNorm(0.1),
    "own": lambda shape: layers.Contraction(_OWN),
    "product": _product,
}
#: The links of a quick check: where numbers of units meet operations on single values.
_FEW_LINKS = ("relu", "gelu", "sum", "norm", "scale", "prelu", "own")
#: The shapes of the numbers that joins have beside.
_BESIDE: Mapping[str, Callable[[Shape], tuple[int, ...]]] = {
    "shifts": lambda shape: (shape.units,),
    "gates": lambda shape: (shape.units, *(1,) * shape.rank),
    "mask": lambda shape: (1, *shape.sizes),
}


def chains(links: Sequence[str]) -> list[tuple[str, ...]]:
    """Chains in which each link comes after each other one, and after itself, once."""
    # The words of Lyndon of one and two letters, one after the other, are a ring in which each pair comes once.
    words = [
        word for first in range(len(links)) for word in ((first,), *((first, k) for k in range(first + 1, len(links))))
    ]
    ring = [links[letter] for word in words for letter in word]
    step = _LENGTH - 1
    return [tuple(ring[(first + place) % len(ring)] for place in range(_LENGTH)) for first in range(0, len(ring), step)]


@dataclass(frozen=True)
class ChainCheck:
    """Chains of layers to examine.

    Attributes:
        shape: of the values.
        mode: one of MODES.
        links: what chains are made of: names of LINKS.
        seed: of all numbers, and of the order of links.
    """

    shape: Shape
    mode: str
    links: tuple[str, ...]
    seed: int = 0

    way: ClassVar[Variant] = Variant("")
    #: There is no other way to compute this, so that nothing is denied.
    fault: ClassVar[BrokenVariant | None] = None
    family: ClassVar[str] = "chains"

    @property
    def title(self) -> str:
        """The title of its row in a report."""
        return f"chains, {self.mode}"

    def __str__(self) -> str:
        return f"chains of layers of {_COUNT} samples {self.shape} in {self.mode}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Plain data for a report."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**own, "family": self.family, "shape": self.shape.dimensions}


def checks_of_chains(*, thorough: bool, seed: int) -> list[ChainCheck]:
    """Return checks of some chains, of flat values and of planes; if thorough, of all, in training too."""
    flat, plane = Shape(5), Shape(3, 4, 5)
    if not thorough:
        return [ChainCheck(shape, PREDICTION, _FEW_LINKS, seed) for shape in (flat, plane)]
    shapes = flat, Shape(5, 1, 1), Shape(3, 7), plane, Shape(2, 3, 2, 4)
    return [ChainCheck(shape, mode, tuple(LINKS), seed) for shape in shapes for mode in MODES]


class _Problem(NamedTuple):
    """A network of chains, its samples, and targets for its outputs."""

    model: Model
    x: np.ndarray[Any, Any]
    y: dict[str, np.ndarray[Any, Any]]
    frozen: frozenset[str]


def _problem(check: ChainCheck) -> _Problem:
    random, shape = np.random.default_rng(check.seed), check.shape
    links = [str(link) for link in random.permutation(check.links)]
    source = layers.Input.of(shape, name="x")()
    outputs: dict[str, Node] = {}
    for number, chain in enumerate(chains(links)):
        for first in (0, 1):
            node = source
            for place, link in enumerate(chain):
                name = f"{number}_{first}_{place}_{link}"
                beside = [source] if link == "sum" else []
                if link in _BESIDE:
                    values = random.uniform(0.5, 1.5, _BESIDE[link](shape))
                    beside = [layers.Constant(values, trainable=True, name=f"{name}_numbers")()]
                node = replace(LINKS[link](shape), name=name)([node, *beside])
                if place % 2 == first and place < len(chain) - 1:
                    outputs[f"{name}_aside"] = layers.Activation("tanh", name=f"{name}_aside")(node)
            outputs[name] = node
    model = Model(source, outputs)
    fan = shape.units * 3**shape.rank
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for name, start in model.weights.items():
        layer, _, parameter = name.partition("/")
        if parameter == "weight":
            weights[name] = random.standard_normal(start.shape) / fan**0.5
        elif layer != "x":
            weights[name] = random.uniform(0.5, 1.5, start.shape)
    model.set_weights(weights)
    trainable = model.graph.trainable
    frozen = frozenset(name for name in trainable if check.mode == FROZEN and "_product/" not in name)
    x = random.standard_normal((_COUNT, *shape.dimensions), dtype=np.float32)
    y = {name: random.random((_COUNT, *shape.dimensions), dtype=np.float32) for name in outputs}
    return _Problem(model, x, y, frozen)


def examine_chains(device: Device, check: ChainCheck) -> Finding:
    """Run a check on a device and return its finding."""
    problem = _problem(check)
    run = _predicted if check.mode == PREDICTION else _trained
    own = partial(run, device, check, problem)
    return compared(str(check), lambda debug: own(debug=debug), lambda: _expected(check, problem), _TOLERANCE)


# -- as it is ----------------------------------------------------------------------------------------------------------


def _predicted(device: Device, check: ChainCheck, problem: _Problem, *, debug: bool) -> dict[str, Any]:
    model, device = problem.model, device.guarding()
    parameters = DeviceParameters(device, model.graph)
    parameters.write(model.weights)
    evaluator = Evaluator.of(device, model.graph, parameters, _COUNT, debug=debug)
    poison_unset(evaluator.executor)
    outputs = evaluator.predict(IndexedReader(sources_for(model.graph, problem.x, "x")), _COUNT)
    require_canaries(device, evaluator.executor, str(check))
    return dict(zip(problem.y, outputs, strict=True))


def _trained(device: Device, check: ChainCheck, problem: _Problem, *, debug: bool) -> dict[str, Any]:
    """The gradients of one step, and the delta of the input."""
    model, device = problem.model, device.guarding()
    loss = tuple(losses.MeanSquaredError() for _ in problem.y)
    settings = TrainingSettings(
        loss=loss,
        optimizer=optimizers.SGD(),
        batch_size=_COUNT,
        freeze=frozenset(problem.frozen),
        seed=check.seed,
    )
    context = StepContext(input_delta=True, debug=debug)
    step = TrainingStep(device, model.graph, model.weights, settings, context)
    poison_unset(step.executor)
    step.reset_totals()
    labels = [loss[0].device_labels(values) for values in problem.y.values()]
    step.compute_gradients(step.load_batch(problem.x, *labels))
    require_canaries(device, step.executor, str(check))
    delta = step.executor.read_blob(step.plan.deltas["x"], _COUNT)
    return {**step.gradients(), "x": delta.reshape(problem.x.shape)}


# -- as it should be ---------------------------------------------------------------------------------------------------


def _expected(check: ChainCheck, problem: _Problem) -> Iterator[tuple[str, Float64Array]]:
    """Yield the expected results in float64, layer by layer."""
    graph = problem.model.graph
    weights = {name: values.astype(np.float64) for name, values in problem.model.weights.items()}
    values: list[Float64Array] = []
    references: list[Reference] = []
    for vertex in graph.vertices:
        reference = _reference(check, problem, vertex)
        inputs, own = _operands(problem, vertex, values, weights)
        values.append(reference.forward(inputs, own).reshape(_COUNT, *vertex.shape.dimensions))
        references.append(reference)
    if check.mode == PREDICTION:
        yield from ((name, values[vertex.index]) for name, vertex in graph.outputs.items())
        return
    deltas = [np.zeros(item.shape) for item in values]
    for name, vertex in graph.outputs.items():
        deltas[vertex.index] += 2 * (values[vertex.index] - problem.y[name]) / problem.y[name].size
    for vertex in reversed(graph.vertices[1:]):
        inputs, own = _operands(problem, vertex, values, weights)
        delta = deltas[vertex.index]
        of_inputs, gradients = references[vertex.index].backward(inputs, own, delta.reshape(_planes(vertex.shape)))
        for source, part in zip(vertex.inputs, of_inputs, strict=True):
            deltas[source] += part.reshape(deltas[source].shape)
        for name, gradient in gradients.items():
            if vertex.parameter(name) in graph.trainable and vertex.parameter(name) not in problem.frozen:
                yield vertex.parameter(name), gradient.reshape(weights[vertex.parameter(name)].shape)
    yield "x", deltas[0]


def _planes(shape: Shape) -> tuple[int, ...]:
    """Return the shape of values as references take them: always with units of planes, or of volumes."""
    return (_COUNT, *BlobLayout.padded(shape).shape.dimensions)


def _operands(
    problem: _Problem, vertex: Vertex, values: Sequence[Float64Array], weights: Mapping[str, Float64Array]
) -> tuple[list[Float64Array], dict[str, Float64Array]]:
    """A vertex's inputs, as references take them, and its parameters."""
    graph = problem.model.graph
    own = {spec.name: weights[vertex.parameter(spec.name)] for spec in graph.parameters(vertex)}
    if vertex.layer.takes_samples:
        return [problem.x.astype(np.float64)], own
    return [values[source].reshape(_planes(graph.vertices[source].shape)) for source in vertex.inputs], own


def _reference(check: ChainCheck, problem: _Problem, vertex: Vertex) -> Reference:
    layer: Any = vertex.layer
    if layer.kind in ("Dropout", "StochasticDepth"):
        mask = np.ones((_COUNT, vertex.shape.elements))
        trainable = set(problem.model.graph.trainable)
        # Where nothing is trained that could be, all runs as in prediction.
        if check.mode != PREDICTION and (trainable - problem.frozen or not trainable):
            mask = dropout.dropout_mask(check.seed, 0, vertex.index, _COUNT, vertex.shape.elements, layer.rate)
        kept = (mask[:, :1] * np.ones(mask.shape) if layer.is_whole else mask).reshape(_planes(vertex.shape))
        return Reference(lambda inputs, _: inputs[0] * kept, lambda inputs, _, delta: ([delta * kept], {}))
    if layer.kind == "Input":
        return Reference(lambda inputs, _: inputs[0], lambda inputs, _, delta: ([delta], {}))
    if layer.kind == "Constant":
        return Reference(
            lambda inputs, own: np.repeat(own["value"][None], _COUNT, axis=0),
            lambda inputs, own, delta: ([], {"value": delta.sum(axis=0)}),
        )
    is_frozen = {vertex.parameter(name) for name in ("scale", "shift")} <= problem.frozen
    if layer.kind == "Standardize" or (layer.kind == "BatchNorm" and (check.mode == PREDICTION or is_frozen)):
        names, epsilon = ("scale", "shift", "running_mean", "running_variance"), getattr(layer, "epsilon", 0.0)

        def backward(inputs: Any, own: Any, delta: Any) -> Any:
            factor = own["scale"] / np.sqrt(own["running_variance"] + epsilon)
            return [delta * factor.reshape(-1, *(1,) * (delta.ndim - 2))], {}

        return Reference(
            lambda inputs, own: normalization.batch_norm_inference(
                inputs[0], *(own[name] for name in names), epsilon=epsilon
            ),
            backward,
        )
    return reference_of(layer, problem.model.graph.input_shapes(vertex))

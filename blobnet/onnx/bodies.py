"""Graphs within nodes: the branches of an If and the bodies of Loop and Scan, and how the host runs them.

A loop is run trip by trip wherever it is: as a file is read its trips become layers, one after the other; in a tail
they are NumPy's. ``loop`` and ``scan`` say what both have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blobnet.errors import first_few
from blobnet.onnx.host import MAX_BYTES, HostNode, Late, evaluated
from blobnet.onnx.operation import UnsupportedError
from blobnet.onnx.reading import array_of
from blobnet.onnx.values import Array, Tensor

#: The operators that have graphs.
KINDS = frozenset(["If", "Loop", "Scan"])
#: Nodes that loops may run: in a reading of a file, where each takes milliseconds, and in a run of a node of a tail.
MAX_READ, MAX_RUN = 2_000, 10_000
#: How deep graphs may lie within each other.
MAX_DEPTH = 20


@dataclass
class Budget:
    """The rest of the nodes that loops may run, and of the bytes that they may give."""

    most: int
    bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        self._nodes = self.most

    def take(self, nodes: int, gives: Sequence[Any], subject: str) -> None:
        """A trip through so many nodes, which gives these values.

        Raises:
            UnsupportedError: that is too much.
        """
        self._nodes -= max(1, nodes)
        self.bytes -= sum(value.nbytes for value in gives if isinstance(value, np.ndarray))
        if min(self._nodes, self.bytes) < 0:
            rule = f"the trips of loops may run {self.most:,} nodes in all, and give {MAX_BYTES:,} bytes"
            hint = "export the network with fewer trips, or with operators that do all of them at once."
            raise UnsupportedError(subject, rule, nodes_of_a_trip=nodes, hint=hint)


class Runner(ABC):
    """The base of classes that run the graphs of a node.

    Attributes:
        subject: how errors name the node.
        budget: the rest that its loops may run.
    """

    subject: str
    budget: Budget

    @abstractmethod
    def outputs(self, graph: Any, values: Mapping[str, Any]) -> list[Any]:
        """The outputs of a graph for values of its inputs."""

    @abstractmethod
    def number(self, value: Any) -> Array:
        """A value that must be known."""

    def size(self, value: Any, axis: int) -> int:
        """The size of an axis."""
        shape = value.axes if isinstance(value, Tensor) else value.shape
        rule = "an axis must be one of the tensor's"
        _require(self, -len(shape) <= axis < len(shape), rule, axis=axis, axes=len(shape))
        return int(shape[axis])

    def taken(self, value: Any, axis: int, place: int) -> Any:
        """The element at a place of an axis, without that axis."""
        return np.take(value, place, axis)

    @abstractmethod
    def stacked(self, values: Sequence[Any], axis: int) -> Any:
        """Values one beside the other on a new axis; there are some."""


def graphs_of(node: Any) -> dict[str, Any]:
    """The graphs of a node by the names of the attributes."""
    return {item.name: item.g for item in node.attribute if item.HasField("g")}


def kinds_of(node: Any) -> set[str]:
    """The operators of a node, and of all nodes within it."""
    inner = (kinds_of(own) for graph in graphs_of(node).values() for own in graph.node)
    return {node.op_type}.union(*inner)


def _size(graph: Any) -> int:
    """The nodes of a graph, with those of graphs within."""
    return sum(1 + sum(map(_size, graphs_of(node).values())) for node in graph.node)


def depth_within(depth: int, subject: str) -> int:
    """The depth of a graph within one at ``depth``.

    Raises:
        UnsupportedError: that is too deep.
    """
    if depth >= MAX_DEPTH:
        raise UnsupportedError(subject, f"graphs must lie within each other at most {MAX_DEPTH} deep", depth=depth)
    return depth + 1


def run(node: Any, values: Mapping[str, Any], version: int, runner: Runner) -> list[Any]:
    """The outputs of an If, Loop or Scan.

    Raises:
        UnsupportedError: its graphs do not fit its inputs and outputs, or trips take too many nodes.
    """
    inputs = [values[name] if name else None for name in node.input]
    graphs = graphs_of(node)
    attributes = {item.name: list(item.ints) or item.i for item in node.attribute if item.name not in graphs}
    if node.op_type == "If":
        condition = runner.number(inputs[0])
        _require(runner, condition.size == 1, "the condition must be one value", shape=condition.shape)
        return runner.outputs(graphs["then_branch" if bool(condition.reshape(())) else "else_branch"], {})
    if node.op_type == "Loop":
        return _loop(graphs["body"], inputs, len(node.output), runner)
    rule = "a Scan must be of operator set 9 or newer, which has no axis of samples of its own"
    hint = "onnx.version_converter.convert_version makes another operator set of the model."
    _require(runner, version >= 9, rule, opset=version, hint=hint)
    return _scan(graphs["body"], inputs, len(node.output), attributes, runner)


def _require(runner: Runner, condition: bool, rule: str, *, hint: str | None = None, **received: object) -> None:
    if not condition:
        raise UnsupportedError(runner.subject, rule, hint=hint, **received)


def _fits(body: Any, inputs: int, outputs: int, runner: Runner) -> None:
    rule = "the body of a loop must have an input and an output for each value that goes from trip to trip"
    found = len(body.input), len(body.output)
    _require(runner, found == (inputs, outputs), rule, inputs_and_outputs=found, needed=(inputs, outputs))


def _loop(body: Any, inputs: Sequence[Any], count: int, runner: Runner) -> list[Any]:
    most, first, *carried = [*inputs, None, None][: max(2, len(inputs))]
    _require(runner, all(value is not None for value in carried), "values that go from trip to trip must begin as some")
    trips = None if most is None else int(runner.number(most).reshape(()))
    goes_on = True if first is None else bool(runner.number(first).reshape(()))
    _fits(body, 2 + len(carried), 1 + count, runner)
    names, size = [item.name for item in body.input], _size(body)
    stacks: list[list[Any]] = [[] for _ in range(count - len(carried))]
    trip = 0
    while goes_on and (trips is None or trip < trips):
        given = [np.array(trip, np.int64), np.array(True), *carried]
        condition, *found = runner.outputs(body, dict(zip(names, given, strict=True)))
        carried = found[: len(carried)]
        for stack, value in zip(stacks, found[len(carried) :], strict=True):
            stack.append(value)
        runner.budget.take(size, found[len(carried) :], runner.subject)
        goes_on = bool(runner.number(condition).reshape(()))
        trip += 1
    ends = body.output[1 + len(carried) :]
    return [*carried, *(_joined(stack, 0, end, runner) for stack, end in zip(stacks, ends, strict=True))]


def _scan(body: Any, inputs: Sequence[Any], count: int, attributes: Mapping[str, Any], runner: Runner) -> list[Any]:
    states = len(inputs) - int(attributes.get("num_scan_inputs", 0))
    _require(
        runner, 0 <= states < len(inputs) and states <= count, "there must be something to scan", inputs=len(inputs)
    )
    carried, scanned = list(inputs[:states]), inputs[states:]
    _fits(body, len(inputs), count, runner)

    def numbers(name: str, count: int) -> list[int]:
        found = attributes.get(name) or [0] * count
        _require(runner, len(found) == count, f"{name} must be one number for each", numbers=found, needed=count)
        return [int(number) for number in found]

    axes, backwards = (numbers(f"scan_input_{name}", len(scanned)) for name in ("axes", "directions"))
    sizes = [runner.size(value, axis) for value, axis in zip(scanned, axes, strict=True)]
    _require(runner, len(set(sizes)) == 1, "what is scanned must have as many elements each", sizes=sizes)
    names, size = [item.name for item in body.input], _size(body)
    stacks: list[list[Any]] = [[] for _ in range(count - states)]
    for trip in range(sizes[0]):
        places = [sizes[0] - 1 - trip if is_backwards else trip for is_backwards in backwards]
        parts = [runner.taken(*item) for item in zip(scanned, axes, places, strict=True)]
        found = runner.outputs(body, dict(zip(names, [*carried, *parts], strict=True)))
        runner.budget.take(size, found[states:], runner.subject)
        carried = found[:states]
        for stack, value in zip(stacks, found[states:], strict=True):
            stack.append(value)
    axes, backwards = (numbers(f"scan_output_{name}", len(stacks)) for name in ("axes", "directions"))
    stacks = [stack[::-1] if is_backwards else stack for stack, is_backwards in zip(stacks, backwards, strict=True)]
    ends = zip(stacks, axes, body.output[states:], strict=True)
    return [*carried, *(_joined(stack, axis, end, runner) for stack, axis, end in ends)]


def _joined(values: Sequence[Any], axis: int, end: Any, runner: Runner) -> Any:
    """Return what trips gave, joined; without a trip an empty array of the shape that the file says."""
    if values:
        return runner.stacked(values, axis)
    sizes = [max(0, int(size.dim_value)) for size in end.type.tensor_type.shape.dim]
    return np.zeros([0, *sizes], np.float32)


# -- the host ----------------------------------------------------------------------------------------------------------


@dataclass
class _Host(Runner):
    """Runs graphs on arrays."""

    subject: str
    version: int
    outer: Mapping[str, Array]
    budget: Budget
    depth: int = 0

    def outputs(self, graph: Any, values: Mapping[str, Array]) -> list[Array]:
        depth = depth_within(self.depth, self.subject)
        known = {**self.outer, **{item.name: array_of(item, self.subject) for item in graph.initializer}, **values}
        for node in graph.node:
            subject = f"{self.subject}, node {node.name or next(iter(node.output), '')} ({node.op_type})"
            own = _computed(node, known, _Host(subject, self.version, known, self.budget, depth))
            known.update({name: value for name, value in zip(node.output, own, strict=False) if name})
        missing = [item.name for item in graph.output if item.name not in known]
        _require(self, not missing, "every output of a graph must be made by a node", missing=first_few(missing, 4))
        return [known[item.name] for item in graph.output]

    def number(self, value: Array) -> Array:
        return value

    def stacked(self, values: Sequence[Array], axis: int) -> Array:
        shapes = {value.shape for value in values}
        _require(self, len(shapes) == 1, "what trips give must have one shape", shapes=first_few(map(str, shapes), 4))
        found: Array = np.stack(values, axis)
        return found


def _computed(node: Any, known: Mapping[str, Array], host: _Host) -> list[Array]:
    missing = [name for name in node.input if name and name not in known]
    _require(host, not missing, "the inputs of a node must be made by nodes before it", missing=first_few(missing, 4))
    if node.op_type in KINDS:
        return run(node, known, host.version, host)
    own = {name: known[name] for name in node.input if name}
    return evaluated(node, host.version, own, host.subject)


def run_tail(nodes: Sequence[HostNode], arrays: dict[Tensor | Late, Array]) -> None:
    """Computes nodes in their order; to ``arrays``, the tensors that they read, it adds what they give.

    Raises:
        UnsupportedError: a node cannot be computed, or what it gives is too large.
    """
    for node in nodes:
        own = {
            name: arrays[value] if isinstance(value, Tensor | Late) else value for name, value in node.inputs.items()
        }
        found = _computed(node.proto, own, _Host(node.subject, node.version, own, Budget(MAX_RUN)))
        arrays.update(zip(node.outputs, found, strict=True))

"""Distillation: a second network, the teacher, whose answers a training learns besides the labels.

Hinton et al., *Distilling the Knowledge in a Neural Network*, 2015; the loss is losses/distillation.py's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.execution.executor import Executor, plan_for
from blobnet.launch.kernel_call import Batch
from blobnet.losses import CrossEntropy, Focal
from blobnet.losses.distillation import TEACHER, Teaching
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network.ends import Head
from blobnet.network.graph import Graph
from blobnet.network.parameters import DeviceParameters
from blobnet.planning import Plan


@dataclass(frozen=True, eq=False)
class Teacher:
    """A network as it was when a training began.

    Attributes:
        graph: the network.
        weights: its parameters, which nobody changes.
        class_names: of the units of its output.
        loss: that of its own training, if anybody knows.
    """

    graph: Graph
    weights: Mapping[str, FloatArray]
    class_names: tuple[str, ...]
    loss: Any

    @classmethod
    def of(cls, model: Any) -> Teacher:
        """Return a model as a teacher; OptionError where it is none."""
        graph = getattr(model, "graph", None)
        if not isinstance(graph, Graph):
            hint = "bn.load(FILE) gives the model of a file."
            raise OptionError("teacher", "it must be a model", received=type(model).__name__, hint=hint)
        return cls(graph, model._weights, tuple(model.class_names), model.loss)

    @cached_property
    def digest(self) -> str:
        """A digest of the network and its weights."""
        digest = hashlib.sha256(repr(self.graph.description()).encode())
        for name, values in self.weights.items():
            digest.update(name.encode() + values.tobytes())
        return digest.hexdigest()[:12]

    def plan(self, device: Device, student: Graph, batch_size: int, temperature: float, **wanted: Any) -> Plan:
        """Return a plan of its answers to the samples of a student, as for plan_for."""
        graph = self.graph
        if _inputs(graph) != _inputs(student):  # At some epochs pictures have another size.
            graph = graph.of_size(*student.input.shape.sizes)
        return plan_for(device, graph, batch_size, loss=(Teaching(temperature),), **wanted)

    def check(self, model: Any, heads: Sequence[Head]) -> None:
        """Raises OptionError unless a model can learn what this one says.

        Args:
            model: the one that learns.
            heads: its outputs with the losses of its labels.
        """
        outputs = len(model.graph.outputs), len(self.graph.outputs)
        if outputs != (1, 1):
            raise OptionError("teacher", "both models must have a single output", model=outputs[0], teacher=outputs[1])
        loss = heads[0].loss
        if not isinstance(loss, CrossEntropy | Focal) or not (self.loss is None or self.loss.takes_classes):
            rule = "both models must tell classes apart: the loss must be CrossEntropy or Focal"
            own = "unknown" if self.loss is None else type(self.loss).__name__
            raise OptionError("teacher", rule, model=type(loss).__name__, teacher=own)
        if self.weights is model._weights:
            raise OptionError("teacher", "it must be another model than the one that learns, or have other weights")
        self._check_shapes("input", _inputs(model.graph), _inputs(self.graph))
        (student,), (own_end,) = model.graph.outputs.values(), self.graph.outputs.values()
        self._check_shapes("output", student.shape, own_end.shape)
        function = own_end.layer.nonlinearity
        if function is not None and function.gives_probabilities:
            hint = "build it without its last layer: bn.Model(teacher.node(INPUT), teacher.node(LAYER))."
            raise OptionError("teacher", "it must end with logits, not probabilities", layer=own_end.name, hint=hint)
        if model.class_names and self.class_names and tuple(model.class_names) != self.class_names:
            pairs = zip(model.class_names, self.class_names, strict=True)
            number, (mine, other) = next((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1])
            rule = "its classes must be those of the model, in the same order"
            raise OptionError("teacher", rule, number=number, model=mine, teacher=other)

    @staticmethod
    def _check_shapes(end: str, model: Any, teacher: Any) -> None:
        if model != teacher:
            raise OptionError("teacher", f"its {end} must have the shape of the model's", model=model, teacher=teacher)


def _inputs(graph: Graph) -> Shape | dict[str, Shape]:
    """The shape of the input, which may have any name; of several those by their names."""
    shapes = {name: vertex.shape for name, vertex in graph.inputs.items()}
    return next(iter(shapes.values())) if len(shapes) == 1 else shapes


class TeacherRun:
    """Runs a teacher on the samples that a step has loaded, for the loss of the step to read what it says.

    Args:
        device: where to run.
        plan: of the teacher; its loss is a Teaching.
        teacher: its weights.
        step: runs the step; the loader brings its samples.
    """

    def __init__(self, device: Device, plan: Plan, teacher: Teacher, step: Executor) -> None:
        self._step = step
        #: NOTE: of a single input they go without the input's name.
        self._samples = [name for entry in plan.request.entries for name in entry.memory(1)]
        parameters = DeviceParameters(device, teacher.graph, plan.request.parameters)
        parameters.write(teacher.weights)
        shared = {name: step.buffers[name] for name in (*self._samples, TEACHER)}
        self._executor = Executor(device, plan, {"parameters": parameters.buffer, **shared}, debug=step.debug)
        self._executor.prepare(parameters.version)

    def run(self, batch: Batch) -> None:
        """Have it say what it knows of the batch that is loaded."""
        for name in self._samples:
            self._executor.take(self._step, name)
        for phase in ("forward", "loss"):
            self._executor.run(phase, batch)

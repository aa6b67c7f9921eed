"""``blobnet plan``: the memory that a model needs, without any device."""

from __future__ import annotations

import argparse
import sys

from blobnet import device, onnx, plots
from blobnet.arguments import losses_for
from blobnet.blob import FLOAT32, Padding, storage_type
from blobnet.command_line.model_argument import build_for, find_model, is_model_file, open_model
from blobnet.command_line.transfer import frozen_patterns
from blobnet.device_model import GENERIC, DeviceModel
from blobnet.ends import by_name
from blobnet.errors import OptionError
from blobnet.files import check_writable
from blobnet.kernel_call import KernelCall, Tuning
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.model import Model
from blobnet.onnx.operation import OnHostError
from blobnet.optimizers import Optimizer
from blobnet.parameters import parameter_table
from blobnet.patterns import frozen_parameters
from blobnet.plan_report import Limits, report
from blobnet.planning import make_plan


def run(options: argparse.Namespace) -> int:
    """Prints the plan, and the largest batch for the memory of a device or of --memory."""
    if options.plot is not None:
        plots.check(options.plot)
        check_writable(options.plot, 0)
    model, name, tail = _model(options)
    limits, kind = _limits(options)
    training = not options.inference and not tail
    if training and options.storage != FLOAT32.name:
        rule = "training keeps float32 between layers"
        raise OptionError("--storage", rule, storage=options.storage, hint="add --inference.")
    names = list(model.graph.outputs)
    # Of a model that was not trained: what its outputs can be. A single one is no class, unless classes are asked for.
    outputs = model.graph.outputs.values()
    assumed = [CrossEntropy() if out.shape.units > 1 or options.classes else MeanSquaredError() for out in outputs]
    known = model.loss or by_name(names, assumed)
    loss = losses_for(model.graph, None, known) if training else None
    tuning = Tuning(kind, padding=Padding(align=options.align), storage=storage_type(options.storage))
    table = parameter_table(model.graph, frozen_parameters(model.graph, frozen_patterns(options, model) or ()))
    plan = make_plan(model.graph, options.batch_size, loss=loss, training=training, tuning=tuning, parameters=table)
    title = f"{name}, {'training' if training else 'inference'}, batch {options.batch_size}, kernels for a {kind.name}"
    print(f"{title}\n")
    memory: dict[str, int] = {}
    updates: list[KernelCall] = []
    if training:
        build = {name.lower(): kind for name, kind in Optimizer.kinds.items()}[options.optimizer]
        optimizer = build()  # type: ignore[call-arg]  # every kind has a default rate
        memory = {name: FLOAT32.itemsize * elements for name, elements in optimizer.memory(plan.parameters).items()}
        updates = optimizer.calls(plan.parameters, kind)
    print(report(plan, reserved=memory, updates=len(updates), limits=limits))
    if tail:
        print(f"\nOn the host, in NumPy, behind the network: {', '.join(tail)}")
    if options.plot is not None:
        plots.save(plots.memory(plan, reserved=memory, updates=updates, title=title), options.plot)
        print(f"saved {options.plot}", file=sys.stderr)
    return 0


def _model(options: argparse.Namespace) -> tuple[Model, str, tuple[str, ...]]:
    """A model in a file, or one that is built for the shape that the options give; and what the host does behind it."""
    if not is_model_file(options.model):
        source = find_model(options.model)
        return build_for(source, None, options.classes, options.input_shape), source.text, ()
    is_onnx = options.model.endswith(".onnx")
    if options.classes or (options.input_shape and not is_onnx):
        rule = "a model in a file has its shape: --input-shape and --classes are for others"
        raise OptionError("MODEL", rule, file=options.model)
    try:
        return open_model(options.model, options.input_shape), options.model, ()
    except OnHostError:
        network = onnx.Session(options.model).network(options.input_shape)
    if network.model is None:
        raise OptionError(options.model, "a plan is that of a device, and the host does all", nodes=network.tail)
    return network.model, options.model, network.tail


def _limits(options: argparse.Namespace) -> tuple[Limits | None, DeviceModel]:
    """The memory to fit, where it is known, and the kind of device."""
    info = None
    if options.device or (options.memory is None and device.devices()):
        info = device.choose(options.device)
    kind = next(model for model in GENERIC.values() if info is None or model.is_host == info.is_host)
    if options.memory is not None:
        return Limits("--memory", options.memory, options.memory), kind
    return (Limits(info.name, info.memory, info.largest_allocation), kind) if info else (None, kind)

"""Modules of PyTorch as models, by way of ONNX (docs/weights.md)."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blobnet.errors import OptionError
from blobnet.model import Model
from blobnet.onnx.importer import load


def from_torch(module: Any, example: Any) -> Model:
    """A trainable model that computes what a module of PyTorch does in evaluation, with its weights.

    ``torch.onnx.export`` follows the module with ``torch.export``, and :func:`blobnet.onnx.load` reads what it gives.
    Batch norms stay layers of their own. Layers are called as the modules that have their weights, ``layer1.0.conv1``
    say. The module is left as it was.

    Args:
        module: a ``torch.nn.Module``.
        example: a tensor of samples (N, units[[[, depth], height], width]) that the module takes, or a tuple of them;
            how many there are makes no difference, all other sizes are those of the model.

    Raises:
        OptionError: PyTorch or onnxscript is missing, the module cannot be exported, or it has an operator that blobnet
            does not have.
    """
    torch = _torch()
    examples = tuple(example) if isinstance(example, Sequence) else (example,)
    fits = isinstance(module, torch.nn.Module) and all(
        isinstance(item, torch.Tensor) and item.ndim > 1 and len(item) for item in examples
    )
    if not fits:
        rule = "it takes a torch.nn.Module, and a tensor of samples or a tuple of them"
        kinds = [type(item).__name__ for item in examples]
        raise OptionError("from_torch", rule, module=type(module).__name__, example=kinds)
    # A batch of one would stand for all batches.
    examples = tuple(torch.cat([item, item]) if len(item) == 1 else item for item in examples)
    batch = torch.export.Dim("N")
    shapes = _as_parameters(module, [{0: batch} for _ in examples])
    options = {"dynamo": True, "dynamic_shapes": shapes, "verbose": False}
    was_training = {part: part.training for part in module.modules()}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own parts
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                # NOTE: optimization would put batch norms into weights.
                program = torch.onnx.export(module.eval(), examples, optimize=False, **options)
        except Exception as error:
            rule = "PyTorch must be able to export the module"
            cause = str(error).strip().split("\n")[0][:200]
            hint = "torch.export.export(module, example) says more."
            raise OptionError("from_torch", rule, cause=cause, hint=hint) from error
        finally:
            for part, mode in was_training.items():
                part.training = mode
        _name_nodes(program.model.graph)
        path = Path(folder) / f"{type(module).__name__}.onnx"
        program.save(str(path))
        return load(path)


def _as_parameters(module: Any, shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes of arguments by the parameters of ``forward``: those that ``*args`` takes are one tuple."""
    kinds = [item.kind for item in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:first], tuple(shapes[first:]))


def _name_nodes(graph: Any) -> None:
    """Calls nodes with weights as the modules that have them are called."""
    for node in graph:
        names = [value.name for value in node.inputs if value is not None and value.name in graph.initializers]
        module = next((name.rpartition(".")[0] for name in names if "." in name), None)
        if module:
            node.name = module


def _torch() -> Any:
    """PyTorch, with what its export needs."""
    try:
        importlib.import_module("onnxscript")
        return importlib.import_module("torch")
    except ImportError as error:
        hint = "pip install torch onnxscript"
        raise OptionError("from_torch", "PyTorch and onnxscript must be installed", cause=error, hint=hint) from error

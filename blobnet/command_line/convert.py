"""``blobnet convert``: models and weights from one kind of file to another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blobnet import onnx
from blobnet.command_line.model_argument import build_for, find_model, is_model_file, open_model
from blobnet.errors import FileError, OptionError
from blobnet.files import checkpoint
from blobnet.files.atomic import check_writable, opening
from blobnet.interop import safetensors_files
from blobnet.model import Model


@dataclass(frozen=True)
class _Format:
    """A kind of file, by the end of its name.

    Attributes:
        ending: of the name.
        save: writes a model.
        keeps: what it keeps of a model beside the network: "training", "class names", or _ORIGIN.
        take: has a model take its weights; None where the file says what the network is.
        check: sees that there is such a file.
    """

    ending: str
    save: Callable[[Model, Path], None]
    keeps: tuple[str, ...] = ()
    take: Callable[[Model, Path], None] | None = None
    check: Callable[[Path], object] = opening


_PRETRAINED = "where its first weights came from"
#: What a model keeps of an ONNX file that it was read from.
_ORIGIN = "names and texts of the ONNX file"
#: The kinds of files, longer endings first.
FORMATS = (
    _Format(".weights.h5", Model.save_keras_weights, (), Model.load_keras_weights),
    _Format(".safetensors", Model.save_safetensors, (), Model.load_safetensors, safetensors_files.check_beginning),
    _Format(".keras", Model.save_keras_weights, (), Model.load_keras_weights),
    _Format(
        ".onnx", lambda model, path: onnx.save(model, path), ("class names", _ORIGIN)
    ),  # Imported when it is wanted.
    _Format(".h5", Model.save, ("class names", "training", _ORIGIN, _PRETRAINED)),
)
#: A file of Keras 2 has the ending of one of blobnet's.
_KERAS_2 = _Format(".h5", Model.save, (), Model.load_keras_weights)


def run(options: argparse.Namespace) -> int:
    """Reads a file, and writes the other one."""
    source, target = _format(options.input), _format(options.output)
    if source.ending == ".h5" and options.input.is_file() and checkpoint.says_weights(options.input):
        source = _KERAS_2
    if options.output.exists() and not options.overwrite:
        rule, hint = "there is such a file already", "--overwrite replaces it."
        raise FileError(str(options.output), rule, hint=hint)
    check_writable(options.output, 0)
    model = _model(options, source)
    if options.boxes is None:
        target.save(model, options.output)
    elif target.ending == ".onnx":
        onnx.save(model, options.output, boxes=options.boxes)
    else:
        raise OptionError("--boxes", "only a .onnx file picks boxes itself", output=options.output)
    has = {"class names": bool(model.class_names), "training": bool(model.history or model.training_state)}
    has |= {_ORIGIN: bool(model.graph.origin), _PRETRAINED: model.pretrained is not None}
    lost = [name for name, is_there in has.items() if is_there and name not in target.keeps]
    if lost:
        print(f"note: {target.ending} files have no place for: {', '.join(lost)}", file=sys.stderr)
    print(f"saved {options.output}: {model.parameter_count:,} trainable parameters")
    return 0


def _format(path: Path) -> _Format:
    found = next((kind for kind in FORMATS if path.name.endswith(kind.ending)), None)
    # A file of another ending may be a pickle of PyTorch: what reads tensors says what to do with it.
    if found is None and path.suffix in (".pt", ".pth"):
        return FORMATS[1]
    if found is None:
        rule = f"the name must end in one of {', '.join(kind.ending for kind in FORMATS)}"
        raise OptionError(str(path), rule)
    return found


def _model(options: argparse.Namespace, source: _Format) -> Model:
    """The model in the file; or the one of --model, with the weights in the file."""
    source.check(options.input)
    given = {"--model": options.model, "--classes": options.classes, "--input-shape": options.input_shape}
    received: dict[str, Any] = {name.strip("-"): value for name, value in given.items() if value is not None}
    if source.take is None:
        if source.ending == ".onnx" and received.keys() == {"input-shape"}:
            return open_model(options.input, options.input_shape)
        if received:
            rule = f"it is for weights alone, and {options.input} says what the network is"
            raise OptionError(f"--{next(iter(received))}", rule, **received)
        return open_model(options.input)
    if options.model is None:
        rule = f"{options.input} holds weights alone: there must be a network for them"
        hint = "--model resnet18, a file of yours (net.py:function), or a model file."
        raise OptionError("--model", rule, hint=hint)
    model = _network(options, received)
    source.take(model, options.input)
    return model


def _network(options: argparse.Namespace, received: dict[str, Any]) -> Model:
    if is_model_file(options.model):
        if len(received) > 1:
            rule = "a model in a file has its shape: --input-shape and --classes are for others"
            raise OptionError("--model", rule, file=options.model)
        return open_model(options.model)
    return build_for(find_model(options.model), None, options.classes, options.input_shape)

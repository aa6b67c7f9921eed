"""MODEL on the command line: one of blobnet's models by name, or a function in a user's own file."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import blobnet
import blobnet.models
from blobnet import onnx
from blobnet.datasets.dataset import are_names
from blobnet.errors import BlobnetError, DataError, FileError, OptionError, near_matches
from blobnet.files import checkpoint
from blobnet.interop import hub, safetensors_files
from blobnet.model import Model, check_class_names, load, load_pretrained, with_classes_of
from blobnet.onnx.operation import OnHostError, OpenAxisError

#: What a model's function is given, as far as it takes it.
_OFFERED = ("input_shape", "classes", "class_names", "seed")
#: What a model is built for where neither the command line nor the function itself says so.
_DEFAULT_SHAPE, _DEFAULT_CLASSES = (1, 28, 28), 10
#: What the names of ONNX files end in.
_ONNX = ".onnx"
#: What errors of ONNX files advise on the command line.
_HOST_HINT = "blobnet predict runs the file: the network on the device, and on the host what follows it."
_OPEN_HINT = "blobnet convert {} model.h5 --input-shape 3,224,224, say, writes a model of that size (plan takes the "
_OPEN_HINT += "option, too; for several inputs bn.onnx.load(..., sizes=...) in Python does); predict takes any sizes."
#: Lines of a user's own code that an error shows.
_SHOWN_CALLS = 4


class UserCodeError(BlobnetError):
    """A user's own file raises; the message ends with the last calls of the traceback."""

    def __init__(self, subject: str, rule: str, error: BaseException) -> None:
        super().__init__(subject, rule)
        self.args = (f"{self.args[0]}\n{_last_calls(error)}",)


def known_models() -> list[str]:
    """The models that come with blobnet: the functions of blobnet.models."""
    return sorted(blobnet.models.__all__)


@dataclass(frozen=True)
class ModelSource:
    """A function that returns a model; ``text`` is what the user wrote."""

    text: str
    name: str
    path: Path | None
    function: Callable[..., Any]

    def defaults(self) -> tuple[tuple[int, ...], int]:
        """The input shape and number of classes that the function itself has as defaults, or those of Fashion-MNIST."""
        parameters = inspect.signature(self.function).parameters
        shape, classes = (getattr(parameters.get(name), "default", None) for name in _OFFERED[:2])
        return (
            tuple(shape) if isinstance(shape, tuple | list) else _DEFAULT_SHAPE,
            classes if isinstance(classes, int) else _DEFAULT_CLASSES,
        )

    def build(self, input_shape: Sequence[int], classes: int, class_names: Sequence[str], seed: int) -> Model:
        """Calls the function with those of the arguments that it takes.

        Raises:
            DataError: one of blobnet's models is asked for samples that are no images.
            OptionError: the function wants other arguments, or returns no Model.
            UserCodeError: the function raises.
        """
        offered = dict(zip(_OFFERED, (tuple(input_shape), classes, tuple(class_names), seed), strict=True))
        axes = len(self.defaults()[0])
        if self.path is None and len(input_shape) != axes:
            hint = "blobnet train path/to/file.py:function trains a model of your own."
            kind = {2: "samples of (units, width)", 3: "images, (units, height, width)"}[axes]
            raise DataError(self.name, f"this model takes {kind}", sample=tuple(input_shape), hint=hint)
        known = inspect.signature(self.function).parameters
        by_name = [name for name in _OFFERED[:2] if name in known and _is_dict(known[name])]
        required = [name for name in by_name if known[name].default is inspect.Parameter.empty]
        if required:
            rule = (
                "a function that takes shapes or classes by name needs a file with an array for each input and output"
            )
            hint = "give these arguments defaults, where it must do without."
            raise OptionError(self.text, rule, arguments=", ".join(required), hint=hint)
        model = self._call({name: value for name, value in offered.items() if name not in by_name})
        is_one = len(model.graph.exits) == 1
        # A model may have outputs for more classes than the data show.
        if (
            is_one
            and not model.class_names
            and (are_names(class_names) or len(class_names) == model.graph.output.shape.units)
        ):
            model.class_names = check_class_names(model.graph, class_names)
        return model

    def build_by_name(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        classes: Mapping[str, int],
        class_names: Sequence[str],
        seed: int,
    ) -> Model:
        """Calls the function for arrays that go by their names.

        Where its ``input_shape`` or ``classes`` has a dict for its default, says so in its annotation, or has neither,
        it is given all shapes, or all numbers of classes, by name; else it keeps its default.

        Raises:
            OptionError, UserCodeError: as :meth:`build`.
        """
        offered: dict[str, Any] = {"class_names": tuple(class_names), "seed": seed}
        known = inspect.signature(self.function).parameters
        for name, values in zip(_OFFERED, (shapes, classes), strict=False):
            is_free = name in known and known[name].annotation is known[name].default is inspect.Parameter.empty
            if name in known and (is_free or _says_dict(known[name])):
                offered[name] = dict(values)
        model = self._call(offered)
        if class_names and not model.class_names and len(model.graph.exits) == 1:
            model.class_names = check_class_names(model.graph, class_names)
        return model

    def _call(self, offered: Mapping[str, Any]) -> Model:
        """Call the function with those of the arguments that it takes."""
        parameters = inspect.signature(self.function).parameters.values()
        takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters)
        known = {item.name: item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)}
        missing = sorted(name for name, item in known.items() if item.default is item.empty and name not in _OFFERED)
        if missing:
            hint = f"it may take {', '.join(_OFFERED)}; give the others default values."
            raise OptionError(self.text, "the function must need no other arguments", needs=missing, hint=hint)
        try:
            model = self.function(**{name: value for name, value in offered.items() if takes_all or name in known})
        except (Exception, SystemExit) as error:
            if self.path is None:  # It is blobnet's own.
                raise
            rule = "the function must return a Model, but it raises"
            raise UserCodeError(self.text, rule, error) from error
        if not isinstance(model, Model):
            rule = "the function must return a Model (or a Sequential)"
            raise OptionError(self.text, rule, returned=type(model).__name__)
        return model


def _is_dict(parameter: inspect.Parameter) -> bool:
    """Return True if an argument is nothing but that."""
    return _says_dict(parameter) and not isinstance(parameter.default, tuple | list | int)


def _says_dict(parameter: inspect.Parameter) -> bool:
    """Return True if an argument goes by the names of several arrays, by its default or its annotation."""
    is_annotated = re.search(r"\bdict\b|Mapping", str(parameter.annotation)) is not None
    return is_annotated or isinstance(parameter.default, Mapping)


def find_model(text: str) -> ModelSource:
    """The model that ``text`` names: a known name, or ``path/to/file.py:function``.

    Raises:
        OptionError: no such model, or no such function in the file.
        FileError: no such file.
        UserCodeError: the file cannot be imported.
    """
    if text in known_models():
        return ModelSource(text, text, None, getattr(blobnet.models, text))
    if ".py" not in text and "/" not in text and ":" not in text:
        hint = f"{near_matches(text, known_models())} A model of your own is path/to/file.py:function."
        if is_model_file(text):
            hint = f"--init-from {text} starts from the model in a file, and --output {text} --resume goes on with it."
        raise OptionError("MODEL", "it must be one of blobnet's models, or a function of yours", name=text, hint=hint)
    return _find_in_file(text)


def is_model(text: str) -> bool:
    """Return True if this names a model, and no data set: a model file, a known name, or a function in a file."""
    if is_model_file(text):
        return not Path(text).is_file() or text.endswith(_ONNX) or checkpoint.says_model(text)
    return text in known_models() or ".py:" in text or text.endswith(".py")


def is_model_file(text: str) -> bool:
    """Return True if MODEL is a model file, and no name of a model or function."""
    return text.endswith((".h5", ".hdf5", _ONNX))


def open_model(
    path: str | os.PathLike[str],
    sample: Sequence[int] | None = None,
    pretrained: str | None = None,
    needs_head: bool = False,
) -> Model:
    """The model in a file: one of blobnet's, or ONNX, for samples of this shape; or a network with pretrained weights.

    Raises:
        FileError: there is no such file, it is damaged, or it has no weights of the last layer and ``needs_head``.
        OptionError: an ONNX file has samples of another shape, leaves open which (OpenAxisError), or has an operator
            that blobnet does not have (UnsupportedError).
    """
    if pretrained is not None:
        source = find_model(os.fspath(path))
        found = hub.find(pretrained)
        model: Model
        if source.path is None:
            model = source.function(pretrained=found)
        else:
            model = with_classes_of(build_for(source, None, None), found)
            load_pretrained(model, found)
        units, own = safetensors_files.head_units(found.path, model.graph)
        if needs_head and units != own:
            rule = "the file must have the weights of the last layer, or nothing is known of what it gives"
            hint = "blobnet train with --pretrained trains a new last layer."
            raise FileError(pretrained, rule, file=units, network=own, hint=hint)
        return model
    if not os.fspath(path).endswith(_ONNX):
        return load(path)
    try:
        return onnx.load(path, sizes=sample, units_first=True)
    except OpenAxisError as error:
        raise error.with_hint(_OPEN_HINT.format(path)) from error
    except OnHostError as error:
        raise error.with_hint(_HOST_HINT) from error


def build_or_load(text: str, size: int | None) -> Model:
    """The model in a file, or one that is built for its own shape, with sides of ``size`` if that is given.

    Raises:
        OptionError, FileError, UserCodeError: as :func:`find_model`; OptionError for the size of a model in a file.
    """
    if is_model_file(text):
        if size is not None:
            raise OptionError("--size", "a model in a file has its size", file=text)
        return open_model(text)
    return build_for(find_model(text), size, None)


def build_for(
    source: ModelSource, size: int | None, classes: int | None, input_shape: Sequence[int] | None = None
) -> Model:
    """A model for its own shape and classes, but for those that are given."""
    own_shape, default_classes = source.defaults()
    shape = tuple(input_shape or own_shape)
    if size is not None:
        shape = (shape[0], *(size,) * (len(shape) - 1))
    return source.build(shape, classes or default_classes, (), 0)


def _find_in_file(text: str) -> ModelSource:
    file, colon, name = text.rpartition(":")
    path = Path(file if colon else text).expanduser()
    if not path.is_file():
        near = sorted(item.name for item in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = near_matches(path.name, near) if near else None
        raise FileError(str(path), "there must be such a Python file", hint=hint)
    if path.suffix != ".py":
        raise OptionError(text, "a model of your own must be path/to/file.py:function", file=path.name)
    module = _import(path, text)
    functions = [item for item, value in vars(module).items() if _is_own_function(value, module)]
    if not name or not colon:
        hint = f"{path}:{functions[0]}, perhaps?" if functions else "the file defines no function."
        raise OptionError(text, "a model of your own must be path/to/file.py:function", hint=hint)
    function = getattr(module, name, None)
    if not callable(function):
        hint = near_matches(name, functions) if functions else "the file defines no function."
        raise OptionError(str(path), "there must be such a function in the file", function=name, hint=hint)
    return ModelSource(text, name, path, function)


def _is_own_function(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _import(path: Path, text: str) -> ModuleType:
    """The user's file as a module, with its folder first on sys.path, as where Python runs it as a script."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    specification = importlib.util.spec_from_file_location(f"blobnet_user_{path.stem}", path)
    assert specification is not None, path
    assert specification.loader is not None, path
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        rule = "the file must be importable, but it raises"
        raise UserCodeError(text, rule, error) from error
    return module


def _last_calls(error: BaseException) -> str:
    """The last calls of the user's own code, and the error."""
    ours = Path(blobnet.__file__).parent
    calls = [call for call in traceback.extract_tb(error.__traceback__) if ours not in Path(call.filename).parents]
    own = [call for call in calls if not call.filename.startswith("<")]
    return "".join([*traceback.format_list(own[-_SHOWN_CALLS:]), *traceback.format_exception_only(error)]).rstrip()

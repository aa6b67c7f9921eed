"""Model files: HDF5, written all or nothing, read without trusting them (docs/file_format.md)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

import blobnet.layers  # noqa: F401  (every kind of layer that a file may name)
from blobnet.errors import BlobnetError, FileError, counted
from blobnet.files import atomic
from blobnet.files.atomic import listed, plain_text, subject_of
from blobnet.files.hdf5 import DAMAGE, MODEL_FORMAT, Reader, attribute, opened, reading
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph, described_names, from_description
from blobnet.network.summary import summarize
from blobnet.support.formatting import format_bytes

FORMAT_VERSION = 2

#: The attribute of a group that says which values were written to it.
_CHECKSUM = "sha256"
#: Keys of what stands for an object that is built again.
_BUILT = ("kind", "config")
#: The JSON objects under /training, and the keys that they must have.
_TRAINING_OBJECTS: dict[str, tuple[str, ...]] = {"optimizer": _BUILT, "settings": ()}
#: The keys of /training/place, which is there in the middle of an epoch alone.
_PLACE = ("batches", "samples", "learning_rate", "totals")


@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state that a training needs to go on as if it had never stopped.

    ``seed``, ``epoch`` and ``step`` are the whole state of its random numbers.

    Attributes:
        epoch: finished epochs.
        step: finished steps, over all epochs.
        seed: the seed of the run, from 0 to below 2^63.
        optimizer: ``{"kind": ..., "config": {...}}``.
        optimizer_state: a flat float32 array for each slot of the optimizer.
        settings: the trainer's own: batch size, planned epochs, ... (JSON: a tuple comes back as a list).
        place: how far the epoch after the finished ones is, its metrics among it; empty between epochs.
    """

    epoch: int
    step: int
    seed: int
    optimizer: dict[str, Any]
    optimizer_state: Mapping[str, FloatArray]
    settings: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)

    @property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that it says it froze, for people."""
        names = self.settings.get("frozen")
        return tuple(names) if isinstance(names, list) else ()


@dataclass(frozen=True, eq=False)
class ModelFile:
    """The content of a model file.

    Attributes:
        description: the architecture, as :meth:`blobnet.network.graph.Graph.description` gives it.
        weights: ``<layer>/<parameter>`` to float32 array; convolutions OIHW, Dense OI.
        class_names: names of the model's outputs, where they have names.
        history: a value for each epoch, by name (``loss``, ``validation_accuracy``).
        loss: ``{"kind": ..., "config": {...}}``, or None; for several outputs one by each output's name.
        training: what resuming needs; None in a file that only carries a model.
        pretrained: where first weights came from: name, revision, checksum; None if they were drawn.
    """

    description: Any
    weights: Mapping[str, FloatArray]
    class_names: tuple[str, ...] = ()
    history: Mapping[str, list[float]] = field(default_factory=dict)
    loss: dict[str, Any] | None = None
    training: TrainingState | None = None
    pretrained: dict[str, Any] | None = None

    @cached_property
    def graph(self) -> Graph:
        """The architecture, rebuilt."""
        return _graph("ModelFile", self.description)


# -- writing -----------------------------------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], model: ModelFile) -> None:
    """Write a model file, all or nothing: whatever happens, the old file or the new one is there, whole.

    Equal models give equal bytes.

    Raises:
        FileError: the name is that of another format, the file cannot be written there, the disk is full, or ``model``
            does not fit together.
    """
    check_name(path)
    # The image is complete before the first byte is written, so a full disk is met below and not inside HDF5.
    atomic.write(path, _image(subject_of(path), model))


def check_name(path: str | os.PathLike[str]) -> None:
    """Raises FileError for a name that is no model file's, but that of another format."""
    atomic.check_name(path, "model.save")


def _image(subject: str, model: ModelFile) -> bytes:
    """The bytes of the file."""
    architecture = _json(subject, "the architecture", model.description)
    graph = _graph(subject, json.loads(architecture))
    _check_names(subject, "weights", model.weights, graph)
    # NOTE: HDF5 takes two images of one name, in two threads, for the same file.
    with h5py.File(secrets.token_hex(8), "w", driver="core", backing_store=False, libver="earliest") as file:
        file.attrs["format"] = np.bytes_(MODEL_FORMAT)
        file.attrs["format_version"] = np.int64(_version_of(model.description))
        file.attrs["blobnet_version"] = np.bytes_(_version())
        _write(file, "architecture", architecture)
        layers = file.create_group("layers")
        for name, spec in graph.named_parameters.items():
            values = np.asarray(model.weights[name])
            _check_array(subject, f"/layers/{name}", values, spec.shape)
            layer, parameter = name.split("/")
            _write(layers.require_group(layer), parameter, values.astype("<f4", copy=False))
        _seal(layers, model.weights)
        if any("\0" in name for name in model.class_names):
            raise FileError(subject, "class names must not hold a NUL character", names=ascii(model.class_names))
        # Names of folders may be no valid UTF-8; Python then keeps their bytes as surrogates.
        names = [name.encode("utf-8", "surrogateescape") for name in model.class_names]
        length = max([1, *map(len, names)])
        _write(file, "class_names", np.array(names, dtype=h5py.string_dtype("utf-8", length)))
        history = file.create_group("history")
        _write_arrays(subject, history, model.history, "<f8")
        # HDF5 keeps members in alphabetical order.
        history.attrs["order"] = _json(subject, "the order of the history", list(model.history))
        if model.loss is not None:
            _check_losses(subject, "the loss", model.loss, graph)
            _write(file, "loss", _json(subject, "the loss", model.loss))
        if model.pretrained is not None:
            _write(file, "pretrained", _json(subject, "the origin of the weights", model.pretrained))
        if model.training is not None:
            _write_training(subject, file.create_group("training"), model.training)
        file.attrs[_CHECKSUM] = np.bytes_(_checksum_of_rest(subject, model))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _write_training(subject: str, group: h5py.Group, training: TrainingState) -> None:
    for name in ("epoch", "step", "seed"):
        value = getattr(training, name)
        if not 0 <= value < 2**63:
            raise FileError(subject, f"{name} must be from 0 to below 2^63", value=value)
        group.attrs[name] = np.int64(value)
    for name, keys in _TRAINING_OBJECTS.items():
        value = getattr(training, name)
        _check_object(subject, f"the training state's {name}", value, keys)
        _write(group, name, _json(subject, f"the training state's {name}", value))
    if training.place:
        _check_object(subject, "the training state's place", training.place, _PLACE)
        _write(group, "place", _json(subject, "the training state's place", training.place))
    slots = group.create_group("optimizer_state")
    _write_arrays(subject, slots, training.optimizer_state, "<f4")
    _seal(slots, training.optimizer_state)


def _write_arrays(subject: str, group: h5py.Group, arrays: Mapping[str, Any], dtype: str) -> None:
    for name, values in arrays.items():
        _check_name(subject, name)
        values = np.asarray(values)
        if values.ndim != 1 or (dtype == "<f4" and values.dtype != np.float32):
            rule = f"{group.name}/{name} must be a flat array of {np.dtype(dtype)}"
            raise FileError(subject, rule, shape=values.shape, dtype=values.dtype)
        _write(group, name, values.astype(dtype, copy=False))


def _seal(group: h5py.Group, arrays: Mapping[str, Any]) -> None:
    """Says in a group what arrays were written to it: damage on a disk changes numbers, and nothing else."""
    group.attrs[_CHECKSUM] = np.bytes_(_checksum(arrays))


def _checksum(arrays: Mapping[str, Any]) -> str:
    """The SHA-256 of the names and float32 values of arrays, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}\0".encode())
        digest.update(np.ascontiguousarray(arrays[name], "<f4").data)
    return digest.hexdigest()


def _checksum_of_rest(subject: str, model: ModelFile) -> str:
    """The SHA-256 of all that a model is besides the arrays that have checksums of their own: its layers, names, ..."""
    said = {item.name: getattr(model, item.name) for item in fields(model) if item.name != "weights"}
    if model.pretrained is None:  # As in files from before there was such a thing.
        del said["pretrained"]
    said["history"] = [[name, np.asarray(values, "<f8").tolist()] for name, values in model.history.items()]
    if model.training is not None:
        own = {item.name: getattr(model.training, item.name) for item in fields(model.training)}
        said["training"] = {name: value for name, value in own.items() if name != "optimizer_state"}
    plain = json.loads(_json(subject, "the model", said))  # As a file gives it back.
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _write(group: h5py.Group, name: str, values: Any) -> None:
    """A dataset in one piece, with no time in it."""
    group.create_dataset(name, data=values, track_times=False)


def _json(subject: str, what: str, value: Any) -> np.bytes_:
    def plain(item: Any) -> Any:
        if isinstance(item, np.ndarray | np.generic):
            return item.tolist()
        raise TypeError(f"{type(item).__name__} cannot be written as JSON")

    try:
        text: np.bytes_ = np.bytes_(json.dumps(value, default=plain).encode("ascii"))
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(subject, f"{what} must be plain data (JSON)", reason=error) from error


def _version() -> str:
    try:
        return importlib.metadata.version("blobnet")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _version_of(description: Any) -> int:
    """The first version of the format that has such descriptions, so that an older blobnet reads what it can."""
    return FORMAT_VERSION if isinstance(description, dict) else 1


# -- checks for both directions ----------------------------------------------------------------------------------------


def _graph(subject: str, description: Any) -> Graph:
    """The graph of a description, whose names make a path in HDF5 each."""
    try:
        graph = from_description(description, subject)
    except FileError:
        raise
    except (BlobnetError, ValueError, ArithmeticError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise FileError(subject, "the architecture must be one that blobnet can build", reason=reason) from error
    names = [vertex.name for vertex in graph.vertices]
    if names != described_names(description):
        raise FileError(subject, "every layer of the architecture must lead to its last one, in order", layers=names)
    return graph


def _check_name(subject: str, name: str) -> None:
    """Raise FileError unless ``name`` is one step of a path in HDF5."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise FileError(subject, "a name must be printable text without '/', and not '.' or '..'", name=ascii(name))


def _check_names(subject: str, what: str, given: Mapping[str, Any], graph: Graph) -> None:
    missing = [name for name in graph.named_parameters if name not in given]
    extra = sorted(name for name in given if name not in graph.named_parameters)
    if missing or extra:
        rule = f"the {what} must be exactly those of the architecture"
        raise FileError(subject, rule, missing=listed(missing), extra=listed(extra))


def _check_array(subject: str, name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Raise FileError unless an array or a dataset is what the architecture says."""
    if tuple(values.shape) != shape:
        rule = f"{name} must have the shape that the architecture gives it"
        raise FileError(subject, rule, shape=tuple(values.shape), expected=shape)
    if values.dtype.kind != "f" or values.dtype.itemsize != 4:
        raise FileError(subject, f"{name} must hold float32 numbers", dtype=values.dtype)


def _check_losses(subject: str, name: str, value: Any, graph: Graph) -> None:
    """Raise FileError unless there is a loss, or one for each of several outputs."""
    if len(graph.exits) == 1:
        _check_object(subject, name, value, _BUILT)
        return
    _check_object(subject, name, value, tuple(graph.outputs))
    for own in value.values():
        _check_object(subject, name, own, _BUILT)


def _check_object(subject: str, name: str, value: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        wanted = " with " + " and ".join(keys) if keys else ""
        raise FileError(subject, f"{name} must be an object{wanted}", value=ascii(value)[:80])


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> ModelFile:
    """Read a model file that may come from anywhere: nothing in it is executed, links are not followed, and no more
    is read into memory than the file is long.

    Raises:
        FileError: there is no such file, or it is not a whole model file whose weights fit its architecture.
    """
    return _load(path)[0]


def says_model(path: str | os.PathLike[str]) -> bool:
    """Return True if a file says that it is a model of blobnet, damaged or not; a data set may be HDF5 too."""
    return _said_format(path) == MODEL_FORMAT


def says_weights(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is HDF5 and does not say that it is a model of blobnet: Keras 2 wrote weights so."""
    return _said_format(path) not in (MODEL_FORMAT, None)


def _said_format(path: str | os.PathLike[str]) -> str | int | None:
    """Return what a file says of its format, perhaps nothing; None if it is no readable HDF5."""
    try:
        with opened(Path(path)) as file:
            return attribute(file, "format") or ""
    except DAMAGE:
        return None


def _load(path: str | os.PathLike[str]) -> tuple[ModelFile, str]:
    """The model, and the version of blobnet that wrote it."""
    with reading(path) as (file, size):
        return _Reader(str(path), size).model(file), str(attribute(file, "blobnet_version"))


class _Reader(Reader):
    """Reads a model file."""

    def model(self, file: h5py.File) -> ModelFile:
        """The whole file."""
        self._check_format(file)
        description = self._json(self.child(file, "architecture", h5py.Dataset))
        graph = _graph(self.subject, description)
        weights = self._weights(file, graph)
        training = self.child(file, "training", h5py.Group, optional=True)
        found = ModelFile(
            description=description,
            weights=weights,
            class_names=self._class_names(file),
            history=self._history(file),
            loss=self._loss(file, graph),
            training=None if training is None else self._training(training),
            pretrained=self._object(file, "pretrained", ("name", "sha256"), optional=True),
        )
        self._compare(file, _checksum_of_rest(self.subject, found))
        return found

    def _loss(self, file: h5py.File, graph: Graph) -> Any:
        keys = _BUILT if len(graph.exits) == 1 else tuple(graph.outputs)
        value = self._object(file, "loss", keys, optional=True)
        if value is not None:
            _check_losses(self.subject, "/loss", value, graph)
        return value

    def _check_format(self, file: h5py.File) -> None:
        if attribute(file, "format") != MODEL_FORMAT:
            raise self.fail(f"the HDF5 file must be one of blobnet's, but it looks like {_looks_like(file)}")
        version = self._number(file, "format_version")
        if version > FORMAT_VERSION:
            raise self.fail(
                f"the format version must be at most {FORMAT_VERSION}",
                format_version=version,
                written_by=ascii(attribute(file, "blobnet_version")),
                hint="install a newer blobnet, from its repository or a wheel (it is on no package index).",
            )

    def _weights(self, file: h5py.File, graph: Graph) -> dict[str, FloatArray]:
        layers = self.child(file, "layers", h5py.Group)
        found = {
            f"{layer}/{parameter}": group
            for layer in layers
            for group in [self.child(layers, layer, h5py.Group)]
            for parameter in group
        }
        _check_names(self.subject, "datasets under /layers", found, graph)
        weights = {}
        for name, spec in graph.named_parameters.items():
            dataset = self.child(found[name], name.split("/")[1], h5py.Dataset)
            _check_array(self.subject, f"/layers/{name}", dataset, spec.shape)
            weights[name] = np.asarray(self.values(dataset), dtype=np.float32)
        self._check_seal(layers, weights)
        return weights

    def _check_seal(self, group: h5py.Group, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raises FileError where a group says that other values were written to it."""
        self._compare(group, _checksum(arrays))

    def _compare(self, group: h5py.Group, found: str) -> None:
        """Raises FileError where a group says another checksum; older files say none."""
        said = attribute(group, _CHECKSUM)
        if said is not None and said != found:
            rule = f"the values under {group.name} must be those that were written (SHA-256)"
            hint = "the file is damaged, or was changed by another program: del file[...].attrs['sha256'] accepts that."
            raise self.fail(rule, hint=hint, written=ascii(said), found=found)

    def _training(self, group: h5py.Group) -> TrainingState:
        slots = self._arrays(group, "optimizer_state", 4)
        if slots:
            self._check_seal(group["optimizer_state"], slots)
        return TrainingState(
            epoch=self._number(group, "epoch"),
            step=self._number(group, "step"),
            seed=self._number(group, "seed"),
            optimizer_state=slots,
            place=self._object(group, "place", _PLACE, optional=True) or {},
            **{name: self._object(group, name, keys) for name, keys in _TRAINING_OBJECTS.items()},
        )

    def _history(self, file: h5py.File) -> dict[str, list[float]]:
        """The history, in the order of training where the file tells it."""
        arrays = self._arrays(file, "history", 8)
        order: Any = attribute(file["history"], "order") if arrays else None
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            order = json.loads(order)
        names = [name for name in order if name in arrays] if _is_texts(order) else []
        return {name: arrays[name].tolist() for name in dict.fromkeys([*names, *arrays])}

    def _number(self, group: h5py.Group, name: str) -> int:
        value = attribute(group, name)
        if not isinstance(value, int) or value < 0:
            raise self.fail(f"{group.name} must have the attribute {name}, a number", value=ascii(value))
        return value

    def _arrays(self, group: h5py.Group, name: str, itemsize: int) -> dict[str, npt.NDArray[Any]]:
        """The flat float arrays in the group ``name``."""
        parent = self.child(group, name, h5py.Group, optional=True)
        arrays = {}
        for item in parent or ():
            dataset = self.child(parent, item, h5py.Dataset)
            if dataset.ndim != 1 or dataset.dtype.kind != "f" or dataset.dtype.itemsize != itemsize:
                rule = f"{ascii(dataset.name)[1:-1]} must be a flat array of float{8 * itemsize}"
                raise self.fail(rule, shape=dataset.shape, dtype=dataset.dtype)
            arrays[item] = np.asarray(self.values(dataset), dtype=f"=f{itemsize}")
        return arrays

    def _json(self, dataset: h5py.Dataset) -> Any:
        (text,) = self.texts(dataset, 0)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"{dataset.name} must be JSON", reason=error) from error

    def _object(self, group: h5py.Group, name: str, keys: tuple[str, ...], optional: bool = False) -> Any:
        """A JSON object with ``keys``."""
        dataset = self.child(group, name, h5py.Dataset, optional)
        if dataset is None:
            return None
        value = self._json(dataset)
        _check_object(self.subject, dataset.name, value, keys)
        return value

    def _class_names(self, file: h5py.File) -> tuple[str, ...]:
        dataset = self.child(file, "class_names", h5py.Dataset, optional=True)
        names = self.texts(dataset, 1) if dataset is not None else []
        return tuple(name.decode("utf-8", "surrogateescape") for name in names)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _looks_like(file: h5py.File) -> str:
    attributes, members = set(file.attrs), list(itertools.islice(file, 20))
    if "keras_version" in attributes or "layer_names" in attributes or "model_weights" in members:
        return "a Keras model (.h5)"
    if "layers" in members and "vars" in members:
        return "Keras weights (.weights.h5)"
    if "x" in members and "y" in members:
        return "a data set (x and y), not a model"
    return f"something else: at its top are {listed(members)}" if members else "an empty one"


# -- showing -----------------------------------------------------------------------------------------------------------


def inspect(path: str | os.PathLike[str]) -> str:
    """Describe the content of a model file, in plain ASCII.

    Raises:
        FileError: as :func:`load`.
    """
    model, version = _load(path)
    table = summarize(model.graph, model.training.frozen if model.training else ()).table
    broken = sum(int(values.size - np.isfinite(values).sum()) for values in model.weights.values())
    size = format_bytes(Path(path).stat().st_size)
    inputs, outputs = model.graph.inputs, model.graph.outputs
    facts = {
        "file": f"{size}, format {_version_of(model.description)}, written by blobnet {plain_text(version)}",
        **table.facts,
        "not finite": f"{broken:,} weights are NaN or infinite" if broken else "",
        "classes": f"{len(model.class_names)}: {listed(model.class_names)}" if model.class_names else "",
        "inputs": ", ".join(f"{name} {vertex.shape}" for name, vertex in inputs.items()) if len(inputs) > 1 else "",
        "outputs": ", ".join(f"{name} {vertex.shape}" for name, vertex in outputs.items()) if len(outputs) > 1 else "",
        "loss": _losses(model.loss, outputs) if model.loss else "",
        "pretrained": plain_text(", ".join(f"{name} {value}" for name, value in (model.pretrained or {}).items())),
        "history": _last_values(model.history),
        "resumable": _progress(model.training),
    }
    rows = [[plain_text(cell) for cell in row] for row in table.rows]
    return str(replace(table, rows=rows, facts={name: text for name, text in facts.items() if text}))


def _last_values(history: Mapping[str, list[float]]) -> str:
    epochs = max(map(len, history.values()), default=0)
    last = ", ".join(f"{plain_text(name)} {values[-1]:.4g}" for name, values in history.items() if values)
    return f"{counted(epochs, 'epoch')}, at the last: {last}" if epochs else ""


def _progress(training: TrainingState | None) -> str:
    if training is None:
        return "no, the file holds a model and no training state"
    when = f"in epoch {training.epoch + 1}" if training.place else f"after epoch {training.epoch}"
    return f"yes, {when} (step {training.step:,}), with {as_call(training.optimizer)}"


def _losses(loss: Any, outputs: Collection[str]) -> str:
    if len(outputs) == 1:
        return as_call(loss)
    return ", ".join(f"{plain_text(name)} {as_call(own)}" for name, own in loss.items())


def as_call(built: Mapping[str, Any]) -> str:
    """``{"kind", "config"}`` as the call that it stands for."""
    config = built["config"].items() if isinstance(built["config"], dict) else ()
    return plain_text(f"{built['kind']}({', '.join(f'{name}={value}' for name, value in config)})")

"""Model files: HDF5, written all or nothing, read without trusting them (docs/file_format.md)."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import itertools
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

import blobnet.layers  # noqa: F401  (every kind of layer that a file may name)
from blobnet.blob import FloatArray
from blobnet.errors import BlobnetError, FileError, OptionError, counted, first_few
from blobnet.graph import Graph, described_names, from_description
from blobnet.plan_report import readable
from blobnet.summary import summarize

FORMAT = "blobnet"
FORMAT_VERSION = 2

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: What files that are not HDF5 begin with.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (.npz, .keras or PyTorch)",
    b"\x80": "a Python pickle (an old PyTorch file?)",
    b"\x93NUMPY": "a .npy array",
    b"\x1f\x8b": "a gzip file",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"version https://git-lfs": "a Git LFS pointer (run: git lfs pull)",
    b"<": "a web page or XML",
}
#: What HDF5 says where a process opens a file a second time, in another way.
_OPEN_ALREADY = ("locking flag values don't match", "already open")
#: What h5py raises when it meets damage.
_DAMAGE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)
#: Keys of what stands for an object that is built again.
_BUILT = ("kind", "config")
#: The JSON objects under /training, and the keys that they must have.
_TRAINING_OBJECTS: dict[str, tuple[str, ...]] = {"optimizer": _BUILT, "settings": ()}
#: The keys of /training/place, which is there in the middle of an epoch alone.
_PLACE = ("batches", "samples", "learning_rate", "totals")


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What training needs to go on as if it had never stopped.

    ``seed``, ``epoch`` and ``step`` are the whole state of its random numbers.

    Attributes:
        epoch: finished epochs.
        step: finished steps, over all epochs.
        seed: the seed of the run, from 0 to below 2^63.
        optimizer: ``{"kind": ..., "config": {...}}``.
        optimizer_state: a flat float32 array for each slot of the optimizer.
        settings: the trainer's own: batch size, planned epochs, ... (JSON: a tuple comes back as a list).
        place: how far the epoch behind the finished ones is, its metrics among it; empty between epochs.
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
    """What a model file holds.

    Attributes:
        description: the architecture, as :meth:`blobnet.graph.Graph.description` gives it.
        weights: ``<layer>/<parameter>`` to float32 array; convolutions OIHW, Dense OI.
        class_names: names of the model's outputs, where they have names.
        history: a value for each epoch, by name (``loss``, ``validation_accuracy``).
        loss: ``{"kind": ..., "config": {...}}``, or None; for several outputs one by each output's name.
        training: what resuming needs; None in a file that only carries a model.
    """

    description: Any
    weights: Mapping[str, FloatArray]
    class_names: tuple[str, ...] = ()
    history: Mapping[str, list[float]] = field(default_factory=dict)
    loss: dict[str, Any] | None = None
    training: TrainingState | None = None

    @cached_property
    def graph(self) -> Graph:
        """The architecture, rebuilt."""
        return _graph("ModelFile", self.description)


# -- writing -----------------------------------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], model: ModelFile) -> None:
    """Write a model file, all or nothing: whatever happens, the old file or the new one is there, whole.

    Equal models give equal bytes.

    Raises:
        FileError: the file cannot be written there, the disk is full, or ``model`` does not fit together.
    """
    subject, target = _subject(path), Path(os.path.realpath(path))
    # The image is complete before the first byte is written, so a full disk is met below and not inside HDF5.
    image = _image(subject, model)
    temporary = _temporary(target)
    with _writing(subject, target, len(image)):
        _check_target(subject, target)
        try:
            with temporary.open("xb") as file:
                file.write(image)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    _flush_folder(subject, target.parent)
    _remove_stale(target)


def check_writable(path: str | os.PathLike[str], bytes_needed: int) -> None:
    """Find out before any work is done whether :func:`save` will be able to write ``bytes_needed`` to ``path``.

    Raises:
        FileError: no such folder, one that cannot be written to, a path that is no regular file, too little free space.
    """
    subject, target = _subject(path), Path(os.path.realpath(path))
    temporary = _temporary(target)
    with _writing(subject, target, bytes_needed):
        _check_target(subject, target)
        temporary.open("xb").close()
        temporary.unlink()
        free = shutil.disk_usage(target.parent).free
    if free < bytes_needed:
        raise FileError(
            subject,
            "the disk must have room for the file",
            folder=target.parent,
            needed=readable(bytes_needed),
            free=readable(free),
            hint="free some space or choose another folder. A file is only replaced once the new one is complete.",
        )


def _check_target(subject: str, target: Path) -> None:
    """Whether ``target`` is a place for a file, as far as one can tell without writing."""
    folder = target.parent
    if target.is_dir():
        raise FileError(subject, "the path must name a file, but it is a folder", hint=f"{subject}/model.h5, perhaps?")
    if not folder.is_dir():
        if folder.exists():
            raise FileError(subject, "the folder of the file must be a folder, but it is a file", folder=folder)
        raise FileError(subject, "the folder of the file must exist", folder=folder, hint=f"mkdir -p {folder}")
    if target.exists() and not target.is_file():
        raise FileError(subject, "the path must name a regular file, but it is a device, a pipe or a socket")
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(subject, "the file that is there is write-protected", hint="choose another name.")


@contextlib.contextmanager
def _writing(subject: str, target: Path, needed: int) -> Iterator[None]:
    """Turn what the system says into a FileError."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        free = "unknown"
        with contextlib.suppress(OSError):
            free = readable(shutil.disk_usage(target.parent).free)
        rule = f"the file cannot be written: {error.strerror or error}"
        hint = "what was there before is unchanged."
        raise FileError(subject, rule, folder=target.parent, needed=readable(needed), free=free, hint=hint) from error


def _temporary(target: Path) -> Path:
    """A name for a file that is being written; it says whose it is, for :func:`_remove_stale`."""
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _remove_stale(target: Path) -> None:
    """Remove what killed processes left behind when they wrote ``target``."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"([0-9]{1,9})-[0-9a-f]{8}\.tmp")
    with contextlib.suppress(OSError):
        for entry in target.parent.iterdir():
            match = pattern.fullmatch(entry.name)
            if match and not _is_alive(int(match[1])):
                entry.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # NOTE: on Windows os.kill(process, 0) ends the process.
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _flush_folder(subject: str, folder: Path) -> None:
    """Make a rename in ``folder`` last, where the system can."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            rule = f"the file is written, but its folder cannot be flushed: {error.strerror}"
            raise FileError(subject, rule, folder=folder, hint="the disk may be failing.") from error


def _image(subject: str, model: ModelFile) -> bytes:
    """The bytes of the file."""
    architecture = _json(subject, "the architecture", model.description)
    graph = _graph(subject, json.loads(architecture))
    _check_names(subject, "weights", model.weights, graph)
    # NOTE: HDF5 takes two images of one name, in two threads, for the same file.
    with h5py.File(secrets.token_hex(8), "w", driver="core", backing_store=False, libver="earliest") as file:
        file.attrs["format"] = np.bytes_(FORMAT)
        file.attrs["format_version"] = np.int64(_version_of(model.description))
        file.attrs["blobnet_version"] = np.bytes_(_version())
        _write(file, "architecture", architecture)
        layers = file.create_group("layers")
        for name, spec in graph.named_parameters.items():
            values = np.asarray(model.weights[name])
            _check_array(subject, f"/layers/{name}", values, spec.shape)
            layer, parameter = name.split("/")
            _write(layers.require_group(layer), parameter, values.astype("<f4", copy=False))
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
        if model.training is not None:
            _write_training(subject, file.create_group("training"), model.training)
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
    _write_arrays(subject, group.create_group("optimizer_state"), training.optimizer_state, "<f4")


def _write_arrays(subject: str, group: h5py.Group, arrays: Mapping[str, Any], dtype: str) -> None:
    for name, values in arrays.items():
        _check_name(subject, name)
        values = np.asarray(values)
        if values.ndim != 1 or (dtype == "<f4" and values.dtype != np.float32):
            rule = f"{group.name}/{name} must be a flat array of {np.dtype(dtype)}"
            raise FileError(subject, rule, shape=values.shape, dtype=values.dtype)
        _write(group, name, values.astype(dtype, copy=False))


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
    """Whether ``name`` is one step of a path in HDF5."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise FileError(subject, "a name must be printable text without '/', and not '.' or '..'", name=ascii(name))


def _check_names(subject: str, what: str, given: Mapping[str, Any], graph: Graph) -> None:
    missing = [name for name in graph.named_parameters if name not in given]
    extra = sorted(name for name in given if name not in graph.named_parameters)
    if missing or extra:
        rule = f"the {what} must be exactly those of the architecture"
        raise FileError(subject, rule, missing=_listed(missing), extra=_listed(extra))


def _check_array(subject: str, name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Whether an array or a dataset is what the architecture says."""
    if tuple(values.shape) != shape:
        rule = f"{name} must have the shape that the architecture gives it"
        raise FileError(subject, rule, shape=tuple(values.shape), expected=shape)
    if values.dtype.kind != "f" or values.dtype.itemsize != 4:
        raise FileError(subject, f"{name} must hold float32 numbers", dtype=values.dtype)


def _check_losses(subject: str, name: str, value: Any, graph: Graph) -> None:
    """Whether there is a loss, or for several outputs one for each."""
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
    """Whether a file says that it is a model of blobnet's, damaged or not; a data set may be HDF5 too."""
    try:
        with _opened(Path(path)) as file:
            return _attribute(file, "format") == FORMAT
    except _DAMAGE:
        return False


def _load(path: str | os.PathLike[str]) -> tuple[ModelFile, str]:
    """The model, and the version of blobnet that wrote it."""
    subject = _subject(path)
    size = _check_source(subject, Path(path))
    try:
        with _opened(Path(path)) as file:
            return _Reader(subject, size).model(file), str(_attribute(file, "blobnet_version"))
    except FileError:
        raise
    except _DAMAGE as error:
        raise FileError(
            subject, "an HDF5 file must be whole, but this one is cut short or damaged", reason=error, bytes=size
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """A file to read; also one that this process has open already, as it lies on the disk."""
    with contextlib.ExitStack() as stack:
        try:
            # Files are replaced whole, so a lock would guard nothing and fail on read-only and network disks.
            file = h5py.File(path, "r", locking=False)
        except OSError as error:
            if not any(words in str(error) for words in _OPEN_ALREADY):
                raise
            file = h5py.File(stack.enter_context(path.open("rb")), "r")
        yield stack.enter_context(file)


def _subject(path: object) -> str:
    """How errors name a file.

    Raises:
        OptionError: it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError("file", "it must be a path: a text, or a pathlib.Path", received=repr(path))
    return str(path)


def _check_source(subject: str, path: Path) -> int:
    """The size of a file that begins like HDF5."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileError(subject, "a model must be a file, but this is a folder, a device or a pipe")
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise FileError(subject, "there must be such a file", hint=_similar(path)) from error
    except FileError:
        raise
    except OSError as error:
        raise FileError(subject, f"the file cannot be read: {error.strerror}") from error
    if not start:
        raise FileError(subject, "a model file must be HDF5, but this file is empty")
    if _SIGNATURE.startswith(start[:8]) or h5py.is_hdf5(path):
        return status.st_size
    kind = next((kind for magic, kind in _FOREIGN.items() if start.startswith(magic)), "no format that blobnet knows")
    raise FileError(subject, f"a model file must be HDF5, but this is {kind}", begins=start[:16])


def _similar(path: Path) -> str | None:
    """What else might have been meant."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = sorted(item.name for item in itertools.islice(path.parent.glob("*.h5"), 100))
    return f"in that folder are {_listed(found)}." if found else None


def _attribute(item: h5py.Group, name: str) -> str | int | None:
    """A number or a text of fixed length; None where there is no such thing."""
    if name not in item.attrs:
        return None
    identifier = item.attrs.get_id(name)
    if identifier.shape != () or identifier.dtype.kind not in "Siu":
        return None
    value = item.attrs[name]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else int(value)


class _Reader:
    """Reads datasets from a file that is not trusted.

    Every dataset must lie in the file itself, in one piece and not compressed. So no filter plugin is ever loaded, a
    dataset cannot claim more than the file holds, and where datasets overlap, the sum of all is still kept below the
    size of the file. Texts have a fixed length: a single wrong byte in the heap that holds the others can make HDF5
    2.0 loop forever.
    """

    def __init__(self, subject: str, size: int) -> None:
        self.subject = subject
        self.unread = size

    def model(self, file: h5py.File) -> ModelFile:
        """The whole file."""
        self._check_format(file)
        description = self._json(self._child(file, "architecture", h5py.Dataset))
        graph = _graph(self.subject, description)
        weights = self._weights(file, graph)
        training = self._child(file, "training", h5py.Group, optional=True)
        return ModelFile(
            description=description,
            weights=weights,
            class_names=self._class_names(file),
            history=self._history(file),
            loss=self._loss(file, graph),
            training=None if training is None else self._training(training),
        )

    def _loss(self, file: h5py.File, graph: Graph) -> Any:
        keys = _BUILT if len(graph.exits) == 1 else tuple(graph.outputs)
        value = self._object(file, "loss", keys, optional=True)
        if value is not None:
            _check_losses(self.subject, "/loss", value, graph)
        return value

    def _fail(self, rule: str, hint: str | None = None, **received: object) -> FileError:
        return FileError(self.subject, rule, hint=hint, **received)

    def _check_format(self, file: h5py.File) -> None:
        if _attribute(file, "format") != FORMAT:
            raise self._fail(f"the HDF5 file must be one of blobnet's, but it looks like {_looks_like(file)}")
        version = self._number(file, "format_version")
        if version > FORMAT_VERSION:
            raise self._fail(
                f"the format version must be at most {FORMAT_VERSION}",
                format_version=version,
                written_by=ascii(_attribute(file, "blobnet_version")),
                hint="update blobnet: pip install --upgrade blobnet",
            )

    def _weights(self, file: h5py.File, graph: Graph) -> dict[str, FloatArray]:
        layers = self._child(file, "layers", h5py.Group)
        found = {
            f"{layer}/{parameter}": group
            for layer in layers
            for group in [self._child(layers, layer, h5py.Group)]
            for parameter in group
        }
        _check_names(self.subject, "datasets under /layers", found, graph)
        weights = {}
        for name, spec in graph.named_parameters.items():
            dataset = self._child(found[name], name.split("/")[1], h5py.Dataset)
            _check_array(self.subject, f"/layers/{name}", dataset, spec.shape)
            weights[name] = np.asarray(self._values(dataset), dtype=np.float32)
        return weights

    def _training(self, group: h5py.Group) -> TrainingState:
        return TrainingState(
            epoch=self._number(group, "epoch"),
            step=self._number(group, "step"),
            seed=self._number(group, "seed"),
            optimizer_state=self._arrays(group, "optimizer_state", 4),
            place=self._object(group, "place", _PLACE, optional=True) or {},
            **{name: self._object(group, name, keys) for name, keys in _TRAINING_OBJECTS.items()},
        )

    def _history(self, file: h5py.File) -> dict[str, list[float]]:
        """The history, in the order of training where the file tells it."""
        arrays = self._arrays(file, "history", 8)
        order: Any = _attribute(file["history"], "order") if arrays else None
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            order = json.loads(order)
        names = [name for name in order if name in arrays] if _is_texts(order) else []
        return {name: arrays[name].tolist() for name in dict.fromkeys([*names, *arrays])}

    def _number(self, group: h5py.Group, name: str) -> int:
        value = _attribute(group, name)
        if not isinstance(value, int) or value < 0:
            raise self._fail(f"{group.name} must have the attribute {name}, a number", value=ascii(value))
        return value

    def _child(self, group: h5py.Group, name: str, kind: type, optional: bool = False) -> Any:
        """A member of ``group``, without following any link."""
        path = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if link is None and optional:
            return None
        if link is None:
            raise self._fail(f"the file must hold {ascii(path)[1:-1]}", found=_listed(itertools.islice(group, 20)))
        if not isinstance(link, h5py.HardLink):
            rule = f"{ascii(path)[1:-1]} must be in the file itself, links are not followed"
            raise self._fail(rule, link=type(link).__name__, to=ascii(getattr(link, "path", "")))
        member = group[name]
        if not isinstance(member, kind):
            rule = f"{ascii(path)[1:-1]} must be a {kind.__name__.lower()}"
            raise self._fail(rule, kind=type(member).__name__.lower())
        return member

    def _check_storage(self, dataset: h5py.Dataset) -> None:
        properties = dataset.id.get_create_plist()
        rule = f"{ascii(dataset.name)[1:-1]} must be stored in this file, in one piece and not compressed"
        if properties.get_layout() not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS):
            storage = "virtual" if dataset.is_virtual else "chunked"
            hint = "h5repack -l CONTI -f NONE writes such a file."
            raise self._fail(rule, storage=storage, compression=dataset.compression, hint=hint)
        if properties.get_external_count():
            raise self._fail(rule, storage="external")
        stored = dataset.id.get_storage_size()
        if stored != dataset.nbytes:
            raise self._fail(rule, stored=readable(stored), declared=readable(dataset.nbytes))
        self.unread -= stored
        if self.unread < 0:
            raise self._fail("the datasets of a file must not be larger than the file", hint="do they overlap?")

    def _values(self, dataset: h5py.Dataset) -> npt.NDArray[Any]:
        self._check_storage(dataset)
        return np.asarray(dataset[()])

    def _texts(self, dataset: h5py.Dataset, dimensions: int) -> list[bytes]:
        """The texts of a dataset with so many axes, one behind the other."""
        if dataset.ndim != dimensions or dataset.dtype.kind != "S":
            wanted = "a list of texts" if dimensions else "one text"
            hint = f"file[{dataset.name!r}] = numpy.array(..., dtype='S') writes it."
            received = {"shape": dataset.shape, "dtype": dataset.dtype}
            raise self._fail(f"{dataset.name} must be {wanted} of fixed length", hint=hint, **received)
        return [bytes(text) for text in self._values(dataset).flat]

    def _arrays(self, group: h5py.Group, name: str, itemsize: int) -> dict[str, npt.NDArray[Any]]:
        """The flat float arrays in the group ``name``."""
        parent = self._child(group, name, h5py.Group, optional=True)
        arrays = {}
        for item in parent or ():
            dataset = self._child(parent, item, h5py.Dataset)
            if dataset.ndim != 1 or dataset.dtype.kind != "f" or dataset.dtype.itemsize != itemsize:
                rule = f"{ascii(dataset.name)[1:-1]} must be a flat array of float{8 * itemsize}"
                raise self._fail(rule, shape=dataset.shape, dtype=dataset.dtype)
            arrays[item] = np.asarray(self._values(dataset), dtype=f"=f{itemsize}")
        return arrays

    def _json(self, dataset: h5py.Dataset) -> Any:
        (text,) = self._texts(dataset, 0)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._fail(f"{dataset.name} must be JSON", reason=error) from error

    def _object(self, group: h5py.Group, name: str, keys: tuple[str, ...], optional: bool = False) -> Any:
        """A JSON object with ``keys``."""
        dataset = self._child(group, name, h5py.Dataset, optional)
        if dataset is None:
            return None
        value = self._json(dataset)
        _check_object(self.subject, dataset.name, value, keys)
        return value

    def _class_names(self, file: h5py.File) -> tuple[str, ...]:
        dataset = self._child(file, "class_names", h5py.Dataset, optional=True)
        names = self._texts(dataset, 1) if dataset is not None else []
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
    return f"something else: at its top are {_listed(members)}" if members else "an empty one"


# -- showing -----------------------------------------------------------------------------------------------------------


def inspect(path: str | os.PathLike[str]) -> str:
    """What a model file holds, as text in plain ASCII.

    Raises:
        FileError: as :func:`load`.
    """
    model, version = _load(path)
    table = summarize(model.graph, model.training.frozen if model.training else ()).table
    broken = sum(int(values.size - np.isfinite(values).sum()) for values in model.weights.values())
    size = readable(Path(path).stat().st_size)
    inputs, outputs = model.graph.inputs, model.graph.outputs
    facts = {
        "file": f"{size}, format {_version_of(model.description)}, written by blobnet {_plain(version)}",
        **table.facts,
        "not finite": f"{broken:,} weights are NaN or infinite" if broken else "",
        "classes": f"{len(model.class_names)}: {_listed(model.class_names)}" if model.class_names else "",
        "inputs": ", ".join(f"{name} {vertex.shape}" for name, vertex in inputs.items()) if len(inputs) > 1 else "",
        "outputs": ", ".join(f"{name} {vertex.shape}" for name, vertex in outputs.items()) if len(outputs) > 1 else "",
        "loss": _losses(model.loss, outputs) if model.loss else "",
        "history": _last_values(model.history),
        "resumable": _progress(model.training),
    }
    rows = [[_plain(cell) for cell in row] for row in table.rows]
    return str(replace(table, rows=rows, facts={name: text for name, text in facts.items() if text}))


def _last_values(history: Mapping[str, list[float]]) -> str:
    epochs = max(map(len, history.values()), default=0)
    last = ", ".join(f"{_plain(name)} {values[-1]:.4g}" for name, values in history.items() if values)
    return f"{counted(epochs, 'epoch')}, at the last: {last}" if epochs else ""


def _progress(training: TrainingState | None) -> str:
    if training is None:
        return "no, the file holds a model and no training state"
    when = f"in epoch {training.epoch + 1}" if training.place else f"after epoch {training.epoch}"
    return f"yes, {when} (step {training.step:,}), with {_call(training.optimizer)}"


def _losses(loss: Any, outputs: Collection[str]) -> str:
    if len(outputs) == 1:
        return _call(loss)
    return ", ".join(f"{_plain(name)} {_call(own)}" for name, own in loss.items())


def _call(built: dict[str, Any]) -> str:
    """``{"kind", "config"}`` as the call that it stands for."""
    config = built["config"].items() if isinstance(built["config"], dict) else ()
    return _plain(f"{built['kind']}({', '.join(f'{name}={value}' for name, value in config)})")


def _plain(text: object) -> str:
    """Text that no terminal takes for a command."""
    return str(text).encode("unicode_escape").decode("ascii")


def _listed(names: Any) -> str:
    """The first few names."""
    return first_few(map(_plain, names), 12) or "none"

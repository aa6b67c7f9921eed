"""Weights in safetensors files, by the names that PyTorch gives them (docs/weights.md)."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from blobnet.errors import FileError, OptionError, ShapeError, extra, first_few, warn
from blobnet.files import atomic
from blobnet.interop import timm_names, torch_names
from blobnet.interop.torch_names import Entry
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph

#: The first bytes of files that PyTorch writes as pickles.
_BEGINNINGS = (b"PK\x03\x04", b"\x80")
#: The types that are read.
_TYPES = ("BF16", "F16", "F32", "F64")
#: The names that tensors may have, a table for each origin; the first is what is written.
_ORIGINS = (torch_names.FAMILIES, timm_names.FAMILIES)
#: The beginnings of names of tensors of classifiers in the middle, which no prediction needs.
_IN_THE_MIDDLE = ("AuxLogits.", "aux1.", "aux2.")
#: The prefix of the names of input layers' numbers in the file's metadata.
_INPUT = "blobnet.input."


def write(path: str | os.PathLike[str], graph: Graph, weights: Mapping[str, FloatArray]) -> None:
    """Writes all weights, all or nothing.

    What input layers do to samples is no tensor, since no module of PyTorch has it: it stands in the metadata.

    Raises:
        FileError: the name is that of another format, or the file cannot be written.
    """
    atomic.check_name(path, "model.save_safetensors")
    package = _package(atomic.subject_of(path))
    found = torch_names.entries(graph)
    tensors: dict[str, Any] = {entry.name: np.ascontiguousarray(entry.tensor(weights), "<f4") for entry in found}
    of_inputs = [vertex.parameter(spec.name) for vertex in graph.inputs.values() for spec in graph.parameters(vertex)]
    metadata = {"format": "pt", **{_INPUT + name: json.dumps(weights[name].tolist()) for name in of_inputs}}
    atomic.write(path, package.numpy.save({**tensors, **torch_names.counts(tensors)}, metadata))


def read(path: str | os.PathLike[str], graph: Graph, other_head: bool = False) -> dict[str, FloatArray]:
    """The weights in a file, by our names.

    Names and shapes are compared with the network before anything is read; the file's values are never executed.

    Args:
        path: the file.
        graph: the network.
        other_head: the last layer may be another one in the file, or missing: its weights are left out then, with a
            warning.

    Raises:
        FileError: there is no such file, it is no whole safetensors file, or holds other tensors than the network.
        ShapeError: a tensor has another shape than the layer's.
    """
    with _opened(path) as file:
        return _read(Path(path), file, graph, other_head)


def head_units(path: str | os.PathLike[str], graph: Graph) -> tuple[int, int]:
    """The outputs of the last layer in a file, 0 if it does not say them, and in the network.

    Raises:
        FileError: there is no such file, or it is no whole safetensors file.
    """
    with _opened(path) as file:
        found, there, _ = _matched(file, graph)
        return _head(file, found, there)[1:]


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    subject = atomic.subject_of(path)
    check_beginning(path)
    package = _package(subject)
    try:
        with package.safe_open(path, "numpy") as file:
            yield file
    except package.SafetensorError as error:
        rule = "a safetensors file must be whole, but this one is cut short or damaged"
        raise FileError(subject, rule, reason=error) from error


def _package(subject: str) -> Any:
    """The package that knows the format."""
    try:
        importlib.import_module("safetensors.numpy")
        return importlib.import_module("safetensors")
    except ImportError as error:
        rule = "these files need the package safetensors"
        raise OptionError(subject, rule, cause=error, hint=extra("safetensors")) from error


def check_beginning(path: str | os.PathLike[str]) -> None:
    """Raises FileError for a file that is not there, a pickle, or one of another format."""
    start, _ = atomic.opening(path)
    subject = atomic.subject_of(path)
    kind, hint = atomic.kind_of(path, start)
    # NOTE: a header of 128 bytes, or of some 256 more, begins as a pickle does.
    if Path(path).suffix in atomic.PICKLES or (kind != atomic.SAFETENSORS and start.startswith(_BEGINNINGS)):
        rule = "weights are not read from pickles, which can run any code"
        raise FileError(subject, rule, hint=atomic.pickle_hint(path))
    if kind not in (atomic.SAFETENSORS, atomic.UNKNOWN):
        raise FileError(subject, f"weights must lie in a safetensors file, but this is {kind}", hint=hint)


def _read(path: Path, file: Any, graph: Graph, other_head: bool) -> dict[str, FloatArray]:
    subject = atomic.subject_of(path)
    found, there, left = _matched(file, graph)
    if left:
        warn(subject, "classifiers in the middle of the network are left out", tensors=atomic.listed(sorted(left)))
    of_head, units, own_units = _head(file, found, there)
    head = next(iter(of_head.values())).layer
    if other_head and units != own_units:
        rule = "the last layer starts anew: the file has another number of classes, or none"
        warn(subject, rule, layer=head, file=units, network=own_units)
        found = {name: entry for name, entry in found.items() if name not in of_head}
        there = there - of_head.keys()
    missing = [name for name in found if name not in there]
    extra = sorted(there - found.keys())
    if missing or extra:
        rule = "the tensors of the file must be those of the network"
        hint = "the network must be the one that the file was written of; its layers are called as there."
        received = {"missing": atomic.listed(missing), "extra": atomic.listed(extra)}
        raise FileError(subject, rule, hint=hint, **received)
    for name, entry in found.items():
        kind, shape = file.get_slice(name).get_dtype(), _shape(file, name)
        if kind not in _TYPES:
            rule = f"tensors must be of the types {', '.join(_TYPES)}"
            raise FileError(subject, rule, tensor=name, type=kind, hint="tensor.float() converts one.")
        if shape != entry.shape:
            is_last = entry.layer == head and shape[:1] not in ((), entry.shape[:1])
            count = shape[0] if shape else 0
            hint = f"for another number of classes, build the network for {count}, and then model.with_classes."
            rule = f"{name} must have the shape of {first_few(entry.parameters, 3)}"
            raise ShapeError(subject, rule, given=shape, wanted=entry.shape, hint=hint if is_last else None)
    weights: dict[str, FloatArray] = {}
    for name, entry in found.items():
        is_known = file.get_slice(name).get_dtype() != "BF16"  # Which NumPy does not have.
        values = file.get_tensor(name) if is_known else _bfloat16(path, name, entry.shape)
        weights |= entry.weights(np.asarray(values, np.float32))
    return weights | _input_weights(subject, file.metadata() or {}, graph)


def _shape(file: Any, name: str) -> tuple[int, ...]:
    return tuple(file.get_slice(name).get_shape())


def _head(file: Any, found: Mapping[str, Entry], there: Set[str]) -> tuple[dict[str, Entry], int, int]:
    """The tensors of the last layer, and its outputs in the file, 0 if it does not say them, and in the network."""
    last = [*found.values()][-1].layer
    own = {name: entry for name, entry in found.items() if entry.layer == last}
    sizes = {size for name in own if name in there for size in _shape(file, name)[:1]}
    units = sizes.pop() if own.keys() <= there and len(sizes) == 1 else 0
    return own, units, next(iter(own.values())).shape[0]


def _matched(file: Any, graph: Graph) -> tuple[dict[str, Entry], set[str], set[str]]:
    """Return a network's tensors by the names of the origin that has most of them in a file, and the file's names.

    All names of a file may have a prefix, such as "module." for a module within another one. The names of classifiers
    in the middle, which are left out, come last.
    """
    there = {name for name in file.keys() if name.rpartition(".")[2] != torch_names.COUNTS}  # noqa: SIM118
    first = min(there, default="")
    prefixes = ["", *(first[: place + 1] for place, letter in enumerate(first) if letter == ".")]
    tables = [torch_names.entries(graph, families) for families in _ORIGINS]
    named = [{prefix + entry.name: entry for entry in found} for found in tables for prefix in prefixes]
    found = max(named, key=lambda names: len(names.keys() & there))
    left = {name for name in there - found.keys() if name.startswith(_IN_THE_MIDDLE)}
    return found, there - left, left


def _bfloat16(path: Path, name: str, shape: tuple[int, ...]) -> FloatArray:
    """The numbers of a tensor of bfloat16, in a file whose header the package has checked: the halves of float32."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + start)
        halves = np.frombuffer(file.read(end - start), "<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def _input_weights(subject: str, metadata: Mapping[str, str], graph: Graph) -> dict[str, FloatArray]:
    """Return the weights of input layers that the metadata hold; others keep theirs."""
    found = {}
    for vertex in graph.inputs.values():
        for spec in graph.parameters(vertex):
            name = vertex.parameter(spec.name)
            text = metadata.get(_INPUT + name)
            if text is None:
                continue
            try:
                values = np.array(json.loads(text), np.float32)
            except (ValueError, TypeError, RecursionError) as error:
                raise FileError(subject, f"the metadata of {name} must be a list of numbers", reason=error) from error
            fits = values.shape == spec.shape and (spec.name == "mean" or bool((values > 0).all()))
            if not fits or not np.isfinite(values).all():
                rule = f"the metadata of {name} must be a number for each unit, of a deviation above 0"
                raise FileError(subject, rule, values=text[:80])
            found[name] = values
    return found

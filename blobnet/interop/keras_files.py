"""Weights in Keras's files: ``.weights.h5`` of Keras 3, which are also written, ``.keras``, and ``.h5`` of Keras 2."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import secrets
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np

from blobnet.errors import FileError, ShapeError
from blobnet.files import atomic
from blobnet.files.hdf5 import Reader, attribute, damage_of, read_apart, reading
from blobnet.interop.keras_forms import KerasLayer, Variable, keras_layers
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph

#: The group of the layers: in Keras 3, and in its first versions.
_LAYERS = ("layers", "_layer_checkpoint_dependencies")
_BETWEEN = re.compile("/(?:" + "|".join(_LAYERS) + ")/")
#: The file of weights in a .keras archive.
_MEMBER = "model.weights.h5"
#: The stand-in for an input layer's numbers: a layer of this class, with these variables.
_NORMALIZATION, _MEAN, _VARIANCE = "normalization", "0", "1"
#: How deep layers lie within layers: the cell of one of the two directions.
_DEPTH = 2
#: Reads the lists of names in a file of Keras 2, which are texts of variable length.
_NAMES = """
def names(group, what):
    if what in group.attrs:
        return [str(name, "utf-8") if isinstance(name, bytes) else str(name) for name in group.attrs[what]]
    parts, found = 0, []
    while what + str(parts) in group.attrs:
        found += names(group, what + str(parts))
        parts += 1
    return found

with h5py.File(sys.argv[1], "r", locking=False) as file:
    top = file[sys.argv[2]]
    layers = names(top, "layer_names")
    own = [name for name in layers if isinstance(top.get(name, getlink=True), h5py.HardLink)]
    print(json.dumps([[name, names(top[name], "weight_names")] for name in own]))
"""


def write(path: str | os.PathLike[str], graph: Graph, weights: Mapping[str, FloatArray]) -> None:
    """Writes a ``.weights.h5`` file for ``load_weights`` of a Keras 3 model of the same architecture, all or nothing.

    What an input layer does to samples stands there as that of a ``Normalization`` layer, where it does something.

    Raises:
        FileError: the name does not end in .weights.h5, or the file cannot be written.
        OptionError: a layer has no form in Keras.
    """
    subject = atomic.subject_of(path)
    if not subject.endswith(".weights.h5"):
        raise FileError(subject, "Keras reads weights from files whose names end in .weights.h5")
    layers = _numbered(keras_layers(graph))
    with h5py.File(secrets.token_hex(8), "w", driver="core", backing_store=False, libver="earliest") as file:
        top = file.create_group(_LAYERS[0])
        for name, layer in layers.items():
            places: Counter[str] = Counter()
            top.require_group(f"{name}/vars")
            for variable in layer.variables:
                group = top.require_group(_group(name, variable))
                group.create_dataset(str(places[variable.path]), data=variable.to_keras(weights), track_times=False)
                places[variable.path] += 1
        number = 0
        for vertex in graph.inputs.values():
            mean, deviation = (weights[vertex.parameter(name)] for name in ("mean", "deviation"))
            if mean.any() or (deviation != 1).any():
                group = top.create_group(f"{_unique(_NORMALIZATION, number)}/vars")
                for name, values in ((_MEAN, mean), (_VARIANCE, deviation**2), ("2", np.int32(0))):
                    group.create_dataset(name, data=values, track_times=False)
                number += 1
        file.create_group("vars")
        file.flush()
        image: bytes = file.id.get_file_image()
    atomic.write(path, image)


def read(path: str | os.PathLike[str], graph: Graph) -> dict[str, FloatArray]:
    """The weights in a file of Keras, by our names; names and shapes are compared with the network first.

    Raises:
        FileError: there is no such file, it is damaged or hostile, or has other layers than the network.
        ShapeError: a layer's weights have another shape.
        OptionError: a layer has no form in Keras.
    """
    subject = atomic.subject_of(path)
    keras_layers(graph)  # Whether all layers have a form.
    with _weights_in(path) as (file, size):
        reader = _Reader(subject, size)
        if attribute(file, "format") is not None:
            raise reader.fail("the file must be one of Keras's, but it is one of blobnet's", hint="bn.load reads it.")
        top = next((name for name in _LAYERS if name in set(file)), None)
        if top is not None:
            return reader.keras_3(reader.child(file, top, h5py.Group), graph)
        return reader.keras_2(file, graph)


@contextlib.contextmanager
def _weights_in(path: str | os.PathLike[str]) -> Iterator[tuple[h5py.File, int]]:
    """The HDF5 file of weights, which in a ``.keras`` archive is a member, and its size; errors as of ``reading``."""
    subject = atomic.subject_of(path)
    if Path(subject).suffix != ".keras" or not atomic.opening(path)[0].startswith(b"PK"):
        with reading(path) as found:
            yield found
        return
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(_MEMBER)
            if member.compress_type != zipfile.ZIP_STORED:
                rule, hint = "the weights in an archive must be stored as they are", "model.save_weights writes others."
                raise FileError(subject, rule, member=_MEMBER, hint=hint)
            image = archive.read(member)
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(subject, "the file must be a readable .keras archive", reason=error) from error
    with damage_of(subject, len(image)), h5py.File(io.BytesIO(image), "r") as file:
        yield file, len(image)


def _unique(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind


def _numbered(layers: Sequence[KerasLayer]) -> dict[str, KerasLayer]:
    """The layers by what they are called in files."""
    numbers: Counter[str] = Counter()
    found = {}
    for layer in layers:
        found[_unique(layer.kind, numbers[layer.kind])] = layer
        numbers[layer.kind] += 1
    return found


def _group(name: str, variable: Variable) -> str:
    return "/".join([name, *[variable.path] * bool(variable.path), "vars"])


@dataclass
class _Nest:
    """A model in a file: the paths of its own layers by their class, in their order, and the models within it."""

    own: dict[str, list[str]] = field(default_factory=dict)
    inner: dict[str, _Nest] = field(default_factory=dict)


#: The identity of a layer by its variables: its class, and the path and shape of each.
_Signature: TypeAlias = "tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]"
#: Ways to put the models of a file into the order of a network that are tried.
_MAX_ORDERS = 10_000


def _parts(name: str) -> tuple[str, int]:
    """The class and the number that a layer's name in a file stands for."""
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return kind, int(number or 0)


def _nest(paths: Iterable[str]) -> _Nest:
    """The models that layers at these paths are in."""
    top = _Nest()
    for path in sorted(paths, key=lambda path: [_parts(name) for name in _BETWEEN.split(path)]):
        *models, name = _BETWEEN.split(path)
        nest = top
        for model in models:
            nest = nest.inner.setdefault(model, _Nest())
        nest.own.setdefault(_parts(name)[0], []).append(path)
    return top


def _orders(
    nest: _Nest, there: Mapping[str, _Signature], wanted: Sequence[_Signature], first: int, tries: Iterator[int]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The ways in which all layers of a model follow each other as those of a network do, from the ``first`` on.

    Gives where they end, and their paths. The layers of a model within it come one after the other.
    """
    count = sum(map(len, nest.own.values()))
    states: list[tuple[int, tuple[str, ...], Counter[str], tuple[str, ...]]] = [(first, (), Counter(), (*nest.inner,))]
    while states:
        place, paths, taken, left = states.pop()
        while next(tries, 0):
            for name in {_parts(name)[0]: name for name in reversed(left)}.values():  # Of one class in their order.
                for end, own in _orders(nest.inner[name], there, wanted, place, tries):
                    states.append((end, paths + own, taken.copy(), tuple(other for other in left if other != name)))
            if not left and taken.total() == count:
                yield place, paths
                break
            kind = wanted[place][0] if place < len(wanted) else ""
            layers = nest.own.get(kind, [])[taken[kind] :]
            if not layers or there[layers[0]] != wanted[place]:
                break
            place, paths = place + 1, (*paths, layers[0])
            taken[kind] += 1


class _Reader(Reader):
    """Reads files of Keras."""

    def keras_3(self, top: h5py.Group, graph: Graph) -> dict[str, FloatArray]:
        there = self._layers(top)
        given = [path for path in there if _parts(_BETWEEN.split(path)[-1])[0] != _NORMALIZATION]
        separable = any(_BETWEEN.split(path)[-1].startswith("separable_") for path in given)
        named = {
            name: layer
            for name, layer in _numbered(keras_layers(graph, separable=separable)).items()
            if layer.variables
        }
        is_nested = any(_BETWEEN.search(path) for path in given)
        paths = (
            self._paths({path: there[path] for path in given}, named) if is_nested else {name: name for name in named}
        )
        missing = [f"{name} ({named[name].name})" for name in sorted(named) if paths[name] not in there]
        others = sorted(set(given) - {*paths.values()})
        if missing or others:
            rule = "the layers of the file must be those of the network"
            received = {"missing": atomic.listed(missing), "extra": atomic.listed(others)}
            raise self.fail(rule, hint="layers are counted by their classes, in the order of the graph.", **received)
        pairs = []
        for name, layer in named.items():
            places: Counter[str] = Counter()
            for variable in layer.variables:
                path = f"{_group(paths[name], variable)}/{places[variable.path]}"
                pairs.append((layer, variable, self._inner(top, path)))
                places[variable.path] += 1
            for part, group in there[paths[name]].items():
                if len(group) != places[part]:
                    rule = f"{group.name} must have as many variables as the layer {layer.name}"
                    raise self.fail(rule, variables=len(group), wanted=places[part])
        return self._values(pairs) | self._of_inputs(there, graph)

    def _layers(self, top: h5py.Group, before: str = "") -> dict[str, dict[str, h5py.Group]]:
        """The layers with weights, those of models within the model too: by their paths, by the paths within them."""
        found: dict[str, dict[str, h5py.Group]] = {}
        for name in top:
            layer = self.child(top, name, h5py.Group)
            inner = next((part for part in _LAYERS if layer.get(part, getclass=True) is h5py.Group), None)
            if inner is not None:
                found |= self._layers(self.child(layer, inner, h5py.Group), f"{before}{name}/{inner}/")
            elif own := self._variables(layer):
                found[before + name] = own
        return found

    def _variables(self, layer: h5py.Group, depth: int = _DEPTH) -> dict[str, h5py.Group]:
        """The groups with weights of a layer, by the path to them: its own, and those of layers within it."""
        found = {}
        own = self.child(layer, "vars", h5py.Group, optional=True)
        # What layers keep of random numbers is whole numbers, and no weight.
        if own is not None and any(self.child(own, key, h5py.Dataset).dtype.kind == "f" for key in own):
            found[""] = own
        for part in (part for part in layer if depth and part != "vars"):
            inner = self._variables(self.child(layer, part, h5py.Group), depth - 1)
            found |= {f"{part}/{path}".removesuffix("/"): group for path, group in inner.items()}
        return found

    def _paths(self, there: Mapping[str, Mapping[str, h5py.Group]], named: Mapping[str, KerasLayer]) -> dict[str, str]:
        """The paths of the network's layers in a file with models within models.

        Such a file does not say where among the others a model's layers come, but their shapes do.

        Raises:
            FileError: they do so in no way, or in several.
        """
        signatures = {}
        for path, groups in there.items():
            shapes = [
                (part, self.child(group, key, h5py.Dataset).shape)
                for part, group in groups.items()
                for key in sorted(group, key=lambda key: (len(key), key))
            ]
            signatures[path] = _parts(_BETWEEN.split(path)[-1])[0], tuple(sorted(shapes))
        wanted = [
            (layer.kind, tuple(sorted((variable.path, variable.shape) for variable in layer.variables)))
            for layer in named.values()
        ]
        tries = iter(range(_MAX_ORDERS, 0, -1))
        ends = _orders(_nest(there), signatures, wanted, 0, tries)
        found = list(itertools.islice((paths for end, paths in ends if end == len(wanted)), 2))
        if len(found) == 1:
            return dict(zip(named, found[0], strict=True))
        rule = "the layers of a file with models within models must be those of the network, in one order"
        hint = "without inner models, keras.Sequential([*inner.layers, *others]).save_weights(...), there is but one."
        received = {"orders": "several" if found else "none", "file": atomic.listed(there)}
        received["network"] = atomic.listed(f"{name} ({layer.name})" for name, layer in named.items())
        raise self.fail(rule, hint=hint, **received)

    def _of_inputs(self, there: Mapping[str, Mapping[str, h5py.Group]], graph: Graph) -> dict[str, FloatArray]:
        """Convert Normalization layers to statistics of input layers; inputs without one keep theirs."""
        weights = {}
        named = [(_BETWEEN.split(path), group) for path, groups in there.items() for group in [groups.get("")]]
        numbered = {
            (len(names), _parts(names[-1])[1]): group
            for names, group in named
            if _parts(names[-1])[0] == _NORMALIZATION
        }
        normalizations = [numbered[key] for key in sorted(numbered)]
        for number, vertex in enumerate(graph.inputs.values()):
            group = normalizations[number] if number < len(normalizations) else None
            if group is None:
                continue
            for key, parameter in ((_MEAN, "mean"), (_VARIANCE, "deviation")):
                dataset = self.child(group, key, h5py.Dataset)
                wanted = (vertex.shape.units,)
                if dataset.size != vertex.shape.units:
                    rule = f"{dataset.name} must have a number for each unit of the input"
                    raise ShapeError(self.subject, rule, given=dataset.shape, wanted=wanted)
                values = self._numbers(dataset).reshape(wanted)
                if parameter == "deviation":
                    # Keras divides by no less.
                    values = np.maximum(np.sqrt(np.maximum(values, 0)), np.float32(1e-7))
                weights[vertex.parameter(parameter)] = values
        return weights

    def names(self, file: h5py.File) -> tuple[str, list[tuple[str, list[str]]]]:
        """The group that the layers of a file of Keras 2 are in, and the names of each and of its weights."""
        top = "model_weights" if "model_weights" in set(file) else "/"
        group = self.child(file, top, h5py.Group) if top != "/" else file
        if not any(name.startswith("layer_names") for name in group.attrs):
            rule = "the file must hold weights of Keras: layers (.weights.h5), or layer_names (.h5)"
            raise self.fail(rule, found=atomic.listed(itertools.islice(file, 20)))
        try:
            named = read_apart(self.subject, _NAMES, top)
        except OSError as error:
            raise self.fail("the names of layers must be readable", reason=error) from error
        return top, [(str(name), list(map(str, weights))) for name, weights in named]

    def keras_2(self, file: h5py.File, graph: Graph) -> dict[str, FloatArray]:
        """Layers with weights correspond by their order."""
        top, named = self.names(file)
        separable = any("pointwise_kernel" in weight for _, own in named for weight in own)
        wanted = [layer for layer in keras_layers(graph, separable=separable) if layer.variables]
        there: list[tuple[str, list[str]]] = []
        for name, own in named:
            if own and (len(there) >= len(wanted) or len(own) != len(wanted[len(there)].variables)):
                # A model within the model: what is trained comes first there, whatever layer it is of.
                layers: dict[str, list[str]] = {}
                for weight in own:
                    layers.setdefault(weight.rpartition("/")[0], []).append(weight)
                there += [(name, weights) for weights in layers.values()]
            elif own:
                there.append((name, own))
        if [len(own) for _, own in there] != [len(layer.variables) for layer in wanted]:
            rule = "the layers with weights must be those of the network, in its order"
            received = {
                "file": atomic.listed(f"{name} ({len(own)})" for name, own in there),
                "network": atomic.listed(f"{layer.name} ({len(layer.variables)})" for layer in wanted),
            }
            raise self.fail(rule, **received)
        pairs = [
            (layer, variable, self._inner(file[top], f"{name}/{weight}"))
            for (name, own), layer in zip(there, wanted, strict=True)
            for variable, weight in zip(layer.variables, own, strict=True)
        ]
        return self._values(pairs)

    def _inner(self, group: h5py.Group, path: str) -> h5py.Dataset:
        """Return the member at a path of several groups."""
        *groups, last = filter(None, path.split("/"))
        for name in groups:
            group = self.child(group, name, h5py.Group)
        return self.child(group, last, h5py.Dataset)

    def _values(self, pairs: Sequence[tuple[KerasLayer, Variable, h5py.Dataset]]) -> dict[str, FloatArray]:
        """Our weights by their names.

        Raises:
            ShapeError, FileError: not all weights are what the network says; none is read then.
        """
        for layer, variable, dataset in pairs:
            if dataset.shape != variable.shape:
                hint = None
                if len(variable.parameters) > 1 and dataset.shape == variable.shape[1:]:
                    hint = "a GRU with reset_after=False has one bias, and computes something else."
                elif layer is pairs[-1][0] and dataset.shape[:-1] == variable.shape[:-1]:
                    count = dataset.shape[-1] if dataset.shape else 0
                    hint = f"for another number of classes, build the network for {count}, and then model.with_classes."
                rule = f"{dataset.name} must have the shape of {variable.parameters[0]} in Keras's order"
                raise ShapeError(self.subject, rule, given=dataset.shape, wanted=variable.shape, hint=hint)
            if dataset.dtype.kind != "f":
                raise self.fail(f"{dataset.name} must hold float numbers", dtype=dataset.dtype)
        found: dict[str, FloatArray] = {}
        for _, variable, dataset in pairs:
            found |= variable.from_keras(self._numbers(dataset))
        return found

    def _numbers(self, dataset: h5py.Dataset) -> FloatArray:
        return np.asarray(self.values(dataset), np.float32)

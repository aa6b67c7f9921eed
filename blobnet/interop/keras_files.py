"""Weights in Keras's HDF5 files: ``.weights.h5`` of Keras 3, which are also written, and ``.h5`` of Keras 2."""

from __future__ import annotations

import itertools
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

import h5py
import numpy as np

from blobnet import files
from blobnet.blob import FloatArray
from blobnet.errors import FileError, ShapeError
from blobnet.graph import Graph
from blobnet.hdf5 import Reader, attribute, read_apart, reading
from blobnet.interop.keras_forms import KerasLayer, Variable, keras_layers

#: Where the layers are: in Keras 3, and in its first versions.
_LAYERS = ("layers", "_layer_checkpoint_dependencies")
#: What stands for an input layer's numbers: a layer of this class, with these variables.
_NORMALIZATION, _MEAN, _VARIANCE = "normalization", "0", "1"
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
    subject = files.subject_of(path)
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
                group.create_dataset(
                    str(places[variable.path]), data=variable.to_keras(weights[variable.parameter]), track_times=False
                )
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
    files.write(path, image)


def read(path: str | os.PathLike[str], graph: Graph) -> dict[str, FloatArray]:
    """The weights in a file of Keras, by our names; names and shapes are compared with the network first.

    Raises:
        FileError: there is no such file, it is damaged or hostile, or has other layers than the network.
        ShapeError: a layer's weights have another shape.
        OptionError: a layer has no form in Keras.
    """
    subject = files.subject_of(path)
    keras_layers(graph)  # Whether all layers have a form.
    with reading(path) as (file, size):
        reader = _Reader(subject, size)
        if attribute(file, "format") is not None:
            raise reader.fail("the file must be one of Keras's, but it is one of blobnet's", hint="bn.load reads it.")
        top = next((name for name in _LAYERS if name in set(file)), None)
        if top is not None:
            return reader.keras_3(reader.child(file, top, h5py.Group), graph)
        return reader.keras_2(file, graph)


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


class _Reader(Reader):
    """Reads files of Keras."""

    def keras_3(self, top: h5py.Group, graph: Graph) -> dict[str, FloatArray]:
        separable = any(name.startswith("separable_") for name in top)
        named = _numbered(keras_layers(graph, separable=separable))
        there = {name: group for name in top for group in [self._variables(top, name)] if group}
        own = {name for name, layer in named.items() if layer.variables}
        others = {name for name in there if name not in own and not name.startswith(_NORMALIZATION)}
        missing = [f"{name} ({named[name].name})" for name in sorted(own - there.keys())]
        if missing or others:
            rule = "the layers of the file must be those of the network"
            received = {"missing": files.listed(missing), "extra": files.listed(sorted(others))}
            raise self.fail(rule, hint="layers are counted by their classes, in the order of the graph.", **received)
        pairs = []
        for name, layer in named.items():
            places: Counter[str] = Counter()
            for variable in layer.variables:
                path = f"{_group(name, variable)}/{places[variable.path]}"
                pairs.append((layer, variable, self._inner(top, path)))
                places[variable.path] += 1
            for part, group in there.get(name, {}).items():
                if len(group) != places[part]:
                    rule = f"{group.name} must have as many variables as the layer {layer.name}"
                    raise self.fail(rule, variables=len(group), wanted=places[part])
        self._check(pairs)
        weights = {variable.parameter: variable.from_keras(self._numbers(dataset)) for _, variable, dataset in pairs}
        return weights | self._of_inputs(there, graph)

    def _variables(self, top: h5py.Group, name: str) -> dict[str, h5py.Group]:
        """The groups with variables of a layer, by the path to them: its own, and those of layers within it."""
        layer, found = self.child(top, name, h5py.Group), {}
        for part in ("", *(part for part in layer if part not in ("vars", "seed_generator"))):
            inner = self.child(layer, part, h5py.Group) if part else layer
            own = self.child(inner, "vars", h5py.Group, optional=True)
            if own is not None and len(own):
                found[part] = own
        return found

    def _of_inputs(self, there: Mapping[str, Mapping[str, h5py.Group]], graph: Graph) -> dict[str, FloatArray]:
        """What Normalization layers do, as what input layers do; inputs without one keep what they have."""
        weights = {}
        for number, vertex in enumerate(graph.inputs.values()):
            group = there.get(_unique(_NORMALIZATION, number), {}).get("")
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
            raise self.fail(rule, found=files.listed(itertools.islice(file, 20)))
        try:
            named = read_apart(self.subject, _NAMES, top)
        except OSError as error:
            raise self.fail("the names of layers must be readable", reason=error) from error
        return top, [(str(name), list(map(str, weights))) for name, weights in named]

    def keras_2(self, file: h5py.File, graph: Graph) -> dict[str, FloatArray]:
        """Layers with weights correspond by their order."""
        top, named = self.names(file)
        there = [(name, own) for name, own in named if own]
        separable = any("pointwise_kernel" in weight for _, own in there for weight in own)
        wanted = [layer for layer in keras_layers(graph, separable=separable) if layer.variables]
        if [len(own) for _, own in there] != [len(layer.variables) for layer in wanted]:
            rule = "the layers with weights must be those of the network, in its order"
            received = {
                "file": files.listed(f"{name} ({len(own)})" for name, own in there),
                "network": files.listed(f"{layer.name} ({len(layer.variables)})" for layer in wanted),
            }
            raise self.fail(rule, **received)
        pairs = [
            (layer, variable, self._inner(file[top], f"{name}/{weight}"))
            for (name, own), layer in zip(there, wanted, strict=True)
            for variable, weight in zip(layer.variables, own, strict=True)
        ]
        self._check(pairs)
        return {variable.parameter: variable.from_keras(self._numbers(dataset)) for _, variable, dataset in pairs}

    def _inner(self, group: h5py.Group, path: str) -> h5py.Dataset:
        """What lies at a path of several groups."""
        *groups, last = filter(None, path.split("/"))
        for name in groups:
            group = self.child(group, name, h5py.Group)
        return self.child(group, last, h5py.Dataset)

    def _check(self, pairs: Sequence[tuple[KerasLayer, Variable, h5py.Dataset]]) -> None:
        """Raises ShapeError, FileError unless all weights are what the network says, before any is read."""
        last = pairs[-1][0] if pairs else None
        for layer, variable, dataset in pairs:
            if dataset.shape != variable.shape:
                hint = None
                if layer is last and dataset.shape[:-1] == variable.shape[:-1]:
                    count = dataset.shape[-1] if dataset.shape else 0
                    hint = f"for another number of classes, build the network for {count}, and then model.with_classes."
                rule = f"{dataset.name} must have the shape of {variable.parameter} in Keras's order"
                raise ShapeError(self.subject, rule, given=dataset.shape, wanted=variable.shape, hint=hint)
            if dataset.dtype.kind != "f":
                raise self.fail(f"{dataset.name} must hold float numbers", dtype=dataset.dtype)

    def _numbers(self, dataset: h5py.Dataset) -> FloatArray:
        return np.asarray(self.values(dataset), np.float32)

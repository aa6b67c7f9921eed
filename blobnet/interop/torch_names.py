"""What PyTorch calls the parameters of a network: those of torchvision's for blobnet's models, else our own.

A network of blobnet.models is one of a family in FAMILIES, whose rules say which of torchvision's modules a layer is.
Other networks keep the names of their layers: ``conv1/weight`` is ``conv1.weight``, as in a module with an attribute of
this name. Weights have PyTorch's order already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blobnet.blob import FloatArray
from blobnet.graph import Graph, Vertex

#: PyTorch's names of parameters, where they differ.
_RENAMED = {"scale": "weight", "shift": "bias", "running_variance": "running_var", "slope": "weight"}
#: What PyTorch's attention joins to one tensor.
_JOINED = {
    "in_proj_weight": ("query", "key", "value"),
    "in_proj_bias": ("query_bias", "key_bias", "value_bias"),
    "out_proj.weight": ("output",),
    "out_proj.bias": ("output_bias",),
}
#: Counts that PyTorch's batch norms keep, and nobody needs: they are written as 0, and not read.
COUNTS = "num_batches_tracked"


@dataclass(frozen=True)
class Entry:
    """A tensor of a file, and what it is here.

    Attributes:
        name: of the tensor.
        parameters: our names of what lies in it, one behind the other along the first axis.
        shapes: of these.
        shape: the tensor's.
    """

    name: str
    parameters: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    def tensor(self, weights: Mapping[str, FloatArray]) -> FloatArray:
        """The tensor of these weights."""
        return np.concatenate([weights[name] for name in self.parameters]).reshape(self.shape)

    def weights(self, tensor: FloatArray) -> dict[str, FloatArray]:
        """The weights in a tensor."""
        flat = tensor.reshape(sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])
        ends = np.cumsum([shape[0] for shape in self.shapes])[:-1]
        return dict(zip(self.parameters, np.split(flat, ends), strict=True))


#: What a layer is called, of the match of its name and its place in the graph.
_Name = Callable[[re.Match[str], Vertex, Graph], str]
#: The pattern of layers' names, what they are called, and axes of size 1 behind those of their weights.
_Rule = tuple[str, _Name, int]


def _rule(pattern: str, name: str | _Name, axes: int = 0) -> _Rule:
    """``name`` may be a template, where {1} stands for the first group and {-1} for its number less 1."""
    if not isinstance(name, str):
        return pattern, name, axes

    def filled(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        return re.sub(r"\{(-?)(\d)\}", lambda item: _group(match, item), name)

    return pattern, filled, axes


def _group(match: re.Match[str], item: re.Match[str]) -> str:
    text = match[int(item[2])]
    return str(int(text) - 1) if item[1] else text


def _behind(start: str, module: str) -> _Name:
    """The number of a layer in a Sequential that begins behind the vertex ``start`` (an input, without a name)."""

    def name(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        first = graph.vertex(start, "torch").index if start else 0
        return f"{module}.{vertex.index - first - 1}"

    return name


def _letter(template: str) -> _Name:
    """A template where {number} is that of the last group, a letter."""

    def name(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        stage, block, letter = match.groups()
        return template.format(stage=stage, block=int(block) - 1, number="abc".index(letter) + 1)

    return name


_CLASSIFIER = tuple(_rule(name, _behind("flatten", "classifier")) for name in ("dense1", "dense2", "logits"))
_BLOCK = r"stage(\d)_block(\d+)"


def _inverted(part: str) -> _Name:
    """A convolution or norm of an inverted residual, whose first part is not there where nothing gets wider."""

    def name(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        number, kind = match[1], match[2]
        is_wider = any(item.name == f"block{number}_expand_conv" for item in graph.vertices)
        place = ("expand", "depthwise", "project").index(part) - (not is_wider)
        is_norm = int(kind == "norm")
        if part == "project":
            return f"features.{number}.conv.{place + is_norm}"
        return f"features.{number}.conv.{place}.{is_norm}"

    return name


#: Families of networks, and their rules.
FAMILIES: dict[str, tuple[_Rule, ...]] = {
    "alexnet": (*(_rule(f"conv{number}", _behind("", "features")) for number in range(1, 6)), *_CLASSIFIER),
    "vgg": (_rule(r"conv\d_\d(?:_norm)?", _behind("", "features")), *_CLASSIFIER),
    "resnet": (
        _rule("stem_conv", "conv1"),
        _rule("stem_norm", "bn1"),
        _rule(rf"{_BLOCK}_([abc])_conv", _letter("layer{stage}.{block}.conv{number}")),
        _rule(rf"{_BLOCK}_([abc])_norm", _letter("layer{stage}.{block}.bn{number}")),
        _rule(rf"{_BLOCK}_shortcut_conv", "layer{1}.{-2}.downsample.0"),
        _rule(rf"{_BLOCK}_shortcut_norm", "layer{1}.{-2}.downsample.1"),
        _rule("logits", "fc"),
    ),
    "mobilenet_v2": (
        _rule("stem_conv", "features.0.0"),
        _rule("stem_norm", "features.0.1"),
        *(_rule(rf"block(\d+)_{part}_(conv|norm)", _inverted(part)) for part in ("expand", "depthwise", "project")),
        _rule("head_conv", "features.18.0"),
        _rule("head_norm", "features.18.1"),
        _rule("logits", "classifier.1"),
    ),
}


def entries(graph: Graph) -> list[Entry]:
    """The tensors that a network's parameters are, in its order; what input layers have is not among them."""
    owners: dict[str, Vertex] = {}
    for vertex in graph.vertices:
        if graph.parameters(vertex) and not vertex.layer.takes_samples:
            owners.setdefault(str(vertex.layer.name), vertex)
    named = next(filter(None, (_named(graph, owners, rules) for rules in FAMILIES.values())), None)
    modules = named or {name: (name, 0) for name in owners}
    return [entry for name, vertex in owners.items() for entry in _of_layer(graph, vertex, *modules[name])]


def _named(graph: Graph, owners: Mapping[str, Vertex], rules: Iterable[_Rule]) -> dict[str, tuple[str, int]] | None:
    """What each layer is called, if every layer has a rule of the family, and every rule a layer."""
    found: dict[str, tuple[str, int]] = {}
    unused = dict.fromkeys(pattern for pattern, _, _ in rules)
    for layer, vertex in owners.items():
        for pattern, name, axes in rules:
            match = re.fullmatch(pattern, layer)
            if match:
                found[layer] = name(match, vertex, graph), axes
                unused.pop(pattern, None)
                break
        else:
            return None
    return None if unused else found


def _of_layer(graph: Graph, vertex: Vertex, module: str, axes: int) -> list[Entry]:
    """The tensors of a layer that is called ``module``; weights have so many ``axes`` of size 1 behind their own."""
    shapes = {spec.name: spec.shape for spec in graph.parameters(vertex)}
    groups: dict[str, tuple[str, ...]] = {}
    if {"query", "key", "value"} <= shapes.keys() and len({shapes[name] for name in ("query", "key", "value")}) == 1:
        groups = {name: parts for name, parts in _JOINED.items() if parts[0] in shapes}
    else:
        groups = {_RENAMED.get(name, name): (name,) for name in shapes}
    found = []
    for tensor, parts in groups.items():
        own = tuple(shapes[part] for part in parts)
        shape = (sum(part[0] for part in own), *own[0][1:])
        shape += (1,) * (axes if len(shape) > 1 else 0)
        found.append(Entry(f"{module}.{tensor}", tuple(vertex.parameter(part) for part in parts), own, shape))
    return found


def counts(names: Iterable[str]) -> dict[str, Any]:
    """The counts that stand beside running statistics."""
    modules = [name.removesuffix("running_mean") for name in names if name.endswith(".running_mean")]
    return {f"{module}{COUNTS}": np.zeros((), np.int64) for module in modules}

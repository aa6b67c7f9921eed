"""PyTorch's names for the parameters of a network: torchvision's for blobnet's models, else our own.

timm's, where they are others, are in timm_names.py.

A network of blobnet.models is one of a family in FAMILIES, whose rules say which of torchvision's modules a layer is.
Other networks keep the names of their layers: ``conv1/weight`` is ``conv1.weight``, as in a module with an attribute of
this name. Weights have PyTorch's order already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph, Vertex

#: PyTorch's names of parameters, where they differ.
_RENAMED = {"scale": "weight", "shift": "bias", "running_variance": "running_var", "slope": "weight"}
#: The parameters that PyTorch's attention joins to one tensor.
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
        parameters: our names of what lies in it, one after the other along the first axis.
        shapes: of these.
        shape: the tensor's.
    """

    name: str
    parameters: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    @property
    def layer(self) -> str:
        """The name of the layer."""
        return self.parameters[0].rpartition("/")[0]

    def tensor(self, weights: Mapping[str, FloatArray]) -> FloatArray:
        """The tensor of these weights."""
        return np.concatenate([weights[name] for name in self.parameters]).reshape(self.shape)

    def weights(self, tensor: FloatArray) -> dict[str, FloatArray]:
        """The weights in a tensor."""
        flat = tensor.reshape(sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])
        ends = np.cumsum([shape[0] for shape in self.shapes])[:-1]
        return dict(zip(self.parameters, np.split(flat, ends), strict=True))


class Rule(NamedTuple):
    """A rule that maps layers of some names to PyTorch's modules.

    Attributes:
        pattern: of the whole names of layers.
        name: the module of the match, of the layer's vertex and of the graph.
        axes: of size 1 that weights have after their own there; below 0: that they do not have there.
        planes: the Flatten before a dense layer that is a convolution there, of all that it flattens; empty for none.
        tensors: for parameters that are no weight or bias: what stands after the module's name, and the axes of size 1
            before and after their own.
    """

    pattern: str
    name: Callable[[re.Match[str], Vertex, Graph], str]
    axes: int = 0
    planes: str = ""
    tensors: Mapping[str, tuple[str, int, int]] = {}


#: A group of a match in a template: its sign, its number, and words for its text.
_PLACE = re.compile(r"\{(-?)(\d)(?::([^}]*))?\}")


def rule(pattern: str, template: str, axes: int = 0, planes: str = "", **tensors: tuple[str, int, int]) -> Rule:
    """In the template {1} stands for the first group, {-1} for its number less 1; and {1:conv=0,norm=1} for what its
    text is called there.
    """

    def name(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        return _PLACE.sub(lambda item: _group(match[int(item[2])], item[1], item[3]), template)

    return Rule(pattern, name, axes, planes, tensors)


def _group(text: str, sign: str, words: str | None) -> str:
    if words:
        return dict(word.split("=") for word in words.split(","))[text]
    return str(int(text) - 1) if sign else text


def numbered(pattern: str, module: str, start: str = "") -> Rule:
    """A layer's number in a Sequential, ``module``, that begins after the vertex ``start``, else after the input."""

    def name(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        first = graph.vertex(start, "torch").index if start else 0
        return f"{module}.{vertex.index - first - 1}"

    return Rule(pattern, name)


def in_stages(block: int, blocks: Sequence[int]) -> tuple[int, int]:
    """Return the stage of a block, both counted from 1, and its number in it, from 0; without stages it is its own."""
    for stage, count in enumerate(blocks, start=1):
        if block <= count:
            return stage, block - 1
        block -= count
    return block, 0


def _inverted(module: str, blocks: Sequence[int] = ()) -> tuple[Rule, ...]:
    """Inverted residuals, whose parts are numbered as they are there: wide, filters, gates, narrow.

    ``module`` is that of block {0}; or with ``blocks``, their numbers in each stage, of block {1} of stage {0}.
    """
    parts = ("expand_conv", "depthwise_conv", "squeeze", "project_conv")

    def place(match: re.Match[str], graph: Graph, part: str) -> str:
        names = {str(item.layer.name) for item in graph.vertices}
        before = [own for own in parts[: parts.index(part)] if f"block{match[1]}_{own}" in names]
        return f"{module.format(*in_stages(int(match[1]), blocks))}.{len(before)}"

    def wide(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        return f"{place(match, graph, f'{match[2]}_conv')}.{int(match[3] == 'norm')}"

    def gates(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
        return f"{place(match, graph, 'squeeze')}.{'fc1' if match[2] == 'squeeze' else 'fc2'}"

    first = Rule(r"block(\d+)_(expand|depthwise|project)_(conv|norm)", wide)
    return first, Rule(r"block(\d+)_(squeeze|excite)", gates, axes=2)


def _narrow(match: re.Match[str], vertex: Vertex, graph: Graph) -> str:
    """The last part of an inverted residual of MobileNetV2, whose norm is a part by itself."""
    is_wider = any(item.layer.name == f"block{match[1]}_expand_conv" for item in graph.vertices)
    return f"features.{match[1]}.conv.{1 + is_wider + (match[2] == 'norm')}"


_CLASSIFIER = tuple(numbered(name, "classifier", "flatten") for name in ("dense1", "dense2", "logits"))
_VGG = (numbered(r"conv\d_\d", "features"), *_CLASSIFIER)
_CONV, _KIND = "(conv|norm)", "conv=0,norm=1"
_BLOCK = r"stage(\d)_block(\d+)"
_STEM = rule(rf"stem_{_CONV}", f"features.0.{{1:{_KIND}}}")
#: Branches of the modules of Inception v3: of modules 5, 6 and 7, each of which has its own names for them.
_BRANCHES = {
    r"mixed(5[bcd]|6[bcde]|7[bc])_1a": "branch1x1",
    r"mixed(5[bcd]|6[bcde]|7[bc])_4": "branch_pool",
    r"mixed(5[bcd])_2([ab])": "branch5x5_{2:a=1,b=2}",
    r"mixed(5[bcd])_3([abc])": "branch3x3dbl_{2:a=1,b=2,c=3}",
    r"mixed(6a)_1_last": "branch3x3",
    r"mixed(6a)_2(a|b|_last)": "branch3x3dbl_{2:a=1,b=2,_last=3}",
    r"mixed(6[bcde])_2([abc])": "branch7x7_{2:a=1,b=2,c=3}",
    r"mixed(6[bcde])_3([abcde])": "branch7x7dbl_{2:a=1,b=2,c=3,d=4,e=5}",
    r"mixed(7a)_1(a|_last)": "branch3x3_{2:a=1,_last=2}",
    r"mixed(7a)_2(a|b|c|_last)": "branch7x7x3_{2:a=1,b=2,c=3,_last=4}",
    r"mixed(7[bc])_2(a|_1|_3)": "branch3x3_{2:a=1,_1=2a,_3=2b}",
    r"mixed(7[bc])_3(a|b|_1|_3)": "branch3x3dbl_{2:a=1,b=2,_1=3a,_3=3b}",
}

#: Families of networks, and their rules. A network is of a family if each layer has a rule, and each rule a layer.
FAMILIES: dict[str, tuple[Rule, ...]] = {
    "alexnet": (*(numbered(f"conv{number}", "features") for number in range(1, 6)), *_CLASSIFIER),
    "vgg": _VGG,
    "vgg_bn": (numbered(r"norm\d_\d", "features"), *_VGG),
    "resnet": (
        rule(rf"stem_{_CONV}", "{1:conv=conv,norm=bn}1"),
        rule(rf"{_BLOCK}_([abc])_{_CONV}", "layer{1}.{-2}.{4:conv=conv,norm=bn}{3:a=1,b=2,c=3}"),
        rule(rf"{_BLOCK}_shortcut_{_CONV}", f"layer{{1}}.{{-2}}.downsample.{{3:{_KIND}}}"),
        rule("logits", "fc"),
    ),
    "squeezenet": (
        rule("stem", "features.0"),
        rule(
            r"fire(\d)_(squeeze|expand1|expand3)",
            "features.{1:2=3,3=4,4=6,5=7,6=9,7=10,8=11,9=12}.{2:squeeze=squeeze,expand1=expand1x1,expand3=expand3x3}",
        ),
        rule("classes", "classifier.1"),
    ),
    "googlenet": (
        rule(rf"stem(\d)_{_CONV}", "conv{1}.{2:conv=conv,norm=bn}"),
        rule(
            rf"inception(\d\w)_(1|2a|2b|3a|3b|4)_{_CONV}",
            "inception{1}.branch{2:1=1,2a=2.0,2b=2.1,3a=3.0,3b=3.1,4=4.1}.{3:conv=conv,norm=bn}",
        ),
        rule("logits", "fc"),
    ),
    "inception_v3": (
        rule(
            rf"stem(\d)_{_CONV}",
            "Conv2d_{1:1=1a_3x3,2=2a_3x3,3=2b_3x3,4=3b_1x1,5=4a_3x3}.{2:conv=conv,norm=bn}",
        ),
        *(
            rule(f"{pattern}_{kind}", f"Mixed_{{1}}.{branch}.{module}")
            for pattern, branch in _BRANCHES.items()
            for kind, module in (("conv", "conv"), ("norm", "bn"))
        ),
        rule("logits", "fc"),
    ),
    "densenet": (
        rule(rf"stem_{_CONV}", "features.{1}0"),
        rule(rf"block(\d)_layer(\d+)_([ab])_{_CONV}", "features.denseblock{1}.denselayer{2}.{4}{3:a=1,b=2}"),
        rule(rf"transition(\d)_{_CONV}", "features.transition{1}.{2}"),
        rule("last_norm", "features.norm5"),
        rule("logits", "classifier"),
    ),
    "mobilenet_v2": (
        _STEM,
        Rule(rf"block(\d+)_project_{_CONV}", _narrow),
        _inverted("features.{0}.conv")[0],
        rule(rf"head_{_CONV}", f"features.18.{{1:{_KIND}}}"),
        rule("logits", "classifier.1"),
    ),
    "mobilenet_v3_small": (
        _STEM,
        *_inverted("features.{0}.block"),
        rule(rf"head_{_CONV}", f"features.12.{{1:{_KIND}}}"),
        rule("dense", "classifier.0"),
        rule("logits", "classifier.3"),
    ),
    "shufflenet_v2": (
        rule(rf"stem_{_CONV}", f"conv1.{{1:{_KIND}}}"),
        *(
            rule(rf"stage{stage}_block(\d+)_{part}_{_CONV}", f"stage{stage + 1}.{{-1}}.{module}.{{2:{numbers}}}")
            for stage in (1, 2, 3)
            for part, module, numbers in (
                ("1_depthwise", "branch1", "conv=0,norm=1"),
                ("1", "branch1", "conv=2,norm=3"),
                ("2a", "branch2", "conv=0,norm=1"),
                ("2_depthwise", "branch2", "conv=3,norm=4"),
                ("2b", "branch2", "conv=5,norm=6"),
            )
        ),
        rule(rf"head_{_CONV}", f"conv5.{{1:{_KIND}}}"),
        rule("logits", "fc"),
    ),
    "efficientnet_b0": (
        _STEM,
        *_inverted("features.{0}.{1}.block", (1, 2, 2, 3, 3, 4, 1)),
        rule(rf"head_{_CONV}", f"features.8.{{1:{_KIND}}}"),
        rule("logits", "classifier.1"),
    ),
    "convnext": (
        _STEM,
        *(
            rule(rf"stage{stage}_block(\d+)_{part}", f"features.{2 * stage - 1}.{{-1}}.block.{module}", axes)
            for stage in (1, 2, 3, 4)
            for part, module, axes in (("depthwise", 0, 0), ("norm", 2, 0), ("expand", 3, -2), ("project", 5, -2))
        ),
        *(
            rule(rf"stage{stage}_block(\d+)_scale", f"features.{2 * stage - 1}.{{-1}}", scale=(".layer_scale", 0, 2))
            for stage in (1, 2, 3, 4)
        ),
        rule(r"shrink(\d)_(conv|norm)", "features.{1:1=2,2=4,3=6}.{2:norm=0,conv=1}"),
        rule("last_norm", "classifier.0"),
        rule("logits", "classifier.2"),
    ),
    "vision_transformer": (
        rule("patches", "conv_proj"),
        rule("tokens", "", token=("class_token", 2, 0), position=("encoder.pos_embedding", 1, 0)),
        *(
            rule(rf"block(\d+)_{part}", f"encoder.layers.encoder_layer_{{-1}}.{module}", axes)
            for part, module, axes in (
                ("a_norm", "ln_1", 0),
                ("attention", "self_attention", 0),
                ("b_norm", "ln_2", 0),
                ("expand", "mlp.0", -1),
                ("project", "mlp.3", -1),
            )
        ),
        rule("last_norm", "encoder.ln"),
        rule("logits", "heads.head"),
    ),
}


#: For networks of no family.
_OWN = rule("(.*)", "{1}")


def entries(graph: Graph, families: Mapping[str, tuple[Rule, ...]] = FAMILIES) -> list[Entry]:
    """The tensors that a network's parameters are, in its order; what input layers have is not among them.

    A network of none of the families keeps its own names.
    """
    owners: dict[str, Vertex] = {}
    for vertex in graph.vertices:
        if graph.parameters(vertex) and not vertex.layer.takes_samples:
            owners.setdefault(str(vertex.layer.name), vertex)
    named = next(filter(None, (_named(graph, owners, rules) for rules in families.values())), None)
    modules = named or {name: (name, _OWN) for name in owners}
    return [entry for name, vertex in owners.items() for entry in _of_layer(graph, vertex, *modules[name])]


def _named(graph: Graph, owners: Mapping[str, Vertex], rules: Collection[Rule]) -> dict[str, tuple[str, Rule]] | None:
    """Return the name of each layer and its rule; None if a layer has no rule, or a rule no layer."""
    found: dict[str, tuple[re.Match[str], Rule]] = {}
    unused = dict.fromkeys(rule.pattern for rule in rules)
    for layer in owners:
        for rule in rules:
            match = re.fullmatch(rule.pattern, layer)
            if match:
                found[layer] = match, rule
                unused.pop(rule.pattern, None)
                break
        else:
            return None
    if unused:
        return None
    return {layer: (rule.name(match, owners[layer], graph), rule) for layer, (match, rule) in found.items()}


def _of_layer(graph: Graph, vertex: Vertex, module: str, rule: Rule) -> list[Entry]:
    """The tensors of a layer that is called ``module``."""
    shapes = {spec.name: spec.shape for spec in graph.parameters(vertex)}
    groups: dict[str, tuple[str, ...]] = {}
    if {"query", "key", "value"} <= shapes.keys() and len({shapes[name] for name in ("query", "key", "value")}) == 1:
        groups = {f".{name}": parts for name, parts in _JOINED.items() if parts[0] in shapes}
    else:
        groups = {f".{_RENAMED.get(name, name)}": (name,) for name in shapes}
    found = []
    for tensor, parts in groups.items():
        own = tuple(shapes[part] for part in parts)
        shape = (sum(part[0] for part in own), *own[0][1:])
        if parts[0] in rule.tensors:
            tensor, before, after = rule.tensors[parts[0]]
            shape = (*(1,) * before, *shape, *(1,) * after)
        elif len(shape) > 1 and rule.planes:
            before_it = graph.vertices[graph.vertex(rule.planes, "torch").inputs[0]]
            shape = (shape[0], *before_it.shape.dimensions)
        elif len(shape) > 1:
            shape = shape[: rule.axes] if rule.axes < 0 else (*shape, *(1,) * rule.axes)
        found.append(Entry(f"{module}{tensor}", tuple(vertex.parameter(part) for part in parts), own, shape))
    return found


def counts(names: Iterable[str]) -> dict[str, Any]:
    """The counts that stand beside running statistics."""
    modules = [name.removesuffix("running_mean") for name in names if name.endswith(".running_mean")]
    return {f"{module}{COUNTS}": np.zeros((), np.int64) for module in modules}

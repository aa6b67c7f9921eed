"""Cases to measure: a layer with the shape of its input, its work, and suites of such cases.

A case is written ``<units>x<height>x<width>:<layer>``, or without the height for 1-D data, or ``<values>:dense<N>``:

    64x56x56:128k3s2p1      Conv2D(128, 3, stride=2, padding=1, bias=False); k and s may be 3x5, p too, or 'same'
    1024x4:1024k5p2         Conv1D; d2 is a dilation, g64 groups; b at the end adds a bias
    4096:dense1000          Dense
    64x112x112:maxpool3s2p1 MaxPool2D, with c at the end in ceil mode; averagepool likewise; globalpool is
                            GlobalAveragePool
    64x56x56:norm           BatchNorm; also add, dropout, and activations by their names: relu, sigmoid, ...
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from blobnet import layers
from blobnet.errors import OptionError
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.layers.activation import ACTIVATIONS
from blobnet.layers.base import Layer
from blobnet.memory.blob import FLOAT32, Shape
from blobnet.memory.windows import axis_numbers
from blobnet.network.graph import Graph, Vertex
from blobnet.support.formatting import size_text

#: The phases of training that are measured apart; layers that are no matrix products have one backward phase.
BACKWARD = "backward"
DIRECTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS)

#: Convolutions whose times with cuDNN are known (filter 11 to 1, stride, groups): those of five networks, one each.
ANCHORS = """
    3x224x224:64k11s4p2 96x27x27:192k5p2 384x13x13:256k3p1
    3x224x224:64k7s2p3 64x56x56:256k1 64x56x56:64k1 64x56x56:64k3p1 1024x14x14:2048k1s2 1024x14x14:256k1
    256x14x14:256k3p1 128x28x28:128k3p1 512x7x7:512k3p1 128x56x56:128k3s2p1
    3x224x224:64k3p1 64x224x224:64k3p1 512x28x28:512k3p1
    3x224x224:32k3s2p1 144x56x56:144k3p1g144 144x56x56:144k3s2p1g144 144x56x56:24k1 24x56x56:144k1
    960x7x7:160k1 960x7x7:320k1 960x7x7:960k3p1g960
"""
#: A 1-D U-Net over 16 steps: three lengths down, with filters of 5, and up again; what is skipped to doubles the units.
UNET1D = """
    256x16:256k5p2 256x16:256k3s2p1 256x8:512k5p2 512x8:512k5p2 512x8:512k3s2p1 512x4:1024k5p2 1024x4:1024k5p2
    2048x4:512k5p2 1024x8:256k5p2 512x4:1024k1 1024x8:256k1
"""
SUITES = {"anchors": ANCHORS, "unet1d": UNET1D}

#: Layers that ``blobnet bench conv`` and ``blobnet bench layer`` take from a network; the others launch nothing.
CONVOLUTIONS = ("Conv1D", "Conv2D")
_POOLS = {"maxpool": layers.MaxPool2D, "averagepool": layers.AveragePool2D}
_POOLS_1D = {"maxpool": layers.MaxPool1D, "averagepool": layers.AveragePool1D}
OTHERS = (
    *("Dense", "BatchNorm", "Activation", "Add", "GlobalAveragePool", "Dropout"),
    *(kind.__name__ for kind in (*_POOLS.values(), *_POOLS_1D.values())),
)

#: Arithmetic operations a value, forward and backward, of layers that move more than they compute.
_OPERATIONS = {"BatchNorm": (5, 9), "Activation": (1, 1), "Add": (1, 0), "Dropout": (1, 1), "GlobalAveragePool": (1, 1)}

_SIZE = r"[1-9]\d{0,6}"
_CASE = re.compile(rf"(?P<shape>{_SIZE}(?:x{_SIZE}){{0,2}}):(?P<layer>\w+)")
_OPTION_VALUE = rf"(?:0|{_SIZE})(?:x(?:0|{_SIZE}))?|same"
_WINDOW = rf"(?P<options>(?:[kspdg](?:{_OPTION_VALUE}))+)"
_CONVOLUTION = re.compile(rf"(?:conv)?(?P<filters>{_SIZE}){_WINDOW}(?P<bias>b?)")
_POOL = re.compile(rf"(?P<kind>maxpool|averagepool)(?P<size>{_SIZE}(?:x{_SIZE})?){_WINDOW}?(?P<ceil>c?)")
_DENSE = re.compile(rf"dense(?P<units>{_SIZE})(?P<bias>b?)")
_OPTION = re.compile(rf"([kspdg])({_OPTION_VALUE})")
_OPTION_NAMES = {"k": "kernel_size", "s": "stride", "p": "padding", "d": "dilation", "g": "groups"}
_FORMS = "64x56x56:128k3s1p1, 1024x4:1024k5p2, 4096:dense1000, 64x56x56:maxpool3s2p1, 64x56x56:norm or 64x56x56:relu"


@dataclass(frozen=True)
class Work:
    """The work of a phase: arithmetic operations, and bytes read and written if each is touched once."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Case:
    """A layer, and the shape of its one input (of each of its two, for Add); ``count``: how often a network has it."""

    layer: Layer
    input: Shape
    count: int = 1

    @property
    def output(self) -> Shape:
        """The shape of the layer's output."""
        return self.layer.output_shape([self.input] * self.layer.arity[0])

    @property
    def is_product(self) -> bool:
        """True if the layer is a matrix product: a convolution or a dense layer."""
        return self.layer.kind in (*CONVOLUTIONS, "Dense")

    @property
    def directions(self) -> tuple[str, ...]:
        """The phases that the layer has."""
        if self.is_product:
            return DIRECTIONS
        return (FORWARD,) if self.layer.kind == "Add" else (FORWARD, BACKWARD)

    def phase(self, direction: str) -> str:
        """The phase, of ``directions``, that the calls of a direction belong to."""
        return direction if self.is_product or direction == FORWARD else BACKWARD

    def work(self, direction: str, batch_size: int) -> Work:
        """Operations and bytes of one phase.

        A convolution counts as a direct one, 2 * output * input units of a group * taps, whichever way it is computed;
        all three of its phases read or write input, output and weights once each.
        """
        read, written = batch_size * self.input.elements, batch_size * self.output.elements
        if self.is_product:
            parameters = self.layer.parameters([self.input])
            weight = parameters[0]
            values = read + written + sum(spec.elements for spec in parameters)
            return Work(2 * written * math.prod(weight.shape[1:]), FLOAT32.itemsize * values)
        forward = direction == FORWARD
        if self.layer.kind == "Add":
            return Work(written, FLOAT32.itemsize * (2 * read + written))
        if self.layer.kind in _OPERATIONS:
            operations = _OPERATIONS[self.layer.kind][not forward] * read
        else:
            operations = (_taps(self.layer) if forward and hasattr(self.layer, "pool_size") else 1) * written
        values = read + written
        if not forward:
            values += read if self.layer.kept.inputs else written * self.layer.kept.output
        return Work(operations, FLOAT32.itemsize * values)

    def __str__(self) -> str:
        return "x".join(map(str, self.input.dimensions)) + ":" + _layer_text(self.layer)


def parse(text: str) -> Case:
    """The case that ``text`` describes.

    Raises:
        OptionError: the text has no such form, or the layer does not allow what it says.
        ShapeError: the layer does not fit the input.
    """
    match = _CASE.fullmatch(text.strip().lower())
    if not match:
        raise OptionError("shape", "it must be written <units>x<height>x<width>:<layer>", text=text, hint=_forms())
    shape = Shape(*(int(size) for size in match["shape"].split("x")))
    case = Case(_layer(match["layer"], shape, text), shape)
    _ = case.output  # what does not fit is said now
    return case


def suite(name: str) -> list[Case]:
    """The cases of one of SUITES."""
    return [parse(text) for text in SUITES[name].split()]


def named(subject: str) -> list[Case]:
    """The cases of a suite, or the one that is written out; none if ``subject`` is neither, but a network perhaps.

    Raises:
        OptionError, ShapeError: as :func:`parse`.
    """
    if subject in SUITES:
        return suite(subject)
    return [parse(subject)] if ":" in subject and not (".py" in subject or "/" in subject) else []


def of_vertex(graph: Graph, vertex: Vertex) -> Case:
    """A layer of a network, without what does not make it distinct."""
    shape = graph.input_shapes(vertex)[0]
    if vertex.layer.flattens_input:
        shape = Shape.flat(shape.elements)
    plain: Any = replace(vertex.layer, name=None)
    if hasattr(plain, "initializer"):
        plain = replace(plain, initializer="he_normal")
    return Case(plain, shape)


def _forms() -> str:
    return f"{_FORMS}, say."


def _layer(text: str, shape: Shape, whole: str) -> Layer:
    if match := _CONVOLUTION.fullmatch(text):
        options = _options(match["options"], "kspdg", whole)
        if "kernel_size" not in options:
            raise OptionError("shape", "a convolution must have a filter size, k3 say", text=whole, hint=_forms())
        kind = layers.Conv1D if shape.rank == 1 else layers.Conv2D
        return kind(int(match["filters"]), bias=bool(match["bias"]), **options)
    if match := _POOL.fullmatch(text):
        pools = _POOLS_1D if shape.rank == 1 else _POOLS
        kind_of_pool: Any = pools[match["kind"]]
        options = _options(match["options"] or "", "sp", whole)
        if match["ceil"]:
            if match["kind"] != "maxpool":
                raise OptionError("shape", "only max pools have a ceil mode", text=whole, hint=_forms())
            options["ceil_mode"] = True
        layer: Layer = kind_of_pool(_pair(match["size"]), **options)
        return layer
    if match := _DENSE.fullmatch(text):
        return layers.Dense(int(match["units"]), bias=bool(match["bias"]))
    plain: dict[str, Layer] = {
        "norm": layers.BatchNorm(),
        "add": layers.Add(),
        "dropout": layers.Dropout(0.5),
        "globalpool": layers.GlobalAveragePool(),
        **{name: layers.Activation(name) for name in ACTIVATIONS},
    }
    if text not in plain:
        raise OptionError("shape", "what follows the colon must be a layer", text=whole, hint=_forms())
    return plain[text]


def _options(text: str, allowed: str, whole: str) -> dict[str, Any]:
    found = _OPTION.findall(text)
    letters = [letter for letter, _ in found]
    if len(set(letters)) < len(letters) or not set(letters) <= set(allowed):
        rule = f"the options of this layer must be some of {', '.join(allowed)}, each once"
        raise OptionError("shape", rule, text=whole, hint=_forms())
    return {_OPTION_NAMES[letter]: _pair(value) for letter, value in found}


def _pair(text: str) -> Any:
    """``3``, ``3x5`` or ``same``."""
    if text == "same":
        return text
    sizes = tuple(int(size) for size in text.split("x"))
    return sizes if len(sizes) > 1 else sizes[0]


def _taps(pool: Any) -> int:
    return math.prod(axis_numbers(pool.subject, "pool_size", pool.pool_size, pool.rank))


def _layer_text(layer: Any) -> str:
    if layer.kind in CONVOLUTIONS:
        text: str = layer.notation
        return text
    if layer.kind == "Dense":
        return f"dense{layer.units}{'b' if layer.bias else ''}"
    if hasattr(layer, "pool_size"):
        name: str = layer.kind.lower()[:-2]
        stride = "" if layer.stride is None else f"s{size_text(layer.stride)}"
        padding = "" if layer.padding in (0, "valid") else f"p{size_text(layer.padding)}"
        ceil = "c" if getattr(layer, "ceil_mode", False) else ""
        return f"{name}{size_text(layer.pool_size)}{stride}{padding}{ceil}"
    if layer.kind == "Activation":
        return str(layer.function)
    kind: str = layer.kind
    return {"BatchNorm": "norm", "GlobalAveragePool": "globalpool"}.get(kind, kind.lower())

"""Layers that are contractions: all that a plan needs follows from their statements.

Layers of blobnet state them as values, in :meth:`ContractionLayer.define`. A layer of one's own may also give the text
of a function, in :meth:`ContractionLayer.function`, and that is the layer:

    @dataclass(frozen=True)
    class Gain(ContractionLayer):
        def function(self, inputs):
            text = "function (I[N, C, ...], scale[C]) -> (O) { O[n, c, ...] = +(I[n, c, ...] * scale[c]); }"
            return function(text, inputs[0])

The function's inputs that begin with the same size as the first one, which is the samples, are the layer's inputs: the
units are their second axis. The others are its parameters, of the names and sizes that stand there. The one output
begins with the samples again. ``...`` stands for the spatial axes (:func:`function`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from blobnet.contraction import Function
from blobnet.contraction import calls as compiled
from blobnet.contraction import function as parsed
from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.derivatives import delta_names
from blobnet.contraction.form import Affine, Apply, Expression, Number, Program, Read, Tensor
from blobnet.contraction.functions import FUNCTIONS
from blobnet.contraction.training import Passes, passes
from blobnet.errors import ContractionError, ShapeError, near_matches
from blobnet.implementations.programs import calls
from blobnet.implementations.recognition import convolution_of
from blobnet.launch.elementwise import EpilogueOp, renamed
from blobnet.launch.kernel_call import Array, Blob, KernelCall
from blobnet.layers.base import Kept, Layer, LayerContext, ParameterSpec, Placement, Placements, TakesCells
from blobnet.layers.initializers import GIVEN, check_initializer
from blobnet.memory.blob import Halo, Shape
from blobnet.support.checks import is_int
from blobnet.support.lru import LRUCache

#: The indexes of spatial axes that ``...`` stands for, the innermost last; their sizes are the same in capitals.
AXES = "zyx"
#: The samples for which shapes are worked out: how many there are makes no difference.
_SAMPLES = 2
_NAME, _TENSOR = re.compile(r"\w+"), re.compile(r"(\w+)\s*\[")
_ELLIPSIS = re.compile(r"(,\s*)?\.\.\.(\s*,\s*)?")


@dataclass(frozen=True)
class Bound:
    """A function for inputs of known shapes: its statements, and the names of the layer's inputs among its own."""

    program: Program
    inputs: tuple[str, ...]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The other inputs."""
        return tuple(tensor for tensor in self.program.inputs if tensor.name not in self.inputs)

    @property
    def output(self) -> Tensor:
        """The only output."""
        return self.program.outputs[0]


@dataclass(frozen=True)
class ContractionLayer(Layer):
    """Base of the layers that are a contraction, or several."""

    #: Whether derivatives read the inputs, and the output: what they do not read the planner need not keep.
    keeps_inputs: ClassVar[bool] = True
    keeps_output: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "values left out, or in other places"
    #: Whether errors show the contraction, which a user wrote as the layer's argument.
    shows_text: ClassVar[bool] = False

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        """State the layer for inputs of (samples, units, ...): parameters, and statements that end in the output."""
        raise NotImplementedError

    def function(self, inputs: Sequence[Shape]) -> Function | None:
        """The layer as a text, for inputs of these shapes; None where :meth:`define` states it."""
        return None

    def start(self, name: str, shape: Sequence[int]) -> str:
        """How a parameter starts: a function of blobnet.layers.initializers."""
        return "ones" if name == "scale" else "he_normal" if len(shape) > 1 else "zeros"

    @property
    def kept(self) -> Kept:  # type: ignore[override]
        return Kept(self.keeps_inputs, self.keeps_output)

    def bound(self, inputs: Sequence[Shape], samples: int = _SAMPLES) -> Bound:
        """The statements for a batch of ``samples``, and what their inputs are.

        Raises:
            OptionError, ShapeError: the function is not one of layers, or not one of these inputs.
        """
        return _bound(self, tuple(inputs), samples)

    def contraction(self, inputs: Sequence[Shape]) -> Bound | None:
        return self.bound(inputs)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.bound(inputs).output.shape
        fits = shape[0] == _SAMPLES and 2 <= len(shape) <= 2 + len(AXES)
        rule = "the output must have the samples as its first axis, then units and up to three spatial axes"
        self._require_shape(fits, rule, output=shape, samples=_SAMPLES)
        return Shape(*shape[1:])

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return tuple(
            ParameterSpec(tensor.name, tensor.shape, start, len(tensor.shape) > 1, trainable=start != GIVEN)
            for tensor in self.bound(inputs).parameters
            for start in (self.start(tensor.name, tensor.shape),)
        )

    # -- kernel calls ------------------------------------------------------------------------------------------------

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        return self._halo(inputs, self.bound(inputs).inputs)

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        bound = self.bound(inputs)
        return self._halo(inputs, (delta_names(bound.program)[bound.output.name],))

    def _halo(self, inputs: Sequence[Shape], names: tuple[str, ...]) -> Halo:
        """The zeros that some pass reads around one of these tensors; none where it takes values one by one."""
        by_value = self.placement(inputs, training=False).output is Placement.IN_PLACE
        return Halo() if by_value else _halo(self.bound(inputs).program, names)

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return True

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.SEPARATE if _of_single_values(self, tuple(inputs)) is None else Placement.IN_PLACE)

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        expression, bound, own = _of_single_values(self, site.shapes), self.bound(site.shapes), site.in_place_of
        others = [place for place in range(len(site.inputs)) if place != own]
        if expression is None or own is None or len(others) > 1:
            return None
        names = {_INPUT.format(place): "x" if place == own else "r" for place in range(len(site.inputs))}
        numbers = tuple(
            (_NUMBER.format(place), site.parameter(tensor.name)) for place, tensor in enumerate(bound.parameters)
        )
        return (EpilogueOp(renamed(expression, names), site.inputs[others[0]] if others else None, numbers),)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return self._calls(site, self._steps(site).forward, "forward", site.epilogue)

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        return self._backward(site, "backward parameters", self._trained(site))

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return self._backward(site, "backward data", wanted_inputs(self, site))

    def _trained(self, site: LayerContext) -> list[str]:
        specs = self.parameters(site.shapes) if site.output_delta else ()
        return [spec.name for spec in specs if spec.trainable and site.trains(spec.name)]

    def _steps(self, site: LayerContext, more: int = 0) -> Passes:
        """The passes for a batch, or for one of some samples ``more``: gradients of parameters come first."""
        program = self.bound(site.shapes, site.batch_size + more).program
        return _passes(program, (*self._trained(site), *wanted_inputs(self, site)))

    def _backward(self, site: LayerContext, direction: str, names: Sequence[str]) -> list[KernelCall]:
        steps, bound = self._steps(site), self.bound(site.shapes, site.batch_size)
        deltas = {steps.deltas[name] for name in names}
        read = {tensor.name for part in steps.gradients for tensor in part.inputs}
        lost = [name for name in bound.inputs if name in read and not self.keeps_inputs]
        lost += [bound.output.name] if bound.output.name in read and not self.keeps_output else []
        self._require(not lost, "keeps_inputs and keeps_output must say what derivatives read", read=lost)
        parts = [part for part in steps.gradients if any(tensor.name in deltas for tensor in part.outputs)]
        return [call for part in parts for call in self._calls(site, part, direction)]

    def takes_cells(self, site: LayerContext) -> TakesCells:
        kind = site.tuning.cells
        if kind is None:
            return TakesCells()
        would_be = site.in_cells(kind)
        steps, blobs, kept = self._steps(would_be), _blobs(self, would_be), _kept_in_cells(self, would_be)
        fits = all(compiled.takes_cells(part, blobs, kept) for part in (steps.forward, *steps.gradients))
        return TakesCells(inputs=fits, output=fits)

    def _calls(
        self, site: LayerContext, part: Program, direction: str, steps: tuple[EpilogueOp, ...] = ()
    ) -> list[KernelCall]:
        """The launches of a pass; ``steps`` are done to the values of its first output."""
        bound, deltas = self.bound(site.shapes, site.batch_size), self._steps(site).deltas
        operands: dict[str, Blob | Array] = {**_blobs(self, site)}
        operands |= {tensor.name: site.parameter(tensor.name) for tensor in bound.parameters}
        operands |= {deltas[name]: site.gradient(name) for name in self._trained(site)}
        for tensor in (*part.inputs, *part.outputs):
            if tensor.name not in operands:
                operands[tensor.name] = self._between(site, tensor)
        ends = zip(bound.inputs, site.input_deltas, site.accumulate, strict=False)
        added = {deltas[name] for name, delta, is_added in ends if delta and is_added}
        made = [tensor.name for tensor in part.outputs]

        def memory(name: str, elements: int, per_sample: int) -> Array:
            # The passes of one direction may need different work space.
            return site.memory(f"{name} of {', '.join(made)}", elements, per_sample)

        context = compiled.Context(
            f"{site.name} {direction}", site.batch_size, memory, site.tuning, site.name, _kept_in_cells(self, site)
        )
        return calls(part, operands, context, [name for name in made if name in added], steps)

    def _between(self, site: LayerContext, tensor: Tensor) -> Array:
        """Memory for what one pass leaves to another; of what grows with the batch, each sample has a part."""
        steps = self._steps(site, more=1)
        others = {other.name: other for part in (steps.forward, *steps.gradients) for other in part.outputs}
        if others[tensor.name] == tensor:
            return site.memory(tensor.name, elements=tensor.elements)
        return site.memory(tensor.name, per_sample=tensor.elements // site.batch_size)

    def _per_axis(self, name: str, rank: int, least: int = 1) -> tuple[int, ...]:
        """A hyperparameter that is one whole number for all of ``rank`` axes, or one for each."""
        value = getattr(self, name)
        values = value if isinstance(value, tuple) else (value,) * rank
        rule = f"{name} must be an int of at least {least}, or one for each spatial axis"
        self._require(len(values) == rank and all(is_int(item, least) for item in values), rule, **{name: value})
        return values


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The sizes to which shapes go together in NumPy; None if they do not."""
    with contextlib.suppress(ValueError):
        return np.broadcast_shapes(*shapes)
    return None


def repeating(along: Sequence[Affine], sizes: Sequence[int], wanted: Sequence[int]) -> list[Affine]:
    """The map of a tensor that is repeated along axes of size 1 to the ``wanted`` sizes."""
    return [index if size == most else Affine() for index, size, most in zip(along, sizes, wanted, strict=True)]


def function(text: str, like: Shape | None = None, /, **sizes: int) -> Function:
    """The function of the contraction language that ``text`` says, where ``...`` stands for spatial axes.

    They are those of ``like``: among indexes ``z, y, x``, ``y, x``, ``x`` or nothing, and in capitals among sizes, that
    is in the head and behind ``:``.

    Raises:
        ContractionError, OptionError: as for :func:`blobnet.contraction.function`.
    """
    return parsed(spelled_out(text, like.rank if like else 0), **sizes)


def spelled_out(text: str, rank: int) -> str:
    """The text with ``rank`` axes in place of each ``...``."""
    if not isinstance(text, str):
        return text  # Who parses it says what is wrong.
    head = text.find("->")
    # Where a tensor is called as an index or a size would be, these get other names.
    taken = {*_TENSOR.findall(text[:head]), *_NAME.findall(text[head : text.find("{")])}
    pieces: list[str] = []
    last = 0
    for match in _ELLIPSIS.finditer(text):
        before = text[: match.start()]
        is_size = match.start() < head or ":" in before[before.rfind("[") :]
        axes = AXES[len(AXES) - rank :]
        names = ", ".join(f"{axis}_" if axis in taken else axis for axis in (axes.upper() if is_size else axes))
        front = ", " if match[1] and (names or match[2]) else ""
        behind = ", " if match[2] and names else ""
        pieces += [text[last : match.start()], front, names, behind]
        last = match.end()
    return "".join([*pieces, text[last:]])


def layer_inputs(function: Function) -> tuple[str, ...]:
    """The inputs of a function that are a layer's: those that begin as the first one does, with the samples."""
    heads = function.heads
    first = next(iter(heads.values()), None)
    return tuple(name for name, sizes in heads.items() if sizes and first and sizes[0] == first[0])


# What layers of the same text ask for the same shapes, whatever their names, is worked out once.
_passes = lru_cache(1024)(passes)


@lru_cache(1024)
def _halo(program: Program, names: tuple[str, ...]) -> Halo:
    """The zeros that some pass of a program reads around one of the tensors ``names``."""
    steps, found = _passes(program, tuple(tensor.name for tensor in program.inputs)), Halo()
    for part in (steps.forward, *steps.gradients):
        for halo in compiled.halos(part, names).values():
            found = found.merged(halo)
        for item in map(convolution_of, part.statements):
            found = found.merged(item.halo) if item and item.source.name in names else found
    return found


@lru_cache(1024)
def _program(text: str, sizes: tuple[tuple[str, int], ...], shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Program:
    return parsed(text, **dict(sizes)).program(**dict(shapes))


#: Functions that kernels of kernels/ have as the contraction language has them, for vectors too; beside comparisons.
_IN_KERNELS = frozenset(
    {"add", "subtract", "multiply", "divide", "negate", "abs", "ceil", "floor", "sqrt", "pow"}
    | {"cos", "erf", "exp", "expm1", "log", "log1p", "sin", "tanh"}
)
#: What inputs and parameters are called there, whatever their names: none of these is a function's, or a macro's.
_INPUT, _NUMBER = "INPUT_{}", "NUMBER_{}"
_COMPARISONS = frozenset(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])


@lru_cache(1024)
def _of_single_values(layer: ContractionLayer, inputs: tuple[Shape, ...]) -> str | None:
    """The expression of INPUT_k and NUMBER_k that the function is, if it is one of values at one place.

    These are its inputs and its parameters, which have a number for each unit then.
    """
    bound = layer.bound(inputs)
    (statement, *more), shape = bound.program.statements, bound.output.shape
    place = statement.output.map
    if more or not statement.is_cellwise:
        return None
    for read in statement.reads:
        is_input = read.tensor.name in bound.inputs
        if read.map != (place if is_input else place[1:2]) or (is_input and read.tensor.shape != shape):
            return None
    every = {read.tensor.name for read in statement.reads} == {tensor.name for tensor in bound.program.inputs}
    names = {name: _INPUT.format(place) for place, name in enumerate(bound.inputs)}
    names |= {tensor.name: _NUMBER.format(place) for place, tensor in enumerate(bound.parameters)}
    return _written(statement.expression, names) if every else None


def _written(expression: Expression, names: Mapping[str, str]) -> str | None:
    """An expression with these ``names`` of tensors, and numbers that are floats in C; None if kernels have none."""
    if isinstance(expression, Number):
        return repr(float(expression.value)) if math.isfinite(expression.value) else None
    if isinstance(expression, Read):
        return names[expression.tensor.name]
    if not isinstance(expression, Apply):
        return None
    name, arguments = expression.function, expression.arguments
    if name == "select" and isinstance(arguments[0], Apply) and arguments[0].function in _COMPARISONS:
        # Of vectors, comparisons give conditions and no numbers.
        parts = [_written(part, names) for part in (*arguments[0].arguments, *arguments[1:])]
        symbol = FUNCTIONS[arguments[0].function].symbol
        return None if None in parts else "({1} {0} {2} ? {3} : {4})".format(symbol, *parts)
    texts = [_written(part, names) for part in arguments]
    if name not in _IN_KERNELS or None in texts:
        return None
    symbol = FUNCTIONS[name].symbol
    if not symbol:
        return f"{name}({', '.join(map(str, texts))})"
    return f"({f' {symbol} '.join(map(str, texts))})" if len(texts) > 1 else f"({symbol}{texts[0]})"


def axes_of(tensor: Tensor) -> list[Affine]:
    """The indexes of all axes of a tensor (samples, units, ...), from ``n`` and ``c`` on."""
    return indexes(["n", "c", *AXES[len(AXES) + 2 - len(tensor.shape) :]])


def wanted_inputs(layer: ContractionLayer, site: LayerContext) -> list[str]:
    """The names of the inputs whose deltas are wanted."""
    names = layer.bound(site.shapes).inputs if site.output_delta else ()
    return [name for name, delta in zip(names, site.input_deltas, strict=bool(names)) if delta]


def _blobs(layer: ContractionLayer, site: LayerContext) -> dict[str, Blob]:
    """The blobs of tensors."""
    bound, deltas = layer.bound(site.shapes, site.batch_size), layer._steps(site).deltas
    found = {bound.output.name: site.output, **dict(zip(bound.inputs, site.inputs, strict=True))}
    if site.output_delta:
        found[deltas[bound.output.name]] = site.output_delta
    return found | {deltas[name]: delta for name, delta in zip(bound.inputs, site.input_deltas, strict=False) if delta}


def _kept_in_cells(layer: ContractionLayer, site: LayerContext) -> Mapping[str, int]:
    """What one pass leaves to another in cells, and their units: tensors of the shape of an output that has cells."""
    if site.output.type.cell == 1:
        return {}
    steps, output = layer._steps(site), layer.bound(site.shapes, site.batch_size).output
    parts = (steps.forward, *steps.gradients)
    tensors = {tensor for part in parts for tensor in (*part.inputs, *part.outputs) if tensor.shape == output.shape}
    return dict.fromkeys({tensor.name for tensor in tensors} - _blobs(layer, site).keys(), site.output.type.cell)


#: Layers that :meth:`ContractionLayer.define` has stated, by all but their names.
_DEFINED: LRUCache[tuple[object, ...], Bound] = LRUCache(1024)


@lru_cache(1024)
def _bound(layer: ContractionLayer, inputs: tuple[Shape, ...], samples: int) -> Bound:
    function = layer.function(inputs)
    try:
        if function:
            return _bound_text(layer, function, inputs, samples)
        # Layers that differ in their names alone share a program.
        options = (getattr(layer, item.name) for item in fields(layer) if item.name != "name")
        key = type(layer), *options, inputs, samples
        if known := _DEFINED.get(key):
            return known
        names = [f"I{number}" if len(inputs) > 1 else "I" for number in range(len(inputs))]
        tensors = [Tensor(name, (samples, *shape.dimensions)) for name, shape in zip(names, inputs, strict=True)]
        built = Builder(tensors)
        layer.define(built, tensors)
        _DEFINED[key] = found = Bound(built.program, tuple(names))
        return found
    except ContractionError as error:
        rule = "the layer must fit its inputs, and its arrays must have less than 2^31 elements"
        rule = "its contraction must fit its inputs" if layer.shows_text else rule
        wrapped = ShapeError(layer.subject, rule, inputs=" ".join(map(str, inputs)))
        if layer.shows_text:
            wrapped.args = (f"{wrapped}\n{error}",)
        raise wrapped from error


def _bound_text(layer: ContractionLayer, function: Function, inputs: Sequence[Shape], samples: int) -> Bound:
    layer._require(len(function.outputs) == 1, "its function must have one output", outputs=function.outputs)
    own, heads = layer_inputs(function), function.heads
    rule = "its function's inputs that begin with the samples must be as many as the layer's"
    layer._require(len(own) == len(inputs), rule, function=own, inputs=len(inputs))
    shapes = {name: (samples, *shape.dimensions) for name, shape in zip(own, inputs, strict=True)}
    sizes = dict(function.sizes)
    for name, shape in shapes.items():
        sizes |= {size: actual for size, actual in zip(heads[name] or (), shape, strict=False) if isinstance(size, str)}
    for name, head in heads.items():
        if name not in shapes:
            missing = [size for size in head or () if isinstance(size, str) and size not in sizes]
            rule = "the sizes of a parameter must be those of inputs, or given"
            layer._require(head is not None and not missing, rule, parameter=name, missing=missing)
            shapes[name] = tuple(size if isinstance(size, int) else sizes[size] for size in head or ())
    return Bound(_program(function.text, tuple(function.sizes.items()), tuple(shapes.items())), own)


@dataclass(frozen=True)
class Contraction(ContractionLayer):
    """A layer from a text of the contraction language (docs/adding_a_layer.md).

        layers.Contraction(
            "function (I[N, C, ...], W[F, C]) -> (O) { O[n, f, ... : N, F, ...] = +(I[n, c, ...] * W[f, c]); }",
            sizes={"F": 32},
        )

    Its inputs and parameters are what the text's head says: see blobnet/layers/lowered.py.

    Args:
        text: of the function; ``...`` stands for the spatial axes of the first input.
        initializers: how parameters start, by name: functions of blobnet.layers.initializers. Of those that are not
            named, ``scale`` starts as ones, others of one axis as zeros, all else he_normal. What is ``given`` comes
            with the weights, stays, and is not trained.
        sizes: whole numbers for names that are the size of no input.

    Raises:
        ContractionError: the text is none of the language.
        OptionError: an initializer or a size of what is not in the text, or an unknown initializer.
    """

    text: str
    initializers: Any = ()
    sizes: Any = ()
    shows_text: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("initializers", "sizes"):
            object.__setattr__(self, name, tuple(sorted(dict(getattr(self, name)).items())))
        super().__post_init__()
        function = self._function(2)
        known = [name for name in function.inputs if name not in layer_inputs(function)]
        example = "function (I[N, C, ...], W[F, C]) -> (O) { ... }, say; N are the samples, ... the spatial axes."
        rule = "the text must have a head, with the sizes of its inputs"
        self._require(bool(layer_inputs(function)), rule, hint=example)
        for name, initializer in self.initializers:
            hint = near_matches(name, known) if known else None
            self._require(name in known, "an initializer must be that of a parameter", parameter=name, hint=hint)
            check_initializer(f"{self.subject}, {name}", initializer)

    @property
    def arity(self) -> tuple[int, int | None]:  # type: ignore[override]
        count = len(layer_inputs(self._function(2)))
        return count, count

    @property
    def keeps_output(self) -> bool:  # type: ignore[override]
        return self._function(2).gives_extremes

    def start(self, name: str, shape: Sequence[int]) -> str:
        return dict(self.initializers).get(name) or super().start(name, shape)

    def function(self, inputs: Sequence[Shape]) -> Function:
        return self._function(inputs[0].rank)

    def _function(self, rank: int) -> Function:
        return parsed(spelled_out(self.text, rank), **dict(self.sizes))

"""Recurrent layers: for each position a product with the state before, and a cell of single values.

All of it is contractions. The launches of all positions are those of one program, on memory that lies further on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.calls import Context, Operand
from blobnet.contraction.derivatives import differentiate, filled
from blobnet.contraction.form import Affine, Expression, Number, Position, Program, Read, Tensor, apply
from blobnet.implementations.programs import calls
from blobnet.launch.kernel_call import Array, Blob, KernelCall
from blobnet.layers.base import Kept, Layer, LayerContext, ParameterSpec
from blobnet.layers.initializers import check_initializer
from blobnet.memory.blob import Shape

#: What makes a state 0 beyond the end of a sample.
_Cut: TypeAlias = Callable[[Expression], Expression]


class _Sizes(NamedTuple):
    """The sizes of one direction; ``rows`` are those of all gates, ``shift`` is where outputs begin among states."""

    samples: int
    channels: int
    width: int
    units: int
    rows: int
    shift: int
    is_sequence: bool
    has_lengths: bool

    @property
    def finds_ends(self) -> bool:
        """Whether the output is the state at each sample's own last position."""
        return self.has_lengths and self.shift > 0 and not self.is_sequence


@dataclass(frozen=True)
class _Recurrent(Layer):
    """The base: (units, width) -> (units, width), position after position.

    States lie in memory of ``width + 1`` slots: the state at a position in the slot of its number, or of the next one
    where positions are walked from the first; what is left is the state before all, zeros. Beyond a sample's end states
    are zeros too, so that the way back begins there.
    """

    units: int
    bias: bool = True
    bidirectional: bool = False
    reverse: bool = False
    return_sequences: bool = True
    initializer: str = "glorot_uniform"
    arity: ClassVar[tuple[int, int | None]] = (1, 2)
    takes_numbers: ClassVar[tuple[int, ...]] = (1,)
    kept: ClassVar[Kept] = Kept(inputs=True)
    sized_by: ClassVar[str] = "units"
    #: How many gates there are; whether there is a memory beside the output.
    gates: ClassVar[int]
    has_memory: ClassVar[bool]
    copy_reason: ClassVar[str] = "states, one after the other"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("units")
        for name in ("bias", "bidirectional", "reverse", "return_sequences"):
            self._require(
                isinstance(getattr(self, name), bool), f"{name} must be True or False", **{name: getattr(self, name)}
            )
        rule = "both directions are bidirectional, one of them is reverse"
        self._require(not (self.bidirectional and self.reverse), rule, bidirectional=True, reverse=True)
        check_initializer(self.subject, self.initializer)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of parameters begin with, of each direction."""
        return ("", "reverse_") if self.bidirectional else ("",)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        self._require_rank(inputs[0], 1)
        rule = "the second input must be one number a sample, its length"
        self._require_shape(all(shape == Shape(1) for shape in inputs[1:]), rule, inputs=[*map(str, inputs)])
        units = self.units * len(self.prefixes)
        return Shape(units, inputs[0].width) if self.return_sequences else Shape(units)

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        rows = self.gates * self.units
        return tuple(
            ParameterSpec(f"{prefix}{name}", shape, start, len(shape) > 1)
            for prefix in self.prefixes
            for name, shape, start in (
                ("weight", (rows, inputs[0].units), self.initializer),
                ("recurrent", (rows, self.units), "fan_in_uniform"),
                *((name, (rows,), "zeros") for name in self._biases),
            )
        )

    @property
    def _biases(self) -> tuple[str, ...]:
        """A bias of the products with states of its own only makes a difference where a gate takes these alone."""
        return () if not self.bias else ("bias",) if self.has_memory else ("bias", "recurrent_bias")

    @staticmethod
    def cell(built: Builder, gates: list[Read], before: Read, cut: _Cut) -> None:
        """State the output ``O``, and the memory ``C`` if there is one.

        Args:
            built: takes the statements.
            gates: the sum of each gate; without a memory what each gets from the input, then from the state before.
            before: the memory, or without one the output, at the position before.
            cut: goes around what is stated.
        """
        raise NotImplementedError

    # -- kernel calls ------------------------------------------------------------------------------------------------

    def forward(self, site: LayerContext) -> list[KernelCall]:
        if len(site.shapes) > 1:
            self._require_exact(site.shapes[0].width, site.inputs[1].type)
        return [call for number in range(len(self.prefixes)) for call in _Direction(self, site, number).forward()]

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        made = list[KernelCall]()
        for number in range(len(self.prefixes)):
            direction = _Direction(self, site, number)
            made += [*direction.backward(), *direction.gradients()]
        return made

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        made, is_done = list[KernelCall](), any(site.trains(spec.name) for spec in self.parameters(site.shapes))
        for number in range(len(self.prefixes)):
            direction = _Direction(self, site, number)
            made += [*(() if is_done else direction.backward()), *direction.input_delta(is_added=number > 0)]
        return made + _Direction(self, site, 0).lengths_delta()


class _Direction:
    """One direction of a layer in a plan."""

    def __init__(self, layer: _Recurrent, site: LayerContext, number: int) -> None:
        self._layer, self._site, self._prefix = layer, site, layer.prefixes[number]
        is_reverse = layer.reverse or number > 0
        shape, self._units = site.shapes[0], layer.units
        self._has_lengths = len(site.shapes) > 1
        self._rows, self._width = layer.gates * layer.units, shape.width
        self._walk = range(self._width)[:: -1 if is_reverse else 1]
        shift = 0 if is_reverse else 1
        self._before, self._after = 1 - shift, shift
        kinds = layer.return_sequences, self._has_lengths
        sizes = _Sizes(site.batch_size, shape.units, self._width, self._units, self._rows, shift, *kinds)
        self._finds_ends = sizes.finds_ends
        self._programs = _programs(type(layer), sizes, layer._biases)
        self._first = number * self._units

    def _memory(self, name: str, slots: int, elements: int) -> Array:
        return self._site.memory(f"{self._prefix}{name}", per_sample=slots * elements)

    @property
    def _inputs(self) -> Array:
        """What all gates get from the inputs, and with a memory then from the state before, too."""
        return self._memory("inputs", self._width, self._rows)

    @property
    def _products(self) -> Array:
        """What all gates get from the state before."""
        return self._inputs if self._layer.has_memory else self._memory("products", self._width, self._rows)

    def _deltas(self, of: str) -> Array:
        return self._memory(f"{of} deltas", self._width, self._rows)

    def _within(self, position: int) -> dict[str, Operand]:
        """Whether each sample reaches to a position, where lengths are given."""
        mask = self._site.memory("mask", per_sample=self._width) if self._has_lengths else None
        return {"M": _slot(mask, position, 1)} if mask else {}

    @property
    def _lengths(self) -> dict[str, Operand]:
        """The lengths, where the only output is the state at a sample's last position."""
        return {"L": self._site.inputs[1]} if self._finds_ends else {}

    def _states(self, name: str) -> Array:
        return self._memory(name, self._width + 1, self._units)

    def _parts(self, arrays: Sequence[Array], position: int, prefix: str = "") -> dict[str, Operand]:
        """Every gate's part of arrays, as the cell names them."""
        parts = [
            _slot(array, position * self._layer.gates + gate, self._units)
            for array in arrays
            for gate in range(self._layer.gates)
        ]
        return {f"{prefix}G{number}": part for number, part in enumerate(parts)}

    def _run(
        self, name: str, operands: dict[str, Operand], direction: str, accumulate: Collection[str] = ()
    ) -> list[KernelCall]:
        site, program = self._site, self._programs[name]

        def memory(own: str, elements: int, per_sample: int) -> Array:
            return site.memory(f"{own} of {name}", elements, per_sample)

        context = Context(f"{site.name} {direction}", site.batch_size, memory, site.tuning, site.name)
        return calls(program, operands, context, accumulate)

    def _parameters(self, *names: str) -> dict[str, Operand]:
        return {name: self._site.parameter(self._prefix + name) for name in names}

    def _gate_arrays(self) -> list[Array]:
        return [self._inputs] if self._layer.has_memory else [self._inputs, self._products]

    def _output(self, blob: Blob) -> Blob:
        return replace(blob, layout=blob.layout.slice_units(self._first, self._units))

    def forward(self) -> list[KernelCall]:
        """The calls that write the direction's part of the output."""
        layer, site, units = self._layer, self._site, self._units
        has_memory = layer.has_memory
        weights = self._parameters("weight", *layer._biases[:1])
        made = self._run("inputs", {"I": site.inputs[0], **weights, "P": self._inputs}, "forward")
        if self._has_lengths and not self._first:
            mask = site.memory("mask", per_sample=self._width)
            made += self._run("mask", {"L": site.inputs[1], "M": mask}, "forward")
        outputs, memories = self._states("outputs"), self._states("memories") if has_memory else None
        states = [outputs, memories] if memories else [outputs]
        start = self._walk[0] + self._before
        for state in states:
            made += self._run("zeros", {"Z": _slot(state, start, units)}, "forward")
        product_weights = self._parameters("recurrent", *layer._biases[1:])
        for position in self._walk:
            before, after = position + self._before, position + self._after
            sums = _slot(self._products, position, self._rows)
            operands: dict[str, Operand] = {"H": _slot(outputs, before, units), **product_weights, "S": sums}
            if has_memory:
                operands["P"] = sums
            made += self._run("products", operands, "forward")
            operands = self._parts(self._gate_arrays(), position) | self._within(position)
            operands |= {"B": _slot(states[-1], before, units), "O": _slot(outputs, after, units)}
            if memories:
                operands["C"] = _slot(memories, after, units)
            made += self._run("cell", operands, "forward")
        operands = {"H": outputs, **self._lengths, "O": self._output(site.output)}
        return [*made, *self._run("output", operands, "forward")]

    def backward(self) -> list[KernelCall]:
        """The calls that leave the deltas of all gates."""
        layer, site, units = self._layer, self._site, self._units
        has_memory, outputs = layer.has_memory, self._states("outputs")
        deltas = self._states("output deltas")
        label = "backward"
        made = self._run("spread", {"D": self._output(site.delta), **self._lengths, "H": deltas}, label)
        before_state = self._states("memories") if has_memory else outputs
        memory_deltas = self._states("memory deltas") if has_memory else None
        if memory_deltas:
            made += self._run("zeros", {"Z": _slot(memory_deltas, self._walk[-1] + self._after, units)}, label)
        gate_deltas = [self._deltas("inputs")] if has_memory else [self._deltas("inputs"), self._deltas("products")]
        for position in reversed(self._walk):
            before, after = position + self._before, position + self._after
            operands = self._parts(self._gate_arrays(), position) | self._within(position)
            operands |= self._parts(gate_deltas, position, "d_")
            operands |= {"B": _slot(before_state, before, units), "d_O": _slot(deltas, after, units)}
            if memory_deltas:
                operands |= {"d_C": _slot(memory_deltas, after, units), "d_B": _slot(memory_deltas, before, units)}
                made += self._run("cell deltas", operands, label)
            else:
                operands["d_B"] = _slot(deltas, before, units)
                made += self._run("cell deltas", operands, label, ["d_B"])
            operands = {**self._parameters("recurrent"), "d_S": _slot(gate_deltas[-1], position, self._rows)}
            made += self._run("product deltas", {**operands, "d_H": _slot(deltas, before, units)}, label, ["d_H"])
        return made

    def gradients(self) -> list[KernelCall]:
        """The calls for the gradients of parameters that are trained, behind :meth:`backward`."""
        of_inputs, of_products = (
            self._deltas("inputs"),
            self._deltas("inputs" if self._layer.has_memory else "products"),
        )
        sources: dict[str, dict[str, Operand]] = {
            "weight": {"I": self._site.inputs[0], "d_P": of_inputs},
            "bias": {"d_P": of_inputs},
            "recurrent": {"H": self._states("outputs"), "d_S": of_products},
            "recurrent_bias": {"d_S": of_products},
        }
        made = list[KernelCall]()
        for name in ("weight", "recurrent", *self._layer._biases):
            if self._site.trains(self._prefix + name):
                operands = {**sources[name], f"d_{name}": self._site.gradient(self._prefix + name)}
                made += self._run(f"{name} gradient", operands, "backward parameters")
        return made

    def input_delta(self, *, is_added: bool) -> list[KernelCall]:
        """The calls that set the input's delta, or add to it."""
        delta = self._site.input_deltas[0]
        if delta is None:
            return []
        accumulate = ["d_I"] if is_added or self._site.accumulate[0] else []
        operands = {**self._parameters("weight"), "d_P": self._deltas("inputs"), "d_I": delta}
        return self._run("input delta", operands, "backward data", accumulate)

    def lengths_delta(self) -> list[KernelCall]:
        """The calls that set the delta of the lengths, which is 0."""
        delta = self._site.input_deltas[1] if self._has_lengths else None
        if delta is None or self._site.accumulate[1]:
            return []
        return self._run("no delta", {"Z": delta}, "backward data")


def _slot(array: Array, slot: int, elements: int) -> Array:
    """One of the slots of so many elements of each sample's part of an array."""
    return replace(array, offset=array.offset + slot * elements, elements=elements - array.per_sample)


@lru_cache(256)
def _programs(kind: type[_Recurrent], sizes: _Sizes, biases: tuple[str, ...]) -> dict[str, Program]:
    """The programs of one direction, by name."""
    return _of_a_position(kind, sizes, biases) | _of_all_positions(sizes, biases)


def _of_a_position(kind: type[_Recurrent], sizes: _Sizes, biases: tuple[str, ...]) -> dict[str, Program]:
    """The programs that run once for each position."""
    samples, units, rows = sizes.samples, sizes.units, sizes.rows
    n, f, u = indexes("n f u")
    before, own = Tensor("H", (samples, units)), Tensor("P", (samples, rows))
    built = Builder([before, own] if kind.has_memory else [before])
    recurrent = built.parameter("recurrent", rows, units)
    value: Expression = built.sum("R", (n, f), recurrent(f, u) * before(n, u))(n, f)
    if kind.has_memory:
        value = own(n, f) + value
    elif biases:
        value = value + built.parameter(biases[-1], rows)(f)
    built.sum("S", (n, f), value)
    products = built.program

    parts = [Tensor(f"G{number}", (samples, units)) for number in range(kind.gates * (1 if kind.has_memory else 2))]
    state, mask = Tensor("B", (samples, units)), Tensor("M", (samples, 1))
    wanted = [*parts, state]
    built = Builder([*wanted, mask] if sizes.has_lengths else wanted)

    def cut(value: Expression) -> Expression:
        return value * mask(n, 0) if sizes.has_lengths else value

    kind.cell(built, [part(n, u) for part in parts], state(n, u), cut)
    cell = built.program
    if kind.has_memory:
        memory = next(one.output.tensor for one in cell.statements if one.output.tensor.name == "C")
        cell = replace(cell, outputs=(*cell.outputs, memory))

    zeros = Tensor("Z", (samples, units))
    return {
        "zeros": Program((), (zeros,), (filled(zeros, Number(0.0)),)),
        "products": products,
        "cell": cell,
        "cell deltas": differentiate(cell, [tensor.name for tensor in wanted]),
        "product deltas": differentiate(products, ["H"]),
    }


def _of_all_positions(sizes: _Sizes, biases: tuple[str, ...]) -> dict[str, Program]:
    """The programs that run once, over all positions."""
    samples, channels, width, units, rows, shift, is_sequence, _ = sizes
    n, t, f, u, c = indexes("n t f u c")
    given, sums = Tensor("I", (samples, channels, width)), Tensor("P", (samples, width, rows))
    states = Tensor("H", (samples, width + 1, units))
    output = Tensor("O", (samples, units, width) if is_sequence else (samples, units))

    built = Builder([given])
    weight = built.parameter("weight", rows, channels)
    value: Expression = built.sum("Q", (n, t, f), weight(f, c) * given(n, c, t))(n, t, f)
    built.sum("P", (n, t, f), value + built.parameter("bias", rows)(f) if biases else value)
    inputs = built.program

    # Where the last state alone is the output, its slot is a number, or where a sample ends.
    lengths = Tensor("L", (samples, 1))
    at_end = sizes.finds_ends
    slot = t + shift if is_sequence or at_end else Affine((), shift * width)
    end = apply("equal", apply("min", lengths(n, 0), Number(width)), Position(t + 1))
    built = Builder([states, *[lengths] * at_end])
    state: Expression = states(n, slot, u)
    built.sum("O", (n, u, t) if is_sequence else (n, u), state * end if at_end else state, shape=output.shape)
    result = built.program
    delta = replace(output, name="D")
    built = Builder([delta, *[lengths] * at_end])
    state = delta(*((n, u, t) if is_sequence else (n, u)))
    built.sum("H", (n, slot, u), state * end if at_end else state, shape=states.shape)
    spread = built.program

    d_sums, before_all = replace(sums, name="d_S"), t + 1 - shift
    built = Builder([d_sums, states])
    built.sum("d_recurrent", (f, u), d_sums(n, t, f) * states(n, before_all, u), shape=(rows, units))
    recurrent_gradient = built.program
    built = Builder([d_sums])
    built.sum("d_recurrent_bias", (f,), d_sums(n, t, f), shape=(rows,))
    masks = Builder([lengths])
    masks.sum("M", (n, t), apply("less", Position(t), lengths(n, 0)), shape=(samples, width))
    none = replace(lengths, name="Z")
    return {
        "mask": masks.program,
        "no delta": Program((), (none,), (filled(none, Number(0.0)),)),
        "inputs": inputs,
        "output": result,
        "spread": spread,
        "recurrent gradient": recurrent_gradient,
        "recurrent_bias gradient": built.program,
        "weight gradient": differentiate(inputs, ["weight"]),
        "input delta": differentiate(inputs, ["I"]),
        **({"bias gradient": differentiate(inputs, ["bias"])} if biases else {}),
    }


@dataclass(frozen=True)
class LSTM(_Recurrent):
    """A long short-term memory: what a series has said so far, for each of its positions.

        i, f, g, o = the four parts of weight @ input[t] + bias + recurrent @ output[t - 1]
        memory[t] = sigmoid(f) * memory[t - 1] + sigmoid(i) * tanh(g)
        output[t] = sigmoid(o) * tanh(memory[t])

    (channels, width) -> (units, width), with zeros before the first position (Hochreiter and Schmidhuber, *Long
    Short-Term Memory*, 1997; Gers et al., 2000). Parameters, the gates in PyTorch's order: ``weight`` (4 * units,
    channels), ``recurrent`` (4 * units, units), ``bias`` (4 * units,); of the second direction ``reverse_weight``, ...

    Args:
        units: of the output, for each direction.
        bias: whether there is one.
        bidirectional: walk both ways; the outputs of the way back are behind the others, as units.
        reverse: walk from the last position to the first.
        return_sequences: whether the output has all positions, or the last state of each direction: (units,).
        initializer: how ``weight`` starts, see blobnet.layers.initializers; ``recurrent`` starts as fan_in_uniform.

    A second input has the length of each sample, (1,), from 1 to ``width``: ``LSTM(32)(series, lengths)``. Outputs
    beyond it are zeros, the last state is that at the sample's last position, and the way back begins there, as of
    PyTorch's packed sequences.

    Raises:
        OptionError: an argument is out of range; or values between layers have too few bits for the lengths.
        ShapeError: the input is no series, or the lengths are not (1,).
    """

    gates: ClassVar[int] = 4
    has_memory: ClassVar[bool] = True

    @staticmethod
    def cell(built: Builder, gates: list[Read], before: Read, cut: _Cut) -> None:
        enter, forget, value, leave = gates
        kept = apply("sigmoid", forget) * before + apply("sigmoid", enter) * apply("tanh", value)
        memory = built.sum("C", before.map, cut(kept))
        built.sum("O", before.map, cut(apply("sigmoid", leave) * apply("tanh", memory(*before.map))))


@dataclass(frozen=True)
class GRU(_Recurrent):
    """A gated recurrent unit: what a series has said so far, for each of its positions.

        r, z = sigmoid of the first two parts of p + q, p = weight @ input[t] + bias and
        n = tanh(p[2] + r * q[2]), q = recurrent @ output[t - 1] + recurrent_bias
        output[t] = (1 - z) * n + z * output[t - 1]

    (channels, width) -> (units, width), as PyTorch has it, and Keras with ``reset_after`` (Cho et al., *Learning Phrase
    Representations using RNN Encoder-Decoder*, 2014). Parameters, the gates in PyTorch's order: ``weight`` (3 * units,
    channels), ``recurrent`` (3 * units, units), ``bias`` and ``recurrent_bias`` (3 * units,); of the second direction
    ``reverse_weight``, ... Arguments, lengths and errors are those of LSTM.
    """

    gates: ClassVar[int] = 3
    has_memory: ClassVar[bool] = False

    @staticmethod
    def cell(built: Builder, gates: list[Read], before: Read, cut: _Cut) -> None:
        inputs, products = gates[:3], gates[3:]
        reset, update = (apply("sigmoid", inputs[gate] + products[gate]) for gate in range(2))
        value = apply("tanh", inputs[2] + reset * products[2])
        built.sum("O", before.map, cut(value + update * (before - value)))

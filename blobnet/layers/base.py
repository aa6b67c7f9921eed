"""The layer contract (docs/adding_a_layer.md).

A layer is a frozen dataclass of hyperparameters: it knows no device, no buffers and no neighbours. The planner asks it
for shapes, parameters, halos and placements, finds memory for its blobs, and then asks it for kernel calls.
"""

from __future__ import annotations

import enum
import math
import numbers
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from blobnet.errors import OptionError, ShapeError
from blobnet.implementations.base import Implementation
from blobnet.launch.elementwise import EpilogueOp
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, Blob, KernelCall, Tuning
from blobnet.launch.task import Task
from blobnet.launch.work_sizes import copy_call
from blobnet.memory.blob import AXES, AXIS_NAMES, FLOAT32, FloatArray, Halo, Shape, StorageType
from blobnet.support.checks import check_count, plain
from blobnet.support.foreign import Explained
from blobnet.support.old_names import old_names

if TYPE_CHECKING:
    from blobnet.layers.lowered import Bound


class Placement(enum.Enum):
    """The places where a layer's output (or, backward, its input's delta) may lie."""

    SEPARATE = "separate"
    """Memory of its own."""
    IN_PLACE = "in place"
    """May overwrite an input (backward: its output's delta) as the kernel reads it, cell by cell."""
    SHARED = "shared"
    """Is the same values in the same memory: no launch at all."""
    CONCAT = "concat"
    """The inputs lie one after the other in the output, unit by unit: no launch at all."""
    PART = "part"
    """Is some units of the input, in its memory: no launch at all."""


@dataclass(frozen=True)
class Placements:
    """Where a layer's blobs may lie.

    Attributes:
        output: the output, seen from the inputs; never over what the backward pass reads (``kept``).
        delta: the inputs' deltas, seen from the output's.
        first_unit: of PART, the first of the input's units that is the output's.
    """

    output: Placement = Placement.SEPARATE
    delta: Placement = Placement.SEPARATE
    first_unit: int = 0


@dataclass(frozen=True)
class TakesCells:
    """Which blobs of a layer, and their deltas, its kernels take with cells for elements (docs/memory_layout.md).

    Attributes:
        inputs, output: whether they do.
        alike: whether all must have the same.
    """

    inputs: bool = False
    output: bool = False
    alike: bool = False


#: What layers say that make each value of those at the same place.
ALIKE = TakesCells(inputs=True, output=True, alike=True)


@dataclass(frozen=True)
class Kept:
    """What the backward calls read of the forward pass: the planner keeps it.

    Attributes:
        inputs: what the forward pass read.
        output: what it wrote.
        frozen: whether they read the inputs also where all parameters of the layer are frozen, and only deltas are
            wanted.
    """

    inputs: bool = False
    output: bool = False
    frozen: bool = True


@dataclass(frozen=True)
class Nonlinearity:
    """The function that an activation layer is.

    Attributes:
        text: the function as ``activation`` options take it.
        step: the operation on single values; None for a function of all units at a position.
        gives_probabilities: True if its values are probabilities, which no loss that takes logits should get.
    """

    text: str
    step: EpilogueOp | None
    gives_probabilities: bool


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of a layer.

    ``initializer`` names a function of blobnet.layers.initializers; ``decayed`` says whether weight decay applies to
    it; what is not ``trainable`` (running statistics) has no gradient; ``type`` is that of its numbers in memory.
    """

    name: str
    shape: tuple[int, ...]
    initializer: str
    decayed: bool = False
    trainable: bool = True
    type: StorageType = FLOAT32

    @property
    def elements(self) -> int:
        """Values in the parameter."""
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True)
class LayerContext:
    """A layer's place in a plan: the memory that it got. The only thing that turns a layer into kernel calls.

    Attributes:
        name: the layer's name in the model.
        inputs, output: the blobs to read and to write.
        shapes: of the inputs, as the layer's other methods take them; blobs may lie in memory in other planes.
        input_deltas: dL/d input, None for an input that needs none.
        output_delta: dL/d output; None in an inference plan.
        accumulate: for each input delta, whether to add to what is there (``+=``) instead of setting it.
        training: whether the layer runs as in training (batch statistics, dropout): not in an inference plan, and not
            where all its trainable parameters are frozen.
        frozen: the trainable parameters that are not trained, where others of the layer are.
        epilogue: what to do to each value for the layers after it; only what the layer ``fuses``.
        fused_activations: those of the layers after it whose slopes the backward calls take on (``recomputes_output``):
            ``output_delta`` is then that of the last of these layers.
        in_place_of: the input whose memory is also the output's, or None.
        copy_reasons, delta_copy_reasons: why an input, or its delta, does not share memory with the output, or with the
            output's delta, of a layer that may have it so; by position.
        tuning: values for the kernels' tunables.
        batch_size: the plan's samples; a batch may have fewer.
        sample_type: NumPy's name for the type of the samples that enter the network.
        augmented: whether samples change on their way in, as ``augmentation`` says.
        shards: of a step, where batch norms are over all of them; else 1.
        ordinal: a number of this layer's own, the same in every plan of the model (random streams).
        array: makes or finds memory: see :meth:`parameter`, :meth:`gradient` and :meth:`memory`.
    """

    name: str
    inputs: tuple[Blob, ...]
    output: Blob
    array: Callable[[ArrayHandle], Array]
    input_deltas: tuple[Blob | None, ...] = ()
    output_delta: Blob | None = None
    accumulate: tuple[bool, ...] = ()
    training: bool = False
    frozen: frozenset[str] = frozenset()
    epilogue: tuple[EpilogueOp, ...] = ()
    fused_activations: tuple[EpilogueOp, ...] = ()
    in_place_of: int | None = None
    copy_reasons: Mapping[int, str] = field(default_factory=dict)
    delta_copy_reasons: Mapping[int, str] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    batch_size: int = 1
    sample_type: str = "float32"
    augmented: bool = False
    shards: int = 1
    ordinal: int = 0
    shapes: tuple[Shape, ...] = ()

    def in_cells(self, kind: StorageType) -> LayerContext:
        """Return the site with cells for the elements of all blobs whose units fill cells."""

        def fits(blob: Blob) -> Blob:
            return blob.in_cells(kind) if blob.shape.units % kind.cell == 0 and blob.type.cell == 1 else blob

        return replace(
            self,
            inputs=tuple(map(fits, self.inputs)),
            output=fits(self.output),
            input_deltas=tuple(blob and fits(blob) for blob in self.input_deltas),
            output_delta=self.output_delta and fits(self.output_delta),
        )

    def parameter(self, name: str) -> Array:
        """A parameter of this layer."""
        return self.array(ArrayHandle(ArrayKind.PARAMETER, name))

    def gradient(self, name: str) -> Array:
        """The gradient of a parameter of this layer; of a frozen one work space, which nobody reads but the layer."""
        return self.array(ArrayHandle(ArrayKind.GRADIENT, name))

    def trains(self, name: str) -> bool:
        """Return True if the gradient of a parameter is wanted."""
        return self.training and name not in self.frozen

    def memory(self, name: str, elements: int = 0, per_sample: int = 0) -> Array:
        """Memory of the layer's own: ``elements + count * per_sample`` float32 elements.

        The same name is the same memory in every call of this site; it lives from the first call that names it to the
        last, so what forward leaves there is there for backward.
        """
        return self.array(ArrayHandle(ArrayKind.MEMORY, name, elements, per_sample))

    def common(self, name: str, elements: int) -> Array:
        """The same, which all shards of a process have together."""
        return self.array(ArrayHandle(ArrayKind.COMMON, name, elements))

    def shared(self, name: str) -> Array:
        """Memory that is filled from outside: ``samples`` (densely packed) and ``rows`` (which of them are the batch,
        int32), ``step`` (seed and step, uint32), ``augmentation`` (a row for each sample: blobnet/augment/).
        """
        return self.array(ArrayHandle(ArrayKind.SHARED, name))

    def copied_input(self, position: int, target: Blob) -> list[KernelCall]:
        """Brings an input to its place in the output: no call where it lies there."""
        reason = self.copy_reasons.get(position, "")
        return copy_call(f"{self.name} forward", self.inputs[position], target, self.tuning, reason=reason)

    def copied_delta(self, position: int, source: Blob) -> list[KernelCall]:
        """Brings an input's delta from its place in the output's: no call where it lies there, or is not wanted."""
        target = self.input_deltas[position]
        if target is None:
            return []
        label, reason = f"{self.name} backward data", self.delta_copy_reasons.get(position, "")
        return copy_call(label, source, target, self.tuning, accumulate=self.accumulate[position], reason=reason)

    @property
    def delta(self) -> Blob:
        """The output's delta, where there must be one."""
        assert self.output_delta is not None, f"{self.name}: backward calls asked of an inference plan"
        return self.output_delta


def _refused(symbol: str) -> Callable[..., Node]:
    """An operator that nodes do not have."""

    def refuse(self: Node, other: object = None) -> Node:
        operand = "a node" if isinstance(other, Node) else "nothing" if other is None else repr(other)
        rule = "nodes can be added, subtracted, multiplied, divided and raised to numbers: other arithmetic is layers'"
        hint = "layers.Constant(array)() is the node of an array; any formula is a layers.Contraction."
        raise OptionError(symbol, rule, operand=operand, hint=hint)

    return refuse


def _with_number(symbol: str, formula: str) -> Callable[..., Node]:
    """An operator of a node ``x`` and a number ``r``: ``formula`` of both."""

    def apply(self: Node, other: object) -> Node:
        if isinstance(other, bool) or not isinstance(other, numbers.Real) or not math.isfinite(other):
            return _refused(symbol)(self, other)
        if symbol == "/" and formula == "x / r" and not other:
            raise OptionError(symbol, "a node must be divided by a number other than 0", operand=other)
        value = formula.replace("x", "I[n, c, ...]").replace("r", f"({float(other)!r})")
        text = f"function (I[N, C, ...]) -> (O) {{ O[n, c, ...] = +({value}); }}"
        return Layer.kinds["Contraction"](text)(self)  # type: ignore[call-arg]

    return apply


@dataclass(frozen=True, eq=False)
class Node:
    """A layer's output in a graph that is being built.

    Attributes:
        layer: whose.
        inputs: what it reads.
        shape: of a sample, known at once.
        weights: the values of the layer's parameters, by name, of a node that was taken out of a model.
    """

    layer: Layer
    inputs: tuple[Node, ...]
    shape: Shape
    weights: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)

    #: NumPy's numbers and arrays leave operators to nodes.
    __array_ufunc__: ClassVar[None] = None

    def __add__(self, other: Node | float) -> Node:
        if isinstance(other, Node):
            return Layer.kinds["Add"]()([self, other])
        return _with_number("+", "x + r")(self, other)

    def __radd__(self, other: object) -> Node:
        """Return the node itself for ``sum(nodes)``, which begins with 0."""
        return self if isinstance(other, int) and other == 0 else self + other  # type: ignore[operator]

    def __mul__(self, other: Node | float) -> Node:
        if isinstance(other, Node):
            return Layer.kinds["Multiply"]()([self, other])
        return _with_number("*", "x * r")(self, other)

    def __sub__(self, other: Node | float) -> Node:
        return self + -other if isinstance(other, Node) else _with_number("-", "x - r")(self, other)

    def __truediv__(self, other: Node | float) -> Node:
        return self * (1 / other) if isinstance(other, Node) else _with_number("/", "x / r")(self, other)

    def __neg__(self) -> Node:
        return self * -1

    def __getitem__(self, key: object) -> Node:
        """Refused; it would also make Python take a node for a sequence."""
        rule = "a part of a node's values is what a layer makes of it"
        hint = "layers.Slice(((0, 2),))(node) takes the first two units, Split several parts."
        raise OptionError("[]", rule, key=repr(key), hint=hint)

    __rmul__ = __mul__
    __rsub__ = _with_number("-", "r - x")
    __rtruediv__ = _with_number("/", "r / x")
    __pow__ = _with_number("**", "pow(x, r)")
    __rpow__ = _refused("**")
    __matmul__ = __rmatmul__ = _refused("@")


#: What layers with kernels of their own once gave, and what they give instead.
_OLD_HOOKS = {
    "backward_reads_inputs": "kept = Kept(inputs=True)",
    "frozen_reads_inputs": "kept = Kept(inputs=True, frozen=False)",
    "backward_reads_output": "kept = Kept(output=True)",
    "delta_placement": "def placement(self, inputs, training): return Placements(delta=...)",
}


class _Checks:
    """Checks for a layer's class: their errors begin with the layer's name."""

    subject: str

    def _require(self, condition: bool, rule: str, *, hint: str | None = None, **received: object) -> None:
        if not condition:
            raise OptionError(self.subject, rule, hint=hint, **received)

    def _require_shape(self, condition: bool, rule: str, *, hint: str | None = None, **received: object) -> None:
        if not condition:
            raise ShapeError(self.subject, rule, hint=hint, **received)

    def _require_counts(self, *names: str) -> None:
        for name in names:
            check_count(self.subject, name, getattr(self, name))

    def _require_exact(self, count: int, kind: StorageType) -> None:
        """Raises OptionError where whole numbers up to ``count``, or 2 / epsilon, are not exact in a type."""
        rule = "numbers must be exact in the type that lies between layers"
        hint = "precision='fp32' and storage='float32' have 24 bits."
        self._require(count <= 2 / kind.epsilon, rule, count=count, type=kind.name, hint=hint)

    def _require_rank(self, shape: Shape, rank: int) -> None:
        axes = "(" + ", ".join(("units", *AXIS_NAMES[AXES - rank :])) + ("" if rank else ",") + ")"
        self._require_shape(shape.rank == rank, f"the input must have the axes {axes}", input=shape)


@dataclass(frozen=True, kw_only=True)
class Layer(_Checks, metaclass=Explained):
    """Base of all layers. Subclasses are final: none inherits from another that can be used itself."""

    name: str | None = None

    #: Every layer class by its name, for files and for ``a + b``; not the bases, whose names start with an underscore.
    kinds: ClassVar[dict[str, type[Layer]]] = {}

    #: Why values have to move, of a layer with launches that do nothing else: plans tell it.
    copy_reason: ClassVar[str] = ""

    #: Inputs that the layer takes: (least, most); None: any number.
    arity: ClassVar[tuple[int, int | None]] = (1, 1)

    #: What the planner keeps for the backward pass.
    kept: ClassVar[Kept] = Kept()

    #: The function of an activation; other layers have none.
    nonlinearity: ClassVar[Nonlinearity | None] = None

    #: Whether samples enter a network by this layer.
    takes_samples: ClassVar[bool] = False

    #: The inputs whose values are numbers of things, which must stay as they are: no statistics fit them.
    takes_numbers: ClassVar[tuple[int, ...]] = ()

    #: Whether the output holds values of the inputs as they are, in other places.
    moves_values: ClassVar[bool] = False

    #: Whether the layer reads a sample of any shape as one flat vector.
    flattens_input: ClassVar[bool] = False

    #: Whether each value depends on the values at its own position alone. Such a layer takes its elements in any memory
    #: shape, so Flatten needs no copy in front of it.
    elementwise: ClassVar[bool] = False

    #: Whether a sample's outputs depend on the others of its batch, where parameters of the layer are trained.
    couples_samples: ClassVar[bool] = False

    #: Whether the backward calls can multiply the output's delta by the slope of ``site.fused_activations``. They make
    #: the output again from what they keep anyway, and the slope of it, so that layers which are steps of known slope
    #: need no backward calls and no blob of their own. Not asked of a layer whose parameters are all frozen.
    recomputes_output: ClassVar[bool] = False

    #: The hyperparameter that is the number of output units, where that can be chosen.
    sized_by: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for old, new in _OLD_HOOKS.items():
            if old in vars(cls):
                rule = "the planner asks for what this method says by another name, and gradients would be wrong"
                raise OptionError(cls.__name__, rule, method=old, hint=f"{new}, see blobnet/layers/base.py.")
        if not cls.__name__.startswith("_"):
            Layer.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Makes the layer hashable and equal to its like; subclasses check their hyperparameters after this."""
        for item in fields(self):
            object.__setattr__(self, item.name, plain(getattr(self, item.name)))

    @property
    def kind(self) -> str:
        """The layer's class, for people and files."""
        return type(self).__name__

    @property
    def subject(self) -> str:  # type: ignore[override]
        """The name of this layer in errors."""
        return f"{self.name} ({self.kind})" if self.name else self.kind

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        """Return True if ``forward`` can do these steps to each value before it stores it, as ``site.epilogue``."""
        return False

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        """Return the operations on single values that this layer is, in place; None if it is more.

        The planner asks only where the layer runs in place, and nobody else reads what is there before.
        """
        return None

    def config(self) -> dict[str, Any]:
        """The hyperparameters, as keyword arguments that build an equal layer."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __call__(self, *inputs: Node | Sequence[Node]) -> Node:
        """Puts this layer after one node, or a list of nodes, of a graph.

        Raises:
            ShapeError: the number of inputs or their shapes do not fit the layer.
        """
        nodes = tuple(
            node
            for item in inputs
            for node in (item if isinstance(item, Iterable) and not isinstance(item, str) else (item,))
        )
        for node in nodes:
            if not isinstance(node, Node):
                hint = f"call the layer first: {node.kind}(...)() is a node." if isinstance(node, Layer) else None
                received = node.kind if isinstance(node, Layer) else repr(node)
                self._require(
                    False,
                    "a layer stands behind nodes: what other layers gave when called",
                    received=received,
                    hint=hint,
                )
        least, most = self.arity
        wanted = str(least) if most == least else f"at least {least}"
        fits = least <= len(nodes) <= (most if most is not None else len(nodes))
        self._require_shape(fits, f"the layer takes {wanted} input(s)", inputs=len(nodes))
        return Node(self, nodes, self.output_shape([node.shape for node in nodes]))

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of the output; ShapeError names the layer, the rule and the shapes received."""

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        """The layer's parameters."""
        return ()

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        """Zeros that the forward and parameter-gradient kernels read around every input."""
        return Halo()

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        """Zeros that the backward kernels read around the output's delta."""
        return Halo()

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        """Return True if the layer's kernels for CPUs run faster if its blobs have the same row pitch (flat planes)."""
        return self.elementwise

    def takes_cells(self, site: LayerContext) -> TakesCells:
        """Return which of the site's blobs, which have numbers yet, may have cells instead."""
        return TakesCells()

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        """Return where the blobs may lie for inputs of these shapes, in training or not."""
        return Placements()

    @abstractmethod
    def forward(self, site: LayerContext) -> list[KernelCall]:
        """Calls that write ``site.output``."""

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        """Calls that set the gradients of all parameters that ``site.trains``; not asked for where all are frozen.

        They may do the work of :meth:`backward_data` as well, which then has no calls.
        """
        return []

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        """Calls that set, or add to, every input delta that is not None. They come after backward_parameters."""
        return []

    def contraction(self, inputs: Sequence[Shape]) -> Bound | None:
        """The statements of the contraction language that the layer is, for inputs of these shapes, if it is that."""
        return None

    def alternatives(self, site: LayerContext) -> dict[Task, list[Implementation]]:
        """Return the candidates of each task that can be done in several ways, for tuning to measure."""
        return {}

    def expanded(self) -> tuple[Layer, ...]:
        """The layers that this one stands for: itself, with an activation split off after it."""
        return (self,)

    def with_outputs(self, count: int) -> Layer:
        """The same layer with ``count`` output units; OptionError if their number is not the layer's to choose."""
        self._require(bool(self.sized_by), "the number of its outputs must be one that can be chosen", outputs=count)
        return replace(self, **{self.sized_by: count})  # type: ignore[arg-type]


__getattr__ = old_names(__name__, {"Site": LayerContext})

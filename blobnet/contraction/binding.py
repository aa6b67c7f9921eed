"""From the syntax tree and the inputs' shapes to the intermediate form: sizes, ranges, shapes of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from blobnet.contraction import ranges
from blobnet.contraction.form import (
    LIMIT,
    NEUTRAL,
    Affine,
    Apply,
    Constraint,
    Expression,
    Number,
    Position,
    Program,
    Read,
    Shape,
    Statement,
    Tensor,
)
from blobnet.contraction.syntax import Call, Contraction, Element, Elementwise, Literal, Name, Node, Tree, walk
from blobnet.errors import ContractionError, OptionError, near_matches

_NO_INDEX = "{!r} is a tensor and cannot be an index"
_AFFINE = "maps are sums of indexes times whole numbers, and a whole number."


def bind(tree: Tree, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Program:
    """The program that ``tree`` is for inputs of these shapes.

    Args:
        tree: from :func:`blobnet.contraction.syntax.parse`.
        shapes: of every input, by its name.
        sizes: whole numbers for names that the text uses as sizes, beside those that shapes give.

    Raises:
        ContractionError: shapes or sizes do not fit the text, or an index, a size or a map makes no sense with them.
        OptionError: a shape is given for what is no input.
    """
    return _Binder(tree, sizes).program(shapes)


class _Binder:
    def __init__(self, tree: Tree, sizes: Mapping[str, int]) -> None:
        self.tree = tree
        self.sizes = dict(sizes)
        self.tensors: dict[str, Tensor] = {}

    def fail(self, node: Node, rule: str, hint: str | None = None, **received: object) -> ContractionError:
        return ContractionError.at(self.tree.text, node.start, node.end, rule, hint=hint, **received)

    def program(self, shapes: Mapping[str, Sequence[int]]) -> Program:
        self.bind_inputs(shapes)
        inputs = tuple(self.tensors.values())
        statements = tuple(
            self.contraction(statement) if isinstance(statement, Contraction) else self.elementwise(statement)
            for statement in self.tree.statements
        )
        return Program(inputs, tuple(self.tensors[name.name] for name in self.tree.outputs), statements)

    def add(self, node: Node, name: str, shape: Shape) -> Tensor:
        """A tensor that is not too large."""
        if math.prod(shape) >= LIMIT:
            raise self.fail(node, f"{name!r} must have less than 2^31 elements", shape=shape)
        if name in self.sizes:
            raise self.fail(node, f"{name!r} is both a size and a tensor")
        self.tensors[name] = Tensor(name, shape)
        return self.tensors[name]

    # Sizes and shapes

    def bind_inputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        names = [given.name for given in self.tree.parameters]
        for name in shapes:
            if name not in names:
                raise OptionError(name, "the contraction has no such input", inputs=", ".join(names) or "none")
        for given in self.tree.parameters:
            if given.name not in shapes:
                raise self.fail(given, f"the input {given.name!r} is missing", given=", ".join(shapes) or "none")
            shape = tuple(shapes[given.name])
            if 0 in shape:
                raise self.fail(given, f"{given.name!r} must not be empty", shape=shape)
            if given.sizes is not None and len(shape) != len(given.sizes):
                raise self.fail(given, f"{given.name!r} must have {_axes(len(given.sizes))}", shape=shape)
            for size, actual in zip(given.sizes or (), shape, strict=given.sizes is not None):
                expected = self.sizes.setdefault(size.name, actual) if isinstance(size, Name) else self.size(size)
                if expected != actual:
                    what = f"{size.name} is {expected}" if isinstance(size, Name) else f"this axis has {expected}"
                    raise self.fail(size, f"{what}, but {given.name!r} has {actual} here", shape=shape)
            self.add(given, given.name, shape)

    def size(self, node: Node) -> int:
        """A whole number: names are sizes, and division rounds down."""
        form = self.affine(node)
        for part in walk(node):
            if isinstance(part, Name) and part.name not in self.sizes:
                hint = near_matches(part.name, sorted(self.sizes)) if self.sizes else None
                raise self.fail(part, f"{part.name!r} is no size", hint)
        return form.offset

    def affine(self, node: Node) -> Affine:
        """An affine form: names are sizes, else indexes."""
        if isinstance(node, Literal):
            if not isinstance(node.value, int):
                raise self.fail(node, "indexes and sizes are whole numbers")
            return Affine((), node.value)
        if isinstance(node, Name):
            if node.name in self.tensors:
                raise self.fail(node, _NO_INDEX.format(node.name), _AFFINE)
            return Affine((), self.sizes[node.name]) if node.name in self.sizes else Affine.index(node.name)
        if isinstance(node, Element):
            raise self.fail(node, "an element cannot be an index", _AFFINE)
        assert isinstance(node, Call)
        forms = [self.affine(argument) for argument in node.arguments]
        if node.function == "negate":
            return -forms[0]
        if node.function in ("add", "subtract"):
            return forms[0] + forms[1] if node.function == "add" else forms[0] - forms[1]
        constants = [form.offset for form in forms if not form.terms]
        if node.function == "multiply" and constants:
            constant, other = (constants[0], forms[1]) if not forms[0].terms else (constants[-1], forms[0])
            return other * constant
        if node.function in ("divide", "remainder") and len(constants) == 2:
            if constants[1] == 0:
                raise self.fail(node, "a size is divided by zero")
            quotient, remainder = divmod(constants[0], constants[1])
            return Affine((), quotient if node.function == "divide" else remainder)
        raise self.fail(node, "this is not affine in the indexes", _AFFINE)

    def span(self, node: Node, form: Affine, box: Mapping[str, range]) -> range:
        """The values of a form over a box, which must be 32-bit numbers, like all that it is made of."""
        reached = form.range(box)
        parts = [reached.start, reached.stop - 1, form.offset, *(factor for _, factor in form.terms)]
        if min(parts) < -LIMIT or max(parts) >= LIMIT:
            raise self.fail(node, "indexes must fit 32 bits", least=min(parts), greatest=max(parts))
        return reached

    # Contractions

    def contraction(self, node: Contraction) -> Statement:
        places = self.index_places(node)
        if node.name in places:  # Its shape, which follows from the maps, is not known yet.
            raise self.fail(places[node.name], _NO_INDEX.format(node.name), _AFFINE)
        maps = tuple(self.affine(part) for part in node.maps)
        elements = [part for part in walk(node.value) if isinstance(part, Element)]
        edges: list[tuple[Node, Constraint]] = []
        for element in elements:
            shape = self.tensors[element.name].shape
            if len(element.maps) != len(shape):
                rule = f"{element.name!r} has {_axes(len(shape))}, but {_are(len(element.maps))} read"
                raise self.fail(element, rule, shape=shape)
            edges += zip(element.maps, map(Constraint, map(self.affine, element.maps), shape), strict=True)
        explicit: list[tuple[Node, Constraint]] = []
        for left, right in node.constraints:
            size = self.size(right)
            if size >= LIMIT:
                raise self.fail(right, "a size must be less than 2^31", size=size)
            explicit.append((left, Constraint(self.affine(left), size)))
        shape = self.output_shape(node, maps, [constraint for _, constraint in explicit + edges])
        self.agree(node, [constraint for _, constraint in explicit], edges)
        output = Read(self.add(node, node.name, shape), maps)
        edges += zip(node.maps, output.edges, strict=True)
        everything = [*explicit, *edges]

        box = self.box(node, [constraint for _, constraint in everything], places)
        for part, constraint in everything:
            reached = self.span(part, constraint.form, box)
            if reached.stop <= 0 or reached.start >= constraint.size:
                known = isinstance(part, Name) and part.name in self.sizes and part.name
                hint = f"{known!r} is a size here, and an index needs another name." if known else None
                raise self.fail(
                    part, "no term can be here: nothing of its range is inside", hint, least=reached.start,
                    greatest=reached.stop - 1, size=constraint.size,
                )  # fmt: skip
        expression = self.value(node.value, NEUTRAL[node.aggregation])
        constraints = ranges.needed((constraint for _, constraint in everything), box)
        return Statement(output, node.aggregation, expression, tuple(box.items()), constraints)

    def agree(
        self, node: Contraction, explicit: Sequence[Constraint], edges: Sequence[tuple[Node, Constraint]]
    ) -> None:
        """An index that only walks along axes has one size, unless a constraint or the output's shape has another.

        Without this, matrices that do not fit would be multiplied in part: terms beyond the smaller size are none.
        """
        forms = [self.affine(part) for part in node.maps]
        forms += [constraint.form for constraint in explicit]
        forms += [edge.form for part, edge in edges if not isinstance(part, Name)]
        settled = {name for form in forms for name in form.indexes}
        sizes: dict[str, int] = {}
        for part, edge in edges:
            if isinstance(part, Name) and part.name in edge.form.indexes and part.name not in settled:
                size = sizes.setdefault(part.name, edge.size)
                if size != edge.size:
                    rule = f"the index {part.name!r} runs along axes of {size} and {edge.size}"
                    hint = f"if the first ones are meant, say how many: ', {part.name} < {min(size, edge.size)}'."
                    raise self.fail(part, rule, hint)

    def output_shape(self, node: Contraction, maps: Sequence[Affine], constraints: Sequence[Constraint]) -> Shape:
        """The sizes that are written after ":"; without, each index must have its range from one map by itself."""
        if node.sizes is not None:
            if len(node.sizes) != len(maps):
                rule = f"{node.name!r} has {_axes(len(maps))}, but {_are(len(node.sizes))} given a size"
                raise self.fail(node, rule)
            shape = tuple(self.size(size) for size in node.sizes)
            for part, size in zip(node.sizes, shape, strict=True):
                if size < 1:
                    raise self.fail(part, "a size must be at least 1", size=size)
            return shape
        shape = ()
        for part, form in zip(node.maps, maps, strict=True):
            sizes = {constraint.size for constraint in constraints if constraint.form == form}
            if len(form.terms) != 1 or form != Affine.index(form.indexes[0]) or len(sizes) != 1:
                why = f"the operands give it {sorted(sizes)}" if len(sizes) > 1 else "no operand gives it"
                raise self.fail(
                    part,
                    f"the size of this axis is ambiguous: {why}",
                    f"write the sizes behind ':', as in '{node.name}[... : N, M]'.",
                )
            shape += (sizes.pop(),)
        return shape

    def index_places(self, node: Contraction) -> dict[str, Node]:
        """Return the place where every index appears first, in the order of the text, the output first."""
        places: dict[str, Node] = {}
        roots = [*node.maps, node.value, *(left for left, _ in node.constraints)]
        for part in (part for root in roots for part in walk(root)):
            if isinstance(part, Name) and part.name not in self.sizes and part.name not in self.tensors:
                places.setdefault(part.name, part)
        return places

    def box(self, node: Node, constraints: Sequence[Constraint], places: Mapping[str, Node]) -> dict[str, range]:
        found = ranges.propagate(constraints)
        box = {}
        for name, place in places.items():
            first, last = found.get(name, (-math.inf, math.inf))
            if first > last:
                raise self.fail(place, f"no term is left: the range of the index {name!r} is empty")
        for name, place in places.items():
            first, last = found.get(name, (-math.inf, math.inf))
            if math.isinf(first) or math.isinf(last):
                raise self.fail(
                    place,
                    f"the index {name!r} has no range",
                    f"bound it by a map of its own or a constraint, as in ', {name} < 3', or mend its name.",
                )
            box[name] = range(int(first), int(last) + 1)
            self.span(place, Affine.index(name), box)
        return box

    def value(self, node: Node, neutral: float) -> Expression:
        """The term of a contraction."""
        if isinstance(node, Literal):
            return Number(float(node.value))
        if isinstance(node, Element):
            return Read(self.tensors[node.name], tuple(self.affine(part) for part in node.maps))
        if isinstance(node, Name):
            if node.name in self.tensors:
                raise self.fail(node, f"{node.name!r} is a tensor: its element must be named", f"'{node.name}[...]'.")
            form = self.affine(node)
            return Position(form) if form.terms else Number(float(form.offset))
        assert isinstance(node, Call)
        self.no_remainder(node)
        arguments = tuple(self.value(argument, neutral) for argument in node.arguments)
        if node.function == "select" and len(arguments) == 2:
            arguments += (Number(neutral),)
        return Apply(node.function, arguments)

    def no_remainder(self, node: Call) -> None:
        if node.function == "remainder":
            raise self.fail(node, "'%' is for sizes", "x - y * floor(x / y).")

    # Element-wise statements

    def elementwise(self, node: Elementwise) -> Statement:
        shape = self.shape(node.value)
        axes = [f"_{axis}" for axis in range(len(shape))]
        output = Read(self.add(node, node.name, shape), tuple(map(Affine.index, axes)))
        expression = self.whole(node.value, output)
        return Statement(output, "=", expression, tuple(zip(axes, map(range, shape), strict=True)))

    def shape(self, node: Node) -> Shape:
        """The shape of an element-wise expression, by NumPy's broadcasting."""
        if isinstance(node, Literal):
            return ()
        if isinstance(node, Name):
            if node.name in self.tensors:
                return self.tensors[node.name].shape
            if node.name in self.sizes:
                return ()
            known = sorted({*self.tensors, *self.sizes})
            hint = near_matches(node.name, known) if known else None
            raise self.fail(node, f"{node.name!r} is neither a tensor nor a size", hint)
        assert isinstance(node, Call)
        self.no_remainder(node)
        shapes = [self.shape(argument) for argument in node.arguments]
        rank = max(map(len, shapes))
        sides = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        sizes = [{size for size in column if size != 1} for column in zip(*sides, strict=True)]
        if any(len(options) > 1 for options in sizes):
            raise self.fail(node, f"shapes do not broadcast: {' with '.join(map(str, shapes))}")
        return tuple(max(options, default=1) for options in sizes)

    def whole(self, node: Node, output: Read) -> Expression:
        """An element-wise expression, every tensor read at the output's element."""
        if isinstance(node, Literal):
            return Number(float(node.value))
        if isinstance(node, Name):
            if node.name not in self.tensors:
                return Number(float(self.sizes[node.name]))
            tensor = self.tensors[node.name]
            axes = list(zip(output.map, output.tensor.shape, strict=True))[len(output.map) - len(tensor.shape) :]
            along = zip(axes, tensor.shape, strict=True)
            return Read(tensor, tuple(form if own == size else Affine() for (form, size), own in along))
        assert isinstance(node, Call)
        return Apply(node.function, tuple(self.whole(argument, output) for argument in node.arguments))


def _axes(count: int) -> str:
    return f"{count} axis" if count == 1 else f"{count} axes"


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"

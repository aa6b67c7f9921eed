"""The language: text to a syntax tree that knows where everything stood.

    function   ::= ["function" "(" parameters ")" "->" "(" names ")" "{"] statement+ ["}"]
    parameter  ::= NAME [ "[" [size ("," size)*] "]" ]                size: a name or a whole number
    statement  ::= NAME "[" expressions [":" expressions] "]" "=" aggregation "(" term ")" ("," constraint)* ";"
                 | NAME "=" expression ";"
    aggregation::= "+" | "*" | ">" | "<"
    term       ::= expression | expression "?" expression             without ":", the term is left out
    constraint ::= sum "<" sum                                        0 <= left < right
    expression ::= comparison ["?" expression ":" expression]
    comparison ::= sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum        ::= product (("+" | "-") product)*
    product    ::= unary (("*" | "/" | "%") unary)*
    unary      ::= "-" unary | primary
    primary    ::= NUMBER | NAME | NAME "(" expressions ")" | NAME "[" [expressions] "]" | "(" expression ")"

"#" starts a comment. The last ";" may be missing. Without the head, inputs are what is read and never assigned, and
outputs what is assigned and not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from blobnet.contraction.form import NEUTRAL
from blobnet.contraction.functions import COMPARISONS, FUNCTIONS
from blobnet.errors import ContractionError, near_matches

AGGREGATIONS = tuple(symbol for symbol in NEUTRAL if symbol != "=")
BINARY = {facts.symbol: name for name, facts in FUNCTIONS.items() if facts.symbol and facts.arguments == 2}
#: Binary operators, those that bind less tightly first; the level of sums.
LEVELS, _SUM = (tuple(FUNCTIONS[name].symbol for name in COMPARISONS), ("+", "-"), ("*", "/", "%")), 1
CALLABLE = {name for name, facts in FUNCTIONS.items() if not facts.symbol} - {"same", "select"}
_TOKEN = re.compile(
    r"(?P<blank>\s+|\#[^\n]*)|(?P<number>(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>->|==|!=|<=|>=|[\[\](){},;:?=+\-*/%<>])",
    re.ASCII,
)
T = TypeVar("T")
#: How deep brackets may nest, and how many operations a statement may have: trees are walked recursively.
_MOST = 100


@dataclass(frozen=True)
class Node:
    """A piece of the text, from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True)
class Literal(Node):
    """A number as it was written; ``value`` is an int if it was written as one."""

    value: int | float


@dataclass(frozen=True)
class Name(Node):
    """A name by itself: a size, an index or a whole tensor."""

    name: str


@dataclass(frozen=True)
class Element(Node):
    """``name[maps]``."""

    name: str
    maps: tuple[Node, ...]


@dataclass(frozen=True)
class Call(Node):
    """A function of :data:`FUNCTIONS`, or "remainder". "select" with two arguments leaves a term out otherwise."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Parameter(Node):
    """An input. ``sizes`` is None for one of any shape."""

    name: str
    sizes: tuple[Node, ...] | None


@dataclass(frozen=True)
class Elementwise(Node):
    """``name = value``; the node is the name."""

    name: str
    value: Node


@dataclass(frozen=True)
class Contraction(Node):
    """``name[maps : sizes] = aggregation(value), left < right, ...``; the node is ``name[...]``."""

    name: str
    maps: tuple[Node, ...]
    sizes: tuple[Node, ...] | None
    aggregation: str
    value: Node
    constraints: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True)
class Tree:
    """A whole function."""

    text: str
    parameters: tuple[Parameter, ...]
    outputs: tuple[Name, ...]
    statements: tuple[Elementwise | Contraction, ...]


@lru_cache(1024)
def parse(text: str) -> Tree:
    """The tree of a function's text, which all layers of one kind share.

    Raises:
        ContractionError: the text is not of the language, or assigns a name twice, or uses one before it is assigned.
    """
    tree = _Parser(text).function()
    _check_names(tree)
    return tree


@dataclass(frozen=True)
class _Token(Node):
    kind: str
    text: str

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end"


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if not match:
            raise ContractionError.at(text, place, place + 1, f"{text[place]!r} is no sign of the language")
        if match.lastgroup and match.lastgroup != "blank":
            yield _Token(place, match.end(), match.lastgroup, match.group())
        place = match.end()
    # What is missing at the end is missing after the last token, not after blank lines.
    last = len(text.rstrip())
    yield _Token(last, last + 1, "end", "")


class _Parser:
    """Recursive descent: a method a rule of the grammar, one for all binary operators."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.place = 0
        self.depth = 0
        self.operations = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.place]

    @property
    def previous_end(self) -> int:
        return self.tokens[self.place - 1].end

    def fail(self, rule: str, hint: str | None = None) -> ContractionError:
        start, end = self.token.start, self.token.end
        if self.place and "\n" in self.text[self.previous_end : start]:
            start = end = self.previous_end  # what is missing at the end of a line is not missing on the next one
        return ContractionError.at(self.text, start, end, rule, hint=hint)

    def accept(self, *symbols: str) -> str:
        """The symbol that stands next, if it is one of these, else ""."""
        found = self.token.text
        if self.token.kind != "symbol" or found not in symbols:
            return ""
        self.place += 1
        return found

    def expect(self, symbol: str, after: str) -> None:
        if not self.accept(symbol):
            raise self.fail(f"{symbol!r} is missing {after}; {self.token} stands there")

    def name(self, what: str) -> _Token:
        token = self.token
        if token.kind != "name":
            raise self.fail(f"{what} must stand here, not {token}")
        self.place += 1
        return token

    def function(self) -> Tree:
        headed = self.token.text == "function" and self.tokens[self.place + 1].text == "("
        parameters: tuple[Parameter, ...] = ()
        outputs: tuple[Name, ...] = ()
        if headed:
            self.place += 1
            self.expect("(", "after 'function'")
            parameters = self.listed(self.parameter)
            self.expect(")", "after the inputs")
            self.expect("->", "after the inputs")
            self.expect("(", "before the outputs")
            outputs = self.listed(self.output)
            self.expect(")", "after the outputs")
            self.expect("{", "before the statements")
        statements = [self.statement()]
        while self.accept(";"):
            if self.token.kind == "end" or self.token.text == "}":
                break
            statements.append(self.statement())
        if headed:
            self.expect("}", "after the statements")
        if self.token.kind != "end":
            raise self.fail(f"{self.token} must not follow here", hint="statements end in ';'.")
        if not headed:
            parameters, outputs = _read_off(statements)
        return Tree(self.text, parameters, outputs, tuple(statements))

    def parameter(self) -> Parameter:
        name = self.name("the name of an input")
        sizes: tuple[Node, ...] | None = None
        if self.accept("["):
            sizes = () if self.token.text == "]" else self.listed(self.size)
            self.expect("]", "after the sizes")
        return Parameter(name.start, self.previous_end, name.text, sizes)

    def output(self) -> Name:
        token = self.name("the name of an output")
        return Name(token.start, token.end, token.text)

    def size(self) -> Node:
        token = self.token
        if token.kind == "number":
            return self.literal()
        self.name("a size, which is a name or a whole number,")
        return Name(token.start, token.end, token.text)

    def statement(self) -> Elementwise | Contraction:
        self.operations = 0
        name = self.name("a statement")
        if not self.accept("["):
            self.expect("=", f"after {name.text!r}")
            return Elementwise(name.start, name.end, name.text, self.expression())
        maps = () if self.token.text in ("]", ":") else self.listed(self.expression)
        sizes: tuple[Node, ...] | None = None
        if self.accept(":"):
            sizes = () if self.token.text == "]" else self.listed(self.expression)
        elif not maps:
            sizes = ()
        self.expect("]", "after the output's element")
        end = self.previous_end
        self.expect("=", "after the output's element")
        aggregation = self.accept(*AGGREGATIONS)
        if not aggregation or self.token.text != "(":
            self.place -= bool(aggregation)
            raise self.fail(
                "an aggregation (+ sum, * product, > maximum or < minimum) and '(' must follow '='",
                hint="element-wise statements assign whole tensors: 'R = ...'.",
            )
        self.expect("(", "after the aggregation")
        value = self.expression(may_leave_out=True)
        self.expect(")", "after the term")
        constraints = []
        while self.accept(","):
            left = self.binary(_SUM)
            if not self.accept("<"):
                raise self.fail(
                    f"a constraint must go on with '<', not {self.token}",
                    hint="'e < r' means 0 <= e < r.",
                )
            constraints.append((left, self.binary(_SUM)))
        return Contraction(name.start, end, name.text, maps, sizes, aggregation, value, tuple(constraints))

    def listed(self, rule: Callable[[], T]) -> tuple[T, ...]:
        found = [rule()]
        while self.accept(","):
            found.append(rule())
        return tuple(found)

    def expression(self, may_leave_out: bool = False) -> Node:
        self.depth += 1
        if self.depth > _MOST:
            raise self.fail(f"brackets may be nested {_MOST} deep")
        value = self.binary()
        if self.accept("?"):
            chosen = self.expression()
            if self.accept(":"):
                value = self.call("select", value, chosen, self.expression())
            elif may_leave_out:
                value = self.call("select", value, chosen)
            else:
                raise self.fail(f"':' and what holds otherwise must follow; {self.token} stands there")
        self.depth -= 1
        return value

    def binary(self, level: int = 0) -> Node:
        """A comparison, a sum or a product."""
        if level == len(LEVELS):
            return self.unary()
        value = self.binary(level + 1)
        while symbol := self.accept(*LEVELS[level]):
            value = self.call(BINARY.get(symbol, "remainder"), value, self.binary(level + 1))
            if level < _SUM and self.token.text in LEVELS[level]:
                raise self.fail("comparisons do not chain")
        return value

    def call(self, function: str, *arguments: Node) -> Call:
        self.operations += 1
        if self.operations > _MOST:
            raise self.fail(f"a statement may have {_MOST} operations", hint="break it up into several.")
        return Call(arguments[0].start, arguments[-1].end, function, arguments)

    def unary(self) -> Node:
        start = self.token.start
        signs = 0
        while self.accept("-"):
            signs += 1
        value = self.primary()
        return Call(start, value.end, "negate", (value,)) if signs % 2 else value

    def literal(self) -> Literal:
        token = self.token
        self.place += 1
        value = int(token.text) if token.text.isdigit() and len(token.text) < 20 else float(token.text)
        return Literal(token.start, token.end, value)

    def primary(self) -> Node:
        token = self.token
        if token.kind == "number":
            return self.literal()
        if self.accept("("):
            value = self.expression()
            self.expect(")", "after the expression")
            return value
        self.name("an expression")
        if self.accept("["):
            maps = () if self.token.text == "]" else self.listed(self.expression)
            self.expect("]", "after the indexes")
            return Element(token.start, self.previous_end, token.text, maps)
        if not self.accept("("):
            return Name(token.start, token.end, token.text)
        if token.text not in CALLABLE:
            hint = near_matches(token.text, sorted(CALLABLE))
            rule = f"there is no function {token.text!r}"
            raise ContractionError.at(self.text, token.start, token.end, rule, hint=hint)
        arguments = self.listed(self.expression)
        self.expect(")", "after the arguments")
        wanted = FUNCTIONS[token.text].arguments
        if len(arguments) != wanted:
            rule = f"{token.text} takes {wanted} argument{'s' * (wanted > 1)}, not {len(arguments)}"
            raise ContractionError.at(self.text, token.start, self.previous_end, rule)
        return Call(token.start, self.previous_end, token.text, arguments)


def walk(node: Node) -> Iterator[Node]:
    """An expression's nodes, outermost and leftmost first."""
    yield node
    inner = node.arguments if isinstance(node, Call) else node.maps if isinstance(node, Element) else ()
    for part in inner:
        yield from walk(part)


def names_in(tree: Tree) -> set[str]:
    """The names by themselves anywhere in it, but for those of its inputs and results: sizes and indexes."""
    roots: list[Node] = [size for given in tree.parameters for size in given.sizes or ()]
    for statement in tree.statements:
        roots.append(statement.value)
        if isinstance(statement, Contraction):
            roots += [
                *statement.maps,
                *(statement.sizes or ()),
                *(side for pair in statement.constraints for side in pair),
            ]
    tensors = {given.name for given in (*tree.parameters, *tree.statements)}
    return {node.name for root in roots for node in walk(root) if isinstance(node, Name)} - tensors


def _tensors_read(statement: Elementwise | Contraction) -> Iterator[Name | Element]:
    """Yield the places where a statement names a tensor: elements, and in element-wise statements names (or sizes)."""
    for node in walk(statement.value):
        if isinstance(node, Element) or (isinstance(node, Name) and isinstance(statement, Elementwise)):
            yield node


def _read_off(statements: list[Elementwise | Contraction]) -> tuple[tuple[Parameter, ...], tuple[Name, ...]]:
    """Inputs and outputs of statements without a head."""
    assigned = {statement.name for statement in statements}
    reads = {node.name: node for statement in reversed(statements) for node in _tensors_read(statement)}
    parameters = sorted((node for name, node in reads.items() if name not in assigned), key=lambda node: node.start)
    outputs = [statement for statement in statements if statement.name not in reads]
    return (
        tuple(Parameter(node.start, node.end, node.name, None) for node in parameters),
        tuple(Name(statement.start, statement.end, statement.name) for statement in outputs),
    )


def _check_names(tree: Tree) -> None:
    """Raise ContractionError unless every name is given once, before it is used, and outputs are assigned."""

    def fail(node: Node, rule: str, hint: str | None = None) -> ContractionError:
        return ContractionError.at(tree.text, node.start, node.end, rule, hint=hint)

    sizes = {size.name for given in tree.parameters for size in given.sizes or () if isinstance(size, Name)}
    known: set[str] = set()
    for given in tree.parameters:
        if given.name in known:
            raise fail(given, f"there are two inputs {given.name!r}")
        if given.name in sizes:
            raise fail(given, f"{given.name!r} is both a size and an input")
        known.add(given.name)
    inputs = set(known)
    for statement in tree.statements:
        for node in walk(statement.value):
            if isinstance(node, Element) and isinstance(statement, Elementwise):
                hint = f"name whole tensors, as in '{statement.name} = exp({node.name})', or aggregate."
                raise fail(node, "an element-wise statement reads no single elements", hint)
            if isinstance(node, Element) and node.name not in known:
                later = any(other.name == node.name for other in tree.statements)
                rule = "is read before it is assigned" if later else "is neither an input nor assigned before"
                raise fail(node, f"{node.name!r} {rule}", None if later else near_matches(node.name, sorted(known)))
        if statement.name in inputs:
            raise fail(statement, f"{statement.name!r} is an input, which is never assigned")
        if statement.name in known:
            raise fail(statement, f"{statement.name!r} is assigned twice")
        if statement.name in sizes:
            raise fail(statement, f"{statement.name!r} is both a size and a tensor")
        known.add(statement.name)
    for place, output in enumerate(tree.outputs):
        if output.name not in known - inputs:
            assigned = sorted(known - inputs)
            raise fail(output, f"the output {output.name!r} is never assigned", near_matches(output.name, assigned))
        if output.name in {other.name for other in tree.outputs[:place]}:
            raise fail(output, f"{output.name!r} is named twice as an output")

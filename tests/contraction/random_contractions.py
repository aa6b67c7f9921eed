"""Random contractions, told twice: as text, and as plain Python loops over what the text was made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blobnet.contraction import function
from blobnet.contraction.form import Program
from blobnet.errors import ContractionError

Array = npt.NDArray[np.float64]

AGGREGATE = {"+": lambda a, b: a + b, "*": lambda a, b: a * b, ">": max, "<": min}
NEUTRAL = {"+": 0.0, "*": 1.0, ">": -math.inf, "<": math.inf}

#: Terms: their text over operands A, B and C, how many they take, and what they compute.
TERMS = {
    "one": ("{0}", 1, lambda a: a),
    "product": ("{0} * {1}", 2, lambda a, b: a * b),
    "three": ("{0} * {1} * {2}", 3, lambda a, b, c: a * b * c),
    "sum": ("{0} + {1}", 2, lambda a, b: a + b),
    "difference": ("({0} - {1}) * {2}", 3, lambda a, b, c: (a - b) * c),
    "function": ("tanh({0}) * {1}", 2, lambda a, b: math.tanh(a) * b),
    "comparison": ("{0} < {1}", 2, lambda a, b: float(a < b)),
    "condition": ("{0} > {1} ? {2}", 3, lambda a, b, c: c if a > b else None),
    "otherwise": ("{0} > 0 ? {1} : -{1}", 2, lambda a, b: b if a > 0 else -b),
}


@dataclass
class Form:
    """An affine form."""

    factors: dict[str, int]
    offset: int

    def at(self, point: dict[str, int]) -> int:
        return self.offset + sum(factor * point[name] for name, factor in self.factors.items())

    def __str__(self) -> str:
        parts = [f"{factor}*{name}" if factor != 1 else name for name, factor in self.factors.items()]
        text = " + ".join(parts).replace("+ -", "- ")
        if not parts:
            return str(self.offset)
        return text + (f" + {self.offset}" if self.offset > 0 else f" - {-self.offset}" if self.offset else "")


@dataclass
class Random:
    """A contraction."""

    aggregation: str
    kind: str
    maps: list[Form]
    sizes: list[int]
    operands: list[tuple[str, list[Form], list[int]]]
    constraints: list[tuple[Form, int]] = field(default_factory=list)

    @property
    def text(self) -> str:
        element = ", ".join(map(str, self.maps)) + " : " + ", ".join(map(str, self.sizes))
        reads = [f"{name}[{', '.join(map(str, maps))}]" for name, maps, _ in self.operands]
        bounds = "".join(f", {form} < {size}" for form, size in self.constraints)
        return f"O[{element}] = {self.aggregation}({TERMS[self.kind][0].format(*reads)}){bounds}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, _, shape in self.operands}

    def arrays(self, rng: np.random.Generator, whole: bool = False) -> dict[str, Array]:
        """Operands of normal values, or of small whole numbers, which sums of products keep exact."""
        if whole:
            return {name: rng.integers(-3, 4, shape).astype(float) for name, shape in self.shapes.items()}
        return {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}

    def bounds(self) -> list[tuple[Form, int]]:
        edges = [*zip(self.maps, self.sizes, strict=True)]
        for _, maps, shape in self.operands:
            edges += zip(maps, shape, strict=True)
        return edges + self.constraints

    def points(self, far: int) -> Iterator[dict[str, int]]:
        """Every point of indexes from -far to far that meets all constraints, each tested as soon as it can be."""
        bounds = self.bounds()
        names = list(dict.fromkeys(name for form, _ in bounds for name in form.factors))
        tests = [[(f, s) for f, s in bounds if f.factors and max(map(names.index, f.factors)) == place]
                 for place in range(len(names))]  # fmt: skip
        if not all(0 <= form.offset < size for form, size in bounds if not form.factors):
            return
        point: dict[str, int] = {}

        def walk(place: int) -> Iterator[dict[str, int]]:
            if place == len(names):
                yield point
                return
            for value in range(-far, far + 1):
                point[names[place]] = value
                if all(0 <= form.at(point) < size for form, size in tests[place]):
                    yield from walk(place + 1)

        yield from walk(0)

    def brute_force(self, arrays: dict[str, Array], far: int) -> Array:
        result = np.full(self.sizes, NEUTRAL[self.aggregation])
        compute, aggregate = TERMS[self.kind][2], AGGREGATE[self.aggregation]
        for point in self.points(far):
            values = [arrays[name][tuple(form.at(point) for form in maps)] for name, maps, _ in self.operands]
            term = compute(*values)
            if term is not None:
                cell = tuple(form.at(point) for form in self.maps)
                result[cell] = aggregate(result[cell], term)
        return result


def random_contraction(rng: np.random.Generator, kinds: tuple[str, ...] = tuple(TERMS)) -> Random:
    """Any ranks, strides, dilations, offsets, mirrored indexes, constraints, output maps, aggregations and sizes.

    Most have terms and bounded indexes; not all.
    """
    aggregation = str(rng.choice(["+", "+", "+", ">", "<", "*"]))
    kind = str(rng.choice(kinds))
    names = ["i", "j", "k", "l"][: rng.integers(1, 5)]

    def form(alone: float) -> Form:
        if rng.random() < 0.05:
            return Form({}, int(rng.integers(0, 2)))
        count = 1 if rng.random() < alone or len(names) == 1 else int(rng.integers(2, min(3, len(names)) + 1))
        plain = rng.random() < alone
        factors = {str(name): 1 if plain else int(rng.choice([-2, -1, 1, 1, 2, 3]))
                   for name in rng.permutation(names)[:count]}  # fmt: skip
        return Form(factors, 0 if plain else int(rng.integers(-2, 4)))

    output_rank = int(rng.integers(0, 4))
    maps = [form(0.75) for _ in range(output_rank)]
    if rng.random() < 0.6:
        maps = [Form({name: 1}, 0) for name in names[: min(output_rank, len(names) - 1)]]
    operands = []
    for place in range(TERMS[kind][1]):
        shape = [int(size) for size in rng.integers(1, 6, rng.integers(0, 4))]
        operands.append(("ABC"[place], [form(0.5) for _ in shape], shape))
    contraction = Random(aggregation, kind, maps, [int(n) for n in rng.integers(1, 7, len(maps))], operands)
    alone = {name for form, _ in contraction.bounds() for name in form.factors if len(form.factors) == 1}
    for name in names:
        if (name not in alone and rng.random() < 0.95) or rng.random() < 0.05:
            factor = int(rng.choice([1, 1, -1, 2]))
            contraction.constraints.append((Form({name: factor}, int(rng.integers(0, 3))), int(rng.integers(1, 5))))
    if rng.random() < 0.2 and len(names) > 1:
        contraction.constraints.append((form(0.0), int(rng.integers(1, 6))))
    for name in names:  # The language asks how many are meant where axes disagree.
        walks = [axis for _, *operand in operands for axis in zip(*operand, strict=True)]
        sizes = {size for walked, size in walks if walked == Form({name: 1}, 0)}
        if len(sizes) > 1:
            contraction.constraints.append((Form({name: 1}, 0), min(sizes)))
    return contraction


def bound(seed: int, count: int, kinds: tuple[str, ...] | None = None) -> list[tuple[Random, Program]]:
    """Random contractions that have terms, with their programs."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Random, Program]] = []
    while len(found) < count:
        contraction = random_contraction(rng, kinds) if kinds else random_contraction(rng)
        try:
            program = function(contraction.text).program(**contraction.shapes)
        except ContractionError:
            continue
        if program.statements[0].points <= 2000:
            found.append((contraction, program))
    return found


def einsum_contraction(rng: np.random.Generator) -> tuple[str, str, dict[str, tuple[int, ...]]]:
    """A contraction that einsum can do: its text, einsum's, and the shapes."""
    letters = "abcdef"[: rng.integers(1, 6)]
    sizes = {letter: int(size) for letter, size in zip(letters, rng.integers(1, 5, len(letters)), strict=True)}
    shares = ["".join(rng.permutation(list(letters))[: rng.integers(0, len(letters) + 1)]) for _ in range(3)]
    shares = shares[: rng.integers(1, 4)]
    if not "".join(shares):
        shares[0] = letters[0]
    used = sorted(set("".join(shares)))
    output = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)])
    reads = " * ".join(f"{name}[{', '.join(share)}]" for name, share in zip("ABC", shares, strict=False))
    shapes = {name: tuple(sizes[i] for i in share) for name, share in zip("ABC", shares, strict=False)}
    return f"O[{', '.join(output)}] = +({reads})", f"{','.join(shares)}->{output}", shapes

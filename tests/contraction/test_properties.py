"""Random contractions against loops, einsum and differences of values."""

from __future__ import annotations

import re

import numpy as np
import pytest

from blobnet.contraction import analysis, function, reference
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Affine, Program, Statement
from blobnet.contraction.phases import disjoint, gathered
from blobnet.errors import ContractionError
from tests.contraction.conformance import gathered_program
from tests.contraction.random_contractions import Array, Random, bound, einsum_contraction, random_contraction
from tests.reference.compare import assert_close

#: No index of a random contraction lies farther from 0 where it is bounded by one constraint.
FAR = 9
PADDED = ("one", "product", "three", "function", "sum", "difference", "otherwise")
SMOOTH = ("one", "product", "three", "sum", "difference", "function", "condition", "otherwise")


def same(actual: Array, expected: Array, what: str) -> None:
    """Equal but for rounding; infinities and NaN in the same cells."""
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9, err_msg=what)


@pytest.mark.parametrize("seed", range(8))
def test_loops_agree(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    bounded = 0
    for _ in range(150):
        contraction = random_contraction(rng)
        try:
            program = function(contraction.text).program(**contraction.shapes)
        except ContractionError as error:
            message = str(error)
            if "no term" in message:
                assert not any(contraction.points(FAR)), f"{contraction.text} {contraction.shapes} has terms"
            else:
                assert "has no range" in message, message
                assert unbounded(contraction), contraction.text
            continue
        statement = program.statements[0]
        if any(span.start < -FAR or span.stop > FAR + 1 for _, span in statement.ranges) or statement.points > 600:
            continue
        bounded += 1
        arrays = contraction.arrays(rng, whole=contraction.kind != "function")
        points = list(map(dict, contraction.points(FAR)))
        assert analysis.terms(statement) == len(points)
        for name, span in statement.ranges:
            assert {point[name] for point in points} <= set(span)
        actual = reference.run(program, arrays)["O"]
        same(actual, contraction.brute_force(arrays, FAR), f"{contraction.text} {contraction.shapes}")
    assert bounded >= 50


def unbounded(contraction: Random) -> bool:
    """Whether there are terms far out: the same everywhere, or along a line of a common multiple of all factors."""
    names = {name for form, _ in contraction.bounds() for name in form.factors}
    lone = {name for form, _ in contraction.bounds() if len(form.factors) == 1 for name in form.factors}
    return bool(names - lone)


def test_einsum_agrees() -> None:
    rng = np.random.default_rng(7)
    for _ in range(1000):
        text, equation, shapes = einsum_contraction(rng)
        arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        actual = function(text).reference(**arrays)["O"]
        same(actual, np.einsum(equation, *arrays.values()), f"{text} {shapes}")


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_differences_of_values(seed: int) -> None:
    for contraction, program in bound(seed, 150, SMOOTH):
        rng = np.random.default_rng(seed)
        arrays = contraction.arrays(rng)
        statement = program.statements[0]
        if statement.points > 400 and statement.aggregation == "*":
            continue
        value = np.nan_to_num(reference.run(program, arrays)["O"], posinf=0.0, neginf=0.0)
        delta = rng.standard_normal(value.shape)

        def loss(moved: dict[str, Array], program: Program = program, delta: Array = delta) -> float:
            return float((np.nan_to_num(reference.run(program, moved)["O"], posinf=0.0, neginf=0.0) * delta).sum())

        gradients = function(contraction.text).reference_gradients(arrays, {"O": delta})
        for _ in range(2):
            direction = {name: rng.standard_normal(array.shape) for name, array in arrays.items()}
            slope = sum(float((gradients[name] * direction[name]).sum()) for name in arrays)
            step = 1e-6
            ahead, behind = ({n: arrays[n] + sign * step * direction[n] for n in arrays} for sign in (1, -1))
            measured = (loss(ahead) - loss(behind)) / (2 * step)
            # Rounding of some 1e-16 * loss / step, and step^2 * f''' of products of many terms.
            scale = 1.0 + max(float(np.abs(gradient).max()) for gradient in gradients.values())
            assert abs(slope - measured) < 2e-5 * scale, f"{contraction.text} {contraction.shapes}"


@pytest.mark.parametrize("seed", range(4))
def test_phases_write_what_the_statement_writes(seed: int) -> None:
    for contraction, program in bound(50 + seed, 120, SMOOTH):
        gradient = differentiate(program)
        names = delta_names(program)
        rng = np.random.default_rng(seed)
        arrays = contraction.arrays(rng)
        deltas = {names["O"]: rng.standard_normal(program.outputs[0].shape)}
        if program.statements[0].aggregation == "*" and program.statements[0].points > 200:
            continue
        rewritten = gathered_program(gradient)
        expected = reference.run(gradient, {**arrays, **deltas})
        actual = reference.run(rewritten, {**arrays, **deltas})
        for name, array in expected.items():
            same(actual[name], array, f"{contraction.text} {contraction.shapes}: {name}")
        for statement in gradient.statements:
            pieces = gathered(statement)
            for piece in pieces:
                assert_tells_cells_apart(piece.output.map, piece.box)
            for place, piece in enumerate(pieces):
                for other in pieces[:place]:
                    if disjoint(piece.output, other.output):
                        assert not written(piece) & written(other)


def assert_tells_cells_apart(forms: tuple[Affine, ...], box: dict[str, range]) -> None:
    """That no two values of the output's indexes are one cell."""
    names = sorted({name for form in forms for name in form.indexes})
    grid = np.meshgrid(*(np.arange(box[name].start, box[name].stop) for name in names), indexing="ij")
    place = dict(zip(names, grid, strict=True))
    cells = [
        sum((factor * place[name] for name, factor in form.terms), np.full(grid[0].shape if grid else (), form.offset))
        for form in forms
    ]
    if cells and names:
        stacked = np.stack([cell.ravel() for cell in cells], axis=1)
        assert len(np.unique(stacked, axis=0)) == len(stacked)


def written(statement: Statement) -> set[tuple[int, ...]]:
    """The cells that get a term."""
    return {
        tuple(int(form.offset + sum(f * points[name][n] for name, f in form.terms)) for form in statement.output.map)
        for points in reference.blocks(statement)
        for n in range(len(points[""]))
    }


@pytest.mark.parametrize("seed", range(4))
def test_halos_change_nothing_finite(seed: int) -> None:
    """Both the forward pass and its phases' derivatives, read beyond all edges that halos are said to meet."""
    met = 0
    for contraction, program in bound(90 + seed, 150, PADDED):
        rng = np.random.default_rng(seed)
        arrays = contraction.arrays(rng)
        gradient = differentiate(program)
        if program.statements[0].aggregation == "*" and program.statements[0].points > 200:
            continue
        rewritten = gathered_program(gradient)
        deltas = {delta_names(program)["O"]: rng.standard_normal(program.outputs[0].shape)}
        for candidate, given in ((program, arrays), (gradient, arrays | deltas), (rewritten, arrays | deltas)):
            met += sum(len(analysis.met_by_halos(statement)) for statement in candidate.statements)
            expected = reference.run(candidate, given)
            actual = reference.run(candidate, given, with_halos=True)
            for name in expected:
                same(actual[name], expected[name], f"{contraction.text} {contraction.shapes}: {name}")
        for statement in (*program.statements, *rewritten.statements):
            assert_halos_hold(statement)
    assert met > 40


def assert_halos_hold(statement: Statement) -> None:
    """That no point that meets the clamped constraints reads beyond the halo."""
    met = analysis.met_by_halos(statement)
    found = analysis.halos(statement)
    for points in reference.blocks(statement, met):
        if not len(points[""]):
            continue
        for read, sides in found.items():
            for form, size, (before, after) in zip(read.map, read.tensor.shape, sides, strict=True):
                cell = reference.affine(form, points)
                assert -before <= cell.min()
                assert cell.max() < size + after


def test_names_of_indexes_mean_nothing() -> None:
    rng = np.random.default_rng(3)
    for contraction, _ in bound(11, 100):
        text = contraction.text
        for old, new in zip("ijkl", ["zz", "y", "x9", "_a"], strict=True):
            text = re.sub(rf"\b{old}\b", new, text)
        arrays = contraction.arrays(rng, whole=True)
        expected = function(contraction.text).reference(**arrays)["O"]
        np.testing.assert_array_equal(function(text).reference(**arrays)["O"], expected)


def test_mutated_text_is_read_or_refused() -> None:
    rng = np.random.default_rng(5)
    signs = [*"[](){},;:?=+-*/%<> 0129ijkANRO.\n#", "function", "->", "==", "exp(", "1e9", "99999999999"]
    refused = []
    for contraction, _ in bound(17, 300):
        text = contraction.text
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(0, len(text)))
            text = text[:place] + str(rng.choice(signs)) + text[place + int(rng.integers(0, 2)) :]
        try:
            function(f"function ({', '.join(contraction.shapes)}) -> (O) {{\n {text}\n}}").program(**contraction.shapes)
        except ContractionError as error:
            refused.append(str(error))
    assert len(refused) > 150
    for message in refused:
        assert re.search(r"\A    +\^+\Z", message.splitlines()[-1]), message


def test_close_is_close() -> None:
    """The comparison of this file can fail."""
    with pytest.raises(AssertionError):
        same(np.array([1.0, np.inf]), np.array([1.0, 5.0]), "x")
    assert_close(np.array([1.0]), np.array([1.0]), relative=0.0, absolute=0.0, what="x")

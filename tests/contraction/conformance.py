"""What every implementation of contractions is held to: the written rule of ``blobnet.contraction``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from blobnet.contraction import reference
from blobnet.contraction.form import Program
from blobnet.contraction.phases import gathered


def gathered_program(program: Program) -> Program:
    """The program with :func:`gathered` statements in place of each."""
    return replace(program, statements=tuple(piece for each in program.statements for piece in gathered(each)))


def assert_conforms(
    program: Program,
    arrays: Mapping[str, npt.NDArray[np.generic]],
    actual: Mapping[str, npt.NDArray[np.generic]],
    *,
    relative: float,
    absolute: float,
    what: str,
) -> None:
    """Asserts that results are what a program gives, or with infinities and NaN what it gives when edges are halos.

    Each cell is within absolute + relative * |expected| of one of both (which differ only where an infinity or NaN
    meets a zero of a halo), and infinite or NaN only if that one is the same. Where statements were
    :func:`blobnet.contraction.phases.gathered`, that program is the one to give: its halos are others.

    Raises:
        AssertionError: names the output, how many cells are wrong, and the first of them.
    """
    __tracebackhide__ = True
    strict, halos = (reference.run(program, arrays, with_halos=flag) for flag in (False, True))
    assert set(actual) == set(strict), f"{what}: outputs are {sorted(actual)}, not {sorted(strict)}"
    for name, expected in strict.items():
        found = np.asarray(actual[name], np.float64)
        assert found.shape == expected.shape, f"{what}: {name} has shape {found.shape}, not {expected.shape}"
        agrees = [
            np.isclose(found, allowed, rtol=relative, atol=absolute, equal_nan=True)
            for allowed in (expected, halos[name])
        ]
        wrong = ~(agrees[0] | agrees[1])
        if wrong.any():
            cell = tuple(int(index) for index in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{what}: {name} is wrong in {int(wrong.sum())} of {wrong.size} cells, first at {cell}: "
                f"{found[cell]:.9g} instead of {expected[cell]:.9g}"
            )

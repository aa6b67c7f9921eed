"""Names of a text are a stranger's: none becomes a word of C, a macro, or what the compiler calls something itself."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.contraction import function
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.contraction.lowering import lower
from blobnet.contraction.reference import run
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.table import Table
from blobnet.execution.contractions import Compiled

if TYPE_CHECKING:
    from blobnet.device.device import Device

TEXT = "R[n, o, x : 2, 8, 12] = +(I[n, i, x + a] * W[o, i, a])"
SHAPES = {"I": (2, 8, 14), "W": (8, 8, 3)}
PLAIN = ("R", "I", "W", "n", "o", "x", "i", "a")

#: What C, OpenCL C, its drivers and the kernels here mean by names, as many for each schedule as TEXT has.
WORDS = """
    int float while kernel __kernel restrict half NULL
    min get_group_id exp vload4 convert_float4 barrier INFINITY NAN
    LOAD4 LOAD_LOCAL4 STORE8 PREFETCH __LINE__ defined CLK_LOCAL_MEM_FENCE M_PI_F
    main printf event_t sampler_t size_t read_only __local global
    thread rest group count COUNT sum total term
    from element row column step now item place
    float4 int4 double bool true asm inline typedef
    ROW_OF ROW_AT ROW_BEHIND BYTES_BEHIND uint sizeof type blob
"""
#: What the compiler makes of names, in tensors, indexes and variables.
OWN = (
    ("packed", "I_tile", "packed_", "partial", "t_I", "i_n", "n_part", "part"),
    ("sums", "packed", "packed2", "i_cut", "i", "i_", "i__", "i_part"),
    ("R", "t_R", "R_offset", "n_x", "n", "x", "x_tile", "n_x_tile"),
    ("left", "right", "left_tile", "column_tile", "row_tile", "depth_limit", "part", "depth"),
    ("contraction", "sum_i_x1", "sum_i_x", "k_part", "x", "x1", "k", "k_"),
    ("d_I", "I", "d_d_I", "_0", "_1", "_2", "axis0", "block"),
    ("lane", "_", "__", "___", "block", "axis1", "axis0", "rest"),
    ("left_from0", "left_turn", "right_turn", "missing", "left_put", "left_depth0", "last_step", "pointer"),
)
#: For {R} and so on, every way in which kernels are made.
SCHEDULES = (
    "tile {x} 1x1x3; tile {o} 2x1x2; order {n} {x} {o} {i} {a}",
    "tile {o} 1x1x8; vector {o} 8; pack {W}; unroll {a}",
    "cut {i} 4; unroll {i}/cut; local {I} {W}; tile {x} 4x1x1",
    "rows {o} 8x4; columns {n} {x} 16x4; depth {i} {a} 4; pack {I} {W}; split {i} 2",
    "split {i} 2; tile {x} 1x2x4; vector {x} 4",
    "share {i} 4; tile {x} 2x1x3; chunk {i} 4; local {I}",
    "rows {o} 8x4; columns {x} {n} 8x4; depth {a} {i} 4; along {i}",
    "rows {o} 8x4; columns {n} {x} 16x4; depth {i} {a} 5; addresses cheap",
)


def renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


@pytest.mark.parametrize("own", [False, True], ids=["words", "own"])
@pytest.mark.parametrize("place", range(len(SCHEDULES)))
def test_kernels_are_the_same_under_any_names(device: Device, place: int, own: bool) -> None:
    found = OWN[place] if own else WORDS.split()[place * len(PLAIN) : (place + 1) * len(PLAIN)]
    assert len({*found}) == len(PLAIN)
    names = dict(zip(PLAIN, found, strict=True))
    rng = np.random.default_rng(place)
    arrays = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in SHAPES.items()}
    expected = function(TEXT).reference(**arrays)["R"]
    text = f"function ({names['I']}, {names['W']}) -> ({names['R']}) {{ {renamed(TEXT, names)}; }}"
    program = function(text).program(**{names[name]: shape for name, shape in SHAPES.items()})
    schedule = Schedule.parse(SCHEDULES[place].format(**names))

    def choose(table: Table, program: Program, schedule: Schedule) -> Schedule:
        return schedule if table.stores[0].operand.name == program.outputs[0].name else Schedule()

    given = {names[name]: array for name, array in arrays.items()}
    compiled = Compiled(device, lower(program, partial(choose, program=program, schedule=schedule)))
    np.testing.assert_array_equal(compiled.run(given)[names["R"]], expected)


@pytest.mark.parametrize("place", range(len(OWN)))
def test_gradients_are_the_same_under_any_names(place: int) -> None:
    names = dict(zip(PLAIN, OWN[place], strict=True))
    for text in ("R[n, x : 2, 12] = *(I[n, i, x + a])", "R[n, o, x : 2, 4, 12] = >(I[n, i, x + a] * W[o, i, a])"):
        shapes = {"I": (2, 2, 14), "W": (4, 2, 3)} if "W" in text else {"I": (2, 2, 14)}
        sizes = ", a < 3" if "W" not in text else ""
        rng = np.random.default_rng(place)
        results = []
        values = {name: rng.uniform(0.5, 2, shape) for name, shape in shapes.items()}
        delta = rng.standard_normal((2, 12) if "W" not in text else (2, 4, 12))
        for known in ({name: name for name in PLAIN}, names):
            program = function(renamed(text + sizes, known)).program(**{known[key]: shapes[key] for key in shapes})
            arrays = {known[key]: values[key] for key in shapes}
            arrays[delta_names(program)[known["R"]]] = delta
            derived = differentiate(program)
            results.append([run(derived, arrays)[tensor.name] for tensor in derived.outputs])
        for plain, other in zip(*results, strict=True):
            assert np.abs(plain).max() > 0
            np.testing.assert_array_equal(plain, other)


#: Bodies of a layer, and the names in them: what is done to values in another's launch, what may not be, and sums.
LAYERS = (
    ("O[n, c, ... : N, C, ...] = +(exp(I[n, c, ...] * A[c]) - abs(B[c]) * I[n, c, ...])", "IOABNCnc"),
    ("O[n, c, ... : N, C, ...] = +(I[n, c, ...] < A[c] ? max(I[n, c, ...], B[c]) : I[n, c, ...] - A[c])", "IOABNCnc"),
    (
        "S[n, k, ... : N, C, ...] = +(I[n, c, ...] * A[k] * B[c]); O = exp(S) * S",
        "IOABNCncSk",
    ),
)


@cache
def outcome(device: Device, body: str, own: str, found: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """What a network with a layer gives, and its gradients by their plain names."""
    names = dict(zip(own, found or own, strict=False))
    text = renamed(f"function (I[N, C, ...], A[C], B[C]) -> (O) {{ {body}; }}", names)
    made = layers.Contraction(text, initializers={names["A"]: "ones", names["B"]: "zeros"}, name="made")
    parts = [layers.Input(4, 5, 5), layers.Conv2D(4, 3, padding=1), made, layers.GlobalAveragePool()]
    model = bn.Sequential(parts, seed=3)
    plain = {f"made/{names[letter]}": f"made/{letter}" for letter in "AB"}
    model.set_weights({key: model.weights[key] + np.float32([0.1, 0.2, -0.3, 0.4]) for key in plain})
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((3, 4, 5, 5)).astype(np.float32), rng.integers(0, 4, 3)
    gradients = model.gradients(x, y, loss=bn.losses.CrossEntropy(), device=device)
    return {"output": model.predict(x, device=device), **{plain.get(key, key): gradients[key] for key in gradients}}


@pytest.mark.parametrize(
    "found",
    [
        ("exp", "abs", "r", "p", "N", "C", "n", "c", "S", "k"),
        ("unit", "value", "a", "A", "NULL", "RESIDUAL", "term", "bias", "INPUT", "x_0"),
        ("BIAS", "FINISHED", "JOINED", "BIASED", "OUTPUT", "WEIGHT", "OUTPUT_UNIT_OFFSET", "MORE_ARRAYS", "n", "d_I"),
        ("x_0", "x_1", "NUMBER_0", "NUMBER_1", "INPUT_0", "INPUT_1", "int", "float", "if", "for"),
    ],
    ids=lambda found: found[0],
)
def test_layers_are_the_same_under_any_names(device: Device, found: tuple[str, ...]) -> None:
    for body, own in LAYERS:
        plain, other = outcome(device, body, own), outcome(device, body, own, found)
        assert plain.keys() == other.keys()
        for name, values in plain.items():
            np.testing.assert_array_equal(values, other[name], err_msg=f"{body} {name}")

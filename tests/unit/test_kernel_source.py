"""Kernel headers, exact macros, and every .cl file of the repository against its own header. Needs no OpenCL."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from blobnet.errors import KernelError
from blobnet.hardware.device_model import GENERIC, Answers, DeviceModel, model_of
from blobnet.implementations.blocking import vector_tiles
from blobnet.launch import kernel_source
from blobnet.launch.kernel_source import Definition, KernelSource, all_kernels, load, parse
from blobnet.memory.blob import BlobLayout, Shape

KERNELS = Path(__file__).parents[2] / "kernels"

HEADER = """/*
 * Scales: output = FACTOR * input,
 * in two lines.
 *
 * Blobs:
 *   INPUT  read  (halo: none)
 *          and a remark that goes on
 *   OUTPUT write
 * Arrays:
 *   WEIGHT update  (units,)
 * Scalars:
 *   COUNT  samples
 * Macros:
 *   FACTOR  what to multiply with
 *   GLOBAL_UNITS
 * Tunables:
 *   TILE loops 16, lanes 1 of 1 2 16: columns of a work-item
 * Global:
 *   width:  columns
 *   units   units * COUNT
 */
#include "blob.h"
__kernel void family_forward(READ_BLOB(input), WRITE_BLOB(output), WRITE_ARRAY(real_t, weight), const int count)
{
}
"""


def test_header() -> None:
    source = parse("family/forward", HEADER)
    assert source.purpose == "Scales: output = FACTOR * input, in two lines."
    assert source.entry == "family_forward"
    assert source.blobs == {"INPUT": "read", "OUTPUT": "write"}
    assert source.arrays == {"WEIGHT": "update"}
    assert source.scalars == ("COUNT",)
    assert source.macros == ("FACTOR", "GLOBAL_UNITS")
    assert source.tunables["TILE"].choices == (1, 2, 16)
    assert source.tunables["TILE"].defaults == {"loops": 16, "lanes": 1}
    assert dict(source.dimensions) == {"width": "columns", "units": "units * COUNT"}


@pytest.mark.parametrize(
    ("width", "machine", "lanes", "sums"),
    [(16, "x86_64", 16, 24), (8, "x86_64", 8, 12), (4, "x86_64", 4, 12), (8, "aarch64", 8, 24), (4, "aarch64", 4, 24)],
)
def test_tiles_of_sums_fit_the_registers_of_a_processor(width: int, machine: str, lanes: int, sums: int) -> None:
    model = model_of(Answers("cpu", is_host=True, compute_units=2, vector_width=width, machine=machine))
    values = load("convolution/forward_flat").tuning(model)
    assert (values["MAXIMUM_LANES"], values["MAXIMUM_ACCUMULATORS"]) == (lanes, sums)
    tiles = vector_tiles(values, 64, 1000)
    assert {tile.lanes for tile in tiles} == {lanes}
    assert max(tile.units * tile.vectors for tile in tiles) == sums
    # A row of vectors and a weight lie in registers beside them.
    assert all(tile.units * tile.vectors + tile.vectors + 1 <= model.registers for tile in tiles)
    own = replace(model, tunables={"convolution/forward_flat": {"MAXIMUM_LANES": 2}})
    assert load("convolution/forward_flat").tuning(own)["MAXIMUM_LANES"] == 2


def test_headers_of_includes_are_listed_behind_the_kernels_own() -> None:
    source = parse("family/forward", HEADER.replace('#include "blob.h"', '#include "convolution/epilogue.h"'))
    assert source.purpose == "Scales: output = FACTOR * input, in two lines."
    assert source.blobs == {"INPUT": "read", "OUTPUT": "write", "RESIDUAL": "read"}
    assert list(source.arrays) == ["WEIGHT", "BIAS"]
    own = ("FACTOR", "GLOBAL_UNITS")
    assert source.macros == (
        *own,
        *["BIAS_MODE", "MORE_ARGUMENTS", "BIASED", "JOINED", "HAS_RESIDUAL", "FINISHED", "MORE_ARRAYS"],
    )
    assert dict(source.dimensions) == {"width": "columns", "units": "units * COUNT"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("/*", "//", "kernel family/forward: a kernel file must open with its header, a comment"),
        ("INPUT  read", "INPUT  reads", r"INPUT needs one of .*'read', 'write', 'update'.*Received header=reads"),
        ("INPUT  read", "INPUT", "INPUT needs one of"),
        ("WEIGHT update", "WEIGHT in", "WEIGHT needs one of"),
        ("loops 16, lanes 1 of 1 2 16", "16", r"a tunable reads 'NAME loops <default>\[, lanes <default>\] of"),
        ("loops 16, lanes 1 of 1 2 16", "loops 16, lanes 1", "a tunable reads .*Received line=TILE loops 16, lanes 1"),
        (
            "loops 16, lanes 1 of 1 2 16",
            "loops 8, lanes 1 of 1 2 16",
            "the defaults of TILE must be among its legal",
        ),
        (
            "loops 16, lanes 1 of 1 2 16",
            "loops 16, lanes 3 of 1 2 16",
            "the defaults of TILE must be among its legal",
        ),
    ],
)
def test_broken_headers(old: str, new: str, message: str) -> None:
    assert old in HEADER
    with pytest.raises(KernelError, match=message):
        parse("family/forward", HEADER.replace(old, new))


def test_macros_must_be_exactly_those_declared() -> None:
    source = parse("family/forward", HEADER)
    given = {"FACTOR": 2, "GLOBAL_UNITS": 3, "TILE": 16}
    assert "#define FACTOR 2\n" in source.assemble(given, {})
    rule = "kernel family/forward: the macros given must be those that its header declares. "
    for changes, message in (
        ({"FACTOR": None}, rule + "Received missing=['FACTOR'], unknown=[]"),
        ({"TILE": None}, rule + "Received missing=['TILE'], unknown=[]"),
        ({"FACTORS": 2}, rule + "Received missing=[], unknown=['FACTORS']"),
        ({"FACTOR": None, "FACTORS": 2}, rule + "Received missing=['FACTOR'], unknown=['FACTORS']"),
    ):
        macros = {name: value for name, value in {**given, **changes}.items() if value is not None}
        with pytest.raises(KernelError, match=re.escape(message)):
            source.assemble(macros, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (-3, "(-3)"),
        (True, "1"),
        (False, "0"),
        (0.5, "0.5f"),
        (1e-5, "1e-05f"),
        (2.0, "2.0f"),
        (float("inf"), "INFINITY"),
        (float("-inf"), "(-INFINITY)"),
        ("TWICE", "TWICE"),
    ],
)
def test_literals(value: float | str, text: str) -> None:
    source = parse("family/forward", HEADER)
    assembled = source.assemble({"FACTOR": value, "GLOBAL_UNITS": 3, "TILE": 16}, {})
    assert f"#define FACTOR {text}\n" in assembled


def with_tunables(kind: str, **values: int) -> DeviceModel:
    return replace(GENERIC[kind], tunables={"family/forward": values})


def test_tunables() -> None:
    source = parse("family/forward", HEADER)
    assert source.tuning(GENERIC["cpu"]) == {"TILE": 16}
    assert source.tuning(GENERIC["gpu"]) == {"TILE": 1}
    assert source.tuning(with_tunables("gpu", TILE=2)) == {"TILE": 2}
    rule = r"kernel family/forward: a tunable must be one of \['TILE'\] and have a legal value. Received tunable="
    with pytest.raises(KernelError, match=rule + "TILE, value=3"):
        source.tuning(with_tunables("cpu", TILE=3))
    with pytest.raises(KernelError, match=rule + "TILES, value=2"):
        source.tuning(with_tunables("cpu", TILES=2))


def test_a_kernel_for_loops_alone() -> None:
    source = parse("family/forward", HEADER.replace("loops 16, lanes 1 of", "loops 16 of"))
    assert source.tuning(GENERIC["cpu"]) == {"TILE": 16}
    with pytest.raises(KernelError) as caught:
        source.tuning(GENERIC["gpu"])
    assert str(caught.value) == (
        "kernel family/forward: a kernel's tunables must have defaults for 'lanes' on devices whose work-items are "
        "lanes. Received device=gpu. Hint: its header has no such defaults, since it is for devices that vectorize a "
        "work-item's loops."
    )
    line = " *   TILE loops 16, lanes 1 of 1 2 16: columns of a work-item\n"
    with pytest.raises(KernelError, match=r"must have a default for 'lanes', or none\. Received without=\['ROWS'\]"):
        parse("family/forward", HEADER.replace(line, f"{line} *   ROWS loops 1 of 1 2: rows\n"))


def test_includes_are_put_in_place_with_their_line_numbers() -> None:
    macros = {"FINISHED": Definition("(value, unit) (value)"), "MORE_ARRAYS": "", "CELLS": 1, "GAPLESS": 1}
    macros |= {"LOCAL_WIDTH": 1, "PLANES": 1}
    text = load("activation/forward").assemble(macros, {})
    assert '#include "' not in text
    assert '#line 1 "blob.h"' in text
    assert '#line 1 "epilogue.h"' in text
    file = (KERNELS / "activation" / "forward.cl").read_text().splitlines()
    number = file.index('#include "epilogue.h"') + 2
    assert f'#line {number} "activation/forward.cl"\n{file[number - 1]}' in text


def test_unknown_kernel() -> None:
    with pytest.raises(KernelError, match=r"kernel pooling/sideways: a kernel file must exist.*activation/forward"):
        load("pooling/sideways")


# -- the repository's kernels ------------------------------------------------------------------------------------------


def test_all_kernels_are_found() -> None:
    files = {str(path.relative_to(KERNELS).with_suffix("")) for path in KERNELS.glob("*/*.cl")}
    assert set(all_kernels()) == files
    assert list(KERNELS.glob("*.cl")) == []


@pytest.fixture(params=all_kernels())
def kernel(request: pytest.FixtureRequest) -> KernelSource:
    return load(request.param)


def _assembled(kernel: KernelSource) -> str:
    """The whole text, without comments; macros that blobs bring are not defined."""
    macros = dict.fromkeys(kernel.macros, 1) | kernel.tuning(GENERIC["cpu"])
    return _without_comments(kernel.assemble(macros, {}))


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def _blob_macros(kernel: KernelSource) -> set[str]:
    layout = BlobLayout.padded(Shape(1, 1, 1))
    return {name for role in kernel.blobs for name in layout.macros(role, as_argument=kernel.sizes_as_arguments)}


def test_header_is_complete(kernel: KernelSource) -> None:
    assert kernel.purpose
    assert kernel.blobs or kernel.arrays
    assert kernel.dimensions, "the header must say what the global dimensions run over"
    assert set(kernel.dimensions) <= {"width", "height", "units"}
    assert not set(kernel.scalars) & (set(kernel.macros) | set(kernel.tunables))
    assert re.fullmatch(r"[a-z_]+/[a-z_]+", kernel.name)


def test_kernel_takes_what_its_header_lists_in_that_order(kernel: KernelSource) -> None:
    text = _without_comments(kernel.text)
    kind = "COMBINABLE" if kernel.combined else "__kernel"
    assert text.count(kind) == 1, "one kernel a file"
    attributes = r"(?:\s+__attribute__\s*\(\(.*?\)\)\))?"
    signature = re.search(rf"{kind}{attributes}\s+void\s+{kernel.entry}\s*\((.*?)\)\s*\{{", text, re.DOTALL)
    assert signature, f"the kernel must be called {kernel.entry}"
    # An include may list parameters of its own: EPILOGUE_ARRAYS.
    lists = dict(re.findall(r"#define (\w+_(?:BLOBS|ARRAYS)) +(.*)", _assembled(kernel).replace("\\\n", " ")))
    taken = re.sub(r"\w+_(BLOBS|ARRAYS)\b", lambda word: lists[word.group()], signature.group(1))
    assert taken.endswith(" OF_ITEM") == bool(kernel.combined)
    found = []
    for word, names, scalar in re.findall(r"(\w+_BLOB|\w+_ARRAY)\(([^)]*)\)|const ((?:int|float) \w+)", taken):
        if scalar:
            kind, name = scalar.split()
            found.append(("SCALAR", name.upper()))
            assert kind == kernel_source.BATCH_SCALARS.get(name.upper(), int).__name__
        else:
            kind, name = word.rsplit("_", 1)[1], names.split(",")[-1].strip()
            found.append((kind, name.upper()))
            access = (kernel.blobs if kind == "BLOB" else kernel.arrays).get(name.upper())
            writable = word.startswith(("WRITE", "MUTABLE"))
            assert writable == (access != "read"), f"{name} is declared {access}, but taken as {word}"
    listed = [("BLOB", role) for role in kernel.blobs] + [("ARRAY", role) for role in kernel.arrays]
    assert found == listed + [("SCALAR", role) for role in kernel.scalars]


def test_every_declared_macro_is_used(kernel: KernelSource) -> None:
    words = set(re.findall(r"\w+", re.sub(r"^#define \w+", "", _assembled(kernel), flags=re.MULTILINE)))
    assert set(kernel.macros) <= words  # Tunables may be for the layer alone, which makes macros of them.


def test_every_macro_in_a_condition_is_known(kernel: KernelSource) -> None:
    """``#if UNKNOWN`` would build silently as 0."""
    text = _assembled(kernel).replace("\\\n", " ")
    known = r"^\s*#\s*(?:define|ifdef|ifndef) (\w+)"
    defined = set(re.findall(known, text, flags=re.MULTILINE)) | _blob_macros(kernel)
    for line in re.findall(r"^\s*#\s*(?:el)?if (.*)", text, flags=re.MULTILINE):
        # What the compiler itself defines may be asked for, but only with defined().
        names = re.findall(r"[A-Za-z_]\w*", re.sub(r"defined\s*\(?\s*\w+\s*\)?", "", line))
        assert set(names) <= defined, f"#if {line}"


def test_capital_names_are_declared(kernel: KernelSource) -> None:
    """Whatever looks like a macro comes from the header, the roles, a #define, or OpenCL."""
    text = _assembled(kernel)
    defined = set(re.findall(r"^\s*#\s*define (\w+)", text, flags=re.MULTILINE)) | _blob_macros(kernel)
    body = _without_comments(kernel.text)
    body = re.sub(r"^\s*#\s*(include|ifdef|ifndef|pragma|line).*", "", body, flags=re.MULTILINE)
    names = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", re.sub(r'"[^"]*"', "", body)))
    # Roles are words to BLOB_INDEX and its like, which paste them; parameters of a file's own macros are words too.
    words = (
        set(kernel.blobs)
        | set(kernel.arrays)
        | {"ROLE", "UNIT_COUNT", "UNIT_WIDTH", "UNIT_ELEMENTS", "UNIT_DEPTH", "NAN", "INFINITY"}
    )
    parameters = {
        name.strip() for arguments in re.findall(r"#\s*define \w+\(([^)]*)\)", body) for name in arguments.split(",")
    }
    opencl = re.compile(r"(FLT|DBL|INT|UINT|LONG|CHAR|M|CLK|FP)_\w+|MAXFLOAT|__\w+")
    unknown = {name for name in names - defined - words - parameters if not opencl.fullmatch(name)}
    assert not unknown


@pytest.mark.parametrize("name", [name for name in all_kernels() if load(name).combined])
def test_a_kernel_that_does_the_work_of_several_launches(name: str) -> None:
    kernel = load(name)
    several = kernel.of_several
    assert several.entry == f"{kernel.entry}_several"
    assert list(several.arrays.items()) == [*kernel.arrays.items(), ("TABLE", "read")]
    assert (several.scalars, several.macros, several.moves) == (("ROWS",), kernel.macros, kernel.moves)
    assert not several.combined
    assert not kernel.blobs
    assert set(kernel.scalars) == set(kernel.sizes)
    assert list(kernel.dimensions) == ["width"]
    text = _without_comments(several.assemble(dict.fromkeys(several.macros, 1) | kernel.tuning(GENERIC["gpu"]), {}))
    count, columns = len(kernel.arrays), 1 + len(kernel.arrays) + len(kernel.sizes)
    (found,) = re.findall(rf"\b{kernel.entry}\((\w+_array, .*?)\);", text)
    begins = [f"{role.lower()}_array, {role.lower()}_offset + row[{1 + n}]" for n, role in enumerate(kernel.arrays)]
    sizes = [f"row[{n}]" for n in range(1 + count, columns)]
    item = "((int)get_group_id(0) - row[0]) * (int)get_local_size(0) + (int)get_local_id(0)"
    assert found == ", ".join([*begins, *sizes, item])
    assert f"row_of_group(ARRAY(table), ROWS, {columns})" in text
    # Nothing else that is included means something else by these words.
    assert len(re.findall(r"#define (?:WORK_ITEM|COMBINABLE|OF_ITEM|COMBINED)\b", text)) == 7


def test_rules_for_kernels(kernel: KernelSource) -> None:
    text = _without_comments(kernel.text)
    assert "printf" not in text
    # NOTE: atomic_inc is of integers alone, whose counts do not depend on an order.
    assert "atom" not in text.replace("atomic_inc", ""), "sums are split in two stages, without atomics"
    assert "double" not in re.findall(r"\w+", text)


#: The parameters and the body of an inlined function; and what bounds a loop that is to be unrolled.
_INLINED = re.compile(r"INLINE [^{;#]*\(([^{]*)\)\n\{\n(.*?)\n\}", re.DOTALL)
_UNROLLED = re.compile(r"#pragma unroll\s+for \([^;]*; \w+ < (\w+);")


def _unrolled_by_argument(text: str) -> list[str]:
    found = []
    for parameters, body in _INLINED.findall(text):
        names = re.findall(r"(\w+)(?:\[[^\]]*\])*\s*(?:,|$)", parameters)
        found += [bound for bound in _UNROLLED.findall(body) if bound in names]
    return found


def test_loops_as_long_as_an_argument_are_not_unrolled_by_a_pragma() -> None:
    """AMD's compiler would keep in memory what they index: UNROLL_ARGUMENT of blob.h."""
    texts = {path: path.read_text() for path in (*KERNELS.rglob("*.h"), *KERNELS.rglob("*.cl"))}
    found = {str(path): bounds for path, text in texts.items() if (bounds := _unrolled_by_argument(text))}
    assert not found
    as_asked = texts[KERNELS / "convolution" / "winograd.h"].replace("UNROLL_ARGUMENT\n", "#pragma unroll\n")
    assert _unrolled_by_argument(as_asked) == ["size", "rows", "columns", "rows", "rows"]


def test_kernels_say_which_blobs_they_read_without_their_halo() -> None:
    assert load("convolution/winograd_patch").data_alone == {"SOURCE"}
    assert load("convolution/backward_weight_tiled").data_alone == {"OUTPUT_DELTA"}
    assert load("convolution/forward_tiled").data_alone == frozenset()


def test_load_gives_the_same_object() -> None:
    assert load("activation/forward") is kernel_source.load("activation/forward")

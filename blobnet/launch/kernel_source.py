"""Kernel files: their parsed headers, and the source text that a driver gets.

Every ``.cl`` file opens with a comment that lists what the kernel takes (docs/kernels.md shows one). The header is
checked against every call, so it is always true: ``#if UNKNOWN`` would build silently as 0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from blobnet.errors import KernelError
from blobnet.hardware.device_model import DeviceModel

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from blobnet.memory.blob import StorageType

Macro = int | float | str


class Definition(str):
    """The text of a macro with arguments, which stand in front of it: ``(x, y) ((x) + (y))``."""


#: The title of the blobs whose sizes are arguments; and where they are so on processors too.
_SIZED_BLOBS, _SIZED_EVERYWHERE = "Blobs, sizes as arguments", "Blobs, sizes as arguments everywhere"
_SECTIONS = (
    "Blobs",
    _SIZED_BLOBS,
    _SIZED_EVERYWHERE,
    "Arrays",
    "Scalars",
    "Macros",
    "Tunables",
    "Moves",
    "Combined",
    "Global",
    "Local",
)
_ACCESS = ("read", "write", "update")
#: How the header says that a kernel reads a blob without its halo.
_DATA_ALONE = "read data alone"
#: Arguments whose values depend on the batch, and their types; those of others come with the call.
BATCH_SCALARS = dict.fromkeys(("COUNT", "WHOLE", "SHARD", "FILLED_SHARDS", "FIRST", "FIRST_SAMPLE"), int) | {
    "DIVISOR": float
}
_NAME = re.compile(r"[A-Z][A-Z0-9_]*$")
#: A parameter of a generated kernel.
_POINTER = re.compile(r"\*restrict (\w+)")
_INCLUDE = r'^#include "([^"]+)"'


#: What the default of a tunable depends on: whether a device vectorizes the loops within a work-item, or runs
#: work-items as lanes (blobnet.hardware.device_model.DeviceModel.is_simt).
LOOPS, LANES = "loops", "lanes"
#: Tunables whose defaults for loops are those of the processors with most: by name, the fact of a device's model that
#: they follow, and what it is there (AVX-512). Where there is less they are in proportion, or sums leave the registers.
_FITTED = {"MAXIMUM_LANES": ("lanes", 16), "MAXIMUM_ACCUMULATORS": ("registers", 32)}
#: The tunable that is work-items of a group, of which a device whose work-items are lanes may allow fewer.
_GROUP = "GROUP_WIDTH"


@dataclass(frozen=True)
class Tunable:
    """A number that changes a kernel's speed but not its result.

    ``defaults`` are by LOOPS and LANES.
    """

    defaults: Mapping[str, int]
    choices: tuple[int, ...]

    def within(self, most: float, kind: str = LOOPS) -> int:
        """The largest legal value that is not above the default, nor ``most``; the least if there is none."""
        return max((item for item in self.choices if item <= min(most, self.defaults[kind])), default=min(self.choices))


@dataclass(frozen=True)
class KernelSource:
    """One kernel file and its header.

    ``blobs`` and ``arrays`` map a role to its access: read, write (data cells only) or update (read and written).
    ``data_alone`` are blobs whose halo is not read ("read data alone"), nor what lies behind a row in its place.
    ``moves`` says what a kernel does that only moves data, for plans to count; ``combined`` what several launches of it
    make, which may be one (:meth:`of_several`, kernels/combined.h): others cannot.
    Kernel parameters follow in the order blobs, arrays, scalars. With ``sizes_as_arguments`` those of the blobs
    need not be part of the program, like those that are scalars: it serves any; with ``sizes_everywhere`` also on
    devices that have the others built for their sizes alone. ``is_generated``: the text is no file of kernels/, but was
    made for the geometry of its blobs, so nothing is defined in front of it.
    """

    name: str
    text: str
    purpose: str
    blobs: Mapping[str, str]
    arrays: Mapping[str, str]
    scalars: tuple[str, ...]
    macros: tuple[str, ...]
    tunables: Mapping[str, Tunable]
    dimensions: Mapping[str, str]
    sizes_as_arguments: bool = False
    sizes_everywhere: bool = False
    data_alone: frozenset[str] = frozenset()
    moves: str | None = None
    combined: str | None = None
    is_generated: bool = False

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The scalars that come with the call, and not with the batch."""
        return tuple(name for name in self.scalars if name not in BATCH_SCALARS)

    def reading(self, arrays: Iterable[str], *, behind: str) -> KernelSource:
        """The same with more arrays that it reads, behind one of its own, or all of them."""
        more, known = dict.fromkeys(arrays, "read"), list(self.arrays.items())
        place = list(self.arrays).index(behind) + 1 if behind in self.arrays else len(known)
        return replace(self, arrays={**dict(known[:place]), **more, **dict(known[place:])})

    @cached_property
    def of_several(self) -> KernelSource:
        """The kernel of a launch that does what several would: its arrays begin, and its sizes are, as a table says.

        TABLE has a row of ints for each: its first work-group, how far behind the kernel's arrays its own begin, and
        its sizes (:attr:`blobnet.launch.kernel_call.KernelCall.table`). ROWS is how many there are.
        """
        taken = re.findall(r"(?:READ|WRITE)_ARRAY\(\w+, \w+\)", self.text)
        arrays = [f"{role.lower()}_array, {role.lower()}_offset" for role in self.arrays]
        columns = iter(range(1, 1 + len(arrays) + len(self.sizes)))
        given = [f"{array} + row[{next(columns)}]" for array in arrays] + [f"row[{next(columns)}]" for _ in self.sizes]
        item = "((int)get_group_id(0) - row[0]) * (int)get_local_size(0) + (int)get_local_id(0)"
        defined = "".join(_define(name, name.lower()) for name in self.sizes)
        kernel = (
            f"__kernel void {self.entry}_several({', '.join(taken)}, READ_ARRAY(int, table), const int rows)\n{{\n"
            f"    __global const int *row = row_of_group(ARRAY(table), ROWS, {1 + len(given)});\n"
            f"    {self.entry}({', '.join(given)}, {item});\n}}\n"
        )
        text = f"#define COMBINED\n{defined}{self.text}\n{kernel}"
        arrays_of_all = {**self.arrays, "TABLE": "read"}
        return replace(
            self, name=f"{self.name}_several", text=text, arrays=arrays_of_all, scalars=("ROWS",), combined=None
        )

    def of_shards(self, moved: Iterable[str], dimension: int, groups: int) -> KernelSource:
        """The kernel of a launch that does the same for each of several shards, which it counts along a dimension.

        What the kernel asks of its work-items is what it would be told in a launch for one shard, and its pointers to
        ``moved`` roles are those of the shard. Behind its arguments come the first shard, the samples of the step from
        the first one of a shard to that of the next, and by how many elements each such pointer moves.

        Args:
            moved: the roles, by name.
            dimension: along which shards lie one after another.
            groups: work-groups of a shard along it, however many samples it has.
        """
        pointers = [role.lower() if role in self.blobs else f"{role.lower()}_array" for role in moved]
        begin = re.search(rf"\bvoid\s+{self.entry}\(", self.text)
        assert begin is not None, "a kernel's text has the kernel"
        if self.is_generated:
            named = dict(zip((*self.blobs, *self.arrays), _POINTER.findall(self.text, begin.end()), strict=False))
            pointers = [named[role] for role in moved]
        end = _closing(self.text, begin.end())
        arguments = "".join(f", const long {name}_of_shard" for name in pointers)
        moves = "".join(f"    {name} += in_launch * {name}_of_shard;\n" for name in pointers)
        given = self.text[:end]
        if "FIRST_SAMPLE" in self.scalars:
            given = given.replace("const int first_sample", "int first_sample")
            moves += "    first_sample += in_launch * samples_apart;\n"
        part = ("(size_t)0", "group_in_launch()") if groups == 1 else ("{0} % {1}", "{0} / {1}")
        group, number = (text.format("group_in_launch()", groups) for text in part)
        defined = (
            ("get_group_id", group),
            ("get_num_groups", f"(size_t){groups}"),
            ("get_global_size", f"{groups} * get_local_size({dimension})"),
            ("get_global_id", f"get_group_id({dimension}) * get_local_size({dimension}) + get_local_id({dimension})"),
        )
        text = f"inline int group_in_launch(void)\n{{\n    return get_group_id({dimension});\n}}\n" + "".join(
            f"#define {name}(dimension) ((dimension) == {dimension} ? {value} : {name}(dimension))\n"
            for name, value in defined
        )
        body = self.text.index("{", end) + 1
        text += f"{given}, const int first_shard, const int samples_apart{arguments}{self.text[end:body]}\n"
        text += f"    const long in_launch = first_shard + {number};\n{moves}{self.text[body:]}"
        return replace(self, text=text)

    @property
    def entry(self) -> str:
        """The name of the ``__kernel`` function."""
        return self.name.replace("/", "_")

    def tuning(self, model: DeviceModel) -> dict[str, int]:
        """The tunables' values for a device, with its own ones checked against the legal values."""
        kind = LANES if model.is_simt else LOOPS
        if any(kind not in tunable.defaults for tunable in self.tunables.values()):
            hint = "its header has no such defaults, since it is for devices that vectorize a work-item's loops."
            rule = f"a kernel's tunables must have defaults for '{kind}' on devices whose work-items are lanes"
            raise KernelError(f"kernel {self.name}", rule, device=model.name, hint=hint)
        values = {name: tunable.defaults[kind] for name, tunable in self.tunables.items()}
        for name in _FITTED.keys() & values.keys() if kind == LOOPS else ():
            fact, full = _FITTED[name]
            values[name] = self.tunables[name].within(values[name] * getattr(model, fact) / full)
        if kind == LANES and _GROUP in values:
            values[_GROUP] = self.tunables[_GROUP].within(model.group_size, kind)
        for name, value in model.tunables.get(self.name, {}).items():
            if name not in self.tunables or value not in self.tunables[name].choices:
                raise KernelError(
                    f"kernel {self.name}",
                    f"a tunable must be one of {sorted(self.tunables)} and have a legal value",
                    tunable=name,
                    value=value,
                )
            values[name] = value
        return values

    def assemble(
        self,
        macros: Mapping[str, Macro],
        blob_macros: Mapping[str, Macro],
        sizes: Mapping[str, int] | None = None,
        *,
        plain: bool = True,
    ) -> str:
        """The whole text for the driver: every macro as a ``#define``, then the file with its includes in place.

        ``sizes`` are values that the program shall know; if None, it reads the arguments. ``plain`` says whether all
        blobs are (:attr:`blobnet.memory.blob.BlobLayout.is_plain`).

        Raises:
            KernelError: ``macros`` and the macros and tunables declared are not the same.
        """
        check_names(f"kernel {self.name}", "macros", macros, (*self.macros, *self.tunables))
        if self.is_generated:
            return self.text
        # A kernel writes GLOBAL_UNITS, be it an argument or a number.
        values = {**macros, **blob_macros, **(sizes or {name: name.lower() for name in self.sizes})}
        defines = "".join([_define(name, values[name]) for name in sorted(values)])
        as_arguments = self.sizes_as_arguments and sizes is None
        from blobnet.memory.blob import geometry_type  # It needs NumPy, and the command line's help does not.

        defines += "" if plain else "#define GENERAL_BLOBS\n"
        geometry = f"#define SIZES_AS_ARGUMENTS\n{geometry_type(plain)}\n" if as_arguments else ""
        return defines + geometry + self._expanded

    def storage_macros(self, types: Mapping[str, StorageType]) -> dict[str, Macro]:
        """Return the macros of the types in memory of each role: ``input_t`` for INPUT.

        Raises:
            KernelError: an array is narrow that the kernel takes as real_t.
        """
        macros: dict[str, Macro] = {f"{role.lower()}_t": kind.c_type for role, kind in types.items()}
        narrow = {role: kind.name for role, kind in types.items() if kind.c_type != "real_t"}
        if narrow:
            if refused := {role: kind for role, kind in narrow.items() if not self._takes_narrow(role)}:
                raise KernelError(f"kernel {self.name}", "it takes some of its arrays in float32 alone", types=refused)
            macros["NARROW_STORAGE"] = 1
        # What kernels compute of cells are the first blob's.
        first = types.get(next(iter(self.blobs), ""))
        if first and first.cell > 1:
            macros["CELL_UNITS"] = first.cell
        return macros

    def _takes_narrow(self, role: str) -> bool:
        """Return True if the numbers of a role may be narrower than what kernels compute with: those of all blobs."""
        if self.is_generated or role in self.blobs:
            return True
        # Of those that an epilogue adds, the text says nothing.
        found = re.search(rf"_ARRAY\((\w+), {role.lower()}\)", self._expanded)
        return not found or found[1] == f"{role.lower()}_t"

    @property
    def _expanded(self) -> str:
        return _expand(self.text, f"{self.name}.cl")


def check_names(subject: str, kind: str, given: Iterable[str], declared: Iterable[str]) -> None:
    """Raises KernelError unless the names given are exactly the names that a header declares."""
    missing, unknown = set(declared) - set(given), set(given) - set(declared)
    if missing or unknown:
        rule = f"the {kind} given must be those that its header declares"
        raise KernelError(subject, rule, missing=sorted(missing), unknown=sorted(unknown))


def _closing(text: str, place: int) -> int:
    """Where the parenthesis closes behind whose opening a place is."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
    return place - 1


@lru_cache(1 << 14, typed=True)
def _define(name: str, value: Macro) -> str:
    return f"#define {name}{'' if isinstance(value, Definition) else ' '}{_literal(value)}\n"


def table_text(rows: Iterable[Iterable[int]]) -> str:
    """Return rows of numbers as the initial value of an array in C."""
    return "{" + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows) + "}"


def _literal(value: Macro) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{float(value)!r}f" if abs(value) != float("inf") else ("INFINITY" if value > 0 else "(-INFINITY)")
    return str(value) if isinstance(value, str) or value >= 0 else f"({value})"


@cache
def _expand(text: str, name: str) -> str:
    """Text with its quoted includes in place, so that a hash of the result covers all of it."""
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), start=1):
        include = re.match(_INCLUDE, line)
        if include:
            lines += [expanded(include.group(1)), f'#line {number + 1} "{name}"']
        else:
            lines.append(line)
    return "\n".join(lines)


def expanded(path: str) -> str:
    """Return the text of a file of kernels/ with its includes in place."""
    return _expand(header(path), path)


def header(path: str) -> str:
    """Return the text of a file of kernels/, its includes as they stand."""
    return _folder().joinpath(path).read_text(encoding="utf-8")


@cache
def _folder() -> Traversable:
    return resources.files("blobnet.kernels")


def all_kernels() -> list[str]:
    """The names of all kernels, sorted: ``<family>/<direction>``."""
    names = []
    for family in _folder().iterdir():
        if family.is_dir() and not family.name.startswith("_"):
            names += [f"{family.name}/{file.name[:-3]}" for file in family.iterdir() if file.name.endswith(".cl")]
    return sorted(names)


@cache
def fingerprint() -> str:
    """A hash of all kernel files: what was measured with others says nothing."""
    digest = hashlib.sha256()
    folder = _folder()
    for family in sorted([folder, *(item for item in folder.iterdir() if item.is_dir())], key=lambda item: item.name):
        for file in sorted(family.iterdir(), key=lambda item: item.name):
            if file.name.endswith((".cl", ".h")):
                digest.update(f"{family.name}/{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def load(name: str) -> KernelSource:
    """The kernel file ``kernels/<name>.cl``, its header parsed.

    Raises:
        KernelError: there is no such file, or its header breaks the form.
    """
    try:
        text = header(f"{name}.cl")
    except (FileNotFoundError, IsADirectoryError):
        raise KernelError(f"kernel {name}", "a kernel file must exist in kernels/", known=all_kernels()) from None
    return parse(name, text)


def parse(name: str, text: str) -> KernelSource:
    """A :class:`KernelSource` from a file's text; what the headers of its includes list comes behind its own."""
    if _header(text) is None:
        raise KernelError(f"kernel {name}", "a kernel file must open with its header, a comment")
    purpose, sections = _listed(text)
    accesses = {}
    everywhere = sections.pop(_SIZED_EVERYWHERE)
    sized = sections.pop(_SIZED_BLOBS) | everywhere
    sections["Blobs"] = sized | sections["Blobs"]
    for kind in ("Blobs", "Arrays"):
        accesses[kind] = {role: rest.split(" ")[0] for role, rest in sections[kind].items()}
        for role, access in accesses[kind].items():
            if access not in _ACCESS:
                raise KernelError(f"kernel {name}", f"{role} needs one of {_ACCESS} after its name", header=access)
    tunables = {role: _tunable(name, role, rest) for role, rest in sections["Tunables"].items()}
    if len({len(tunable.defaults) for tunable in tunables.values()}) > 1:
        without = [role for role, tunable in tunables.items() if LANES not in tunable.defaults]
        raise KernelError(
            f"kernel {name}", f"all of its tunables must have a default for '{LANES}', or none", without=without
        )
    return KernelSource(
        name=name,
        text=text,
        purpose=purpose,
        blobs=accesses["Blobs"],
        arrays=accesses["Arrays"],
        scalars=tuple(sections["Scalars"]),
        macros=tuple(sections["Macros"]),
        tunables=tunables,
        dimensions=sections["Global"],
        sizes_as_arguments=bool(sized),
        sizes_everywhere=bool(everywhere),
        data_alone=frozenset(role for role, rest in sections["Blobs"].items() if rest.startswith(_DATA_ALONE)),
        moves=next(iter(sections["Moves"]), None),
        combined=next(iter(sections["Combined"]), None),
    )


def _listed(text: str) -> tuple[str, dict[str, dict[str, str]]]:
    """The purpose of a file, and what its header lists in each section, and behind it those of its includes."""
    purpose, sections = _sections(_header(text) or "")
    for include in re.findall(_INCLUDE, text, re.MULTILINE):
        for section, listed in _listed(header(include))[1].items():
            sections[section] |= listed
    return purpose, sections


def _header(text: str) -> str | None:
    """The comment that a file opens with."""
    header = re.match(r"\s*/\*(.*?)\*/", text, re.DOTALL)
    return header.group(1) if header else None


def _sections(header: str) -> tuple[str, dict[str, dict[str, str]]]:
    """A header's purpose, and what it lists in each section."""
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    purpose: list[str] = []
    section = ""
    for raw in header.splitlines():
        line = raw.strip().lstrip("*").strip()
        if line.endswith(":") and line[:-1] in _SECTIONS:
            section = line[:-1]
        elif not section:
            purpose.append(line)
        elif line:
            word, _, rest = line.partition(" ")
            if section in ("Moves", "Combined"):
                sections[section][line] = ""
            elif section in ("Global", "Local"):
                sections[section][word.rstrip(":")] = rest.strip()
            elif _NAME.match(word):
                sections[section][word] = rest.strip()
            # Other lines continue the remark of the line above.
    return " ".join(purpose).strip(), sections


def _tunable(kernel: str, name: str, text: str) -> Tunable:
    """Parses ``loops 16, lanes 1 of 1 2 4 8 16: remark``; kernels for loops alone have no default for lanes."""
    match = re.match(r"loops (\d+)(?:, lanes (\d+))? of ([\d ]+?)(:|$)", text)
    if not match:
        form = "a tunable reads 'NAME loops <default>[, lanes <default>] of <legal values>: remark'"
        raise KernelError(f"kernel {kernel}", form, line=f"{name} {text}")
    choices = tuple(int(choice) for choice in match.group(3).split())
    given = {LOOPS: match.group(1), LANES: match.group(2)}
    defaults = {kind: int(default) for kind, default in given.items() if default is not None}
    if not set(defaults.values()) <= set(choices):
        raise KernelError(f"kernel {kernel}", f"the defaults of {name} must be among its legal values", line=text)
    return Tunable(defaults, choices)

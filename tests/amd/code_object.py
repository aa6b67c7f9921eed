"""AMD's code objects: ELF files with kernels, loaded into this process (LLVM, User Guide for the AMDGPU backend)."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.amd.compiler import disassembled
from tests.amd.decoder import Program, decode

_LOAD, _NOTES = 1, 4  # kinds of segments
_SYMBOLS, _RELOCATIONS = 11, 4  # kinds of sections
_RELATIVE = 13  # the relocation that adds where the code object was loaded
_METADATA = 32  # the note with what is known of kernels
#: Of a descriptor's properties: the pointers that scalar registers begin with; waves of 32.
_PACKET, _ARGUMENTS, _WAVES_OF_32 = 1 << 1, 1 << 3, 1 << 10


@dataclass(frozen=True)
class Argument:
    """Where an argument lies: its kind (hidden ones are the compiler's), offset and size in bytes."""

    kind: str
    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    """A kernel and what a launch of it needs.

    Attributes:
        name: as in the source.
        program: its instructions.
        address: of the first one.
        arguments: in order.
        argument_bytes: of all of them.
        local_bytes, scratch_bytes: local memory of a group, memory of a work-item.
        lanes: of its waves, 32 or 64.
        takes_packet: whether its first registers say where the launch's packet is.
        user_registers: scalar registers before those with the group's numbers.
        group_numbers: a bit for each axis whose group number it gets.
    """

    name: str
    program: Program
    address: int
    arguments: tuple[Argument, ...]
    argument_bytes: int
    local_bytes: int
    scratch_bytes: int
    lanes: int
    takes_packet: bool
    user_registers: int
    group_numbers: int

    def packed(self, values: Sequence[Any], groups: Sequence[int], size: Sequence[int]) -> bytes:
        """The arguments as they lie in memory.

        Args:
            values: addresses as int, all else as NumPy's numbers or arrays.
            groups, size: groups of the launch and work-items of a group, for three axes.
        """
        # NOTE: compilers read 16 aligned bytes where the last of them belong to nobody.
        data, given = bytearray(-(-self.argument_bytes // 16) * 16), iter(values)
        axes = {"block_count": groups, "group_size": size, "remainder": (0, 0, 0), "global_offset": (0, 0, 0)}
        for argument in self.arguments:
            if argument.kind.startswith("hidden_"):
                word, _, axis = argument.kind.removeprefix("hidden_").rpartition("_")
                value = axes[word]["xyz".index(axis)] if word in axes else 3 if axis == "dims" else 0
                raw = int(value).to_bytes(argument.size, "little")
            else:
                value = next(given)
                raw = struct.pack("<Q", value) if isinstance(value, int) else np.asarray(value).tobytes()
            if len(raw) != argument.size:
                raise ValueError(f"{self.name}: an argument of {argument.size} bytes got {len(raw)}")
            data[argument.offset : argument.offset + argument.size] = raw
        if [*given]:
            raise ValueError(f"{self.name}: too many arguments")
        return bytes(data)


class CodeObject:
    """A code object in memory.

    Args:
        path: of the file.

    Attributes:
        base, size: where it lies.
        kernels: by their names.

    Raises:
        UnknownInstructionError: a kernel has instructions that the interpreter does not know.
        ValueError: the file needs what is not done here: another relocation, other registers.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._data = path, path.read_bytes()
        loads = [segment for segment in self._segments() if segment[0] == _LOAD]
        self.size = max(address + size for _, _, address, _, size in loads) + mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self.size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for _, offset, address, in_file, _ in loads:
            self._memory[address : address + in_file] = self._data[offset : offset + in_file]
        self._relocate()
        symbols = dict(self._symbols())
        self.kernels = {item[".name"]: self._kernel(item, symbols) for item in self._metadata()["amdhsa.kernels"]}

    def _segments(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Of each: kind, offset in the file, address, bytes in the file and in memory."""
        (start,), (count,) = struct.unpack_from("<Q", self._data, 32), struct.unpack_from("<H", self._data, 56)
        for at in range(start, start + 56 * count, 56):
            kind, _, offset, address, _, in_file, size, _ = struct.unpack_from("<IIQQQQQQ", self._data, at)
            yield kind, offset, address, in_file, size

    def _sections(self) -> list[tuple[int, ...]]:
        (start,), (count,) = struct.unpack_from("<Q", self._data, 40), struct.unpack_from("<H", self._data, 60)
        return [struct.unpack_from("<IIQQQQIIQQ", self._data, at) for at in range(start, start + 64 * count, 64)]

    def _symbols(self) -> Iterator[tuple[str, int]]:
        """Names and addresses."""
        sections = self._sections()
        for _, kind, _, _, offset, size, link, *_ in sections:
            for at in range(offset, offset + size, 24) if kind == _SYMBOLS else ():
                name, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", self._data, at)
                first = sections[link][4] + name
                yield self._data[first : self._data.index(b"\0", first)].decode(), address

    def _relocate(self) -> None:
        for _, kind, _, _, offset, size, *_ in self._sections():
            for at in range(offset, offset + size, 24) if kind == _RELOCATIONS else ():
                place, what, added = struct.unpack_from("<QQq", self._data, at)
                if what & 0xFFFFFFFF != _RELATIVE:
                    raise ValueError(f"{self._path}: a relocation of kind {what & 0xFFFFFFFF}")
                struct.pack_into("<Q", self._memory, place, self.base + added)

    def _metadata(self) -> Any:
        for kind, offset, _, size, _ in self._segments():
            at = offset
            while kind == _NOTES and at < offset + size:
                name_size, content_size, note = struct.unpack_from("<III", self._data, at)
                content = at + 12 + -(-name_size // 4) * 4
                if note == _METADATA:
                    return _unpacked(self._data, content)[0]
                at = content + -(-content_size // 4) * 4
        raise ValueError(f"{self._path}: no metadata")

    def _kernel(self, item: dict[str, Any], symbols: dict[str, int]) -> Kernel:
        descriptor = symbols[item[".symbol"]]
        local, scratch, _, _, entry = struct.unpack_from("<IIIIq", self._memory, descriptor)
        _, _, registers, properties = struct.unpack_from("<IIIH", self._memory, descriptor + 44)
        if properties & ~(_PACKET | _WAVES_OF_32) != _ARGUMENTS:
            raise ValueError(f"{item['.name']}: begins with registers that are not known here: {properties:#x}")
        lanes = 32 if properties & _WAVES_OF_32 else 64
        return Kernel(
            name=item[".name"],
            program=decode(disassembled(self._path, item[".name"], lanes)),
            address=self.base + descriptor + entry,
            arguments=tuple(Argument(one[".value_kind"], one[".offset"], one[".size"]) for one in item[".args"]),
            argument_bytes=item[".kernarg_segment_size"],
            local_bytes=local,
            scratch_bytes=scratch,
            lanes=lanes,
            takes_packet=bool(properties & _PACKET),
            user_registers=registers >> 1 & 31,
            group_numbers=registers >> 7 & 7,
        )


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """A value of MessagePack, and where the next one begins."""
    tag = data[at]
    at += 1
    if tag < 0x80 or tag >= 0xE0:
        return tag - 256 * (tag >= 0xE0), at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if 0xCC <= tag <= 0xD3:
        size = 1 << (tag - 0xCC & 3)
        return int.from_bytes(data[at : at + size], "big", signed=tag >= 0xD0), at + size
    if tag < 0xC0 and tag >= 0xA0:
        kind, count = "text", tag & 31
    elif tag < 0xA0:
        kind, count = ("map", "list")[tag >> 4 & 1], tag & 15
    else:
        kind, width = {0xD9: ("text", 1), 0xDA: ("text", 2), 0xDC: ("list", 2), 0xDE: ("map", 2)}[tag]
        count, at = int.from_bytes(data[at : at + width], "big"), at + width
    if kind == "text":
        return data[at : at + count].decode(), at + count
    values = []
    for _ in range(count * (2 if kind == "map" else 1)):
        value, at = _unpacked(data, at)
        values.append(value)
    return (values if kind == "list" else dict(zip(values[::2], values[1::2], strict=True))), at

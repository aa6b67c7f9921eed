"""The IDX format of MNIST: big-endian sizes, then bytes; plain or gzip-compressed."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import FileError

UNSIGNED_BYTE = 0x08
GZIP_MAGIC = b"\x1f\x8b"
#: Bytes of a file: more than MNIST's largest has, and no more than memory surely has.
_LONGEST = 1 << 26


def unpack(path: Path) -> bytes:
    """The bytes of a file, decompressed if they are gzip data, whatever the file is called.

    Raises:
        FileError: the file cannot be read, its gzip data is damaged, or it is longer than any of these.
    """
    try:
        with path.open("rb") as file:
            is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if is_packed else file).read(_LONGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(str(path), "the file must be readable and whole", reason=error) from error
    if len(data) > _LONGEST:
        raise FileError(str(path), f"the file must not unpack to more than {_LONGEST} bytes")
    return data


def parse_idx(data: bytes, dimensions: int, path: Path) -> npt.NDArray[np.uint8]:
    """The array in the bytes of an IDX file of unsigned bytes.

    Args:
        data: the decompressed file.
        dimensions: the number of axes that it must have: 3 for images (N, H, W), 1 for labels (N,).
        path: what the error names.

    Raises:
        FileError: a wrong magic number, type or number of axes, or another amount of data than the header announces.
    """

    def wrong(rule: str, **received: Any) -> FileError:
        return FileError(str(path), rule, hint="the file is no whole IDX file of the expected kind", **received)

    header = 4 + 4 * dimensions
    if len(data) < 4 or data[:2] != b"\0\0":
        raise wrong("an IDX file must start with two zero bytes, a type and a number of axes", start=data[:4].hex(" "))
    if data[2] != UNSIGNED_BYTE:
        raise wrong("the type must be 0x08, unsigned bytes", type=f"0x{data[2]:02x}")
    if data[3] != dimensions:
        raise wrong(f"the number of axes must be {dimensions}", axes=data[3])
    if len(data) < header:
        raise wrong(f"the header must have {header} bytes", bytes=len(data))
    shape = tuple(int.from_bytes(data[start : start + 4], "big") for start in range(4, header, 4))
    if len(data) - header != math.prod(shape):
        raise wrong(f"{math.prod(shape)} bytes of data must follow the header", shape=shape, bytes=len(data) - header)
    # The copy makes the array writable, as that of every other data set is.
    values: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()
    return values

"""Files whose values are read as they stand: pictures of several bands, and volumes.

A format is a module of its own, with its own library; :data:`FORMATS` has them all.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from blobnet.datasets.packed import File, bytes_of
from blobnet.errors import BlobnetError, FileError, OptionError, extra
from blobnet.support.picture_kinds import ARRAY_SUFFIXES
from blobnet.support.regular_file import MAX_UNPACKED, most_memory

Array = npt.NDArray[Any]


class Header(NamedTuple):
    """What a file holds.

    Attributes:
        shape: (units, height, width), or (units, depth, height, width).
        dtype: of the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Reads(Protocol):
    """What the module of a format has; each may raise any error about the file."""

    def header(self, file: File) -> Header | None:
        """Return what a file holds, without its values; None if Pillow is to read it."""

    def values(self, file: File) -> Array:
        """Return all values, of the header's shape and type."""


@dataclass(frozen=True)
class ArrayFormat:
    """A format of files.

    Attributes:
        name: for people.
        module: of this package, which has what Reads says.
        library: what that imports.
        extra: of blobnet, which installs it.
        is_optional: whether Pillow reads some of these files without it.
    """

    name: str
    module: str
    library: str
    extra: str
    is_optional: bool = False

    def header(self, file: File) -> Header | None:
        """Return what a file holds; None if Pillow is to read it.

        Raises:
            OptionError: the library is not installed.
            FileError: the file cannot be read, or takes too much memory.
        """
        if self.is_optional and importlib.util.find_spec(self.library) is None:
            return None
        with self._reading(file) as reads:
            found = reads.header(file)
            if found is None:
                return None
            needed, most = math.prod(found.shape) * found.dtype.itemsize, most_memory(bytes_of(file))
            if needed > most:
                rule = f"what is read into memory must be no more than {MAX_UNPACKED} times its file, or 1 GiB"
                raise FileError(str(file), rule, bytes=needed, most=most)
            return Header(tuple(map(int, found.shape)), _travelling(found.dtype))

    def values(self, file: File) -> Array | None:
        """Return all values of a file, in the type of its header; None if Pillow is to read it.

        Raises:
            OptionError: the library is not installed.
            FileError: the file cannot be read, or a value is not finite.
        """
        expected = self.header(file)
        if expected is None:
            return None
        with self._reading(file) as reads:
            found = reads.values(file)
            if found.shape != expected.shape:
                raise ValueError(f"it has values of {found.shape}, and says {expected.shape}")
            if found.dtype.kind not in "biuf":
                raise ValueError(f"its values must be real numbers, and are of {found.dtype}")
            with np.errstate(over="ignore"):
                made = found.astype(expected.dtype, copy=False)
            if made.dtype.kind == "f" and not np.isfinite(made).all():
                raise ValueError(f"its values must be finite numbers of {made.dtype}")
            return made

    @contextmanager
    def _reading(self, file: File) -> Iterator[Reads]:
        if importlib.util.find_spec(self.library) is None:
            raise OptionError(str(file), f"reading {self.name} needs {self.library}", hint=extra(self.extra))
        module: Any = importlib.import_module(f"blobnet.datasets.{self.module}")
        try:
            yield module
        except BlobnetError:
            raise
        except Exception as error:  # Libraries raise whatever a damaged file makes of them.
            reason = f"{type(error).__name__}: {error}"
            raise FileError(str(file), f"the file must be a readable {self.name} file", reason=reason) from error


def _travelling(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which values go to the device: that of the file where it keeps all bits there."""
    kept = ("uint8", "int8", "uint16", "int16", "float16", "float32")
    return np.dtype(dtype.name if dtype.name in kept else np.float32)


_FORMATS = {
    "TIFF": ArrayFormat("TIFF", "tiff", "tifffile", "tiff", is_optional=True),
    "NIfTI": ArrayFormat("NIfTI", "nifti", "nibabel", "nifti"),
    "DICOM": ArrayFormat("DICOM", "dicom", "pydicom", "dicom"),
}


def format_of(file: File) -> ArrayFormat | None:
    """Return the format of a file whose values are read as they stand; None for others."""
    return _FORMATS.get(ARRAY_SUFFIXES.get(suffix_of(file), ""))


def suffix_of(file: File) -> str:
    """The end of a file's name, in lower case, which may be that of a packed one: ``.nii.gz``."""
    name = file.name.lower()
    return next((end for end in ARRAY_SUFFIXES if name.endswith(end)), Path(name).suffix)


def header_of(file: File) -> Header | None:
    """Return what a file holds whose values are read as they stand; None where Pillow reads it."""
    own = format_of(file)
    return own.header(file) if own is not None else None


def require_pillow(path: File) -> None:
    """Pillow is an optional extra; that it is missing is no FileError, since it is the fault of no picture."""
    if importlib.util.find_spec("PIL") is None:
        raise OptionError(str(path), "reading or resizing pictures needs Pillow", hint=extra("images"))


def resized(values: Array, size: tuple[int, ...], file: File) -> Array:
    """Return bands (units, height, width) of another height and width, bilinearly; FileError for volumes.

    Values keep their type.
    """
    if values.shape[1:] == size:
        return values
    if values.ndim != 3 or len(size) != 2:
        raise FileError(str(file), "only pictures are resized, not volumes", size=values.shape[1:], wanted=size)
    require_pillow(file)
    from PIL import Image

    planes = [
        Image.fromarray(plane.astype(np.float32)).resize(size[::-1], Image.Resampling.BILINEAR) for plane in values
    ]
    found = np.stack([np.asarray(plane) for plane in planes])
    return (found if values.dtype.kind == "f" else np.rint(found)).astype(values.dtype)

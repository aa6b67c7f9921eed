"""NIfTI volumes, by nibabel."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt

from blobnet.datasets.array_files import Header
from blobnet.datasets.packed import File, opened

# What nibabel has typed in parts: here it is a module of any names.
_nibabel: Any = nibabel


@contextmanager
def _image(file: File) -> Iterator[Any]:
    """A volume, whose values are read, and unpacked, where they are asked for."""
    with opened(file) as data:
        is_packed = data.read(2) == b"\x1f\x8b"
        data.seek(0)
        with gzip.GzipFile(fileobj=data) if is_packed else nullcontext(data) as source:
            start = source.read(4)
            source.seek(0)
            kind = _nibabel.Nifti2Image if start in (b"\x1c\x02\0\0", b"\0\0\x02\x1c") else _nibabel.Nifti1Image
            yield kind.from_file_map(kind.make_file_map({"image": source}), mmap=False)


def _shape(image: Any) -> tuple[int, ...]:
    shape = tuple(image.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) == 5 and shape[3] == 1:  # NIfTI's vectors: the fourth axis is time.
        shape = (*shape[:3], shape[4])
    if not 3 <= len(shape) <= 4 or 0 in shape:
        raise ValueError(f"a volume must have three axes, and perhaps a fourth of its units, and has {image.shape}")
    return shape


def _orientation(image: Any) -> npt.NDArray[Any]:
    found = _nibabel.orientations.io_orientation(image.affine)
    if np.isnan(found).any():
        raise ValueError("its affine must say where its axes point")
    return np.asarray(found)


def header(file: File) -> Header:
    """Return the shape (units, depth, height, width) of a volume, turned as :func:`values` turns it."""
    with _image(file) as image:
        shape, places = _shape(image), _orientation(image)[:, 0].astype(int)
    turned = [0, 0, 0]
    for axis, place in enumerate(places):
        turned[place] = shape[axis]
    is_scaled = image.dataobj.slope not in (None, 1) or image.dataobj.inter not in (None, 0)
    dtype = np.dtype(np.float32) if is_scaled else image.get_data_dtype()
    return Header((shape[3] if len(shape) == 4 else 1, *turned[::-1]), dtype)


def values(file: File) -> npt.NDArray[Any]:
    """Return the values of a volume, scaled as its header says.

    Its axes are turned, without a change of values, so that x runs from left to right, y from the back to the front,
    and z from the feet to the head (RAS+): width, height and depth.
    """
    with _image(file) as image:
        shape = _shape(image)
        data = np.asanyarray(image.dataobj).reshape(shape)
    data = _nibabel.orientations.apply_orientation(data, _orientation(image))
    return np.ascontiguousarray(data.reshape(*data.shape[:3], -1).transpose(3, 2, 1, 0))

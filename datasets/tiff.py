"""TIFF files of several bands, or of colours of 16 bits, which Pillow does not read; by tifffile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile

from blobnet.datasets.array_files import Header
from blobnet.datasets.packed import File, opened

#: The axes of what is read, in tifffile's letters: samples or channels, depth, height, width. Q are arrays of no names.
_UNITS, _DEPTH = "SCQ", "Z"
#: Colours of 16 bits are divided by this, as grays are, so that white, 65535, is 255.
_TO_8_BITS = 257


@contextmanager
def _series(file: File) -> Iterator[Any]:
    with opened(file) as data, tifffile.TiffFile(data) as tiff:
        yield tiff.series[0]


def _axes(series: Any) -> tuple[str, int, int] | None:
    """The axes of the series, how many units it has, and its depth (0: none); None if Pillow reads it."""
    axes, sizes = series.axes, dict(zip(series.axes, series.shape, strict=True))
    units = [axis for axis in axes if axis in _UNITS and sizes[axis] > 1]
    if set(axes) - set(_UNITS) - set(_DEPTH) - set("YX") or len(units) > 1 or not {"Y", "X"} <= set(axes):
        return None  # Pages without a meaning: the first one is the picture.
    count, depth = (sizes[units[0]] if units else 1), sizes.get(_DEPTH, 0)
    deep = series.dtype.itemsize > 1
    page = series.keyframe
    is_alpha = count == 4 and page.photometric.name == "RGB" and page.extrasamples in ((1,), (2,))
    is_plain = count == 1 or (count == 3 and not deep) or (is_alpha and not deep) or page.photometric.name in _COLOURS
    return None if not depth and (is_plain and axes.strip("QCS") in ("YX", "")) else (axes, count, depth)


#: Kinds of colours that Pillow turns into red, green and blue.
_COLOURS = ("YCBCR", "PALETTE", "SEPARATED", "CIELAB")


def header(file: File) -> Header | None:
    """Return what a file holds; None if Pillow reads it."""
    with _series(file) as series:
        found = _axes(series)
        if found is None:
            return None
        axes, units, depth = found
        sizes = dict(zip(axes, series.shape, strict=True))
        is_scaled = _is_scaled(series.dtype, units, depth)
        shape = (units, *([depth] if depth else []), sizes["Y"], sizes["X"])
        return Header(shape, np.dtype(np.float32) if is_scaled else series.dtype)


def _is_scaled(dtype: np.dtype[Any], units: int, depth: int) -> bool:
    """Return True for colours, as for grays of 16 bits in pictures; bands and volumes keep their values."""
    return dtype == np.uint16 and units == 3 and not depth


def values(file: File) -> npt.NDArray[Any]:
    """Return the values of a file of which :func:`header` is not None."""
    with _series(file) as series:
        found = _axes(series)
        assert found is not None, "Pillow reads it"
        axes, units, depth = found
        data = series.asarray()
        # (units, depth, height, width): of the axes of units all but one have a single value.
        data = data.transpose(sorted(range(data.ndim), key=lambda place: "SCQZYX".index(axes[place])))
        data = data.reshape(units, *([depth] if depth else []), *data.shape[-2:])
        return np.asarray(data / np.float32(_TO_8_BITS) if _is_scaled(data.dtype, units, depth) else data)

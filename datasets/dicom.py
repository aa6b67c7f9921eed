"""DICOM pictures, and volumes of many of them in one file, by pydicom."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom

from blobnet.datasets.array_files import Header
from blobnet.datasets.packed import File, opened

#: Its parts are not declared as public.
operations: Any = pydicom.pixels

_RULE = "it must hold a picture of grays, or of red, green and blue"


def _shape(data: Any) -> tuple[int, ...]:
    units, frames = int(data.SamplesPerPixel), int(data.get("NumberOfFrames", 1) or 1)
    if "Rows" not in data or units not in (1, 3):
        raise ValueError(_RULE)
    if units == 1 and not str(data.get("PhotometricInterpretation", "")).startswith("MONOCHROME"):
        raise ValueError(f"{_RULE}; its numbers are those of a palette")
    if units == 3 and int(data.BitsAllocated) > 8:
        raise ValueError(f"{_RULE} of 8 bits")
    return (units, *([frames] if frames > 1 else []), int(data.Rows), int(data.Columns))


def header(file: File) -> Header:
    """Return the shape of a picture, or of a volume where a file has several frames."""
    with opened(file) as source:
        data = pydicom.dcmread(source, stop_before_pixels=True)
    if "Rows" not in data or "SamplesPerPixel" not in data:
        raise ValueError(_RULE)
    return Header(_shape(data), np.dtype(np.uint8 if int(data.SamplesPerPixel) == 3 else np.float32))


def values(file: File) -> npt.NDArray[Any]:
    """Return the values that a file means: rescaled (Hounsfield units, say), with white above black."""
    with opened(file) as source:
        data = pydicom.dcmread(source)
    pixels = data.pixel_array
    shape = _shape(data)
    if shape[0] == 3:
        # NOTE: pydicom has made red, green and blue of other colours, whatever PhotometricInterpretation still says.
        return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)).reshape(shape)
    if data.PhotometricInterpretation == "MONOCHROME1":  # Its least value is white.
        least = -(1 << (data.BitsStored - 1)) if data.PixelRepresentation else 0
        pixels = (2 * least + (1 << data.BitsStored) - 1) - pixels.astype(np.int64)
    return np.asarray(operations.apply_modality_lut(pixels, data), np.float32).reshape(shape)

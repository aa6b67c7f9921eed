"""One image: decode it, give it the units (channels) and the size that a model expects."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import check_arrays
from blobnet.errors import DataError, FileError, OptionError

# ITU-R 601-2 luma in 16-bit fixed point, as Pillow computes it.
LUMA = np.array([19595, 38470, 7471], dtype=np.uint32)


def read_image(path: str | Path, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Read one image in the shape of a model's input.

    A picture is turned upright (EXIF), becomes gray or RGB as the model has 1 or 3 units, and lies on white where it is
    transparent. A ``.npy`` file, (H, W) or (C, H, W), must have the model's units. Only another size is resized,
    bilinearly.

    Args:
        path: a ``.npy`` file, or any picture that Pillow reads.
        shape: (C, H, W).

    Returns:
        (C, H, W), uint8 for pictures and uint8 files, else float32.

    Raises:
        OptionError: the shape is not that of an image.
        FileError: the file cannot be read, or Pillow is not installed.
        DataError: the file does not have the model's units, or holds values that are not finite.
    """
    path = Path(path)
    if len(shape) != 3 or min(shape) < 1:
        raise OptionError("shape", "an image needs the axes (units, height, width)", shape=tuple(shape))
    units, height, width = shape
    planes = _read_array(path, units) if path.suffix.lower() == ".npy" else with_units(read_picture(path), units, path)
    return resized(planes, (height, width), path)


def read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Decode a picture to (1, H, W) if it is gray, else to (3, H, W).

    Raises:
        FileError: the picture cannot be read, or Pillow is not installed.
    """
    _require_pillow(path)
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as picture:
            return _planes(ImageOps.exif_transpose(picture))
    # Pillow's decoders let the errors of what they are made of through.
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise FileError(str(path), "the picture must be readable and whole", reason=error) from error


def with_units(planes: npt.NDArray[np.uint8], units: int, path: Path) -> npt.NDArray[np.uint8]:
    """Gray as RGB, or RGB as gray, if ``units`` demands it."""
    if units not in (1, 3):
        raise DataError(
            str(path),
            f"a picture has 1 unit (gray) or 3 (RGB), the model expects {units}",
            hint="give a .npy file with the shape (units, height, width)",
        )
    if len(planes) == units:
        return planes
    if units == 3:
        return np.repeat(planes, 3, axis=0)
    gray = (np.tensordot(LUMA, planes.astype(np.uint32), axes=1) + 0x8000) >> 16
    return gray.astype(np.uint8)[None]


def resized(planes: npt.NDArray[Any], size: tuple[int, int], path: Path) -> npt.NDArray[Any]:
    """(C, H, W) with another height and width, bilinearly; the array itself if it has that size already."""
    if planes.shape[1:] == size:
        return planes
    _require_pillow(path)
    from PIL import Image

    height, width = size
    return np.stack(
        [np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR)) for plane in planes]
    )


def _read_array(path: Path, units: int) -> npt.NDArray[Any]:
    """A .npy file as (C, H, W)."""
    try:
        with path.open("rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(str(path), "the file must be a readable .npy array", reason=error) from error
    planes = values[None] if values.ndim == 2 else values
    if planes.ndim != 3 or len(planes) != units:
        raise DataError(
            str(path),
            f"the array must have the axes (units, height, width) with {units} units",
            hint="an array with its units last is brought into order by array.transpose(2, 0, 1)",
            shape=values.shape,
        )
    check_arrays(planes[None], subject=str(path))
    return np.ascontiguousarray(planes, dtype=np.uint8 if planes.dtype == np.uint8 else np.float32)


def _require_pillow(path: Path) -> None:
    """Pillow is an optional extra."""
    if importlib.util.find_spec("PIL") is None:
        raise FileError(str(path), "reading or resizing pictures needs Pillow", hint='pip install "blobnet[images]"')


def _planes(picture: Any) -> npt.NDArray[np.uint8]:
    """A Pillow image as (1, H, W) or (3, H, W)."""
    from PIL import Image

    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its values do not fit into 16 bits")
        # Pillow would clip 16-bit values at 255 instead of scaling them.
        return (values >> 8).astype(np.uint8)[None]
    if picture.mode == "F":
        raise ValueError("its values are not whole numbers")
    is_gray, has_palette = picture.mode in ("1", "L", "LA", "La"), picture.mode in ("P", "PA")
    if "transparency" in picture.info or picture.mode[-1] in "Aa":
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture.convert("RGBA"))
    if is_gray:
        return np.asarray(picture.convert("L"))[None]
    planes = np.ascontiguousarray(np.asarray(picture.convert("RGB")).transpose(2, 0, 1))
    # A palette does not say whether its colours are gray; the picture does.
    return planes[:1] if has_palette and (planes == planes[:1]).all() else planes

"""One image: decode it, give it the units (channels) and the size that a model expects."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.datasets.array_files import format_of, header_of, require_pillow, resized
from blobnet.datasets.checks import check_arrays
from blobnet.datasets.file_source import npy_shape, read_npy, readable
from blobnet.datasets.packed import File, bytes_of, opened
from blobnet.errors import DataError, FileError, OptionError, warn
from blobnet.support.picture_kinds import DEEP, FORMATS, PLUGINS
from blobnet.support.regular_file import MAX_UNPACKED, check_regular, most_memory

# ITU-R 601-2 luma in 16-bit fixed point, as Pillow computes it.
LUMA = np.array([19595, 38470, 7471], dtype=np.uint32)

# Pillow's modes for gray, with and without transparency, and for palettes.
_GRAYS, _PALETTES = ("1", "L", "LA", "La"), ("P", "PA")
# The first letter of its modes for grays of more than 8 bits: 16, 32, or real numbers.
_DEEP_GRAYS = "IF"
# The EXIF tag that says how a camera was held; from 5 on, on its side.
_ORIENTATION, _FIRST_SIDEWAYS = 0x0112, 5

# What files of formats that plug-ins read have in common: where, and which ones.
_BRANDED, _BRANDS = b"ftyp", {b"avif": "AVIF", b"avis": "AVIF", **dict.fromkeys((b"heic", b"heix", b"mif1"), "HEIF")}

#: Bytes that decoding takes for each pixel: Pillow's four, in as many copies as turning and flattening make.
_PIXEL_BYTES = 20
#: By what values of 16 bits are divided, so that white, 65535, is 255 as in pictures of 8 bits.
_TO_8_BITS = 257
#: Values of colours of 16 bits up to which a warning says how little is left of them: 64 of each.
_FEW_VALUES = 1 << 14
#: What :func:`depth_of` says of pictures whose values are real numbers.
REAL = 0

_Result = TypeVar("_Result")


def read_image(path: str | Path, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Read one image in the shape of a model's input.

    A picture is turned upright (EXIF), becomes gray or RGB as the model has 1 or 3 units, and lies on white where it is
    transparent. Grays of 16 or 32 bits are divided by 257, in float32, so that white is 255 and no gray is lost; real
    numbers (TIFF) stay as they are. A ``.npy`` file, (H, W) or (C, H, W), must have the model's units. Only another
    size is resized, bilinearly.

    Args:
        path: a ``.npy`` file, or a picture: PNG, JPEG, WebP, BMP, GIF (its first frame), TIFF and others that Pillow
            reads; HEIC where ``pillow-heif`` is installed.
        shape: (C, H, W).

    Returns:
        (C, H, W), uint8 for pictures of 8 bits and uint8 files, else float32.

    Raises:
        OptionError: the shape is not that of an image, or Pillow is not installed.
        FileError: the file cannot be read.
        DataError: the file does not have the model's units, or holds values that are not finite.
    """
    path = Path(path)
    own = format_of(path)
    if len(shape) != 3 or min(shape) < 1:
        if len(shape) == 4 and own is not None:
            return read_sample(path, shape[0], tuple(shape[1:]))
        raise OptionError("shape", "an image needs the axes (units, height, width)", shape=tuple(shape))
    units, height, width = shape
    if path.suffix.lower() == ".npy":
        return _resized(_read_array(path, units), (height, width), path)
    planes = np.ascontiguousarray(read_sample(path, units, (height, width)))
    if not planes.any():
        note_shallow(str(path), [depth_of(path)])
    return planes


def is_pillow(picture: object) -> bool:
    """Return True for a Pillow picture; Pillow need not be installed."""
    return all(hasattr(picture, name) for name in ("mode", "size", "getbands"))


def from_pillow(picture: Any, shape: Sequence[int], subject: str) -> npt.NDArray[Any]:
    """A Pillow picture in the shape of a model's input, as :func:`read_image` reads it from a file.

    Raises:
        DataError: the shape is not that of a picture, or values are not finite.
    """
    if len(shape) != 3:
        rule = "a picture is a sample of (units, height, width), which the model does not take"
        raise DataError(subject, rule, model=tuple(shape))
    try:
        return np.ascontiguousarray(with_units(_planes(picture, (shape[1], shape[2])), shape[0], Path(subject)))
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(subject, "a picture must be readable, and its values finite", cause=error) from error


def image_size(path: str | Path) -> tuple[int, int]:
    """The (height, width) that a file for :func:`read_image` has by itself.

    Raises:
        FileError: the file cannot be read.
        OptionError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        with readable(path, ".npy array"):
            height, width = npy_shape(path)[-2:]
        return height, width
    height, width = picture_form(path)[-2:]
    return height, width


def read_sample(file: File, units: int, size: tuple[int, ...]) -> npt.NDArray[Any]:
    """Decode a picture, the bands of one, or a volume, to (units, *size); grays of a picture fill three units too.

    Raises:
        FileError: it cannot be read, or is a volume of another size.
        DataError: it has other units.
        OptionError: what reads it is not installed.
    """
    own = format_of(file)
    read = None if own is None else own.values(file)
    if read is None:
        if len(size) != 2:
            raise FileError(str(file), "the file must be a volume, as the others are", size=size)
        return with_units(read_picture(file, (size[0], size[1])), units, file)
    values: npt.NDArray[Any] = resized(read, size, file)
    if (len(values), units, len(size)) == (1, 3, 2):
        return with_units(values, units, file)
    if len(values) != units:
        raise DataError(
            str(file), "it must have as many units (bands) as the model takes", units=len(values), model=units
        )
    return values


def read_picture(path: File, size: tuple[int, int] | None = None) -> npt.NDArray[Any]:
    """Decode a picture to (1, H, W) if it is gray, else to (3, H, W); uint8 or float32, as :func:`read_image`.

    Args:
        path: the picture.
        size: (height, width) to which it is resized, bilinearly. A JPEG of more than four times that size is decoded
            at 1/2, 1/4 or 1/8 of its own first, which takes less time.

    Raises:
        FileError: the picture cannot be read.
        OptionError: Pillow is not installed.
    """
    from_file = functools.partial(_planes, size=size)
    return _opened(path, from_file, None if size is None else 2 * max(size))


def read_mask(path: File, size: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """Decode a mask, which holds a class number for each position, to (H, W).

    The numbers are the gray values of a picture, or the indices into its palette, whatever its colours are.

    Args:
        path: the mask.
        size: (height, width) to which it is resized; a position takes the number of the nearest one.

    Raises:
        FileError: the mask cannot be read, it has colours, values above 255, or loses some of them (JPEG).
        OptionError: Pillow is not installed.
    """
    own = format_of(path)
    if own is not None and (values := own.values(path)) is not None:
        return _numbers_of(values, path, size)
    from_file = functools.partial(_class_numbers, path=path, size=size)
    return _opened(path, from_file)


def _numbers_of(values: npt.NDArray[Any], file: File, size: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    """The class numbers in a volume of them."""
    if len(values) != 1 or (size is not None and values.shape[1:] != size):
        raise FileError(str(file), "a mask must have one unit, and its picture's size", mask=values.shape, size=size)
    if (values < 0).any() or (values > 0xFF).any() or (values % 1).any():
        rule = "class numbers of a mask must be whole numbers from 0 to 255"
        raise FileError(str(file), rule, least=values.min(), largest=values.max())
    return np.asarray(values[0], np.uint8)


def _class_numbers(picture: Any, path: File, size: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageOps

    if picture.format == "JPEG" or not (picture.mode in ("1", "L", "P") or picture.mode.startswith("I")):
        rule = "a mask must be gray or have a palette, and be no JPEG, which changes values"
        raise FileError(str(path), rule, format=picture.format, mode=picture.mode)
    values = np.asarray(ImageOps.exif_transpose(picture))
    if values.max() > 0xFF or values.min() < 0:
        raise FileError(str(path), "class numbers of a mask must be from 0 to 255", largest=values.max())
    values = values.astype(np.uint8)
    if size is None or values.shape == size:
        return values
    height, width = size
    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.NEAREST))


def save_mask(path: Path, classes: npt.NDArray[np.uint8], size: tuple[int, int] | None = None) -> None:
    """Write class numbers (H, W) as a PNG with a palette, whose indices they are (:func:`read_mask` reads it).

    Args:
        path: the file.
        classes: the numbers.
        size: (height, width) to which it is resized, as by :func:`read_mask`.

    Raises:
        FileError: it cannot be written.
        OptionError: Pillow is not installed.
    """
    require_pillow(path)
    from PIL import Image

    picture = Image.fromarray(classes)
    if size is not None and size != classes.shape:
        picture = picture.resize(size[::-1], Image.Resampling.NEAREST)
    picture.putpalette(mask_colours().tobytes())
    _save(picture, path)


def save_picture(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write red, green and blue (H, W, 3) as a PNG.

    Raises:
        FileError: it cannot be written.
        OptionError: Pillow is not installed.
    """
    require_pillow(path)
    from PIL import Image

    _save(Image.fromarray(pixels), path)


def png(pixels: npt.NDArray[np.uint8], longest: int) -> bytes:
    """Return gray (H, W) or red, green and blue (H, W, 3) as a PNG, made smaller where a side is longer than that.

    Raises:
        OptionError: Pillow is not installed.
    """
    require_pillow(Path("pictures"))
    from PIL import Image

    picture, target = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((longest, longest))
    picture.save(target, "PNG", optimize=True)
    return target.getvalue()


def _save(picture: Any, path: Path) -> None:
    try:
        picture.save(path, "PNG")
    except OSError as error:
        raise FileError(str(path), f"the file cannot be written: {error.strerror or error}") from error


def save_boxes(path: Path, picture: Path, boxes: Sequence[tuple[str, int, Sequence[float]]]) -> None:
    """Write a copy of a picture as PNG with boxes drawn over it.

    Args:
        path: the file.
        picture: the picture.
        boxes: of each what is said of it, the number of its colour (:func:`mask_colours`, from 1 on), and its left,
            top, right and bottom in pixels.

    Raises:
        FileError: it cannot be written, or the picture cannot be read.
        OptionError: Pillow is not installed.
    """
    planes = with_units(read_picture(picture), 3, picture)
    from PIL import Image, ImageDraw

    drawn = Image.fromarray(planes.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
    draw = ImageDraw.Draw(drawn)
    thick = max(1, min(drawn.size) // 200)
    for text, number, sides in boxes:
        colour = tuple(mask_colours()[number % 255 + 1].tolist())
        left, top, right, bottom = (round(side) for side in sides)
        draw.rectangle([left, top, max(left, right - 1), max(top, bottom - 1)], outline=colour, width=thick)
        words = draw.textbbox((left + thick, top + thick), text)
        draw.rectangle(words, fill=colour)
        draw.text((left + thick, top + thick), text, fill="white")
    _save(drawn, path)


def mask_colours() -> npt.NDArray[np.uint8]:
    """The colours of classes 0 to 255 in masks, (256, 3): those of Pascal VOC's masks (Everingham et al., 2010).

    Class 0 is black, and neighbours are far apart: the bits of a number, the lowest first, are spread over its colour.
    """
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= (((np.arange(256) >> bit) & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def picture_form(path: File, *, has_size: bool = True, is_whole: bool = False) -> tuple[int, ...]:
    """The form of what :func:`read_sample` gives, from a picture's first bytes where they say it.

    It is (units, height, width), or of a volume (units, depth, height, width).

    Args:
        path: the picture.
        has_size: whether height and width are wanted; else they are those in the file, which may lie on its side.
        is_whole: whether all of the picture is decoded, to see that it can be.

    Raises:
        FileError: the picture cannot be read.
        OptionError: Pillow is not installed.
    """
    header = header_of(path)
    if header is not None:
        own = format_of(path)
        if is_whole and own is not None:
            own.values(path)
        return tuple(header.shape)

    def form(picture: Any) -> tuple[int, ...]:
        if is_whole or picture.mode in _PALETTES or (has_size and picture.format != "JPEG"):
            units, height, width = _planes(picture).shape
            return units, height, width
        width, height = picture.size
        if has_size and picture.getexif().get(_ORIENTATION, 1) >= _FIRST_SIDEWAYS:
            width, height = height, width
        return 1 if picture.mode in _GRAYS or picture.mode[0] in _DEEP_GRAYS else 3, height, width

    return _opened(path, form)


def depth_of(path: File) -> int | str | None:
    """Return REAL for a picture that is read as float32, None for 8 bits, and for 16-bit colours their largest value.

    Of files whose values are read as they stand, the name of their type.

    Of 16-bit colours Pillow reads no more than 8 bits.

    Raises:
        FileError: the picture cannot be read.
        OptionError: Pillow is not installed.
    """
    if (header := header_of(path)) is not None:
        return str(header.dtype)
    if FORMATS.get(path.suffix.lower(), DEEP[0]) not in DEEP:
        return None

    def largest(picture: Any) -> int | None:
        if picture.mode[0] in _DEEP_GRAYS:
            return REAL
        if not any(";16" in str(tile[3]) for tile in picture.tile):
            return None
        return int(max(high for _, high in picture.convert("RGB").getextrema())) << 8 | 0xFF

    return _opened(path, largest)


def note_shallow(subject: str, depths: Sequence[int | str | None]) -> None:
    """Warns where colours of 16 bits use so few of their values that little is left of them in 8 bits."""
    deep = [depth for depth in depths if isinstance(depth, int) and depth]
    peak = max(deep, default=0)
    if 0 < peak < _FEW_VALUES:
        left = f"{(peak >> 8) + 1} of 256 values" if peak > 0xFF else "nothing but black"
        rule = f"Pillow reads 8 of 16 bits of colours, and these have no value above {peak}, which leaves {left}"
        hint = "scale them before, with OpenCV: "
        hint += f"cv2.imwrite(file, (cv2.imread(file, cv2.IMREAD_UNCHANGED) * (255 / {peak})).astype('uint8'))."
        warn(subject, rule, pictures=len(deep), hint=hint)


def _opened(path: File, use: Callable[[Any], _Result], least_side: int | None = None) -> _Result:
    """Return ``use`` of an opened picture; ``least_side`` is the least side that its decoder must keep."""
    require_pillow(path)
    from PIL import Image, UnidentifiedImageError

    try:
        check_regular(path)
        with opened(path) as file, Image.open(file, formats=_formats()) as picture:
            if least_side is not None:
                picture.draft(None, (least_side, least_side))
            needed, most = math.prod(picture.size) * _PIXEL_BYTES, most_memory(bytes_of(path))
            if needed > most:
                rule = f"decoding a picture must take no more than {MAX_UNPACKED} times its file, or 1 GiB"
                raise FileError(str(path), rule, pixels=math.prod(picture.size), bytes=needed, most=most)
            return use(picture)
    except FileError:
        raise
    # Pillow's decoders let the errors of what they are made of through.
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        MemoryError,  # Of a part that says it is larger than the file.
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        hint = _plugin_hint(path) if isinstance(error, UnidentifiedImageError) else None
        raise FileError(str(path), "the picture must be readable and whole", reason=error, hint=hint) from error


def reads(kind: str) -> bool:
    """Return True if pictures of a format can be read here, or what reads them is missing, which is said later."""
    return kind not in FORMATS.values() or importlib.util.find_spec("PIL") is None or kind in _formats()


@functools.cache
def _formats() -> list[str]:
    """The formats of pictures that Pillow knows here, with the plug-ins that are installed."""
    from PIL import Image

    Image.init()
    for kind, (module, _) in PLUGINS.items():
        if kind not in Image.OPEN:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    return [kind for kind in dict.fromkeys(FORMATS.values()) if kind in Image.OPEN]


def _plugin_hint(path: File) -> str | None:
    """Return a hint at what reads a picture whose content is of another format than its name (HEIC in ``.jpg``)."""
    with opened(path) as file:
        start = file.read(12)
    kind = _BRANDS.get(start[8:]) if start[4:8] == _BRANDED else None
    return f"it is {kind}, whatever its name says: pip install {PLUGINS[kind][1]}" if kind and not reads(kind) else None


def with_units(planes: npt.NDArray[Any], units: int, path: File) -> npt.NDArray[Any]:
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


def _resized(planes: npt.NDArray[Any], size: tuple[int, int], path: Path) -> npt.NDArray[Any]:
    """(C, H, W) with another height and width, bilinearly; the array itself if it has that size already."""
    if planes.shape[1:] == size:
        return planes
    require_pillow(path)
    from PIL import Image

    return np.stack([np.asarray(_scaled(Image.fromarray(plane), size)) for plane in planes])


def _scaled(picture: Any, size: tuple[int, int] | None) -> Any:
    """A Pillow image with another (height, width), bilinearly."""
    from PIL import Image

    if size is None or picture.size == size[::-1]:
        return picture
    return picture.resize(size[::-1], Image.Resampling.BILINEAR)


def _read_array(path: Path, units: int) -> npt.NDArray[Any]:
    """A .npy file as (C, H, W)."""
    values = read_npy(path)
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


def _planes(picture: Any, size: tuple[int, int] | None = None) -> npt.NDArray[Any]:
    """A Pillow image as (1, H, W) or (3, H, W), upright, opaque, of a (height, width); uint8 or float32.

    Colours lie side by side for each pixel, as in the picture.
    """
    from PIL import Image, ImageOps

    # NOTE: Pillow copies what it has neither to turn nor to convert.
    if picture.getexif().get(_ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode[0] in _DEEP_GRAYS:
        numbers = np.asarray(picture, np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("its values are not finite")
        # Pillow would clip values of 16 bits at 255 instead of scaling them.
        numbers = numbers if picture.mode == "F" else numbers / np.float32(_TO_8_BITS)
        return np.asarray(_scaled(Image.fromarray(numbers), size))[None]
    is_gray, has_palette = picture.mode in _GRAYS, picture.mode in _PALETTES
    if "transparency" in picture.info or picture.mode[-1] in "Aa":
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture.convert("RGBA"))
    mode = "L" if is_gray else "RGB"
    picture = picture if picture.mode == mode else picture.convert(mode)
    # A palette does not say whether its colours are gray; the picture does.
    if has_palette and len({band.tobytes() for band in picture.split()}) == 1:
        picture, is_gray = picture.getchannel(0), True
    values = np.asarray(_scaled(picture, size))
    return values[None] if is_gray else values.transpose(2, 0, 1)

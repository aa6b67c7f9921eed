"""``blobnet predict`` of ONNX files that are no model of one size, or whose tail the host computes: sessions."""

from __future__ import annotations

import argparse
import sys
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet import onnx
from blobnet.command_line.text import plain
from blobnet.datasets import read_image
from blobnet.datasets.listing import Listing
from blobnet.datasets.pictures import image_size
from blobnet.datasets.user_data import NPY_SUFFIXES, has_arrays, read_arrays, read_samples
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, DataError, FileError, OptionError, counted
from blobnet.support.unit_axes import TO_LAST, has_units_last

_Array: TypeAlias = npt.NDArray[Any]
#: What is shown of an array: all of up to so many values, else so many at each end of an axis.
_SHOWN, _ENDS = 60, 3


def run(options: argparse.Namespace) -> int:
    """Prints all outputs for each picture and file of arrays, or writes them; what cannot be read costs status 1."""
    _check(options)
    session = onnx.Session(options.file)
    session.device = Device(options.device)
    failures: list[BlobnetError] = []
    kept: list[Mapping[str, _Array]] = []
    for path in _files(options.images, session, failures):
        try:
            found = session.predict(_arrays(path, session.inputs))
        except (DataError, FileError, OptionError) as error:
            report(error, failures)
            continue
        results = found if isinstance(found, dict) else {session.outputs[0]: found}
        if options.npz:
            kept.append(results)
        else:
            _print(str(path), results)
    if options.npz:
        is_one = len(kept) == 1
        arrays = {
            name if is_one else f"{name}/{number}": values
            for number, results in enumerate(kept)
            for name, values in results.items()
        }
        write_npz(options.npz, arrays)
        print(f"outputs for {counted(len(kept), 'file')}; saved {options.npz}")
    return int(bool(failures))


def pictures_in(folder: Path) -> list[Path]:
    """All pictures and arrays in a folder and below it, sorted.

    Raises:
        FileError: there is none.
    """
    listing = Listing()
    found: list[Path] = listing.pictures(folder, others=NPY_SUFFIXES)
    if not found:
        raise FileError(str(folder), "the folder must hold pictures", **listing.received)
    listing.say(str(folder))
    return found


def report(error: BlobnetError, failures: list[BlobnetError]) -> None:
    """Prints an error that ends nothing but a file's part."""
    print(f"error: {error}", file=sys.stderr)
    failures.append(error)


def write_npz(path: Path, arrays: Mapping[str, _Array]) -> None:
    """Writes a .npz file of arrays with any names.

    Raises:
        FileError: it cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    except OSError as error:
        raise FileError(str(path), f"the file cannot be written: {error.strerror or error}") from error


def _check(options: argparse.Namespace) -> None:
    """Raises OptionError for what a session does not have."""
    hint = "--npz FILE writes all outputs as arrays, by their names."
    for name in ("csv", "json", "masks", "boxes", "explain", "tta"):
        if getattr(options, name):
            rule = "the model must give classes: this file runs as a session, whose outputs may be anything"
            raise OptionError(f"--{name}", rule, file=options.file, hint=hint)
    if options.precision != "fp32":
        raise OptionError("--precision", "a file that runs as a session computes in fp32", precision=options.precision)


def _files(names: Sequence[str], session: onnx.Session, failures: list[BlobnetError]) -> list[Path]:
    """The files, and the pictures in the folders among them; what is not there is reported."""
    found: list[Path] = []
    for path in map(Path, names):
        try:
            if not path.exists():
                raise FileError(str(path), "there must be such a file")
            is_folder = path.is_dir() and not any((path / f"{name}.npy").is_file() for name in session.inputs)
            found += pictures_in(path) if is_folder else [path]
        except BlobnetError as error:
            report(error, failures)
    return found


def _arrays(path: Path, inputs: Mapping[str, Sequence[int | str]]) -> Any:
    """Return the arrays of a file for a session: one for each input, by name; or for the only one, a picture say."""
    if has_arrays(path):
        arrays, found = read_arrays(path, list(inputs))
        if len(inputs) == 1 and not arrays and not path.is_dir():
            return np.asarray(read_samples(path))
        missing = [name for name in inputs if name not in arrays]
        if missing:
            raise DataError(str(path), "it must hold an array for each input", missing=missing, found=found)
        return {
            name: np.asarray(array[...] if isinstance(array, np.ndarray) else array[:])
            for name, array in arrays.items()
        }
    if len(inputs) > 1:
        rule = "for a model with several inputs it must be a .npz or an HDF5 file, or a folder of .npy files"
        hint = "it holds an array for each input, of its name."
        raise DataError(str(path), rule, inputs=", ".join(inputs), hint=hint)
    (axes,) = inputs.values()
    if path.suffix.lower() in NPY_SUFFIXES:
        array = np.asarray(read_samples(path))
        return array[None] if array.ndim == len(axes) - 1 else array
    return _picture(path, axes)


def _picture(path: Path, axes: Sequence[int | str]) -> _Array:
    """A picture as a batch of one, in its own size where the file leaves that open; from 0 to 255."""
    if len(axes) != 4:
        hint = "a .npz, HDF5 or .npy file holds other arrays."
        raise DataError(str(path), "for pictures, the model must take images", input=tuple(axes), hint=hint)
    is_last = has_units_last(axes)
    height, width, units = axes[1:] if is_last else (*axes[2:], axes[1])
    own = image_size(path)
    size = [given if isinstance(given, int) else side for given, side in zip((height, width), own, strict=True)]
    picture: _Array = read_image(path, (units if isinstance(units, int) else 3, *size))[None]
    return picture.transpose(TO_LAST) if is_last else picture


def _print(file: str, results: Mapping[str, _Array]) -> None:
    print(plain(file))
    for name, values in results.items():
        print(f"  {plain(name)}: {values.dtype} {values.shape}")
        text = np.array2string(values, precision=4, suppress_small=True, threshold=_SHOWN, edgeitems=_ENDS)
        print(textwrap.indent(text, "    "))

"""The data sets that blobnet knows by name and that come as four IDX files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blobnet.datasets.dataset import Dataset, Split
from blobnet.datasets.idx import parse_idx, unpack
from blobnet.datasets.splits import as_split
from blobnet.errors import FileError


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package with the four files, and the folder where it installs them."""

    name: str
    folder: Path


@dataclass(frozen=True)
class KnownSet:
    """A published data set: the names of its files, and what they must hold.

    The digests are SHA-256 of the *decompressed* files, because Debian compresses them anew: one digest serves every
    source, and plain files too. The order of the files is: images and labels for training, images and labels for test.
    """

    name: str
    class_names: tuple[str, ...]
    address: str
    digests: dict[str, str] = field(hash=False)
    debian: DebianPackage | None = None

    @property
    def archives(self) -> tuple[str, ...]:
        """The names of the four compressed files."""
        return tuple(f"{name}.gz" for name in self.digests)


FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    digests={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    debian=DebianPackage("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
)

MNIST = KnownSet(
    name="mnist",
    class_names=tuple("0123456789"),
    address="https://ossci-datasets.s3.amazonaws.com/mnist/",
    digests={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

KNOWN_SETS = {known.name: known for known in (FASHION_MNIST, MNIST)}


def file_in(folder: Path, name: str) -> Path | None:
    """The compressed or else the plain file in a folder, None if neither is there."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def missing_in(known: KnownSet, folder: Path) -> list[str]:
    """Return the names of those of the four files that a folder lacks."""
    return [name for name in known.digests if file_in(folder, name) is None]


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_known(known: KnownSet, folder: Path) -> Dataset:
    """Read a known data set from a folder that holds its four files; x is uint8 (N, 1, H, W).

    Raises:
        FileError: a file is damaged, is not what it should be, or does not belong to the others.
    """
    images, labels, test_images, test_labels = known.digests
    return Dataset(
        known.name,
        _read_split(known, folder, images, labels),
        _read_split(known, folder, test_images, test_labels),
        known.class_names,
    )


def _read_split(known: KnownSet, folder: Path, images: str, labels: str) -> Split:
    """One pair of files."""
    x = _read_file(known, folder / images, dimensions=3)
    y = _read_file(known, folder / labels, dimensions=1)
    if len(x) != len(y):
        raise FileError(str(folder), f"{images} and {labels} must hold as many", images=len(x), labels=len(y))
    return as_split(x[:, None], y, len(known.class_names), known.name)


def _read_file(known: KnownSet, wanted: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """One file, compressed or not, checked against its digest."""
    path = file_in(wanted.parent, wanted.name) or wanted
    data = unpack(path)
    expected, found = known.digests[wanted.name], digest(data)
    if found != expected:
        owner = next((other.name for other in KNOWN_SETS.values() if found in other.digests.values()), None)
        raise FileError(
            str(path),
            f"the checksum (SHA-256) of the decompressed data must be {expected}",
            hint=f"this file belongs to {owner}: keep each set in a folder of its own" if owner else "delete the file",
            checksum=found,
        )
    values: npt.NDArray[np.uint8] = parse_idx(data, dimensions, path)
    return values

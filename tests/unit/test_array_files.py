"""TIFF files of several bands, NIfTI and DICOM volumes: their values, as the libraries that wrote them have them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import array_files
from blobnet.errors import BlobnetWarning, DataError, FileError, OptionError

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("bands", [2, 6])
@pytest.mark.parametrize("form", ["planar", "interleaved", "pages", "imagej"])
def test_bands(tmp_path: Path, dtype: str, bands: int, form: str) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    if form == "imagej" and dtype == "int16":
        pytest.skip("ImageJ has no such type")
    values = np.random.default_rng(bands).integers(0, 250, (2, bands, 9, 7)).astype(dtype)
    if dtype == "uint16":
        values *= 261
    for number, own in enumerate(values):
        path = at(tmp_path / f"class {number}" / "a.tif")
        if form == "interleaved":
            tifffile.imwrite(path, own.transpose(1, 2, 0).copy(), planarconfig="contig", photometric="minisblack")
        elif form == "planar":
            tifffile.imwrite(path, own, planarconfig="separate", photometric="minisblack")
        elif form == "pages":
            tifffile.imwrite(path, own, photometric="minisblack")
        else:
            tifffile.imwrite(path, own, imagej=True, metadata={"axes": "CYX"})
    data = datasets.load(tmp_path)
    assert data.train.x.dtype == dtype
    np.testing.assert_array_equal(data.train.x, values)
    np.testing.assert_array_equal(datasets.read_image(tmp_path / "class 1" / "a.tif", (bands, 9, 7)), values[1])
    small = datasets.load(tmp_path, size=(4, 5)).train.x
    assert (small.shape, small.dtype) == ((2, bands, 4, 5), values.dtype)
    plane = image.fromarray(values[1, 1].astype(np.float32)).resize((5, 4), image.Resampling.BILINEAR)
    assert np.abs(small[1, 1] - np.asarray(plane)).max() <= (1e-3 if dtype == "float32" else 0.5)


def test_colours_of_16_bits_keep_them(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 7, 3)).astype(np.uint16)
    for name in "ab":
        tifffile.imwrite(at(tmp_path / name / "1.tif"), values, photometric="rgb")
    found = np.asarray(datasets.load(tmp_path).train.x)
    np.testing.assert_allclose(found[0], values.transpose(2, 0, 1) / 257, rtol=1e-6)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "I;16", "F"])
def test_pictures_are_those_of_pillow(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TIFF files that Pillow reads are what they were."""
    pytest.importorskip("tifffile", reason="tifffile is not installed")
    rng = np.random.default_rng(0)
    if mode in ("I;16", "F"):
        picture = image.fromarray(rng.integers(0, 1 << 16, (5, 7)).astype(np.uint16 if mode == "I;16" else np.float32))
    else:
        picture = image.fromarray(rng.integers(0, 256, (5, 7, 3)).astype(np.uint8)).convert(mode)
    for name in "ab":
        picture.save(at(tmp_path / name / "1.tif"))
    found = np.asarray(datasets.load(tmp_path).train.x)
    monkeypatch.setattr(array_files, "_FORMATS", {})
    expected = np.asarray(datasets.load(tmp_path).train.x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_pictures_of_other_bands_are_named(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    for name, bands in {"a": 4, "b": 6}.items():
        tifffile.imwrite(at(tmp_path / name / "1.tif"), np.zeros((bands, 5, 7), np.uint16), photometric="minisblack")
    with pytest.raises(
        DataError, match=r"b/1\.tif: all pictures must have as many units \(bands\)\. Received units=6, f"
    ):
        datasets.load(tmp_path)


def nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None, slope: float | None = None) -> Path:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    made = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    if slope is not None:
        made.header.set_slope_inter(slope, 5)
    nibabel.save(made, at(path))
    return path


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("axes", [(4, 6, 5), (4, 6, 5, 1), (4, 6, 5, 3)])
def test_volumes(tmp_path: Path, suffix: str, dtype: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 100, axes).astype(dtype) for _ in range(2)]
    for number, own in enumerate(values):
        nifti(tmp_path / f"class {number}" / f"a{suffix}", own)
    data = datasets.load(tmp_path)
    assert data.shape == ((axes[3] if len(axes) > 3 else 1), 5, 6, 4)
    assert data.train.x.dtype == ("float32" if dtype.startswith("float") else dtype)
    expected = np.stack([own.reshape(4, 6, 5, -1).transpose(3, 2, 1, 0) for own in values])
    np.testing.assert_array_equal(data.train.x, expected)


def test_volumes_are_turned_and_scaled(tmp_path: Path) -> None:
    """As nibabel's as_closest_canonical turns them: of three axes in each of their orders and directions."""
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    values = np.random.default_rng(0).integers(0, 100, (4, 6, 5)).astype(np.int16)
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        for signs in ([1, 1, 1], [-1, 1, -1]):
            affine = np.zeros((4, 4))
            affine[order, range(3)], affine[3, 3] = signs, 1
            path = nifti(tmp_path / "a.nii.gz", values, affine, slope=0.5)
            expected = nibabel.as_closest_canonical(nibabel.load(path)).get_fdata().transpose(2, 1, 0)
            found = datasets.read_image(path, (1, *expected.shape))
            np.testing.assert_allclose(found[0], expected)


def test_volumes_and_their_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    volumes, masks = rng.normal(size=(3, 4, 6, 5)).astype(np.float32), rng.integers(0, 3, (3, 4, 6, 5)).astype(np.uint8)
    for number in range(3):
        nifti(tmp_path / "images" / f"{number}.nii.gz", volumes[number])
        nifti(tmp_path / "masks" / f"{number}.nii.gz", masks[number])
    data = datasets.load(tmp_path)
    assert repr(data).endswith("3 samples of (1, 5, 6, 4), 3 classes for each of (5, 6, 4) positions")
    np.testing.assert_array_equal(np.asarray(data.train.y), masks.transpose(0, 3, 2, 1))
    nifti(tmp_path / "masks" / "1.nii.gz", masks[1] + 0.5)
    with pytest.raises(FileError, match=r"1\.nii\.gz: class numbers of a mask must be whole numbers from 0 to 255"):
        datasets.load(tmp_path)
    nifti(tmp_path / "masks" / "1.nii.gz", masks[1, 1:])
    with pytest.raises(DataError, match=r"1\.nii\.gz: a mask must have the height and width of its picture"):
        datasets.load(tmp_path)


def dicom(path: Path, values: np.ndarray, **more: Any) -> Path:
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed")
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    is_rgb = values.shape[-1] == 3
    *frames, data.Rows, data.Columns = values.shape[:-1] if is_rgb else values.shape
    if frames:
        data.NumberOfFrames = frames[0]
    data.SamplesPerPixel, data.PhotometricInterpretation = (3, "RGB") if is_rgb else (1, "MONOCHROME2")
    data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = 8 * values.dtype.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(values.dtype.kind == "i")
    data.PixelData = values.tobytes()
    for name, value in more.items():
        setattr(data, name, value)
    data.save_as(at(path), enforce_file_format=True)
    return path


@pytest.mark.parametrize("shape", [(6, 8), (4, 6, 8)])
def test_dicom(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-900, 900, (2, *shape)).astype(np.int16)
    for number, own in enumerate(values):
        dicom(tmp_path / f"class {number}" / "a.dcm", own, RescaleSlope=2, RescaleIntercept=-1024)
    data = datasets.load(tmp_path)
    assert data.shape == (1, *shape)
    np.testing.assert_array_equal(data.train.x[:, 0], values * 2.0 - 1024)


def test_dicom_whose_least_value_is_white_and_with_colours(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 12, (6, 8)).astype(np.uint16)
    path = dicom(tmp_path / "a.dcm", values, PhotometricInterpretation="MONOCHROME1", BitsStored=12, HighBit=11)
    np.testing.assert_array_equal(datasets.read_image(path, (1, 6, 8))[0], 4095.0 - values)
    colours = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    found = datasets.read_image(dicom(tmp_path / "b.dcm", colours), (3, 6, 8))
    np.testing.assert_array_equal(found, colours.transpose(2, 0, 1))
    # As its library makes red, green and blue of brightness and two differences (ITU-R BT.601), which are none here.
    gray = np.full((6, 8, 3), 128, np.uint8)
    gray[..., 0] = np.arange(48).reshape(6, 8)
    found = datasets.read_image(dicom(tmp_path / "c.dcm", gray, PhotometricInterpretation="YBR_FULL"), (3, 6, 8))
    np.testing.assert_array_equal(found, np.broadcast_to(gray[..., 0], (3, 6, 8)))


def test_dicom_of_grays_and_colours(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gray, colours = rng.integers(-900, 900, (6, 8)).astype(np.int16), rng.integers(0, 256, (6, 8, 3)).astype(np.uint8)
    dicom(tmp_path / "a" / "1.dcm", gray)
    dicom(tmp_path / "b" / "1.dcm", colours)
    rule = r"a/1\.dcm: 1 pictures are gray and others coloured: grays become red, green and blue"
    with pytest.warns(BlobnetWarning, match=rule) as said:
        data = datasets.load(tmp_path)
    assert len(said) == 1
    np.testing.assert_array_equal(data.train.x, [np.broadcast_to(gray, (3, 6, 8)), colours.transpose(2, 0, 1)])
    assert (datasets.load(tmp_path, units=3).train.x == data.train.x).all()
    dicom(tmp_path / "a" / "1.dcm", gray[None].repeat(2, 0))
    dicom(tmp_path / "b" / "1.dcm", colours[None].repeat(2, 0))
    with pytest.raises(DataError, match=r"b/1\.dcm: all pictures must have as many units \(bands\).*units=3, first=1"):
        datasets.load(tmp_path)


def test_dicom_that_is_no_picture_of_grays_or_colours(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", np.zeros((6, 8), np.uint8), PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(FileError, match="its numbers are those of a palette"):
        datasets.read_image(path, (1, 6, 8))
    path = dicom(tmp_path / "b.dcm", np.zeros((6, 8, 3), np.uint16))
    with pytest.raises(FileError, match="red, green and blue of 8 bits"):
        datasets.read_image(path, (3, 6, 8))


def test_volumes_that_do_not_do(tmp_path: Path) -> None:
    nifti(tmp_path / "a" / "1.nii.gz", np.zeros((4, 6, 5), np.uint8))
    other = nifti(tmp_path / "b" / "1.nii.gz", np.zeros((4, 6, 7), np.uint8))
    with pytest.raises(
        DataError, match=r"b/1\.nii\.gz: all pictures must have one size\..*Hint: resample volumes to one"
    ):
        datasets.load(tmp_path)
    with pytest.raises(OptionError, match="size: only pictures are resized, not volumes"):
        datasets.load(tmp_path, size=(4, 4))
    with pytest.raises(FileError, match="only pictures are resized, not volumes"):
        datasets.read_image(other, (1, 5, 6, 4))
    whole = nifti(tmp_path / "b" / "1.nii.gz", np.ones((4, 6, 5), np.uint8)).read_bytes()
    for damaged in (whole[: len(whole) // 2], gzip.compress(gzip.decompress(whole)[:400]), b"", b"nothing"):
        other.write_bytes(damaged)
        with pytest.raises(FileError, match=r"b/1\.nii\.gz: the file must be a readable NIfTI file\. Received reason="):
            datasets.load(tmp_path)
    odds = {"finite numbers of float32": np.full((4, 6, 5), 1e300), "real numbers": np.ones((4, 6, 5), np.complex64)}
    for message, odd in odds.items():
        nifti(other, odd)
        with pytest.raises(FileError, match=message):
            datasets.read_image(other, (1, 5, 6, 4))
    nifti(other, np.full((4, 6, 5), np.nan, np.float32))
    with pytest.raises(FileError, match="its values must be finite numbers of float32"):
        datasets.load(tmp_path)


@pytest.mark.parametrize(("suffix", "library", "name"), [(".nii", "nibabel", "nifti"), (".dcm", "pydicom", "dicom")])
def test_libraries_that_are_missing(
    tmp_path: Path, suffix: str, library: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(tmp_path / "a" / f"1{suffix}").write_bytes(b"0")
    monkeypatch.setattr(array_files.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(
        OptionError, match=rf'1{suffix}: reading \w+ needs {library}\. Hint: pip install "blobnet\[{name}\]"'
    ):
        datasets.load(tmp_path)

"""Tar archives of pictures and labels (WebDataset): what is read, in which order, and what is refused."""

from __future__ import annotations

import gc
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import image_folder
from blobnet.datasets.containers import containers_of
from blobnet.datasets.packed import Stretch
from blobnet.errors import BlobnetWarning, DataError, FileError, OptionError
from tests.packing import as_png, image, pack, picture


def png(seed: int, size: tuple[int, int] = (5, 7)) -> bytes:
    return as_png(picture(seed, size))


def names(text: str) -> list[Path]:
    return [*containers_of(Path(text), (".tar",)).splits]


def digits(path: Path, first: int, count: int) -> Path:
    """Pictures and classes; the class of a picture is its number's last digit modulo 3."""
    members: dict[str, bytes] = {}
    for number in range(first, first + count):
        members |= {f"{number:04}.png": png(number), f"{number:04}.cls": str(number % 10 % 3).encode()}
    return pack(path, members)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Its reader leaves files open.
def test_what_webdataset_writes_and_reads(tmp_path: Path) -> None:
    """Its own writer, and its own reader as the reference."""
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    with wds.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=5, verbose=0) as writer:
        for number in range(13):
            label = {"label": f"kind {number % 4}", "size": number / 8}
            writer.write({"__key__": f"{number:03}", "jpg": image.fromarray(picture(number)), "json": label})
    pattern = str(tmp_path / "train-{000000..000002}.tar")
    data = datasets.load(pattern)
    assert repr(data) == "train: 13 samples of (3, 5, 7), 4 classes"
    expected = list(wds.WebDataset(pattern, shardshuffle=False).decode("pil").to_tuple("jpg", "json"))
    gc.collect()
    pixels = np.stack([np.asarray(own).transpose(2, 0, 1) for own, _ in expected])
    np.testing.assert_array_equal(data.train.x, pixels)
    assert [data.class_names[label] for label in data.train.y] == [label["label"] for _, label in expected]
    assert data.train.files[6] == f"{tmp_path}/train-000001.tar, 006.jpg"
    sizes = datasets.load(pattern, columns="size")
    np.testing.assert_array_equal(sizes.train.y[:, 0], [label["size"] for _, label in expected])


@pytest.mark.parametrize(
    "pattern", ["a-{000..003}.tar", "{b,a}-{8..11}.tar", "a-{09..10}.tar", "x-{3..1}.tar", "{a,b-{x,y}}.tar", "a.tar"]
)
def test_patterns_are_those_of_a_shell(tmp_path: Path, pattern: str) -> None:
    braceexpand = pytest.importorskip("braceexpand", reason="braceexpand is not installed").braceexpand
    expected = [tmp_path / name for name in braceexpand(pattern)]
    for path in expected:
        path.touch()
    assert names(f"{tmp_path}/{pattern}") == expected


def test_all_names_of_archives(tmp_path: Path) -> None:
    paths = [digits(tmp_path / f"{name}.tar", 0, 3) for name in ("a0", "a1", "b0")]
    assert names(f"{tmp_path}/a?.tar") == paths[:2]
    assert names(f"{tmp_path}/b0.tar::{tmp_path}/a*.tar") == [paths[2], *paths[:2]]
    assert names(str(tmp_path)) == paths
    assert repr(datasets.load(tmp_path)).endswith("9 samples of (3, 5, 7), 3 classes")
    (tmp_path / "class").mkdir()  # Then it is a folder of pictures, with archives beside the classes.
    with pytest.raises(DataError, match="the folder of a class must hold pictures"):
        datasets.load(tmp_path)


def test_splits_are_in_the_names_of_archives(tmp_path: Path) -> None:
    for place, name in enumerate(("train-0", "train-1", "val-0", "birds_test_0")):
        digits(tmp_path / f"{name}.tar", 10 * place, 6 + place)
    data = datasets.load(tmp_path)
    assert data.validation is not None
    assert data.test is not None
    assert [len(split) for split in (data.train, data.validation, data.test)] == [13, 8, 9]
    np.testing.assert_array_equal(data.test.x[2], picture(32).transpose(2, 0, 1))
    assert len(datasets.load(tmp_path / "val-0.tar").train) == 8


@pytest.mark.parametrize(
    ("members", "asked", "names", "y"),
    [
        ({"a.cls": b"7", "b.cls": b" 3\n"}, {}, ("3", "7"), [1, 0]),
        ({"a.json": b'{"label": "cat"}', "b.json": b'{"label": "ant"}'}, {}, ("ant", "cat"), [1, 0]),
        ({"a.txt": b"cat", "b.txt": "ähre".encode()}, {}, ("cat", "ähre"), [0, 1]),
        ({"a.json": b'{"label": ["x", "y"]}', "b.json": b'{"label": ["y"]}'}, {}, ("x", "y"), [[1, 1], [0, 1]]),
        ({"a.json": b'{"age": 3.5}', "b.json": b'{"age": 4}'}, {"columns": "age"}, ("age",), [[3.5], [4]]),
        ({"a.age": b"3", "b.age": b"4"}, {"columns": ["age"], "labels": "numbers"}, ("age",), [[3], [4]]),
        (
            {"a.json": b'{"u": true, "v": false}', "b.json": b'{"u": true, "v": true}'},
            {"columns": ["u", "v"]},
            ("u", "v"),
            [[1, 0], [1, 1]],
        ),
    ],
)  # fmt: skip
def test_labels(tmp_path: Path, members: dict[str, bytes], asked: Any, names: tuple[str, ...], y: Any) -> None:
    data = datasets.load(pack(tmp_path / "a.tar", {**members, "a.png": png(1), "b.PNG": png(2)}), **asked)
    assert (data.class_names or data.target_names) == names
    np.testing.assert_array_equal(data.train.y, y)
    np.testing.assert_array_equal(data.train.x[1], picture(2).transpose(2, 0, 1))


def test_folders_are_labels_where_there_are_no_others(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", {"in/cat/0.v1.png": png(1), "in/ant/0.png": png(2), "in/ant/1.png": png(3)})
    data = datasets.load(path)
    assert data.class_names == ("ant", "cat")
    assert data.train.y.tolist() == [1, 0, 0]


def test_a_file_names_the_classes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("ant\nbee\ncat\n")
    path = pack(tmp_path / "a.tar", {"a.png": png(1), "a.cls": b"2", "b.png": png(2), "b.cls": b"0"})
    data = datasets.load(path)
    assert data.class_names == ("ant", "bee", "cat")
    assert data.train.y.tolist() == [2, 0]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in {"a.png": png(1), "a.cls": b"0", "a.seg.png": png(2), "a.pyd": b"!", ".b.png": b""}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("c.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.warns(BlobnetWarning, match=r"left out: 1 links or special files of archives, 1 \.seg\.png, 1 \.pyd"):
        data = datasets.load(path)
    np.testing.assert_array_equal(data.train.x[0], picture(1).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("folder", "label"),
    [("", {".cls": b"0"}), ("", {".json": b'{"label": 0}'}), ("cat/", {}), ("", {".txt": b"0"})],
    ids=["cls", "json", "folder", "txt"],
)
@pytest.mark.parametrize("first", [True, False])
def test_files_with_neither_a_picture_nor_a_label_are_left_out(
    tmp_path: Path, folder: str, label: dict[str, bytes], first: bool
) -> None:
    """A README and a LICENSE beside the samples, wherever they stand; they are no samples, nor the pattern of one."""
    strays = {"README.md": b"Birds.", f"{folder}LICENSE": b"MIT", "meta.json": b'{"license": "MIT"}'}
    samples = {f"{folder}a{end}": data for end, data in {**label, ".png": png(1)}.items()}
    path = pack(tmp_path / "a.tar", {**strays, **samples} if first else {**samples, **strays})
    with pytest.warns(BlobnetWarning, match=r"left out: 1 \.md, 1 without a suffix, 1 \.json") as said:
        data = datasets.load(path)
    assert len(said) == len(data.train) == 1
    np.testing.assert_array_equal(data.train.x[0], picture(1).transpose(2, 0, 1))


def test_every_archive_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """At every block, and within blocks: none of them is read as a smaller data set."""
    whole = digits(tmp_path / "whole.tar", 0, 3).read_bytes()
    end = len(whole.rstrip(b"\0"))
    for cut in [*range(0, end + 512, 256), 100, 511, 700, end]:
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(FileError, match=r"cut\.tar: the file must be a readable tar archive\. Received reason="):
            datasets.load(tmp_path / "cut.tar")


def test_joined_archives_are_refused(tmp_path: Path) -> None:
    """What follows the end of the first one is not read by others either, but here nobody would hear of it."""
    parts = [digits(tmp_path / f"{number}.tar", 0, 3).read_bytes() for number in range(2)]
    (tmp_path / "both.tar").write_bytes(b"".join(parts))
    with pytest.raises(FileError, match="there is more behind its end: archives must not be joined to one file"):
        datasets.load(tmp_path / "both.tar")
    with pytest.raises(OptionError, match="there must be the name of a file between two ::"):
        datasets.load(f"{tmp_path / '0.tar'}::::{tmp_path / '1.tar'}")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = digits(tmp_path / "a.tar", 0, 3)
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        place = archive.getmembers()[2].offset
    data[place + 150] ^= 1  # In the checksum.
    path.write_bytes(data)
    with pytest.raises(FileError, match=f"there is something else than a file's header at byte {place}"):
        datasets.load(path)


@pytest.mark.parametrize(
    ("members", "asked", "rule"),
    [
        ({"a.png": png(1), "a.cls": b"0", "b.png": png(2)}, {}, r"a.tar, b: every sample must have its label\. "
         r"Received missing=\.cls, found=png"),
        ({"a.png": png(1)}, {}, r"a: every sample must have a label: \.cls, label in \.json, \.txt, or the name"),
        ({"a.png": png(1), "a.json": b"{}"}, {"columns": "age"}, r"missing=age in \.json"),
        ({"a.png": png(1), "a.cls": b"0"}, {"columns": "age"}, r"missing=age, found=png, cls"),
        ({"a.png": png(1), "a.json": b'{"label": 1'}, {}, r"a\.json: it must be readable JSON"),
        ({"a.png": png(1), "a.cls": b"\xff"}, {}, r"a\.cls: a label must be a short text in UTF-8"),
        ({"a.png": png(1), "a.cls": bytes(2 << 20)}, {}, "it has 2097152 bytes"),
        ({"a.png": png(1), "a.cls": b""}, {}, "every row must have a path and a label"),
        ({"a.cls": b"0"}, {}, r"a.tar, a: every sample must have one picture\. Received found=cls\. Hint: names up to"),
        ({"a.png": png(1), "a.cls": b"0", "b.cls": b"0"}, {}, r"a.tar, b: every sample must have one picture"),
        ({"a.png": png(1), "a.txt": b"0", "b.txt": b"0"}, {}, r"a.tar, b: every sample must have one picture"),
        ({"a.png": png(1), "a.json": b'{"age": 1}', "b.json": b'{"age": 2}'}, {"columns": "age"}, "b: every.*one pict"),
        ({"README": b"none", "x/LICENSE": b"MIT"}, {}, r"a.tar, README: every sample must have a label"),
        ({"x/LICENSE": b"MIT", "x/y.md": b""}, {}, r"a.tar, x/LICENSE: every sample must have one picture"),
        ({"a.png": png(1), "a.jpg": png(1), "a.cls": b"0"}, {}, r"one picture\. Received found=png, jpg, cls"),
        ([("a.png", png(1)), ("a.png", png(2))], {}, r"a name must come once.*Received name=a\.png"),
        ({"x/a.png": png(1), "b.png": png(2)}, {}, "every sample must lie in the folder of its class"),
        ({}, {}, "there must be samples to train on"),
        ({"a.png": png(1), "a.cls": b"0", "b.png": png(1, (9, 9)), "b.cls": b"1"}, {}, "pictures must have one size"),
        ({"a.png": png(1)[:60], "a.cls": b"0"}, {}, r"a.png: the picture must be readable and whole.*Hint: skip"),
        ({"a.png": png(1), "a.cls": b"0"}, {"shuffle_buffer": 0}, "shuffle_buffer: it must be a number of samples"),
    ],
)  # fmt: skip
def test_samples_that_do_not_do(tmp_path: Path, members: Any, asked: Any, rule: str) -> None:
    with pytest.raises((DataError, FileError, OptionError), match=rule):
        datasets.load(pack(tmp_path / "a.tar", members), **asked)


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("{0..3}.tar", FileError, r"2\.tar: every file must be there\. Received missing=2, of=4"),
        ("o*.tar", FileError, r"files must match the pattern\. Received found=0"),
        ("0.tar.gz", FileError, r"archives must not be packed as a whole.*Hint: gunzip"),
        ("{0..99999999}.tar", OptionError, "a pattern must name no more than 1000000 files"),
        ("{000..999}/{000..999}/{00..99}.tar", OptionError, "a pattern must name no more than 1000000 files"),
    ],
)
def test_names_of_archives_that_do_not_do(tmp_path: Path, name: str, kind: Any, rule: str) -> None:
    for number in range(2):
        digits(tmp_path / f"{number}.tar", 0, 3)
    with pytest.raises(kind, match=rule):
        datasets.load(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["pipe:curl http://x/a.tar", "http://x/{0..3}.tar", "s3://x/a.tar"])
def test_archives_elsewhere_are_not_fetched(name: str) -> None:
    with pytest.raises(OptionError, match=r"data must lie in files of this machine.*Hint: fetch them first"):
        datasets.load(name)


def test_a_buffer_is_for_archives(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match="shuffle_buffer: only larger files of pictures, as archives, are shuffled by a buffer"
    ):
        datasets.load("digits", shuffle_buffer=9)


@pytest.fixture
def streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three archives of 7, 5 and 9 samples, which stay there."""
    monkeypatch.setattr(image_folder, "KEPT_BYTES", 0)
    for number, count in enumerate((7, 5, 9)):
        digits(tmp_path / f"{number}.tar", 100 * number, count)
    return tmp_path


def order(x: Any, seed: int = 0) -> np.ndarray:
    found = x.order(np.arange(len(x)), np.random.default_rng(seed))
    assert sorted(found) == list(range(len(x)))
    return np.asarray(found)


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_are_read_from_archives(streamed: Path, workers: int) -> None:
    data = datasets.load(streamed, workers=workers)
    rows = np.array([20, 3, 7, 3])
    numbers = [208, 3, 100, 3]
    assert isinstance(data.train.x, datasets.source.Source)
    np.testing.assert_array_equal(data.train.x[rows], [picture(number).transpose(2, 0, 1) for number in numbers])
    assert data.train.y[rows].tolist() == [number % 10 % 3 for number in numbers]


def test_an_epoch_reads_archive_after_archive(streamed: Path) -> None:
    x = datasets.load(streamed, shuffle_buffer=1).train.x
    archives = np.repeat([0, 1, 2], [7, 5, 9])
    orders = [order(x, seed) for seed in range(20)]
    for own in orders:
        changes = np.flatnonzero(np.diff(archives[own]))
        assert len(changes) == 2  # Each once,
        assert all((np.diff(run) == 1).all() for run in np.split(own, changes + 1))  # and from front to back.
    assert len({tuple(archives[own][[0, 10, -1]]) for own in orders}) == 6


def test_a_buffer_shuffles_so_many_samples(streamed: Path) -> None:
    x = datasets.load(streamed, shuffle_buffer=6).train.x
    plain = order(datasets.load(streamed, shuffle_buffer=1).train.x, 3)
    mixed = order(x, 3)
    assert (mixed != plain).any()
    for first in range(0, 21, 6):
        assert sorted(mixed[first : first + 6]) == sorted(plain[first : first + 6])
    assert (order(x, 3) == mixed).all()
    assert (order(x, 4) != mixed).any()


def test_parts_keep_the_order_of_archives(streamed: Path) -> None:
    """What is held out is drawn from all, and the rest is still read archive after archive."""
    kept, held_out = datasets.load(streamed, shuffle_buffer=1).train.split_validation(0.3, 5)
    names = np.array([Path(file.partition(",")[0]).stem for file in kept.files])
    own = names[order(kept.x)]
    assert (own[:-1] != own[1:]).sum() == 2
    assert len(held_out) == 6
    np.testing.assert_array_equal(np.asarray(held_out.x)[0, :, 0, 0], picture(int(held_out.files[0][-8:-4]))[0, 0])


def test_an_archive_that_is_written_to_is_noticed(streamed: Path) -> None:
    x = datasets.load(streamed, workers=0).train.x
    np.asarray(x[:1])
    with (streamed / "0.tar").open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(DataError, match="the file must stay as it was"):
        np.asarray(x[:1])


def test_a_stretch_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    with Stretch(tmp_path / "a", "b.png", 10, 20).open() as file:
        assert file.read(3) == bytes([10, 11, 12])
        assert file.seek(-2, io.SEEK_END) == 18
        assert file.read() == bytes([28, 29])
        assert file.read() == b""
        assert file.seek(0) == 0
        assert file.read(99) == bytes(range(10, 30))


def test_labels_in_json_may_be_anything(tmp_path: Path) -> None:
    label = json.dumps({"label": {"deep": 1}}).encode()
    path = pack(tmp_path / "a.tar", {"a.png": png(1), "a.json": label, "b.png": png(2), "b.json": b'{"label": 2}'})
    assert datasets.load(path).class_names == ("2", "{'deep': 1}")

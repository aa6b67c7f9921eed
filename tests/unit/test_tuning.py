"""The tuning cache: what is kept, what counts, what is ignored with a line; and choosing among candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blobnet import kernel_source, tuning
from blobnet.errors import BlobnetWarning, FileError
from blobnet.kernel_call import Tuning
from blobnet.layers import convolution_tensor
from blobnet.layers.candidates import Candidate, choose
from blobnet.layers.convolution_tensor import WarpTile
from blobnet.layers.convolution_tiled import TILES, WEIGHT_TILES
from blobnet.layers.tile import Tile, predicted_speed, tiles_for
from blobnet.tuning import LEVELS, Tunings, Winner

IDENTITY = {"device": "Some GPU (2)", "platform": "Some Platform", "driver": "1.2", "processor": ""}
TASK = "forward 3x8x8:4k3 batch 2"
WINNER = Winner("tiled 64x64", 1.5, "direct 4x4", 2.5, "fast")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "cache" / "tunings")
    monkeypatch.setattr(tuning, "_shipped_folder", lambda: tmp_path / "shipped")
    return tmp_path


def ignored(tunings: Tunings) -> str:
    """The one warning of a file that is of no use."""
    with pytest.warns(BlobnetWarning) as caught:
        assert dict(tunings.choices) == {}
    assert tunings.broken == frozenset()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"{tunings.path}: ")
    assert text.endswith("Hint: 'blobnet tune MODEL' writes it anew.")
    return text


def change(tunings: Tunings, **values: object) -> None:
    """Changes entries of the file."""
    content = json.loads(tunings.path.read_text())
    tunings.path.write_text(json.dumps({**content, **values}))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_winners_are_kept() -> None:
    first = Tunings(IDENTITY)
    assert (dict(first.winners), dict(first.choices), first.broken) == ({}, {}, frozenset())
    first.record(TASK, WINNER)
    first.mark_broken("tiled 8x8", "strip")
    for tunings in (first, Tunings(IDENTITY)):
        assert dict(tunings.winners) == {TASK: WINNER}
        assert dict(tunings.choices) == {TASK: "tiled 64x64"}
        assert tunings.broken == {"tiled 8x8", "strip"}
    assert first.path.name.startswith("some_gpu_2-")
    assert list(first.path.parent.iterdir()) == [first.path]


@pytest.mark.parametrize("name", IDENTITY)
def test_another_device_or_driver_has_a_file_of_its_own(name: str) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    assert dict(Tunings({**IDENTITY, name: "other"}).choices) == {}


def test_two_processes_keep_each_others_winners() -> None:
    first, second = Tunings(IDENTITY), Tunings(IDENTITY)
    assert not first.winners
    assert not second.winners
    first.record(TASK, WINNER)
    second.record("other", WINNER)
    first.mark_broken("strip")
    found = Tunings(IDENTITY)
    assert set(found.winners) == {TASK, "other"}
    assert found.broken == {"strip"}


def test_a_file_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")
    tunings = Tunings(IDENTITY)
    assert "the tuning cache is of other kernels than these, and is ignored." in ignored(tunings)
    tunings.record("new", WINNER)
    assert set(Tunings(IDENTITY).winners) == {"new"}


@pytest.mark.parametrize("name", ["device", "driver"])
def test_a_foreign_file(name: str) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    tunings = Tunings(IDENTITY)
    change(tunings, **{name: "9.9"})
    wanted = f"the tuning cache must be of this {name}, and is ignored. Received file=9.9, here={IDENTITY[name]}."
    assert wanted in ignored(tunings)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"tasks": {',
        b"\xff\xfe",
        '{"tasks": {"a": {"candidate": "b"}}, "broken": []}',
        '{"tasks": [], "broken": []}',
        '{"tasks": {"a": {"candidate": "b", "ms": 1, "default": "b", "default_ms": 1, "level": "x"}}, "broken": []}',
    ],
)
def test_a_file_that_is_none(content: str | bytes) -> None:
    tunings = Tunings(IDENTITY)
    tunings.path.parent.mkdir(parents=True)
    tunings.path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert "the tuning cache must be a file that 'blobnet tune' wrote. Received cause=" in ignored(tunings)
    tunings.record(TASK, WINNER)
    assert dict(Tunings(IDENTITY).winners) == {TASK: WINNER}


def test_a_file_that_cannot_be_read() -> None:
    tunings = Tunings(IDENTITY)
    tunings.path.mkdir(parents=True)
    assert "the tuning cache must be readable. Received cause=" in ignored(tunings)


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "cache").write_text("a file, where the folder should be")
    tunings = Tunings(IDENTITY)
    with pytest.warns(BlobnetWarning, match="the tuning cache must be readable"):
        assert not tunings.choices
    for action in (tunings.check_writable, lambda: tunings.record(TASK, WINNER)):
        with pytest.raises(FileError) as caught:
            action()
        assert str(caught.value).startswith(f"{tunings.path}: the tuning cache must be writable. Received cause=")
        assert str(caught.value).endswith(" Hint: set XDG_CACHE_HOME to a folder that is.")


def test_nobody_without_a_home_needs_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise FileError("cache folder", "the user must have a home folder")

    monkeypatch.setattr(tuning, "_folder", homeless)
    assert dict(Tunings(IDENTITY).choices) == {}


# -- what ships --------------------------------------------------------------------------------------------------------


def ship(folder: Path, name: str, **tasks: str) -> None:
    """Ships a file for devices of a name, as it comes out of a cache."""
    source = Tunings({**IDENTITY, "device": name, "driver": "another"})
    for task, candidate in tasks.items():
        source.record(task, Winner(candidate, 1.0, "x", 2.0, "wide"))
    (folder / "shipped").mkdir(exist_ok=True)
    source.path.rename(folder / "shipped" / f"{source.path.name.rpartition('-')[0]}.json")


def test_what_was_measured_comes_before_what_ships(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(folder, IDENTITY["device"], a="shipped", b="shipped")
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")  # what ships goes with the kernels beside it
    tunings = Tunings(IDENTITY)
    assert dict(tunings.choices) == {"a": "shipped", "b": "shipped"}
    assert not tunings.winners
    tunings.record("a", WINNER)
    assert dict(tunings.choices) == {"a": WINNER.candidate, "b": "shipped"}
    assert dict(Tunings({**IDENTITY, "device": "Another GPU"}).choices) == {}


def test_a_device_whose_name_is_only_similar_gets_nothing(folder: Path) -> None:
    ship(folder, "Some GPU 2", a="shipped")
    assert (folder / "shipped" / "some_gpu_2.json").exists()
    assert dict(Tunings(IDENTITY).choices) == {}


def test_files_that_ship_are_whole() -> None:
    for path in (Path(tuning.__file__).parent / "tunings").glob("*.json"):
        content = json.loads(path.read_text())
        assert path.stem == tuning._slug(content["device"])
        winners = [Winner.parse(winner) for winner in content["tasks"].values()]
        assert winners
        assert all(0 < winner.ms <= 1.02 * winner.default_ms for winner in winners)


def test_the_fingerprint_is_of_all_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Resources:
        @staticmethod
        def files(_: str) -> Path:
            return tmp_path / "kernels"

    monkeypatch.setattr(kernel_source, "resources", Resources)
    found = set()
    for name in ("kernels/blob.h", "kernels/toy/forward.cl", "kernels/toy/part.h", "kernels/toy/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
        found.add(kernel_source.fingerprint.__wrapped__())
    (tmp_path / "kernels/toy/forward.cl").write_text("other text")
    found.add(kernel_source.fingerprint.__wrapped__())
    assert len(found) == 4, "notes are no kernel"


# -- choosing ----------------------------------------------------------------------------------------------------------


def candidate(name: str, cost: float, *, is_guess: bool = False) -> Candidate:
    return Candidate(name, cost, list, is_guess)


CANDIDATES = [candidate("a 1", 3.0), candidate("a 2", 2.0), candidate("b 1", 5.0), candidate("c 1", 1.0, is_guess=True)]


@pytest.mark.parametrize(
    ("choice", "broken", "expected"),
    [
        (None, (), "a 2"),
        ("b 1", (), "b 1"),
        ("c 1", (), "c 1"),
        ("gone", (), "a 2"),
        ("b 1", ("b",), "a 2"),
        ("b 1", ("b 1", "a 2"), "a 1"),
        (None, ("a",), "b 1"),
        (None, ("a", "b 1"), "c 1"),
        ("b 1", ("a", "b", "c"), "b 1"),
        (None, ("a", "b", "c 1"), "a 2"),
    ],
)
def test_choosing(choice: str | None, broken: tuple[str, ...], expected: str) -> None:
    settings = Tuning(choices={} if choice is None else {"task": choice}, broken=frozenset(broken))
    assert choose(settings, "task", CANDIDATES).name == expected


def test_levels_are_in_order() -> None:
    assert LEVELS == ("none", "fast", "wide")


# -- tiles that were not measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_model_gives_the_measured_speeds(tile: Tile) -> None:
    assert predicted_speed(tile) == pytest.approx(tile.speed, rel=0.03)


def test_too_many_registers_leave_no_work_items_to_hide_waits() -> None:
    # 256 sums, 32 factors, 32 prefetched values and 32 addresses: no compute unit has so many for 256 work-items.
    assert predicted_speed(Tile(256, 256, 16, 16, 16, 0.0)) == 0
    assert predicted_speed(Tile(256, 128, 16, 16, 8, 0.0)) > 1


@pytest.mark.parametrize(("group_size", "local_memory"), [(256, 1 << 15), (1024, 49152), (64, 1 << 15), (128, 1 << 14)])
@pytest.mark.parametrize("measured", [TILES, WEIGHT_TILES])
def test_tiles_fit_the_device(measured: tuple[Tile, ...], group_size: int, local_memory: int) -> None:
    found = tiles_for(measured, Tuning("gpu", group_size=group_size, local_memory=local_memory))
    assert found
    assert len({(tile.units, tile.columns) for tile in found}) == len(found) == len({str(tile) for tile in found})
    assert all(tile.items <= group_size and tile.local_bytes <= local_memory for tile in found)
    assert [tile for tile in found if not tile.is_guess] == [tile for tile in measured if tile in found]
    if group_size >= 256 and local_memory >= 1 << 15:
        assert set(measured) < set(found)


# The pitches of kernels/convolution/tensor.h and backward_weight_tensor.cl.
@pytest.mark.parametrize(("tiles", "pad"), [(convolution_tensor.TILES, 8), (convolution_tensor.WEIGHT_TILES, 0)])
def test_tiles_of_tensor_cores_fit_what_nvidia_takes(tiles: tuple[WarpTile, ...], pad: int) -> None:
    for tile in tiles:
        assert 4 * tile.stages * tile.depth * (tile.units + tile.columns + pad) <= 96 << 10


def test_local_memory_is_what_the_kernels_declare() -> None:
    # kernels/convolution/forward_tiled.cl: weights[2][16 * 128] and sources[max(16, 2 * 16) * 64];
    # backward_weight_tiled.cl: [2][16 * (128 + 4)] and [2][16 * (64 + 4)], which is more.
    assert Tile(128, 64, 16, 8, 8, 1.0).local_bytes == 4 * (2 * 16 * 132 + 2 * 16 * 68)
    # Here 32 rows of results, of 4 units each, leave through the local memory of the sources.
    assert Tile(128, 32, 8, 4, 8, 1.0).local_bytes == 4 * (2 * 8 * 132 + 32 * 36)

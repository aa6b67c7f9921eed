"""The tuning cache: what is kept, what counts, what is ignored with a line; and choosing among candidates."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from blobnet import layers
from blobnet.device import tuning
from blobnet.device.tuning import LEVELS, Tunings, Winner, answers_in
from blobnet.errors import BlobnetWarning, FileError
from blobnet.hardware.device_model import Answers, DeviceModel, model_of
from blobnet.implementations import tensor
from blobnet.implementations.base import Implementation, choose
from blobnet.implementations.tensor import WarpTile
from blobnet.implementations.tile import Tile, predicted_speed, tiles_for
from blobnet.implementations.tiled import TILES, WEIGHT_TILES
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.task import BrokenVariant, Task, TunedChoices, Variant, is_broken
from blobnet.losses import MeanSquaredError
from blobnet.models import resnet50
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from blobnet.support import user_cache
from tests.kinds import tuning_for
from tests.shipped import check_shipped

IDENTITY = {"device": "Some GPU (2)", "platform": "Some Platform", "driver": "1.2", "processor": ""}
TASK, OTHER = Task("forward", "3x8x8:4k3", 2), Task("backward data", "3x8x8:4k3", 2, "tf32")
WINNER = Winner(Variant("tiled", "64x64"), 1.5, Variant("direct", "4x4"), 2.5, "fast")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "cache" / "tunings")
    monkeypatch.setattr(tuning, "_shipped_folder", lambda: tmp_path / "shipped")
    return tmp_path


DAMAGED = "the tuning cache must be as it was written, and is ignored with all that it denies. Received "


def ignored(tunings: Tunings) -> str:
    """The one warning of a file that is of no use."""
    with pytest.warns(BlobnetWarning) as caught:
        assert not tunings.winners
    assert tunings.broken == frozenset()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"{tunings.path}: ")
    assert text.endswith("Hint: 'blobnet doctor' and 'blobnet tune MODEL' write it anew.")
    return text


def chosen(tunings: Tunings, task: Task = TASK) -> list[tuple[Task, str]]:
    return [(known, str(way)) for known, way in tunings.choices.near(task)]


def change(tunings: Tunings, **values: object) -> None:
    """Changes entries of the file, which is sealed again."""
    content = {**json.loads(tunings.path.read_text()), **values}
    del content["seal"]
    tunings.path.write_text(json.dumps({**content, "seal": tunings._seal(content)}))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_winners_are_kept() -> None:
    first = Tunings(IDENTITY)
    assert (dict(first.winners), chosen(first), first.broken) == ({}, [], frozenset())
    first.record(TASK, WINNER)
    faults = {
        BrokenVariant(Variant("tiled", "8x8"), "convolution", "forward"),
        BrokenVariant(Variant("strip"), "convolution", "forward"),
    }
    first.mark_broken(*faults)
    for tunings in (first, Tunings(IDENTITY)):
        assert dict(tunings.winners) == {TASK: WINNER}
        assert chosen(tunings) == [(TASK, "tiled 64x64")]
        assert tunings.broken == faults
        assert set(map(str, tunings.broken)) == {"tiled 8x8 (convolution forward)", "strip (convolution forward)"}
    assert first.path.name.startswith("some_gpu_2-")
    assert list(first.path.parent.iterdir()) == [first.path]


@pytest.mark.parametrize("name", IDENTITY)
def test_another_device_or_driver_has_a_file_of_its_own(name: str) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    assert chosen(Tunings({**IDENTITY, name: "other"})) == []


def test_two_processes_keep_each_others_winners() -> None:
    first, second = Tunings(IDENTITY), Tunings(IDENTITY)
    assert not first.winners
    assert not second.winners
    first.record(TASK, WINNER)
    second.record(OTHER, WINNER)
    first.mark_broken(BrokenVariant(Variant("strip")))
    found = Tunings(IDENTITY)
    assert set(found.winners) == {TASK, OTHER}
    assert found.broken == {BrokenVariant(Variant("strip"))}


def test_a_file_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")
    tunings = Tunings(IDENTITY)
    assert "the tuning cache is of other kernels than these, and is ignored." in ignored(tunings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Once is enough: each model may open its device anew.
        assert not Tunings(IDENTITY).winners
    tunings.record(OTHER, WINNER)
    assert set(Tunings(IDENTITY).winners) == {OTHER}


def test_who_never_tuned_is_not_told_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    Tunings(IDENTITY).record_speeds(flops=5e12)
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tunings(IDENTITY).speeds == {}


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
        "[" * 100_000,
        '{"seal": null, "tasks": {"a": 1}}',
        '{"seal": "0"}',
        '{"tasks": {',
        b"\xff\xfe",
        '{"tasks": {"a": {"candidate": "b"}}, "broken": []}',
        '{"tasks": [1], "broken": []}',
        '{"tasks": {"a": {"candidate": "b", "ms": 1, "default": "b", "default_ms": 1, "level": "fast"}}, "broken": []}',
        f'{{"tasks": {{"{TASK}": {{"candidate": "b", "ms": 1, "default": "b", "default_ms": 1, "level": "x"}}}}, '
        '"broken": []}',
    ],
)
def test_a_file_that_is_none(content: str | bytes) -> None:
    tunings = Tunings(IDENTITY)
    tunings.path.parent.mkdir(parents=True)
    tunings.path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert DAMAGED in ignored(tunings)
    tunings.record(TASK, WINNER)
    assert dict(Tunings(IDENTITY).winners) == {TASK: WINNER}


DENIED = BrokenVariant(Variant("strip"), "convolution", "forward")


@pytest.mark.parametrize("damage", ["a digit", "cut off", "no seal", "another place", "nothing of what was denied"])
def test_a_file_counts_only_as_it_was_written(damage: str) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    Tunings(IDENTITY).judge({DENIED: "wrong"}, ())
    tunings = Tunings(IDENTITY)
    text = tunings.path.read_text()
    if damage == "a digit":
        tunings.path.write_text(text.replace("64x64", "64x65"))
    elif damage == "cut off":
        tunings.path.write_text(text[: len(text) // 2])
    elif damage == "no seal":
        tunings.path.write_text("\n".join(line for line in text.splitlines() if '"seal"' not in line))
    elif damage == "another place":
        tunings = Tunings({**IDENTITY, "driver": "other"})
        tunings.path.write_text(text)
    else:
        tunings.path.write_text(json.dumps({**json.loads(text), "denied": {}}))
    assert DAMAGED in ignored(tunings)


def test_what_was_denied_is_not_lost_unsaid() -> None:
    """Also where another command writes the damaged file anew."""
    Tunings(IDENTITY).judge({DENIED: "wrong"}, ())
    tunings = Tunings(IDENTITY)
    tunings.path.write_bytes(tunings.path.read_bytes()[:-9])
    with pytest.warns(BlobnetWarning, match=DAMAGED):
        tunings.record_speeds(flops=1e12)
    assert not Tunings(IDENTITY).denied


def test_speeds_of_an_older_version_are_dropped_without_a_word() -> None:
    tunings = Tunings(IDENTITY)
    tunings.record_speeds(flops=5e12)
    content = json.loads(tunings.path.read_text())
    del content["seal"]
    tunings.path.write_text(json.dumps(content))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tunings(IDENTITY).speeds == {}


def test_a_file_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    Tunings(IDENTITY).record(TASK, WINNER)
    monkeypatch.setattr(user_cache.os, "geteuid", lambda: 4711)
    assert "the tuning cache must be this user's own, and is ignored." in ignored(Tunings(IDENTITY))


def test_a_file_that_cannot_be_read() -> None:
    tunings = Tunings(IDENTITY)
    tunings.path.mkdir(parents=True)
    assert "the tuning cache must be readable. Received cause=" in ignored(tunings)


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "cache").write_text("a file, where the folder should be")
    tunings = Tunings(IDENTITY)
    with pytest.warns(BlobnetWarning, match="the tuning cache must be readable"):
        assert not chosen(tunings)
    for action in (tunings.check_writable, lambda: tunings.record(TASK, WINNER)):
        with pytest.raises(FileError) as caught:
            action()
        assert str(caught.value).startswith(f"{tunings.path}: the tuning cache must be writable. Received cause=")
        assert str(caught.value).endswith(" Hint: set XDG_CACHE_HOME to a folder that is.")


def test_nobody_without_a_home_needs_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise FileError("cache folder", "the user must have a home folder")

    monkeypatch.setattr(tuning, "_folder", homeless)
    assert chosen(Tunings(IDENTITY)) == []


# -- what ships --------------------------------------------------------------------------------------------------------


#: Before the fixtures turn it away.
SHIPPED = tuning._shipped_folder()
ANSWERS = Answers("Some GPU (2)", platform="Some Platform", compute_units=132, capability=(8, 0), half=True)


def ship(folder: Path, name: str, tasks: Mapping[Task, str]) -> Path:
    """Ships a file for devices of a name, from what was measured with another driver."""
    source = Tunings({**IDENTITY, "device": name, "driver": "another"})
    for task, candidate in tasks.items():
        source.record(task, Winner(Variant.parse(candidate), 1.0, Variant("x"), 2.0, "wide"))
    return source.ship(folder / "shipped", tasks, replace(ANSWERS, name=name))


def test_what_was_measured_comes_before_what_ships(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(folder, IDENTITY["device"], {TASK: "shipped", OTHER: "shipped"})
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")  # what ships goes with the kernels beside it
    tunings = Tunings(IDENTITY)
    assert chosen(tunings) == [(TASK, "shipped")]
    assert not tunings.winners
    tunings.record(TASK, WINNER)
    assert chosen(tunings) == [(TASK, str(WINNER.candidate)), (TASK, "shipped")]
    assert chosen(tunings, OTHER) == [(OTHER, "shipped")]
    assert chosen(Tunings({**IDENTITY, "device": "Another GPU"})) == []


def test_a_device_whose_name_is_only_similar_gets_nothing(folder: Path) -> None:
    path = ship(folder, "Some GPU 2", {TASK: "shipped"})
    assert path == folder / "shipped" / "some_gpu_2.json"
    assert path.exists()
    assert chosen(Tunings(IDENTITY)) == []


def test_measured_speeds_are_kept(folder: Path) -> None:
    tunings = Tunings(IDENTITY)
    assert tunings.speeds == {}
    tunings.record(TASK, WINNER)
    tunings.record_speeds(flops=5e12, bandwidth=1e11)
    Tunings(IDENTITY).record_speeds(bandwidth=2e11)
    assert tunings.speeds == {"flops": 5e12, "bandwidth": 1e11}
    later = Tunings(IDENTITY)
    assert (later.speeds, dict(later.winners)) == ({"flops": 5e12, "bandwidth": 2e11}, {TASK: WINNER})


def test_tunings_of_relatives_count_less(folder: Path) -> None:
    def shipped_by(name: str, platform: str, capability: tuple[int, int], candidate: str) -> tuple[str, ...]:
        answers = Answers(name, platform=platform, capability=capability)
        source = Tunings({**IDENTITY, "device": name, "driver": candidate})
        source.record(TASK, Winner(Variant.parse(candidate), 1.0, Variant("x"), 2.0, "wide"))
        source.ship(folder / "shipped", [TASK], answers)
        return model_of(answers).relatives

    def found(relatives: Sequence[str]) -> list[str]:
        return [candidate for _, candidate in chosen(Tunings({**IDENTITY, "device": relatives[0]}, relatives))]

    pascal = shipped_by("GeForce GTX 1080", "NVIDIA CUDA", (6, 1), "of the vendor")
    hopper = shipped_by("NVIDIA H200", "NVIDIA CUDA", (9, 0), "of the architecture")
    shipped_by("NVIDIA H200 on PoCL", "Portable Computing Language", (9, 0), "of another compiler")
    assert found(hopper) == ["of the architecture", "of the vendor"]
    assert found(pascal) == ["of the vendor", "of the architecture"]
    other = model_of(Answers("NVIDIA H100", platform="NVIDIA CUDA", capability=(9, 0))).relatives
    assert found(other) == ["of the architecture", "of the vendor"]
    assert found(model_of(Answers("NVIDIA A100", platform="NVIDIA CUDA", capability=(8, 0))).relatives) == [
        "of the vendor", "of the architecture"
    ]  # fmt: skip
    assert found(model_of(Answers("gfx1030", platform="AMD Accelerated Parallel Processing")).relatives) == []
    assert found(["NVIDIA H200"]) == ["of the architecture"]


def test_files_to_ship_are_merged(folder: Path) -> None:
    ship(folder, IDENTITY["device"], {TASK: "first", OTHER: "first"})
    path = ship(folder, IDENTITY["device"], {TASK: "second"})
    content = json.loads(path.read_text())
    assert list(content) == ["device", "answers", "tasks"]
    assert answers_in(content) == replace(ANSWERS, name=IDENTITY["device"])
    assert {task: winner["candidate"] for task, winner in content["tasks"].items()} == {
        "backward data 3x8x8:4k3 batch 2 tf32": "first", "forward 3x8x8:4k3 batch 2": "second"
    }  # fmt: skip
    assert list(path.parent.iterdir()) == [path]


def test_only_the_winners_of_the_tasks_ship(folder: Path) -> None:
    tunings = Tunings(IDENTITY)
    tunings.record(TASK, WINNER)
    assert not tunings.ship(folder / "shipped", [OTHER], ANSWERS).exists()
    path = tunings.ship(folder / "shipped", [OTHER, TASK], ANSWERS)
    assert list(json.loads(path.read_text())["tasks"]) == [str(TASK)]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "the file must be one that 'blobnet tune --output' wrote. Received cause=JSONDecodeError("),
        ('{"tasks": {"a": {}}}', "the file must be one that 'blobnet tune --output' wrote. Received cause=ValueError("),
        ('{"device": "B", "tasks": {}}', "the file must be of this device. Received file=B, here=Some GPU (2)."),
    ],
)
def test_a_file_to_ship_that_is_something_else(folder: Path, content: str, rule: str) -> None:
    (folder / "some_gpu_2.json").write_text(content)
    with pytest.raises(FileError) as caught:
        Tunings(IDENTITY).ship(folder, [], ANSWERS)
    assert str(caught.value).startswith(f"{folder / 'some_gpu_2.json'}: {rule}")


def test_a_folder_to_ship_to_that_is_a_file(folder: Path) -> None:
    (folder / "shipped").write_text("a file")
    with pytest.raises(FileError, match=r"some_gpu_2\.json: the file must be writable\. Received cause="):
        Tunings(IDENTITY).ship(folder / "shipped", [], ANSWERS)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_what_ships_is_of_use(path: Path) -> None:
    check_shipped(path)


OF_USE = {
    Task("forward", "24x11x13:40k3p1", 5): "tiled 64x128x8/8x8",
    Task("backward data", "24x11x13:40k3p1", 5, "tf32"): "tensor 64x64",
    Task("backward weights", "30x9:8k5p2", 3): "tiled 32x32x16/4x4",
    Task("forward", "300:dense70", 64): "direct",
}


def test_what_is_of_no_use_is_found(folder: Path) -> None:
    path = ship(folder, IDENTITY["device"], OF_USE)
    check_shipped(path)
    with pytest.raises(AssertionError):
        check_shipped(path.rename(path.with_name("some_gpu.json")))
    for task, candidate in OF_USE.items():
        path = ship(folder, IDENTITY["device"], {task: f"{candidate}0"})
        with pytest.raises(AssertionError, match="have other names now"):
            check_shipped(path)
        path.unlink()


def test_the_fingerprint_is_of_all_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_source, "_folder", lambda: tmp_path / "kernels")
    found = set()
    for name in ("kernels/blob.h", "kernels/toy/forward.cl", "kernels/toy/part.h", "kernels/toy/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
        found.add(kernel_source.fingerprint.__wrapped__())
    (tmp_path / "kernels/toy/forward.cl").write_text("other text")
    found.add(kernel_source.fingerprint.__wrapped__())
    assert len(found) == 4, "notes are no kernel"


# -- choosing ----------------------------------------------------------------------------------------------------------


class Known(Implementation):
    """What only has a way and a cost."""

    cost = 0.0
    way = Variant("known")
    doubt = 0

    def calls(self) -> list[KernelCall]:
        return []


def candidate(name: str, cost: float, *, doubt: int = 0) -> Implementation:
    made = Known(Mock())
    made.way, made.cost, made.doubt = Variant.parse(name), cost, doubt
    return made


CANDIDATES = [
    *(candidate(name, cost) for name, cost in (("a 1", 3.0), ("a 2", 2.0), ("b 1", 5.0))),
    candidate("c 1", 4.0, doubt=1),
    candidate("d 1", 1.0, doubt=2),
]


@pytest.mark.parametrize(
    ("choice", "broken", "expected"),
    [
        (None, (), "a 2"),
        ("b 1", (), "b 1"),
        ("c 1", (), "c 1"),
        ("gone", (), "a 2"),
        ("b 1", ("b",), "a 2"),
        ("b 1", ("b 1 (convolution forward)", "a 2 (convolution forward)"), "a 1"),
        (None, ("a",), "b 1"),
        (None, ("a", "b 1 (convolution forward)"), "c 1"),
        (None, ("a", "b", "c 1 (convolution forward)"), "d 1"),
        ("b 1", ("a", "b", "c", "d"), "b 1"),
        (None, ("a", "b", "c 1 (convolution forward)", "d"), "a 2"),
        ("b 1", ("b (convolution forward)",), "a 2"),
        ("b 1", ("b 1 (dense forward)", "b (convolution backward data)", "b 1"), "b 1"),
    ],
)
def test_choosing(choice: str | None, broken: tuple[str, ...], expected: str) -> None:
    sources = ({TASK: Variant.parse(choice)},) if choice else ()
    choices = TunedChoices(sources, frozenset(map(BrokenVariant.parse, broken)))
    assert choose(choices, TASK, CANDIDATES).way == Variant.parse(expected)


def test_what_is_broken_is_one_operation_of_one_kind_of_layer() -> None:
    dense = Task("forward", "12:dense5", 4, family="dense")
    tile, other = Variant("tiled", "64x64"), Variant("tiled", "64x32")
    faults = {BrokenVariant.of(task, tile) for task in (TASK, OTHER, dense)}
    assert {str(fault) for fault in faults} == {
        f"tiled 64x64 ({of})" for of in ("convolution forward", "convolution backward data", "dense forward")
    }
    for fault in faults:
        of_all = replace(fault, way=Variant("tiled"))
        broken = [task for task in (TASK, OTHER, dense) if is_broken(task, tile, {fault})]
        assert [BrokenVariant.of(task, tile) for task in broken] == [fault]
        assert not any(is_broken(task, other, {fault}) for task in (TASK, OTHER, dense))
        assert [is_broken(task, other, {of_all}) for task in (TASK, OTHER, dense)].count(True) == 1
        assert all(is_broken(task, tile, {BrokenVariant(Variant("tiled"))}) for task in (TASK, OTHER, dense))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("strip", BrokenVariant(Variant("strip"))),
        ("tiled (convolution backward data)", BrokenVariant(Variant("tiled"), "convolution", "backward data")),
        ("tiled 8x8/4x4 in 4", BrokenVariant(Variant("tiled", "8x8/4x4 in 4"))),
        ("tiled 8x8 in 4 (dense forward)", BrokenVariant(Variant("tiled", "8x8 in 4"), "dense", "forward")),
    ],
)
def test_names_of_faults(name: str, fault: BrokenVariant) -> None:
    assert BrokenVariant.parse(name) == fault
    assert str(fault) == name


@pytest.mark.parametrize("name", ["", " tiled"])
def test_names_of_no_faults(name: str) -> None:
    with pytest.raises(ValueError, match=f"^no way to compute: '{name}'$"):
        BrokenVariant.parse(name)


@pytest.mark.parametrize(
    "way", [Variant("direct"), Variant("direct", "6x4x16"), Variant("tiled", "64x128x8/8x8 in 4")], ids=str
)
def test_names_of_ways(way: Variant) -> None:
    assert Variant.parse(str(way)) == way


# -- tasks of other batches --------------------------------------------------------------------------------------------


def batches(name: str, *sizes: int) -> dict[Task, Variant]:
    return {replace(TASK, batch_size=size): Variant(name, str(size)) for size in sizes}


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [
        (64, ["m 64", "m 100", "m 32", "s 64", "s 32", "s 128"]),
        (65, ["m 64", "m 100", "s 64", "s 128"]),
        (90, ["m 100", "m 64", "s 64", "s 128"]),
        (45, ["m 32", "m 64", "s 32", "s 64"]),
        (46, ["m 64", "m 32", "s 64", "s 32"]),
        (15, []),
        (16, ["m 32", "s 32"]),
        (256, ["s 128"]),
        (257, []),
    ],
)
def test_the_nearest_batch_up_to_twice_or_half(batch_size: int, expected: list[str]) -> None:
    choices = TunedChoices((batches("m", 32, 64, 100), batches("s", 128, 64, 32)))
    task = replace(TASK, batch_size=batch_size)
    assert [str(way) for _, way in choices.near(task)] == expected
    for alike in (
        replace(task, direction="backward data"),
        replace(task, layer="3x8x8:4k5"),
        replace(task, precision="tf32"),
    ):
        assert not list(choices.near(alike))


def test_a_candidate_that_is_not_there_for_this_batch_is_passed_over() -> None:
    near = {replace(TASK, batch_size=3): Variant("gone"), replace(TASK, batch_size=4): Variant("b", "1")}
    choices = TunedChoices((near, {TASK: Variant("a", "1")}))
    assert choose(choices, TASK, CANDIDATES).way == Variant("b", "1")
    assert choose(replace(choices, broken=frozenset({BrokenVariant(Variant("b"))})), TASK, CANDIDATES).way == Variant(
        "a", "1"
    )
    assert choose(choices, replace(TASK, batch_size=9), CANDIDATES).way == Variant("a", "2")


def test_plans_take_the_winner_of_a_near_batch() -> None:
    node = layers.Input(24, 11, 13)()
    graph = from_nodes(node, layers.Conv2D(40, 3, padding=1)(node))
    task = Task("forward", "24x11x13:40k3p1", 64)
    settings = Tuning(model_of(ANSWERS), choices=TunedChoices(({task: Variant("tiled", "32x256x8/8x8")},)))
    used = {size: make_plan(graph, size, tuning=settings).calls[-1][1].way for size in (31, 32, 128, 129)}
    assert used[32] == used[128] == Variant("tiled", "32x256x8/8x8")
    assert used[31] != used[32] != used[129]


@pytest.mark.parametrize("task", [TASK, OTHER, Task("backward weights", "4096:dense10", 128, family="dense")], ids=str)
def test_the_name_of_a_task_is_read_back(task: Task) -> None:
    assert Task.parse(str(task)) == task


def test_names_of_tasks() -> None:
    assert (str(TASK), str(OTHER)) == ("forward 3x8x8:4k3 batch 2", "backward data 3x8x8:4k3 batch 2 tf32")
    for wrong in (
        "",
        "forward",
        "forward 3x8x8:4k3",
        "forward 3x8x8:4k3 batch 0",
        "forward 3x8x8 batch 2",
        f"{TASK} ",
        f"{TASK} a b",
    ):
        with pytest.raises(ValueError, match=f"^no task: '{wrong}'$"):
            Task.parse(wrong)


def test_levels_are_in_order() -> None:
    assert LEVELS == ("none", "fast", "wide")


# -- tiles that were not measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_model_gives_the_measured_speeds(tile: Tile) -> None:
    assert predicted_speed(tile) == pytest.approx(tile.speed, rel=0.03)


def test_too_many_registers_leave_no_work_items_to_hide_waits() -> None:
    # 256 sums, 32 factors, 32 prefetched values and 32 addresses: no compute unit has so many for 256 work-items.
    assert predicted_speed(Tile(256, 256, 16, 16, 16, speed=0.0)) == 0
    assert predicted_speed(Tile(256, 128, 16, 16, 8, speed=0.0)) > 1


def device_of(name: str, platform: str = "") -> DeviceModel:
    return model_of(Answers(name, platform=platform, compute_units=512, group_size=1024, local_memory=1 << 16))


@pytest.mark.parametrize("tiles", [TILES, WEIGHT_TILES], ids=["products", "gradients of weights"])
def test_tiles_that_would_spill_are_not_proposed(tiles: tuple[Tile, ...]) -> None:
    def proposed(model: DeviceModel, rows: list[int] | None) -> tuple[Tile, ...]:
        return tiles_for(tiles, Tuning(model), rows)

    hopper, few = device_of("NVIDIA H200", "NVIDIA CUDA"), device_of("Mali-G78", "ARM Platform")
    arc, navi = device_of("Intel(R) Arc(TM) A770 Graphics", "Intel(R) OpenCL"), device_of("gfx1030", "AMD Accelerated")
    for rows in ([576], [16], None):
        assert set(tiles) < set(proposed(hopper, rows))
        # Intel's compiler loads nothing ahead, and takes a third more than is needed; gradients of weights have short
        # addresses, of 16 registers less.
        found, most = proposed(arc, rows), 96 if rows else 112
        assert max(tile.registers for tile in found) <= most < max(tile.registers for tile in tiles)
        assert set(found) & set(tiles)
    assert set(tiles) < set(proposed(navi, None))
    found = proposed(navi, [576])
    assert max(tile.most_registers for tile in found) <= 256 < max(tile.most_registers for tile in tiles)
    assert set(found) & set(tiles)
    # The smallest is better than none.
    assert proposed(few, [576]) == proposed(few, None) == (min(tiles, key=lambda tile: tile.registers),)


# Registers that clang 16 takes for gfx1030, with those that it spills: of forward_tiled.cl on 64x28x28:128k3p1,
# batch 16; units, columns, depth and those of a work-item.
TAKEN = [
    ((128, 64, 16, 8, 8), 317),
    ((64, 128, 8, 8, 8), 221),
    ((32, 256, 8, 8, 8), 229),
    ((32, 64, 16, 4, 4), 109),
    ((32, 32, 16, 4, 4), 118),
    ((64, 32, 16, 8, 4), 209),
    ((64, 64, 16, 8, 8), 373),
    ((256, 64, 16, 8, 8), 337),
]


@pytest.mark.parametrize(("tile", "taken"), TAKEN, ids=str)
def test_registers_where_a_compiler_loads_ahead(tile: tuple[int, ...], taken: int) -> None:
    assert Tile(*tile, speed=1.0).most_registers == pytest.approx(taken, rel=0.1)


# The same for as many rows of 96x28x28:96k1, and whether that is more than the 256 that there are.
UNROLLED = [
    ((64, 128, 8, 8, 8), 16, 284),
    ((32, 256, 8, 8, 8), 16, 301),
    ((32, 256, 8, 8, 8), 24, 258),
    ((32, 256, 8, 8, 8), 32, 227),
    ((64, 128, 8, 8, 8), 32, 229),
    ((32, 64, 16, 4, 4), 16, 117),
]


@pytest.mark.parametrize(("tile", "rows", "taken"), UNROLLED, ids=str)
def test_registers_of_few_rows_where_a_compiler_loads_ahead(tile: tuple[int, ...], rows: int, taken: int) -> None:
    assert (Tile(*tile, speed=1.0).registers_by("amd", [rows, 576]) > 256) == (taken > 256)
    assert Tile(*tile, speed=1.0).registers_by("nvidia", [rows]) == Tile(*tile, speed=1.0).registers


def test_a_network_for_a_device_of_few_registers() -> None:
    tuning = Tuning(device_of("Intel(R) Arc(TM) A770 Graphics", "Intel(R) OpenCL"))
    plan = make_plan(resnet50().graph, 8, training=True, loss=MeanSquaredError(), tuning=tuning)
    names = ("TILE_UNITS", "TILE_COLUMNS", "TILE_DEPTH", "ITEM_UNITS", "ITEM_COLUMNS")
    calls = [call for _, call in plan.calls if names[-1] in call.macros]
    assert calls
    for call in calls:
        tile = Tile(*(int(call.macros[name]) for name in names), speed=1.0)
        assert tile.registers_by("intel", None) <= 128


def test_too_much_local_memory_leaves_no_work_items_to_hide_waits() -> None:
    # Groups of 64 work-items with 35, 70 and 139 KB of local memory: three, one and none on a compute unit, of four.
    speeds = [predicted_speed(Tile(64, 64, depth, 8, 8, speed=0.0)) for depth in (32, 64, 128)]
    assert speeds[0] == pytest.approx(0.75, abs=0.05)
    assert speeds[1] == pytest.approx(0.25, abs=0.02)
    assert speeds[2] == 0


@pytest.mark.parametrize(("group_size", "local_memory"), [(256, 1 << 15), (1024, 49152), (64, 1 << 15), (128, 1 << 14)])
@pytest.mark.parametrize("measured", [TILES, WEIGHT_TILES])
def test_tiles_fit_the_device(measured: tuple[Tile, ...], group_size: int, local_memory: int) -> None:
    found = tiles_for(measured, tuning_for("gpu", group_size=group_size, local_memory=local_memory))
    assert found
    assert len({(tile.units, tile.columns) for tile in found}) == len(found) == len({str(tile) for tile in found})
    assert all(tile.items <= group_size and tile.local_bytes <= local_memory for tile in found)
    assert [tile for tile in found if not tile.doubt] == [tile for tile in measured if tile in found]
    if group_size >= 256 and local_memory >= 1 << 15:
        assert set(measured) < set(found)


# The pitches of kernels/convolution/tensor.h and backward_weight_tensor.cl.
@pytest.mark.parametrize(("tiles", "pad"), [(tensor.TILES, 8), (tensor.WEIGHT_TILES, 0)])
def test_tiles_of_tensor_cores_fit_what_nvidia_takes(tiles: tuple[WarpTile, ...], pad: int) -> None:
    for tile in tiles:
        assert 4 * tile.stages * tile.depth * (tile.units + tile.columns + pad) <= 96 << 10


def test_local_memory_is_what_the_kernels_declare() -> None:
    # kernels/convolution/forward_tiled.cl: weights[2][16 * 128] and sources[max(16, 2 * 16) * 64];
    # backward_weight_tiled.cl: [2][16 * (128 + 4)] and [2][16 * (64 + 4)], which is more.
    assert Tile(128, 64, 16, 8, 8, speed=1.0).local_bytes == 4 * (2 * 16 * 132 + 2 * 16 * 68)
    # Here 32 rows of results, of 4 units each, leave through the local memory of the sources.
    assert Tile(128, 32, 8, 4, 8, speed=1.0).local_bytes == 4 * (2 * 8 * 132 + 32 * 36)


def test_processes_that_record_at_once_lose_nothing() -> None:
    """Each reads the file, adds a winner, and writes it: without a lock some would write over others'."""
    code = f"""
import sys
from pathlib import Path
from blobnet.device import tuning
from blobnet.launch.task import BrokenVariant, Variant
tuning._folder = lambda: Path({str(tuning._folder())!r})
for number in range(40):
    tuning.Tunings({{"device": "some gpu"}}).mark_broken(BrokenVariant(Variant(sys.argv[1], str(number))))
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert Tunings({"device": "some gpu"}).broken == {
        BrokenVariant(Variant(name, str(number))) for name in "abc" for number in range(40)
    }
    assert len(list(tuning._folder().iterdir())) == 1

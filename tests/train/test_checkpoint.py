import contextlib
import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from blobnet import layers
from blobnet.errors import FileError
from blobnet.files import atomic, checkpoint, hdf5
from blobnet.files.atomic import check_writable
from blobnet.files.checkpoint import ModelFile, TrainingState, inspect, load, save
from blobnet.network.graph import Graph, from_nodes


def small_graph() -> Graph:
    """A residual graph with parameters of 1 and 4 axes."""
    start = layers.Input(units=2, height=5, width=6, name="input")()
    node = layers.Conv2D(2, 3, padding="same", activation="relu", name="conv")(start)
    node = layers.BatchNorm(name="norm")(node)
    return from_nodes(start, layers.Flatten(name="flat")(layers.Add(name="sum")([node, start])))


def small_model(seed: int = 0, **changes) -> ModelFile:
    random = np.random.default_rng(seed)
    graph = small_graph()
    model = ModelFile(
        description=graph.description(),
        weights={
            name: random.standard_normal(spec.shape, dtype=np.float32) for name, spec in graph.named_parameters.items()
        },
        class_names=("T-shirt/top", "Kleid \N{LATIN SMALL LETTER U WITH DIAERESIS}", ""),
        history={"loss": [0.1 + 0.2, 1 / 3], "validation_accuracy": [0.5, float("nan")]},
        loss={"kind": "CrossEntropy", "config": {"label_smoothing": 0.1}},
        training=TrainingState(
            epoch=2,
            step=938,
            seed=2**62 + 1,
            optimizer={"kind": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9}},
            optimizer_state={"velocity": random.standard_normal(48, dtype=np.float32)},
            settings={"batch_size": 128, "epochs": 5, "best": float("inf")},
        ),
    )
    return dataclasses.replace(model, **changes)


def assert_same(left: ModelFile, right: ModelFile) -> None:
    """The same content, bit for bit."""
    assert left.description == right.description
    assert list(left.weights) == list(right.weights)
    for name, values in left.weights.items():
        assert values.dtype == right.weights[name].dtype == np.float32
        assert values.shape == right.weights[name].shape
        assert values.tobytes() == right.weights[name].tobytes(), name
    assert left.class_names == right.class_names
    assert repr(left.history) == repr(right.history)  # repr: NaN is not equal to itself
    assert left.loss == right.loss
    assert (left.training is None) == (right.training is None)
    if left.training and right.training:
        for field in dataclasses.fields(TrainingState):
            if field.name != "optimizer_state":
                assert getattr(left.training, field.name) == getattr(right.training, field.name)
        slots = left.training.optimizer_state
        assert list(slots) == list(right.training.optimizer_state)
        for name, values in slots.items():
            assert values.tobytes() == right.training.optimizer_state[name].tobytes()


def temporaries(folder: Path) -> list[str]:
    return [item.name for item in folder.iterdir() if item.name.endswith(".tmp")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.h5"


@pytest.fixture
def saved(path: Path) -> Path:
    save(path, small_model())
    return path


# -- what comes back -----------------------------------------------------------------------------------------------


def test_round_trip(path):
    model = small_model()
    save(path, model)
    loaded = load(path)
    assert_same(loaded, model)
    assert loaded.graph == small_graph()
    assert all(values.flags.writeable for values in loaded.weights.values())


def test_round_trip_without_what_may_be_missing(path):
    model = small_model(class_names=(), history={}, loss=None, training=None)
    save(path, model)
    assert_same(load(path), model)
    with h5py.File(path, "r+") as file:
        del file["class_names"], file["history"]
        file["notes"] = "a user's own"
    assert_same(load(path), model)


def test_history_keeps_its_order(path):
    history = {"loss": [1.0], "accuracy": [0.5], "validation_loss": [2.0], "a metric of a callback's": [3.0]}
    save(path, small_model(history=history))
    assert list(load(path).history) == list(history)


@pytest.mark.parametrize("order", [None, 3, b"[", b"3", b"[3]", b'["accuracy", "loss", "loss", "more"]'], ids=repr)
def test_history_without_an_order_that_can_be_used(path, order):
    save(path, small_model(history={"loss": [1.0], "accuracy": [0.5]}))
    with h5py.File(path, "r+") as file:
        del file["history"].attrs["order"], file.attrs["sha256"]
        if order is not None:
            file["history"].attrs["order"] = np.bytes_(order) if isinstance(order, bytes) else order
    assert load(path).history == {"accuracy": [0.5], "loss": [1.0]}


def test_a_random_state_of_older_files_is_ignored(saved):
    with h5py.File(saved, "r+") as file:
        file["training/random_state"] = np.bytes_("{}")
    assert_same(load(saved), small_model())


def test_nan_in_weights_is_kept_and_shown(path):
    model = small_model()
    model.weights["conv/bias"][1] = np.nan
    save(path, model)
    assert np.isnan(load(path).weights["conv/bias"][1])
    assert "not finite  1 weights are NaN or infinite" in inspect(path)


def test_class_names_that_are_no_utf8(path):
    name = os.fsdecode(b"caf\xe9")
    save(path, small_model(class_names=(name,)))
    assert load(path).class_names == (name,)
    assert inspect(path).isascii()


def test_any_float32_array_will_do(path):
    model = small_model()
    weights = {
        name: np.asfortranarray(values).astype(">f4" if values.ndim == 1 else "<f4")
        for name, values in model.weights.items()
    }
    save(path, dataclasses.replace(model, weights=weights))
    assert_same(load(path), model)


def test_read_without_blobnet(saved):
    model = small_model()
    with h5py.File(saved, "r") as file:
        assert file.attrs["format"] == b"blobnet"
        assert file.attrs["format_version"] == 1
        assert file["layers/conv/weight"].dtype == np.float32
        assert file["layers/conv/weight"].shape == (2, 2, 3, 3)
        assert (file["layers/conv/weight"][()] == model.weights["conv/weight"]).all()
        assert sorted(file["layers"]) == ["conv", "input", "norm"]
        architecture = json.loads(file["architecture"][()])
        assert [layer["config"]["name"] for layer in architecture] == [
            "input",
            "conv",
            "conv_relu",
            "norm",
            "sum",
            "flat",
        ]
        assert tuple(file["class_names"].asstr()) == model.class_names
        assert list(file["history/loss"]) == model.history["loss"]
        assert file["training"].attrs["epoch"] == 2


def test_weights_changed_without_blobnet(saved):
    with h5py.File(saved, "r+") as file:
        file["layers/conv/bias"][...] = 7
        del file["class_names"]
        file["class_names"] = np.array(["a", "b"], dtype="S")
        del file["architecture"]
        file["architecture"] = np.bytes_(json.dumps(small_graph().description()))
    with pytest.raises(FileError, match=r"the values under /layers must be those that were written \(SHA-256\)\."):
        load(saved)
    with h5py.File(saved, "r+") as file:
        del file["layers"].attrs["sha256"]
    with pytest.raises(FileError, match=r"the values under / must be those that were written \(SHA-256\)\."):
        load(saved)
    with h5py.File(saved, "r+") as file:
        del file.attrs["sha256"]  # As files of older versions are.
    loaded = load(saved)
    assert (loaded.weights["conv/bias"] == 7).all()
    assert loaded.class_names == ("a", "b")


def test_inspect(saved):
    assert inspect(saved).splitlines() == [
        "layer      kind        output shape  parameters",
        "-----------------------------------------------",
        "input      Input       (2, 5, 6)              4",
        "conv       Conv2D      (2, 5, 6)             38",
        "conv_relu  Activation  (2, 5, 6)              -",
        "norm       BatchNorm   (2, 5, 6)              8",
        "sum        Add         (2, 5, 6)              -",
        "flat       Flatten     (60)                   -",
        "-----------------------------------------------",
        "total                                        50",
        "",
        f"file        {saved.stat().st_size / 1024:.1f} KiB, format 1, written by blobnet {checkpoint._version()}",
        "parameters  50 (200 B), 42 of them trainable",
        r"classes     3: T-shirt/top, Kleid \xfc, ",
        "loss        CrossEntropy(label_smoothing=0.1)",
        "history     2 epochs, at the last: loss 0.3333, validation_accuracy nan",
        "resumable   yes, after epoch 2 (step 938), with SGD(learning_rate=0.1, momentum=0.9)",
    ]
    save(saved, small_model(history={"loss": [0.25]}))
    assert "\nhistory     1 epoch, at the last: loss 0.25\n" in inspect(saved)
    save(saved, small_model(training=None, history={}, class_names=tuple(f"\x1b[3{index}m" for index in range(14))))
    text = inspect(saved)
    assert "resumable   no, the file holds a model and no training state" in text
    assert r"\x1b[311m and 2 more" in text
    assert "history" not in text


# -- equal bytes ---------------------------------------------------------------------------------------------------


def child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a script that may use everything in this module."""
    code = "from tests.train.test_checkpoint import *\n" + textwrap.dedent(script)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True, cwd=root)


def test_equal_models_give_equal_bytes(saved, tmp_path):
    save(tmp_path / "again.h5", small_model())
    child("save(sys.argv[1], small_model())", tmp_path / "child.h5")
    save(tmp_path / "other.h5", small_model(seed=1))
    first = saved.read_bytes()
    assert (tmp_path / "again.h5").read_bytes() == first
    assert (tmp_path / "child.h5").read_bytes() == first
    assert (tmp_path / "other.h5").read_bytes() != first


def test_no_time_in_the_file(saved):
    def changed(name: str, item: h5py.Group | h5py.Dataset) -> None:
        assert h5py.h5g.get_objinfo(item.id).mtime == 0, name

    with h5py.File(saved, "r") as file:
        file.visititems(changed)


def test_no_heap_of_texts(saved):
    """HDF5 2.0 never comes back from a global heap with one wrong byte."""
    assert b"GCOL" not in saved.read_bytes()


def test_threads_save_at_once(tmp_path):
    paths = [tmp_path / f"{index}.h5" for index in range(4)]
    threads = [threading.Thread(target=lambda at=at: [save(at, small_model()) for _ in range(5)]) for at in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({at.read_bytes() for at in paths}) == 1


# -- all or nothing ------------------------------------------------------------------------------------------------

KILLS = 30

KILLER = """
    import random, signal, time
    path = Path(sys.argv[1])
    big = {"velocity": np.zeros(100_000, np.float32)}
    versions = [small_model(seed) for seed in range(2)]
    versions = [dataclasses.replace(v, training=dataclasses.replace(v.training, optimizer_state=big)) for v in versions]
    save(path, versions[0])
    images = [checkpoint._image("", version) for version in versions]
    pauses = random.Random(0)
    left = kills = 0
    begun = time.monotonic()
    save(path, versions[0])
    duration = time.monotonic() - begun
    # On a busy machine few kills come in time: then more of them.
    while kills < int(sys.argv[2]) or (not left and time.monotonic() - begun < 60):
        kills += 1
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            while True:
                for version in versions:
                    os.write(writing, b".")
                    save(path, version)
        os.close(writing)
        os.read(reading, 1)  # A save begins.
        time.sleep(pauses.uniform(0, 2 * duration))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)
        assert path.read_bytes() in images
        load(path)
        left += len(temporaries(path.parent))
    save(path, versions[1])
    print(left, temporaries(path.parent))
"""


def test_killed_while_saving(path):
    left, after = child(KILLER, path, KILLS).stdout.split(maxsplit=1)
    assert int(left) > 0, "no kill came in the middle of a save, the test shows nothing"
    assert after.strip() == "[]"
    assert load(path).training.epoch == 2


def test_only_temporaries_of_dead_processes_are_removed(saved):
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    dead, alive = process.pid, os.getppid()
    kept = [
        f".model.h5.{alive}-01234567.tmp",
        f".other.h5.{dead}-01234567.tmp",
        f".model.h5.{dead}.tmp",
        "model.h5.tmp",
    ]
    for name in [*kept, f".model.h5.{dead}-01234567.tmp"]:
        (saved.parent / name).touch()
    save(saved, small_model())
    assert sorted(temporaries(saved.parent)) == sorted(kept)


def assert_unchanged(path: Path, before: bytes) -> None:
    assert path.read_bytes() == before
    assert temporaries(path.parent) == []


@contextlib.contextmanager
def mounted_disk(tmp_path, options):
    """A small disk of its own, where the user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("cannot mount a disk: there is no mount command")
    command = ["mount", "-t", "tmpfs", "-o", options, "none", disk]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a disk: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_full_disk(tmp_path):
    with mounted_disk(tmp_path, "size=64k") as disk:
        path = disk / "model.h5"
        save(path, small_model())
        before = path.read_bytes()
        model = small_model()
        slots = {"velocity": np.ones(20_000, np.float32)}
        large = dataclasses.replace(model, training=dataclasses.replace(model.training, optimizer_state=slots))
        with pytest.raises(FileError, match=r"cannot be written: No space left on device.*needed=\d.*free=.*unchanged"):
            save(path, large)
        assert_unchanged(path, before)
        with pytest.raises(FileError, match=r"must have room for the file.*needed=1\.0 MiB, free=\d"):
            check_writable(path, 1 << 20)
        check_writable(path, 1000)
        assert_unchanged(path, before)


def test_file_size_limit(saved):
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(FileError, match="cannot be written: File too large"):
            save(saved, small_model())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_unchanged(saved, before)


def test_failing_disk(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="cannot be written: Input/output error"):
        save(saved, small_model(seed=1))
    assert_unchanged(saved, before)


def test_folder_that_cannot_be_flushed(saved, monkeypatch):
    flush = os.fsync

    def fail(descriptor: int, code: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(code, os.strerror(code))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", lambda descriptor: fail(descriptor, 22))
    save(saved, small_model(seed=1))  # a file system that knows no such thing
    monkeypatch.setattr(os, "fsync", lambda descriptor: fail(descriptor, 5))
    with pytest.raises(FileError, match="the file is written, but its folder cannot be flushed: Input/output error"):
        save(saved, small_model(seed=2))
    assert_same(load(saved), small_model(seed=2))


def test_interrupt_leaves_nothing(saved, monkeypatch):
    before = saved.read_bytes()

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(saved, small_model(seed=1))
    assert_unchanged(saved, before)


def test_symbolic_link_stays(saved):
    link = saved.with_name("latest.h5")
    link.symlink_to(saved)
    save(link, small_model(seed=1))
    assert link.is_symlink()
    assert_same(load(saved), small_model(seed=1))


def unwritable(tmp_path: Path, case: str) -> Path:
    if case == "folder":
        (tmp_path / "model.h5").mkdir()
    elif case == "file as folder":
        (tmp_path / "folder").touch()
        return tmp_path / "folder" / "model.h5"
    elif case == "no folder":
        return tmp_path / "folder" / "model.h5"
    elif case == "pipe":
        os.mkfifo(tmp_path / "model.h5")
    elif case == "proc":
        return Path("/proc/model.h5")
    elif case == "long":
        return tmp_path / ("x" * 300)
    return tmp_path / "model.h5"


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("folder", r"must name a file, but it is a folder.*model\.h5/model\.h5, perhaps"),
        ("file as folder", "the folder of the file must be a folder, but it is a file"),
        ("no folder", "the folder of the file must exist.*Hint: mkdir -p"),
        ("pipe", "must name a regular file, but it is a device"),
        ("proc", "the file cannot be written: (No such file|Permission denied|Read-only)"),
        ("long", "the file cannot be written: File name too long"),
    ],
)
def test_unwritable(tmp_path, case, text):
    path = unwritable(tmp_path, case)
    with pytest.raises(FileError, match=text):
        check_writable(path, 1000)
    with pytest.raises(FileError, match=text):
        save(path, small_model())
    assert temporaries(tmp_path) == []


def test_write_protected(saved, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    for attempt in (lambda: check_writable(saved, 1000), lambda: save(saved, small_model())):
        with pytest.raises(FileError, match=r"the file that is there is write-protected.*another name"):
            attempt()


def test_read_only_disk(tmp_path):
    with mounted_disk(tmp_path, "size=64k,ro") as disk:
        with pytest.raises(FileError, match="cannot be written: Read-only file system"):
            check_writable(disk / "model.h5", 1000)
        with pytest.raises(FileError, match="cannot be written: Read-only file system"):
            save(disk / "model.h5", small_model())


# -- models that do not fit together -------------------------------------------------------------------------------


def without(weights, name):
    return {key: values for key, values in weights.items() if key != name}


def renamed(name: object) -> list:
    """The small graph with the layer ``conv`` called something else."""
    text = json.dumps(small_graph().description())
    return json.loads(text.replace('"conv"', json.dumps(name)))


def training(**changes) -> dict:
    return {"training": dataclasses.replace(small_model().training, **changes)}


WEIGHTS = small_model().weights

BAD_MODELS = [
    ({"weights": without(WEIGHTS, "conv/bias")}, "weights must be exactly those.*missing=conv/bias, extra=none"),
    ({"weights": {**WEIGHTS, "conv/x": WEIGHTS["conv/bias"]}}, "missing=none, extra=conv/x"),
    ({"weights": {**WEIGHTS, "conv/bias": np.zeros(3, np.float32)}}, r"conv/bias must have the shape.*\(3,\).*\(2,\)"),
    ({"weights": {**WEIGHTS, "conv/bias": np.zeros(2)}}, "conv/bias must hold float32 numbers.*float64"),
    ({"description": renamed("a/b")}, "a layer's name must be printable, without '/'.*'a/b'"),
    ({"description": renamed(".")}, "a layer's name must be printable"),
    ({"description": renamed("a\nb")}, r"a layer's name must be printable.*'a\\nb'"),
    ({"description": renamed(None)}, "every layer of the architecture must lead to its last one, in order"),
    ({"description": renamed(7)}, "a name must be printable text|every layer|architecture must be"),
    ({"description": [object()]}, "the architecture must be plain data .*object cannot be written as JSON"),
    ({"class_names": ("a\0b",)}, "class names must not hold a NUL"),
    ({"history": {"a/b": [1.0]}}, "a name must be printable text"),
    ({"history": {"loss": [[1.0]]}}, "/history/loss must be a flat array of float64"),
    ({"loss": {"kind": "CrossEntropy"}}, "the loss must be an object with kind and config"),
    (training(optimizer={}), "the training state's optimizer must be an object with kind and config"),
    (training(settings=[]), "the training state's settings must be an object"),
    (training(settings={"x": {1, 2}}), "settings must be plain data .*set cannot be written as JSON"),
    (training(optimizer_state={"a": np.zeros(3)}), "optimizer_state/a must be a flat array of float32"),
    (training(seed=-1), r"seed must be from 0 to below 2\^63.*-1"),
    (training(seed=2**63), r"seed must be from 0 to below 2\^63"),
]


@pytest.mark.parametrize(("changes", "text"), BAD_MODELS, ids=range(len(BAD_MODELS)))
def test_models_that_are_not_written(saved, changes, text):
    before = saved.read_bytes()
    with pytest.raises(FileError, match=text):
        save(saved, small_model(**changes))
    assert_unchanged(saved, before)


# -- files that are not read ---------------------------------------------------------------------------------------


def test_missing(saved):
    with pytest.raises(FileError, match=r"lenet\.h5: there must be such a file. Hint: in that folder are model\.h5"):
        load(saved.with_name("lenet.h5"))
    with pytest.raises(FileError, match=r"nowhere.*there must be such a file\.$"):
        load(saved.parent / "nowhere" / "model.h5")


def test_no_file(saved):
    for other, kind in ((saved.parent, "a folder"), ("/dev/zero", "a device")):
        with pytest.raises(FileError, match=f"the file cannot be read: it is {kind}, and no file"):
            load(other)
    with pytest.raises(FileError, match="the file cannot be read: Not a directory"):
        load(saved / "model.h5")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "must be HDF5, but this file is empty"),
        (b"PK\x03\x04....", "this is a zip archive"),
        (b"\x80\x02}q\x00", "this is a Python pickle"),
        (b"<!DOCTYPE html>", "this is a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "this is a Git LFS pointer"),
        (b"hello", "no format that blobnet knows. Received begins=b'hello'"),
    ],
)
def test_not_hdf5(path, content, text):
    path.write_bytes(content)
    with pytest.raises(FileError, match=text):
        load(path)


def test_truncated(saved):
    content = saved.read_bytes()
    for tenths in range(10):
        saved.write_bytes(content[: max(4, len(content) * tenths // 10)])
        with pytest.raises(FileError, match="must be whole, but this one is cut short or damaged"):
            load(saved)
    saved.write_bytes(content[:-1])
    with pytest.raises(FileError, match="truncated file"):
        load(saved)


@pytest.mark.parametrize("name", ["layers/conv/weight", "training/optimizer_state/velocity"])
def test_one_flipped_bit_in_an_array_is_found(saved, name):
    with h5py.File(saved) as file:
        start, count = file[name].id.get_offset(), file[name].nbytes
    content, random = saved.read_bytes(), np.random.default_rng(2)
    for place in [0, count - 1, *random.integers(0, count, 20).tolist()]:
        damaged = bytearray(content)
        damaged[start + place] ^= 1 << int(random.integers(8))
        saved.write_bytes(damaged)
        for read in (load, inspect):
            rule = rf"/{name.rpartition('/')[0].partition('/conv')[0]} must be those that were written"
            with pytest.raises(
                FileError, match=rf"the values under {rule} \(SHA-256\)\. Received written='[0-9a-f]{{64}}"
            ):
                read(saved)


def test_damaged_bytes_give_no_other_error(saved):
    content = bytearray(saved.read_bytes())
    random = np.random.default_rng(0)
    refused = 0
    for position in random.integers(0, len(content), 100):
        damaged = bytearray(content)
        damaged[position] ^= int(random.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            load(saved)
        except FileError:
            refused += 1
    assert 0 < refused < 100


def keras(file):
    file.attrs["keras_version"] = "2.0.5"
    file.create_group("model_weights")


def weights_of_keras(file):
    file.create_group("layers")
    file.create_group("vars")


def data_set(file):
    file["x"] = np.zeros((2, 3))
    file["y"] = np.zeros(2)


@pytest.mark.parametrize(
    ("fill", "text"),
    [
        (keras, r"must be one of blobnet's, but it looks like a Keras model \(\.h5\)"),
        (weights_of_keras, "it looks like Keras weights"),
        (data_set, r"it looks like a data set \(x and y\), not a model"),
        (lambda file: file.create_group("temperature\x1b"), r"something else: at its top are temperature\\x1b\."),
        (lambda file: None, "it looks like an empty one"),
        (lambda file: file.attrs.create("format", [1, 2]), "it looks like an empty one"),
    ],
)
def test_foreign_hdf5(path, fill, text):
    with h5py.File(path, "w") as file:
        fill(file)
    with pytest.raises(FileError, match=text):
        load(path)


def replaced(name, value=None, **options):
    def change(file):
        if name in file:
            del file[name]
        if value is not None or options:
            file.create_dataset(name, data=value, **options)

    return change


def link(name, target):
    def change(file):
        del file[name]
        file[name] = target

    return change


def attribute(where, name, value):
    def change(file):
        file[where].attrs[name] = value

    return change


def external(file):
    del file["layers/conv/bias"]
    file.create_dataset("layers/conv/bias", (2,), "f4", external=[("/etc/hostname", 0, 8)])


def virtual(file):
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (2,))
    del file["layers/conv/bias"]
    file.create_virtual_dataset("layers/conv/bias", layout)


def overlapping(file):
    # As many names as it takes, all for one dataset: the file stays small, what is read does not.
    file["training/optimizer_state/large"] = np.zeros(5000, np.float32)
    for index in range(9):
        file[f"training/optimizer_state/{index}"] = file["training/optimizer_state/large"]


def architecture(change):
    def apply(file):
        description = small_graph().description()
        del file["architecture"]
        file["architecture"] = np.bytes_(json.dumps(change(description) or description))

    return apply


def huge(file):
    """A weight of 72 GiB, which the file declares but does not hold."""

    def change(description):
        description[1]["config"]["filters"] = 1 << 30
        return [*description[:2], {**description[-1], "inputs": ["conv"]}]

    architecture(change)(file)
    del file["layers/norm"], file["layers/conv/weight"]
    file.create_dataset("layers/conv/weight", (1 << 30, 2, 3, 3), "f4")


def unknown_kind(description):
    description[1]["kind"] = "Conv2d"


BAD_FILES = [
    (
        attribute("/", "format_version", 3),
        "format version must be at most 2.*format_version=3, written_by='.*install a newer blobnet",
    ),
    (attribute("/", "format_version", "x"), "/ must have the attribute format_version, a number. Received value=None"),
    (lambda file: file.attrs.__delitem__("format_version"), "/ must have the attribute format_version"),
    (replaced("architecture"), r"the file must hold /architecture. Received found=class_names, history"),
    (replaced("architecture", np.bytes_("[{")), "/architecture must be JSON"),
    (replaced("architecture", np.bytes_("[" * 100_000)), "/architecture must be JSON"),
    (replaced("architecture", np.zeros(3)), "/architecture must be one text of fixed length"),
    (replaced("architecture", "[]"), "/architecture must be one text of fixed length.*numpy.array"),
    (replaced("architecture", np.bytes_("7")), "the architecture must be a list of layers"),
    (replaced("architecture", np.bytes_("[]")), "the architecture must be a list of layers"),
    (replaced("architecture", np.bytes_('{"a": 1}')), "the architecture must be a list of layers"),
    (
        architecture(unknown_kind),
        "every layer kind must be a known one.*Conv2d.*import the module.*did you mean 'Conv2D'",
    ),
    (architecture(lambda items: items[1]["config"].update(filters=-1)), "must be one that blobnet can build.*filters"),
    (architecture(lambda items: items[1]["config"].update(secret=1)), "the architecture must be a list of layers"),
    (architecture(lambda items: items[-1].update(inputs=["input"])), "every layer of the architecture must lead"),
    (architecture(lambda items: items[1].update(kind="\x1b[2J")), r"must be a known one. Received kind=\\x1b\[2J\."),
    (architecture(lambda items: items[1]["config"].update(padding="\x1b[2J")), r"padding must be.*padding=\\x1b\[2J\."),
    (replaced("layers"), "the file must hold /layers"),
    (replaced("layers/conv"), "datasets under /layers must be exactly.*missing=conv/weight, conv/bias, extra=none"),
    (replaced("layers/conv/bias"), "datasets under /layers must be exactly.*missing=conv/bias"),
    (replaced("layers/more/weight", np.zeros(3)), "datasets under /layers must be exactly.*extra=more/weight"),
    (
        replaced("layers/conv/bias", np.zeros(3, "f4")),
        r"/layers/conv/bias must have the shape .*\(3,\), expected=\(2,\)",
    ),
    (replaced("layers/conv/bias", np.zeros((2, 1), "f4")), r"/layers/conv/bias must have the shape"),
    (replaced("layers/conv/bias", np.zeros(2)), "/layers/conv/bias must hold float32 numbers.*float64"),
    (replaced("layers/conv/bias", np.zeros(2, "i4")), "/layers/conv/bias must hold float32 numbers.*int32"),
    (replaced("layers/conv", np.zeros(2)), "/layers/conv must be a group. Received kind=dataset"),
    (lambda file: (replaced("layers/conv/bias")(file), file.create_group("layers/conv/bias")), "must be a dataset"),
    (link("layers/conv/bias", h5py.ExternalLink("/etc/other.h5", "/x")), "links are not followed.*ExternalLink.*'/x'"),
    (link("layers/conv/bias", h5py.SoftLink("/layers/norm/scale")), "links are not followed.*SoftLink"),
    (link("layers/conv", h5py.SoftLink("/layers/norm")), "/layers/conv must be in the file itself"),
    (link("layers", h5py.ExternalLink("/etc/other.h5", "/x")), "/layers must be in the file itself"),
    (link("architecture", h5py.ExternalLink("/etc/other.h5", "/x")), "/architecture must be in the file itself"),
    (link("loss", h5py.SoftLink("/nowhere")), "/loss must be in the file itself"),
    (external, "/layers/conv/bias must be stored in this file.*storage=external"),
    (virtual, "/layers/conv/bias must be stored in this file.*storage=virtual"),
    (replaced("layers/conv/bias", np.zeros(2, "f4"), compression="gzip"), "not compressed.*gzip.*h5repack"),
    (replaced("history/loss", np.zeros(9), chunks=(3,)), "/history/loss must be stored in this file, in one piece"),
    (replaced("history/loss", shape=(1 << 50,), dtype="f8"), "/history/loss must be stored in this file.*stored=0 B"),
    (huge, r"/layers/conv/weight must be stored in this file.*stored=0 B, declared=72\.0 GiB"),
    (overlapping, "must not be larger than the file. Hint: do they overlap"),
    (replaced("history/loss", np.zeros((2, 2))), "/history/loss must be a flat array of float64"),
    (replaced("class_names", np.zeros(2)), "/class_names must be a list of texts"),
    (replaced("class_names", ["a"]), "/class_names must be a list of texts of fixed length.*numpy.array"),
    (replaced("class_names", shape=(1 << 40,), dtype="S9"), "/class_names must be stored in this file"),
    (replaced("loss", np.bytes_("[1]")), "/loss must be an object with kind and config"),
    (replaced("training/optimizer", np.bytes_("{}")), "/training/optimizer must be an object with kind and config"),
    (replaced("training/settings"), "the file must hold /training/settings"),
    (replaced("training/optimizer_state/velocity", np.zeros(3)), "velocity must be a flat array of float32"),
    (attribute("training", "epoch", -1), "/training must have the attribute epoch, a number. Received value=-1"),
]


@pytest.mark.parametrize(("change", "text"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(saved, change, text):
    with h5py.File(saved, "r+") as file:
        change(file)
    with pytest.raises(FileError, match=text) as caught:
        load(saved)
    assert str(caught.value).startswith(str(saved))
    assert str(caught.value).isprintable()
    with pytest.raises(FileError):
        inspect(saved)


def test_nothing_is_executed():
    source = "".join(Path(module.__file__).read_text() for module in (checkpoint, atomic, hdf5))
    assert not any(word in source for word in ("pickle.", "import pickle", "eval(", "exec(", "marshal"))


def test_flipped_bits_of_all_but_arrays_are_found(saved: Path) -> None:
    """Of the architecture, names, the loss, the history and the state of the training: an error, or no difference."""
    content, model = saved.read_bytes(), load(saved)
    random, changed = np.random.default_rng(0), 0
    with h5py.File(saved) as file:
        texts = [file["architecture"], file["class_names"], *(file["training"][name] for name in ("optimizer",))]
        places = [range(item.id.get_offset(), item.id.get_offset() + item.nbytes) for item in texts]
        places += [range(item.id.get_offset(), item.id.get_offset() + item.nbytes) for item in file["history"].values()]
    for place in random.permutation([place for part in places for place in part])[:300]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        saved.write_bytes(damaged)
        try:
            found = load(saved)
        except FileError:
            changed += 1
        else:
            assert (found.description, found.class_names) == (model.description, model.class_names)
            assert repr((found.history, found.loss)) == repr((model.history, model.loss))  # NaN is no NaN's equal.
    assert changed > 250

"""Batches on their way to a device: the same ones from every kind of source, wherever the samples lie."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.source import ArraySource, IndexedSource, Source, kept_type, source_of
from blobnet.device.device import Device
from blobnet.device.memory import BATCHES_AHEAD, Memory
from blobnet.errors import DataError, OptionError
from blobnet.execution import loader
from blobnet.execution.executor import is_checked
from blobnet.execution.loader import Loader
from blobnet.model import Model, Sequential
from blobnet.optimizers import SGD
from blobnet.schedules import Cosine
from tests.kinds import as_gpu
from tests.tiny import digits, share_of_memory, tiny_model

#: These samples are what they are.
pytestmark = pytest.mark.filterwarnings("ignore:x. samples should be normalised:blobnet.errors.BlobnetWarning")

COUNT = 37


def samples(dtype: npt.DTypeLike, count: int = COUNT) -> npt.NDArray[Any]:
    """Digits in a type, with values that use what it has."""
    pixels = np.rint(digits(count)[0] * 16).astype(np.int64)
    low = {"i": -5, "f": -5, "u": 3, "b": 0}[np.dtype(dtype).kind]
    return (pixels * 7 + low).astype(dtype) if np.dtype(dtype).kind != "b" else pixels > 8


class Plain:
    """An object with ``len()`` and batch indexing, and nothing else."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        batch: npt.NDArray[Any] = self.values[rows]
        return batch


class Stream:
    """Batches of uneven sizes, anew for every round."""

    def __init__(self, x: npt.NDArray[Any], y: npt.NDArray[Any], sizes: tuple[int, ...] = (3, 1, 19, 8)) -> None:
        self.x, self.y, self.sizes, self.rounds = x, y, sizes, 0

    def __iter__(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        self.rounds += 1
        first, sizes = 0, itertools.cycle(self.sizes)
        while first < len(self.x):
            size = next(sizes)
            yield self.x[first : first + size], self.y[first : first + size]
            first += size


def sources(x: npt.NDArray[Any], folder: Path) -> dict[str, Any]:
    """The same samples in every way that they may come."""
    np.save(folder / "x.npy", x)
    file = h5py.File(folder / "x.h5", "w")
    wide = np.repeat(x, 2, axis=0)
    return {
        "an array": x,
        "an array with gaps": wide[::2],
        "an array in another order": np.asfortranarray(x),
        "a mapped file": np.load(folder / "x.npy", mmap_mode="r"),
        "an h5py data set": file.create_dataset("x", data=x, chunks=(4, *x.shape[1:])),
        "an object": Plain(x),
    }


def trained(model: Model, device: Device, x: Any, y: Any, **settings: Any) -> bytes:
    """The bits of all weights after a short training."""
    given = {"epochs": 2, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "verbose": False, "seed": 5}
    model.fit(x, y, device=device, **(given | settings))
    return b"".join(values.tobytes() for values in model.weights.values())


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "f2", "f4", "f8", "i4", "u8", "?", ">f4", ">u2"])
def test_samples_keep_their_type_and_their_values(device: Device, dtype: str) -> None:
    model, x = tiny_model(), samples(dtype)
    wanted = model.predict(x.astype(np.float32), device=device)
    assert np.array_equal(model.predict(x, device=device), wanted)
    kept = kept_type(x.dtype)
    assert kept.itemsize <= 4
    assert np.array_equal(x.astype(kept).astype(np.float64), x.astype(np.float64))


def test_a_processor_takes_an_arrays_samples_from_where_they_lie(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not device.is_host:
        pytest.skip("samples are copied to a device of its own memory")
    model, x = tiny_model(), samples(np.float32)
    wanted = model.predict(Plain(x), device=device, batch_size=8)
    assert np.array_equal(model.predict(iter([x[:5]]), device=device, batch_size=8), wanted[:5])
    monkeypatch.setattr(ArraySource, "read", None)
    assert np.array_equal(model.predict(x, device=device, batch_size=8), wanted)
    # What else the evaluator is given, in the same memory, it reads as ever.
    assert np.array_equal(model.predict(Plain(x[::-1]), device=device, batch_size=8), wanted[::-1])
    assert np.array_equal(model.predict(iter([x[3:8]]), device=device, batch_size=8), wanted[3:8])
    x[29, 0, 1, 2] = np.nan
    with pytest.raises(DataError, match=re.escape("index=(29, 0, 1, 2)")):
        model.predict(x, device=device, batch_size=8)
    assert np.array_equal(model.predict(x[:29], device=device, batch_size=8), wanted[:29])


def test_what_is_lent_is_not_copied_where_kernels_read_the_hosts_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (device.is_host and device.info.reads_host) or is_checked():
        pytest.skip("kernels read buffers alone")
    model, x = tiny_model(), samples(np.float32)
    wanted = model.predict(Plain(x), device=device, batch_size=8)
    fetched: list[npt.NDArray[Any]] = []
    fetch = Memory.write_async

    def recorded(self: Memory, buffer: Any, source: npt.NDArray[Any], *arguments: Any) -> Any:
        fetched.append(source)
        return fetch(self, buffer, source, *arguments)

    monkeypatch.setattr(Memory, "write_async", recorded)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert np.array_equal(model.predict(frozen, device=device, batch_size=8), wanted)
    assert not fetched
    # What begins at any byte is copied, as are samples that come otherwise; and then the buffer is read again.
    unaligned = np.frombuffer(b" " + x.tobytes(), np.float32, x.size, 1).reshape(x.shape)
    assert np.array_equal(model.predict(unaligned, device=device, batch_size=8), wanted)
    assert [len(own) for own in fetched] == [8, 8, 8, 8, 5]
    assert np.array_equal(model.predict(x[5:13], device=device, batch_size=8), wanted[5:13])
    assert np.array_equal(model.predict(Plain(x[::-1]), device=device, batch_size=8), wanted[::-1])
    assert len(fetched) == 10


def test_what_a_source_lends() -> None:
    x = samples(np.float32)
    lent = ArraySource(x, "x").lent(np.arange(3, 7))
    assert lent is not None
    assert np.shares_memory(lent, x)
    assert np.array_equal(lent, x[3:7])
    flags = ArraySource(samples(bool), "x").lent(np.array([5]))
    assert flags is not None
    assert flags.dtype == np.uint8
    assert np.array_equal(flags, samples(bool)[5:6])
    for source, rows in (
        (ArraySource(x, "x"), np.array([3, 5])),
        (ArraySource(x, "x"), np.array([4, 3])),
        (ArraySource(x[:, ::-1, ::2], "x"), np.arange(3)),
        (ArraySource(x.astype(np.float64), "x"), np.arange(3)),
        (IndexedSource(Plain(x), "x"), np.arange(3)),
    ):
        assert source.lent(rows) is None


@pytest.mark.parametrize("way", ["inline", "threads"])
@pytest.mark.parametrize("place", ["resident", "streamed"])
def test_every_source_gives_the_same_training(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, place: str
) -> None:
    x, y = samples(np.uint8), digits(COUNT)[1]
    wanted = trained(tiny_model(), device, x, y, validation=(x[:9], y[:9]))
    monkeypatch.setattr(Loader, "_is_inline", lambda *_: way == "inline")
    share_of_memory(monkeypatch, 1 / 2 if place == "resident" else 0)
    for name, source in sources(x, tmp_path).items():
        assert trained(tiny_model(), device, source, y, validation=(source[:9], y[:9])) == wanted, name


def test_numbers_and_labels_of_several_batches_are_sent_at_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(np.uint8), digits(COUNT)[1]
    sizes: list[int] = []
    fetch = Memory.write_async

    def counted(self: Memory, buffer: Any, source: npt.NDArray[Any], *more: Any) -> Any:
        sizes.append(source.nbytes)
        return fetch(self, buffer, source, *more)

    monkeypatch.setattr(Memory, "write_async", counted)
    monkeypatch.delenv("BLOBNET_CHECK", raising=False)
    share_of_memory(monkeypatch, 1 / 2)
    trained(tiny_model(), device, x, y, epochs=1, batch_size=9)
    assert sizes.count(4 * COUNT) == 2
    monkeypatch.setattr(loader, "BATCHES_AHEAD", 2)
    sizes.clear()
    trained(tiny_model(), device, x, y, epochs=1, batch_size=9)
    assert [sizes.count(4 * count) for count in (COUNT, 18, COUNT - 36)] == [0, 4, 2]
    monkeypatch.setattr(loader, "BYTES_AHEAD", 4 * 17)
    sizes.clear()
    trained(tiny_model(), device, x, y, epochs=1, batch_size=9)
    assert [sizes.count(4 * count) for count in (18, 9, COUNT - 36)] == [0, 8, 2]


@pytest.mark.long
def test_a_gpus_two_places_for_samples(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(np.uint8), digits(COUNT)[1]
    model = tiny_model()
    wanted = model.predict(x, device=device, batch_size=4)
    as_gpu(monkeypatch, device)
    share_of_memory(monkeypatch, 0)
    other = Device(device.info)
    assert other.queue.transfers != other.queue.handle
    for is_inline in (True, False):
        monkeypatch.setattr(Loader, "_is_inline", lambda *_, answer=is_inline: answer)
        np.testing.assert_allclose(tiny_model().predict(x, device=other, batch_size=4), wanted, rtol=1e-5, atol=1e-4)
    streamed = trained(tiny_model(), other, x, y)
    share_of_memory(monkeypatch, 1 / 2)
    assert trained(tiny_model(), other, x, y) == streamed


def test_a_stream_of_batches(device: Device) -> None:
    x, y = samples(np.uint8), digits(COUNT)[1]
    stream = Stream(x, y)
    model = tiny_model()
    trained(model, device, stream, None, validation=(stream, None))
    assert stream.rounds == 4
    assert model.evaluate(stream, device=device) == pytest.approx(model.evaluate(x, y, device=device), rel=1e-6)
    assert model.history["validation_loss"][-1] == pytest.approx(model.evaluate(x, y)["loss"], rel=1e-6)
    once = tiny_model()
    trained(once, device, iter(Stream(x, y)), None, epochs=1)
    again = tiny_model()
    trained(again, device, Stream(x, y), None, epochs=1)
    assert all(np.array_equal(values, again.weights[name]) for name, values in once.weights.items())


def test_bad_streams(device: Device) -> None:
    x, y = samples(np.uint8), digits(COUNT)[1]
    with pytest.raises(DataError, match=r"x: the stream must give at least one batch\. Received batches=0"):
        tiny_model().fit([], device=device, verbose=False)
    with pytest.raises(DataError, match=r"x, batch 0: a stream for training must give pairs of samples and labels"):
        tiny_model().fit(iter([x]), device=device, verbose=False)
    with pytest.raises(DataError, match=r"x, batch 1: each sample must have the shape of the model's input"):
        trained(tiny_model(), device, [(x, y), (x[:, :, :4], y)], None, epochs=1)
    with pytest.raises(DataError, match=r"x: x and y must hold the same number of samples"):
        trained(tiny_model(), device, [(x, y[:4])], None, epochs=1)
    with pytest.raises(
        DataError, match=r"x: the stream must give samples in every epoch\. Received epoch=2, samples=0"
    ):
        trained(tiny_model(), device, iter(Stream(x, y)), None)
    with pytest.raises(OptionError, match="a stream of batches whose number is unknown needs a constant learning rate"):
        trained(tiny_model(), device, Stream(x, y), None, optimizer=SGD(Cosine(0.1)))


class Lying(Plain):
    """Has fewer samples than it says."""

    def __len__(self) -> int:
        return 2 * len(self.values)


class Changing(Plain):
    """Gives one sample less from some batch on."""

    calls = 0

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        self.calls += 1
        return self.values[rows][int(self.calls > 3) :]


class Retyped:
    """Gives whole numbers at first, and then others, without a word about their type."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values, self.calls = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self.calls += 1
        return self.values[rows] / 3 if self.calls > 3 else self.values[rows].astype(np.uint8)


@pytest.mark.parametrize("place", ["resident", "streamed"])
def test_sources_that_do_not_keep_their_word(device: Device, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    share_of_memory(monkeypatch, 1 / 2 if place == "resident" else 0)
    monkeypatch.setattr(loader, "_LOAD_BYTES", 500)
    x, y = samples(np.float32), digits(COUNT)[1]
    model = tiny_model()
    before = model.weights
    rule = r"x: the source must give a batch for an array of indices\. .*cause=IndexError"
    with pytest.raises(DataError, match=rule):
        trained(model, device, Lying(x), np.tile(y, 2))
    rule = r"x: the source must give one sample of its shape for each index\. .*its length, or the shape of its samples"
    with pytest.raises(DataError, match=rule):
        trained(model, device, Changing(x), y)
    broken = x.copy()
    broken[30, 0, 2, 5] = np.inf
    with pytest.raises(DataError, match=r"x: x must hold finite float32 values\. Received index=\(30, 0, 2, 5\)"):
        trained(model, device, Plain(broken), y)
    rule = (
        r"x: all batches must have the type of the first one, or one that it holds\. Received first=uint8, now=float32"
    )
    with pytest.raises(DataError, match=rule):
        trained(model, device, Retyped(x), y)
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())
    trained(model, device, x, y)


def test_what_is_no_source() -> None:
    for x, message in [
        ([[1.0]], "x must be a numpy array"),
        (None, "x must be a numpy array"),
        (np.zeros((3, 4, 5), complex), "x must hold real numbers"),
        (np.zeros((0, 4)), "at least one sample"),
        (np.zeros(4), "x must have the axes"),
        (Plain(np.zeros((3, 2, 2, 2, 2, 2))), "x must have the axes"),
        (np.ma.masked_less(np.arange(6.0).reshape(3, 2), 2), r"x must be an array without a mask.*masked=2"),
    ]:
        with pytest.raises(DataError, match=message):
            source_of(x, "x")
    assert isinstance(source_of(np.zeros((3, 2)), "x"), ArraySource)
    assert isinstance(source_of(Plain(np.zeros((3, 2))), "x"), IndexedSource)


class Slow(Source):
    """Counts how many batches are read at once and ahead."""

    def __init__(self, count: int) -> None:
        self.subject, self.shape, self.dtype = "x", (count, 1, 8, 8), np.dtype(np.uint8)
        self.reads: list[int] = []
        self.threads: set[str] = set()

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.001)
        self.reads.append(int(rows[0]))
        out[...] = 1


def test_batches_are_gathered_ahead_but_not_without_end(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    share_of_memory(monkeypatch, 0)
    model, source = tiny_model(), Slow(400)
    ahead = []
    with model._evaluator(
        device, precision="fp32", storage="float32", loss=None, count=400, batch_size=4, sample_type=("uint8",)
    ) as evaluator:
        jobs = (np.arange(first, first + 4) for first in range(0, 400, 4))
        for number, _ in enumerate(evaluator.loader.batches(loader.IndexedReader([source]), jobs)):
            time.sleep(0.005)
            ahead.append(len(source.reads) - number - 1)
            if number == 50:
                break
    assert 1 <= max(ahead) <= 3
    assert len(source.reads) <= 54
    assert all(name.startswith("blobnet-loader") for name in source.threads)


def test_ctrl_c_ends_the_workers(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    share_of_memory(monkeypatch, 0)
    source = Slow(4000)
    steps = itertools.count()
    from blobnet.training.training_step import TrainingStep

    update = TrainingStep.update

    def interrupted(self: TrainingStep, rate: float) -> None:
        if next(steps) == 3:
            raise KeyboardInterrupt
        update(self, rate)

    monkeypatch.setattr(TrainingStep, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(tiny_model(), device, source, np.zeros(4000, np.int64))
    read = len(source.reads)
    time.sleep(0.05)
    assert len(source.reads) == read <= 8


@pytest.mark.parametrize(("seconds", "most"), [(0.001, BATCHES_AHEAD), (0.02, 4), (3.0, 1)])
def test_a_processor_has_work_but_not_for_long(monkeypatch: pytest.MonkeyPatch, seconds: float, most: int) -> None:
    """A device that is done with a batch every so many ``seconds``, from the beginning."""
    now, under_way, longest = 0.0, 0, 0

    class Working:
        def synchronize(self, event: float) -> None:
            nonlocal now
            now = max(now, event)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    pace = loader._Pace(Working())  # type: ignore[arg-type]
    for number in range(1, 200):
        now += 1e-5  # that the host takes to prepare it
        pace.keep(number * seconds)
        under_way = number - int(now / seconds)
        assert under_way <= most + 1  # which it is at work on
        longest = max(longest, under_way)
    assert longest >= most


def test_batches_on_their_way_stay_as_they_were(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training whose host is far ahead of the device gives the bits of one that waits for every batch."""
    x, y = digits(331)
    keep = loader._Pace.keep

    def finish(self: loader._Pace, consumed: Any) -> None:
        device.queue.finish()

    monkeypatch.setattr(loader, "_AHEAD_SECONDS", 100.0)
    found = set()
    for pieces, watch in ((1, finish), (2, keep), (BATCHES_AHEAD, keep)):
        monkeypatch.setattr(Memory, "pieces", lambda self, size, pieces=pieces: pieces)
        monkeypatch.setattr(loader._Pace, "keep", watch)
        for share in (0.5, 0):
            share_of_memory(monkeypatch, share)
            found.add(trained(tiny_model(), device, x, y, batch_size=5))
    assert len(found) == 1


def test_data_larger_than_memory(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 GB that are made as they are asked for: only the batches under way are ever in memory."""
    import resource

    class Generated(Plain):
        shape, dtype = (10_000_000, 1, 64, 64), np.dtype(np.uint8)

        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return self.shape[0]

        def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
            return np.broadcast_to((rows % 251).astype(np.uint8)[:, None, None, None], (len(rows), 1, 64, 64))

    model = Sequential([layers.Input(1, 64, 64), layers.GlobalAveragePool(), layers.Flatten(), layers.Dense(3)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = itertools.count()
    from blobnet.training.training_step import TrainingStep

    update = TrainingStep.update

    def some(self: TrainingStep, rate: float) -> None:
        if next(steps) == 20:
            raise KeyboardInterrupt
        update(self, rate)

    monkeypatch.setattr(TrainingStep, "update", some)
    with pytest.raises(KeyboardInterrupt):
        trained(model, device, Generated(), np.zeros(10_000_000, np.int8), batch_size=256)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 500e6


@pytest.mark.parametrize("place", ["resident", "batches"])
def test_pictures_train_alike_with_any_number_of_processes(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    share_of_memory(monkeypatch, 1 / 2 if place == "resident" else 0)
    y, paths = digits(COUNT)[1], [tmp_path / f"{number}.png" for number in range(COUNT)]
    for path, values in zip(paths, samples("uint8"), strict=True):
        image.fromarray(values[0]).save(path)
    found = []
    for x in (samples("uint8"), *(PictureSource(paths, (8, 8), 1, workers) for workers in (0, 1, 3))):
        model = tiny_model()
        history = model.fit(x, y, epochs=2, batch_size=8, optimizer=SGD(0.01), seed=3, device=device)
        found.append((history["loss"], *model.weights.values()))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


class Round:
    """Batches of samples alone, of unequal sizes; counts those that were asked for."""

    def __init__(self, x: np.ndarray) -> None:
        self.parts = np.split(x, [3, 4, 17, 29])
        self.given = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for part in self.parts:
            self.given += 1
            yield part


@pytest.mark.parametrize("batch_size", [1, 5, 128])
def test_answers_to_a_stream_come_in_its_order(device: Device, batch_size: int) -> None:
    x, y = digits(37)
    model = tiny_model()
    wanted = model.predict(x, device=device)
    settings: dict[str, Any] = {"device": device, "batch_size": batch_size}
    stream = Round(x)
    labelled = [(part, y[: len(part)]) for part in stream.parts]
    for given in (stream, stream, (part for part in stream.parts), labelled, [x]):
        np.testing.assert_allclose(model.predict(given, **settings), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(stream, **settings).sum(axis=1), 1, rtol=1e-6)
    for given in (x, source_of(x, "x"), stream):
        found = list(model.predict_batches(given, **settings))
        assert max(map(len, found)) <= batch_size
        np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-5, atol=1e-6)


def test_answers_do_not_pile_up(device: Device) -> None:
    x, _ = digits(2)
    model, asked = tiny_model(), 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal asked
        while True:
            asked += 1
            yield x

    answers = model.predict_batches(endless(), device=device, batch_size=2)
    wanted = model.predict(x, device=device, batch_size=2)
    for number in range(1, 40):
        np.testing.assert_array_equal(next(answers), wanted)
        assert asked <= number + 16
        if number % 10 == 0:  # Nobody holds what others need.
            np.testing.assert_array_equal(model.predict(x, device=device, batch_size=2), wanted)


def test_streams_that_cannot_be_predicted(device: Device) -> None:
    x, _ = digits(9)
    model = tiny_model()
    with pytest.raises(DataError, match=r"x: the stream must give at least one batch"):
        model.predict([], device=device)
    with pytest.raises(DataError, match=r"x, batch 1: each sample must have the shape of the model's input"):
        model.predict([x, x[:, :, :7]], device=device)
    message = (
        r"x: all batches must have the type of the first one, or one that it holds. Received first=uint8, now=floa"
    )
    with pytest.raises(DataError, match=message):
        model.predict([x.astype(np.uint8), x], device=device)
    found = model.predict([x, (x * 0).astype(np.uint8)], device=device)
    np.testing.assert_allclose(found[:9], model.predict(x, device=device), rtol=1e-5, atol=1e-6)

    def broken() -> Iterator[np.ndarray]:
        yield x
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        model.predict(broken(), device=device)
    assert len(model.predict(x, device=device)) == 9

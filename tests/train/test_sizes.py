"""Pictures that grow from epoch to epoch."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers
from blobnet.callbacks import Callback, Checkpoint
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.source import source_of
from blobnet.device.device import Device
from blobnet.errors import OptionError, PlanError, ShapeError
from blobnet.memory.blob import Shape
from blobnet.model import Model, Sequential, load
from blobnet.optimizers import SGD, Adam
from blobnet.schedules import Cosine
from blobnet.training import steps
from blobnet.training.training_step import TrainingStep
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import share_of_memory

COUNT, CLASSES = 21, 4
SMALL, MIDDLE, LARGE = (9, 7), (12, 10), (15, 13)
SIZES = {0: SMALL, 1: MIDDLE, 3: LARGE}


def network(height: int = 15, width: int = 13, *, has_pool: bool = True) -> Model:
    """With all that keeps something between steps: statistics, dropout."""
    end = [layers.GlobalAveragePool()] if has_pool else [layers.Flatten(name="flat")]
    return Sequential(
        [
            layers.Input(3, height, width, name="input"),
            layers.Conv2D(5, 3, padding=1, bias=False, name="conv"),
            layers.BatchNorm(name="norm"),
            layers.Activation("relu"),
            *end,
            layers.Dropout(0.2, name="drop"),
            layers.Dense(CLASSES, name="head"),
        ]
    )


def pictures(dtype: str = "uint8") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (COUNT, 3, *LARGE)).astype(dtype)
    return x, random.integers(0, CLASSES, COUNT)


X, Y = pictures()


def shrunk(x: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """By Pillow, plane by plane."""
    image = pytest.importorskip("PIL.Image")
    planes = x.reshape(-1, *x.shape[2:]).astype(np.float32)
    made = [np.asarray(image.fromarray(plane).resize(size[::-1], image.Resampling.BILINEAR)) for plane in planes]
    values = np.stack(made).reshape(*x.shape[:2], *size)
    return (values if x.dtype.kind == "f" else np.rint(values)).astype(x.dtype)


def fit(model: Model, device: Device | None = None, x: Any = X, **settings: Any) -> Model:
    given: dict[str, Any] = {"epochs": 4, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "seed": 7}
    model.set_normalization(128, 64)
    model.fit(x, Y, device=device, verbose=False, **given | settings)
    return model


def everything(model: Model) -> tuple[Any, ...]:
    state = model.training_state
    assert state is not None
    arrays = [{name: own.tobytes() for name, own in found.items()} for found in (model.weights, state.optimizer_state)]
    return arrays, repr(model.history), state.epoch, state.step


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_sources_are_resized_as_pillow_does(dtype: str) -> None:
    x, _ = pictures(dtype)
    source = source_of(x, "x")
    assert source.resized(*LARGE) is source
    found = source.resized(*SMALL)
    assert (found.shape, found.dtype) == ((COUNT, 3, *SMALL), np.dtype(dtype))
    rows = np.array([4, 0, 20])
    np.testing.assert_array_equal(np.asarray(found[rows]), shrunk(x, SMALL)[rows])
    np.testing.assert_array_equal(np.asarray(source[rows].resized(*SMALL)), shrunk(x, SMALL)[rows])


def test_pictures_in_files_are_decoded_in_their_size(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path, picture in zip(paths, X, strict=False):
        image.fromarray(picture.transpose(1, 2, 0)).save(path)
    source = PictureSource(paths, LARGE, 3, 0)
    found, wanted = source.resized(*SMALL), PictureSource(paths, SMALL, 3, 0)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
    np.testing.assert_array_equal(np.asarray(source), X[:4])


def test_a_network_of_another_size() -> None:
    graph = network().graph
    small = graph.of_size(*SMALL)
    assert small == network(*SMALL).graph
    assert small.vertices[1].shape == Shape(5, *SMALL)
    assert small.of_size(*LARGE) == graph
    assert graph.of_size(*LARGE) is graph


def test_a_size_makes_room_for_the_next_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            assert not any(each() for each in made), "the step before must be gone, with its memory"
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(steps, "TrainingStep", Counted)
    fit(network(), device, sizes=SIZES, validation=(X[:5], Y[:5]), callbacks=Callback())
    assert len(made) == 3


@pytest.mark.parametrize("is_resident", [True, False])
@pytest.mark.parametrize("average", [None, 0.9])
def test_sizes_are_trainings_one_after_the_other(
    device: Device, monkeypatch: pytest.MonkeyPatch, average: float | None, is_resident: bool
) -> None:
    """Each goes on with the weights and the optimizer's state of the one before."""
    if not is_resident:
        share_of_memory(monkeypatch, 0)
    whole = fit(network(), device, sizes=SIZES, average=average)
    before = None
    for epochs, size in ((1, SMALL), (3, MIDDLE), (4, LARGE)):
        part = network(*size)
        if before is not None:
            part.set_weights(before.weights)
            part.training_state, part.history, part.loss = before.training_state, before.history, before.loss
        fit(part, device, shrunk(X, size), epochs=epochs, average=average, resume=before is not None)
        before = part
    assert before is not None
    assert everything(whole) == everything(before)


class StopAt(Callback):
    """Ends a training behind a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, progress: Any) -> None:
        if progress.trainer.step.number == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 3, 4, 8, 9, 10, 11])
def test_resuming_within_any_size_gives_the_same_bits(device: Device, tmp_path: Path, step: int) -> None:
    settings: dict[str, Any] = {"optimizer": Adam(Cosine(0.01)), "average": 0.9, "augment": "crop=1, flip"}
    settings |= {"validation": (X[:5], Y[:5])}
    whole = fit(network(), device, sizes=SIZES, **settings)
    callbacks = [Checkpoint(tmp_path / "part.h5", every_steps=1), StopAt(step)]
    with pytest.raises(KeyboardInterrupt):
        fit(network(), device, sizes=SIZES, callbacks=callbacks, **settings)
    model = load(tmp_path / "part.h5")
    model.fit(X, Y, resume=True, validation=settings["validation"], device=device, verbose=False)
    assert everything(model) == everything(whole)


def test_validation_is_in_the_size_of_the_model(device: Device) -> None:
    model = fit(network(), device, sizes={0: SMALL, 4: LARGE}, validation=(X[:5], Y[:5]))
    assert model.graph == network().graph
    measured = model.evaluate(X[:5], Y[:5], device=device)
    assert model.history["validation_loss"][-1] == pytest.approx(measured["loss"], rel=1e-6)


#: A rank of several.
RANK = """
import sys
from tests.train.test_sizes import in_shards
in_shards(sys.argv[1])
"""


def in_shards(path: object, device: Device | None = None) -> Model:
    return fit(network(), device, sizes=SIZES, shards=4, callbacks=Checkpoint(path, every_steps=2))


@needs_mpi
def test_sizes_do_not_depend_on_ranks(device: Device, tmp_path: Path) -> None:
    in_shards(tmp_path / "1.h5", device)
    mpiexec(2, device, "-c", RANK, tmp_path / "2.h5", check=True)
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


def test_a_teacher_sees_the_same_sizes(device: Device) -> None:
    other = Sequential(
        [layers.Input(3, *LARGE), layers.Conv2D(6, 3), layers.GlobalAveragePool(), layers.Dense(CLASSES)]
    )
    whole = fit(network(), device, sizes={0: SMALL, 1: LARGE}, epochs=1, teacher=other)
    small = Sequential(
        [layers.Input(3, *SMALL), *[layers.Conv2D(6, 3), layers.GlobalAveragePool(), layers.Dense(CLASSES)]]
    )
    small.set_weights(dict(zip(small.weights, other.weights.values(), strict=True)))
    part = fit(network(*SMALL), device, shrunk(X, SMALL), epochs=1, teacher=small)
    assert {name: own.tobytes() for name, own in whole.weights.items()} == {
        name: own.tobytes() for name, own in part.weights.items()
    }


def masks() -> Model:
    return Sequential([layers.Input(3, *LARGE), layers.Conv2D(CLASSES, 3, padding=1, name="map")])


@pytest.mark.parametrize(
    ("model", "sizes", "error", "message"),
    [
        (lambda: network(has_pool=False), SIZES, ShapeError, r"head: its weights must fit what the layers before it "
         r"give now\. .*Hint: a GlobalAveragePool in front of dense layers makes weights that fit any size"),
        (masks, SIZES, ShapeError, r"map: an output must have the same shape for pictures of any size\. Received "
         r"size=9x7, output=\(4, 9, 7\), wanted=\(4, 15, 13\)\. Hint: a GlobalAveragePool makes it so"),
        (network, {0: SMALL}, OptionError, r"sizes: the first size must be that from epoch 0 on, and the last one that "
         r"of the model\. Received .*model=15x13\. Hint: sizes=\{0: 128, 10: 160, 20: 224\} begins with"),
        (network, {1: LARGE}, OptionError, r"the first size must be that from epoch 0 on"),
        (network, {}, OptionError, r"the first size must be that from epoch 0 on"),
        (network, {0: SMALL, -1: LARGE}, OptionError, r"sizes: epochs are counted from 0, and sizes from 1"),
        (network, {0: (9, 0), 1: LARGE}, OptionError, r"sizes: epochs are counted from 0, and sizes from 1"),
        (network, {0: "9", 1: LARGE}, OptionError, r"sizes: it must have the size of pictures, N or \(height, width\)"),
        (network, 128, OptionError, r"sizes: it must have the size of pictures, N or \(height, width\), for"),
        (lambda: Sequential([layers.Input(6), layers.Dense(2)]), SIZES, ShapeError, r"must take pictures"),
    ],
)  # fmt: skip
def test_refusals(device: Device, model: Any, sizes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model().fit(X, Y, sizes=sizes, device=device, verbose=False)


def test_streams_keep_their_size(device: Device) -> None:
    message = r"sizes: samples that are resized must have numbers, and come in no stream\. Hint: give arrays"
    with pytest.raises(OptionError, match=message):
        network().fit([(X, Y)], sizes=SIZES, device=device, verbose=False)


def test_what_does_not_fit_is_refused_before_the_first_epoch(device: Device) -> None:
    model = Sequential([layers.Input(1, 900, 900), layers.Conv2D(512, 3), layers.GlobalAveragePool(), layers.Dense(2)])
    epochs: list[int] = []

    class Seen(Callback):
        def begin(self, progress: Any) -> None:
            epochs.append(0)

    settings: dict[str, Any] = {"sizes": {0: 8, 1: 900}, "batch_size": 4096, "callbacks": Seen()}
    with pytest.raises(PlanError, match="all buffers must fit the device's memory"):
        model.fit(np.zeros((2, 1, 900, 900), np.uint8), np.arange(2), device=device, verbose=False, **settings)
    assert epochs == []

"""The settings of a training: one object for what ``fit`` takes, files say and a resumed training compares."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import Any

import pytest

import blobnet as bn
from blobnet import layers, optimizers
from blobnet.errors import OptionError
from blobnet.files.checkpoint import TrainingState
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.schedules import Cosine
from blobnet.training.resuming import check_resumed
from blobnet.training.settings import KEYWORDS, Interrupted, TrainingSettings


def network(seed: int = 0) -> bn.Model:
    inputs = layers.Input(1, 6, 6)()
    node = layers.BatchNorm(name="norm")(layers.Conv2D(4, 3, name="conv")(inputs))
    return bn.Model(inputs, layers.Dense(3, name="head")(layers.Flatten()(node)), seed=seed)


def two_ends() -> bn.Model:
    left, right = layers.Input(1, 4, 4, name="left")(), layers.Input(3, name="right")()
    node = layers.Concat()([layers.Flatten()(left), right])
    return bn.Model([left, right], {"class": layers.Dense(2, name="a")(node), "value": layers.Dense(1, name="b")(node)})


#: A value of each setting that is not its default, and one that differs from it, as fit takes them.
VALUES: dict[str, tuple[Any, Any]] = {
    "epochs": (5, 7),
    "batch_size": (12, 16),
    "optimizer": (optimizers.SGD(Cosine(0.1), momentum=0.9), optimizers.SGD(Cosine(0.1))),
    "loss": (CrossEntropy(0.1), MeanSquaredError()),
    "loss_weights": (2.0, 3.0),
    "freeze": (["conv", "norm/scale"], ["conv"]),
    "class_weights": ([[1.0, 2.0, 0.5]], [[1.0, 2.0, 0.25]]),
    "steps_per_epoch": (3, 4),
    "accumulate": (2, 3),
    "shards": (4, 2),
    "reduction": ("fast", "ordered"),
    "sync_batch_norm": (True, False),
    "average": (0.9, 0.99),
    "augment": ("crop=1, flip", "flip"),
    "teacher": (network(1), network(2)),
    "temperature": (2.0, 3.0),
    "teacher_weight": (0.5, 2.0),
    "sizes": ({0: 6}, {0: 6, 3: (6, 6)}),
    "fit_memory": (True, False),
    "recompute": (True, False),
    "seed": (3, 4),
    "precision": ("tf32", "fp32"),
}
#: What errors call them, where that is not the keyword.
CALLED = {
    "loss_weights": "loss weights",
    "class_weights": "class weights",
    "batch_size": "batch size",
    "freeze": "set of frozen parameters",
    "shards": "number of shards",
    "sync_batch_norm": "choice of sync_batch_norm",
    "teacher_weight": "teacher weight",
    "augment": "augmentation",
}
MAY_CHANGE = {"epochs", "steps_per_epoch", "reduction", "precision", "fit_memory", "recompute"}


def interrupted(graph: Any, settings: TrainingSettings, **changed: Any) -> Interrupted:
    """As a file gives it back."""
    said = json.loads(json.dumps(settings.for_file(graph) | changed))
    optimizer = json.loads(json.dumps(settings.optimizer.description()))
    losses = dict(zip(graph.outputs, settings.loss, strict=True))  # type: ignore[arg-type]
    return Interrupted(
        TrainingState(2, 9, settings.seed, optimizer, {}, said), losses if len(losses) > 1 else settings.loss[0]
    )


def test_fit_has_a_keyword_a_setting_and_says_what_it_is() -> None:
    parameters = inspect.signature(bn.Model.fit).parameters
    assert set(VALUES) == set(KEYWORDS)
    for name in KEYWORDS:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        # The default stands in the settings alone.
        assert parameters[name].default is None, name
        assert re.search(rf"^ +{name}: ", bn.Model.fit.__doc__ or "", re.MULTILINE), name
    hints = {item.name: item.default for item in dataclasses.fields(TrainingSettings)}
    assert (hints["epochs"], hints["batch_size"], hints["optimizer"]) == (1, 128, optimizers.Adam(1e-3))


@pytest.mark.parametrize("name", [name for name in VALUES if name != "teacher"])
def test_a_resumed_training_has_what_is_not_given(name: str) -> None:
    graph = network().graph
    given = {name: VALUES[name][0]} | ({"shards": 2} if name == "sync_batch_norm" else {})
    if name != "optimizer":
        given["optimizer"] = optimizers.Adam(Cosine(1e-3))
    settings = TrainingSettings.of(graph, given)
    assert getattr(settings, name) != getattr(TrainingSettings.of(graph, {}), name)
    found = TrainingSettings.of(graph, {}, interrupted(graph, settings))
    if name == "class_weights":  # Which the labels make arrays of.
        found = dataclasses.replace(found, class_weights=[found.class_weights])
    # How much memory a device has, no file says.
    assert found == (dataclasses.replace(settings, fit_memory=False, recompute=False))
    assert check_resumed(interrupted(graph, settings), found, graph, {"samples": 7}) == {}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_resumed_training_may_change(name: str) -> None:
    graph = network().graph
    base = {"optimizer": optimizers.Adam(Cosine(1e-3))} | ({"shards": 2} if name == "sync_batch_norm" else {})
    before, now = (TrainingSettings.of(graph, base | {name: value}) for value in VALUES[name])
    stopped = interrupted(graph, before)
    if name in MAY_CHANGE:
        changed = check_resumed(stopped, now, graph, {})
        assert changed == ({} if name in ("fit_memory", "recompute") else {name: VALUES[name]})
        return
    message = f"^resume: the {CALLED.get(name, name)} must be that of the interrupted training. Received saved="
    with pytest.raises(OptionError, match=message):
        check_resumed(stopped, now, graph, {})


def test_the_learning_rate_alone_of_an_optimizer_may_change() -> None:
    graph = network().graph
    before, now = (TrainingSettings.of(graph, {"optimizer": optimizers.SGD(rate, momentum=0.5)}) for rate in (0.1, 0.2))
    assert check_resumed(interrupted(graph, before), now, graph, {}) == {"learning_rate": (0.1, 0.2)}


def test_samples_must_be_as_many() -> None:
    graph = network().graph
    settings = TrainingSettings.of(graph, {})
    stopped = interrupted(graph, settings, samples=20)
    assert check_resumed(stopped, settings, graph, {"samples": 20}) == check_resumed(stopped, settings, graph, {}) == {}
    message = (
        r"^resume: the samples must be that of the interrupted training\. Received saved=20, now=21\. Hint: give what"
    )
    with pytest.raises(OptionError, match=message):
        check_resumed(stopped, settings, graph, {"samples": 21})


def test_a_file_says_what_could_be_otherwise() -> None:
    plain = {"batch_size", "accumulate", "average", "class_weights", "frozen", "augment"}
    graph = network().graph
    assert set(TrainingSettings.of(graph, {}).for_file(graph)) == plain
    # The epochs where the learning rate depends on them.
    assert (
        TrainingSettings.of(graph, {"optimizer": optimizers.SGD(Cosine(0.1)), "epochs": 3}).for_file(graph)["epochs"]
        == 3
    )
    # Without a batch norm that is trained nothing depends on it, nor in a single shard.
    for given in ({"sync_batch_norm": True}, {"sync_batch_norm": True, "shards": 2, "freeze": "norm"}):
        assert "sync_batch_norm" not in TrainingSettings.of(graph, given).for_file(graph)
    graph = two_ends().graph
    given = {"loss": [CrossEntropy(), MeanSquaredError()], "augment": {"left": "flip"}}
    said = TrainingSettings.of(graph, given).for_file(graph)
    assert set(said) == plain | {"augmented"}
    assert said["augmented"] == "left"
    weighed = TrainingSettings.of(graph, given | {"loss_weights": {"value": 2}})
    assert weighed.for_file(graph)["loss_weights"] == [1.0, 2.0]
    found = TrainingSettings.of(graph, {"epochs": 1}, interrupted(graph, TrainingSettings.of(graph, given)))
    assert found.class_weights == {"class": None, "value": None}
    assert dataclasses.replace(found, class_weights=None) == TrainingSettings.of(graph, given)


def test_an_older_file_says_less() -> None:
    """It means the defaults, but for what it must have had and does not say."""
    graph = network().graph
    stopped = interrupted(graph, TrainingSettings.of(graph, {}))
    stopped.state.settings.clear()
    assert (
        check_resumed(stopped, TrainingSettings.of(graph, {"batch_size": 3, "epochs": 9}), graph, {"samples": 5}) == {}
    )
    for name in ("freeze", "shards", "augment", "average", "accumulate"):
        with pytest.raises(OptionError, match=f"the {CALLED.get(name, name)} must be that of the interrupted training"):
            check_resumed(stopped, TrainingSettings.of(graph, {name: VALUES[name][0]}), graph, {"samples": 5})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"batch_size": "8"}, r"batch_size must be an int of at least 1\. Received batch_size='8'"),
        ({"accumulate": 0}, "accumulate must be an int of at least 1"),
        ({"average": 1.5}, "average must be"),
        ({"frozen": "conv"}, "resume: what the interrupted training froze must be parameters of the model"),
        ({"augment": [3]}, "resume: what the interrupted training says of its augmentation must be what blobnet wrote"),
        ({"sizes": [3]}, r"sizes: it must have the size of pictures, N or \(height, width\), for the epochs"),
        ({"sizes": {"0": 6}}, "sizes: epochs are counted from 0, and sizes from 1"),
        ({"loss_weights": "x"}, "loss_weights: weight must be"),
    ],
)
def test_a_file_may_say_anything(said: dict[str, Any], message: str) -> None:
    graph = network().graph
    with pytest.raises(OptionError, match=message):
        TrainingSettings.of(graph, {"epochs": 3}, interrupted(graph, TrainingSettings.of(graph, {}), **said))


def test_epochs_that_no_file_says() -> None:
    graph = network().graph
    settings = TrainingSettings.of(graph, {"epochs": 5})
    stopped = interrupted(graph, settings)
    message = r"^epochs: they must be given, .* Received finished=2\. Hint: epochs=3 is one more\."
    with pytest.raises(OptionError, match=message):
        TrainingSettings.of(graph, {}, stopped)
    # In the middle of an epoch that one is left to do.
    within = Interrupted(dataclasses.replace(stopped.state, place={"batches": 1}), stopped.loss)
    assert TrainingSettings.of(graph, {}, within).epochs == 3

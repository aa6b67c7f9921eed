"""One more of each kind is one file: options, files, the doctor and the documents find it by themselves.

What is added here stands in a module of its own, and nothing else is told of it (docs/contributing.md).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.augment.epoch_rows import from_descriptions
from blobnet.augment.words import augmentations_of
from blobnet.callbacks.base import check_callbacks
from blobnet.checkup.steps import checks_of_steps
from blobnet.command_line import main
from blobnet.command_line.options import callback_rows
from blobnet.errors import FileError
from blobnet.examination.reference import losses as of_losses
from blobnet.examination.reference import optimizers as of_optimizers
from blobnet.files.checkpoint import TrainingState
from blobnet.hardware import architectures, device_model
from blobnet.metrics.naming import is_error, measured, named
from blobnet.metrics.types import METRICS
from blobnet.support.kinds import option_names, public_names, spelled
from blobnet.training.arguments import loss_of, optimizer_of
from blobnet.training.settings import KEYWORDS

ROOT = Path(__file__).parents[2]
FAMILIES = {
    "optimizers": bn.optimizers.Optimizer,
    "schedules": bn.schedules.Schedule,
    "losses": bn.losses.Loss,
    "augment": bn.augment.Augmentation,
}
OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from blobnet.augment import Flip
from blobnet.callbacks import Callback
from blobnet.losses import Huber
from blobnet.metrics.types import metric
from blobnet.optimizers import SGD
from blobnet.schedules import Schedule

@dataclass(frozen=True)
class QuickStep(SGD):
    """Gradient descent with much momentum. It is a test's."""
    momentum: float = 0.95

@dataclass(frozen=True)
class Halving(Schedule):
    """The rate, halved after every epoch. It is a test's."""
    rate: float
    def value(self, step, steps_per_epoch, epochs):
        return self.rate * 0.5 ** (step // steps_per_epoch)

@dataclass(frozen=True)
class WideHuber(Huber):
    """Huber's loss with a far knee. It is a test's."""
    delta: float = 4.0
    aliases: ClassVar[tuple[str, ...]] = ("wide",)

@dataclass(frozen=True)
class UpsideDown(Flip):
    """Every other picture, upside down. It is a test's."""
    horizontal: bool = False
    vertical: bool = True

@metric("targets", falls=True)
def worst(targets, outputs):
    """The largest error."""
    return np.abs(targets - outputs).max()

class Counter(Callback):
    """Counts epochs."""
    option = ("limit", "--count-to N  count epochs up to N")
    def __init__(self, limit=9):
        self.epochs, self.limit = 0, limit
    def epoch_end(self, progress):
        self.epochs += 1
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module with one more of each kind, which are forgotten at the end."""
    for family in FAMILIES.values():
        monkeypatch.setattr(family, "kinds", dict(family.kinds))
    monkeypatch.setattr(bn.callbacks.Callback, "with_option", [*bn.callbacks.Callback.with_option])
    monkeypatch.setattr("blobnet.metrics.naming.METRICS", METRICS)
    before = dict(METRICS)
    (tmp_path / "one_more.py").write_text(OWN)
    spec = importlib.util.spec_from_file_location("one_more", tmp_path / "one_more.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "one_more", module)
    spec.loader.exec_module(module)
    yield module
    METRICS.clear()
    METRICS.update(before)


def option(name: str) -> argparse.Action:
    """An option of ``blobnet train``."""
    return next(action for action in main.make_parser()[1]["train"]._actions if name in action.option_strings)


def test_options_find_it(own: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main.main(["train", "--help"])
    said = capsys.readouterr().out
    for name in ("quick-step", "halving", "wide-huber", "upside-down", "--count-to N"):
        assert name in said
    parser = main.make_parser()[1]["train"]
    options = parser.parse_args(
        ["m", "--dataset", "d", "--optimizer", "QuickStep", "--schedule", "halving", "--loss", "wide"]
    )
    assert (options.optimizer, options.schedule, options.loss) == ("quick-step", "halving", "wide-huber")
    train = importlib.import_module("blobnet.command_line.train")
    options.epochs = 3
    assert train._given(options) == {}
    given = parser.parse_args(["m", "--dataset", "d", "--count-to", "7", "--csv", "a.csv", "--early-stopping", "2"])
    stopping = bn.callbacks.EarlyStopping(patience=2)
    file = train._OutputFile(Path("m.h5"), stopping, None)
    best, counter, output, log = train._callbacks(given, None, file, None)
    assert (type(counter), counter.limit, log.path) == (own.Counter, 7, Path("a.csv"))
    assert (best, output) == (stopping, file)
    assert train._optimizer(options) == own.QuickStep(own.Halving(train.DEFAULT_RATE))
    with pytest.raises(SystemExit):
        parser.parse_args(["m", "--dataset", "d", "--optimizer", "quick"])
    assert "unknown name 'quick': did you mean 'quick-step'?" in capsys.readouterr().err
    assert augmentations_of("upside_down, flip") == (own.UpsideDown(), bn.augment.Flip())


def test_every_setting_of_a_training_has_an_option() -> None:
    options = {action.dest for action in main.make_parser()[1]["train"]._actions}
    assert set(KEYWORDS) - options == {"steps_per_epoch"}  # Data sets end by themselves.


def test_python_finds_it(own: ModuleType) -> None:
    assert optimizer_of("quick_step") == own.QuickStep()
    assert loss_of("wide") == loss_of("WideHuber") == own.WideHuber()
    found = named(["worst"], own.WideHuber())
    values = measured(found, own.WideHuber(), np.float32([[1], [2]]), np.float32([[1.5], [4]]))
    assert values == {"worst": 2.0}
    assert is_error("validation_worst")
    assert not is_error("validation_r2")
    assert check_callbacks([own.Counter()])[0].epochs == 0  # type: ignore[attr-defined]


def test_files_keep_it(own: ModuleType, tmp_path: Path) -> None:
    model = bn.Sequential([layers.Input(2), layers.Dense(1)])
    optimizer, changes = own.QuickStep(own.Halving(0.5)), [own.UpsideDown()]
    model.loss = own.WideHuber(3.0)
    slots = {"momentum": np.zeros(3, np.float32)}
    settings = {"augment": [change.description() for change in changes]}
    model.training_state = TrainingState(1, 2, 3, optimizer.description(), slots, settings)
    model.save(tmp_path / "a.h5")
    loaded = bn.load(tmp_path / "a.h5")
    assert loaded.loss == own.WideHuber(3.0)
    state = loaded.training_state
    assert state is not None
    assert bn.optimizers.Optimizer.from_description(state.optimizer, "a.h5") == optimizer
    assert from_descriptions(state.settings["augment"], "a.h5") == tuple(changes)
    for family in FAMILIES.values():
        family.kinds = {name: kind for name, kind in family.kinds.items() if kind.__module__ != "one_more"}
    with pytest.raises(FileError, match=r"a\.h5: the loss must be one of blobnet's\. Received kind=WideHuber"):
        bn.load(tmp_path / "a.h5")


def test_the_doctor_checks_what_has_a_reference(own: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {check.title for check in checks_of_steps(0)}
    assert not before & {"WideHuber", "QuickStep"}
    monkeypatch.setattr(of_losses, "wide_huber", of_losses.huber, raising=False)
    monkeypatch.setattr(of_optimizers, "quick_step", of_optimizers.sgd, raising=False)
    checks = {check.title: check for check in checks_of_steps(0)}
    assert checks.keys() == before | {"WideHuber", "QuickStep"}
    for check in checks.values():
        assert pickle.loads(pickle.dumps(check)) == check
        assert json.dumps(check.as_json())
    assert checks["WideHuber"].loss == own.WideHuber(0.5)


def test_documents_find_it(own: ModuleType) -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
    asked = {found for text in pages.values() for found in hooks._KINDS.findall(text)}
    assert asked == {(package, family.__name__) for package, family in FAMILIES.items()}
    rows = [row for package, base in asked for row in hooks.kinds(package, base).splitlines()]
    assert "| `WideHuber` | `wide-huber`, `wide` | Huber's loss with a far knee |" in rows
    assert "| `QuickStep` | `quick-step` | Gradient descent with much momentum |" in rows
    assert "| `Halving` | `halving` | The rate, halved after every epoch |" in rows
    assert "| `UpsideDown` | `upside-down` | Every other picture, upside down |" in rows
    assert "quick-step" in hooks.commands()


def test_an_architecture_is_a_row_and_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "ours      amd       16    99        128  48    16    2     32   24  128  yes  bf16            rdna\n"
    monkeypatch.setattr(architectures, "_TABLE", architectures._TABLE + row)
    monkeypatch.setattr(device_model, "NAMES", ((r"ourboard", "ours"), *architectures.NAMES))
    architectures.architectures.cache_clear()
    try:
        model = device_model.model_of(
            device_model.Answers("Ourboard 9", platform="AMD Accelerated Parallel Processing")
        )
    finally:
        monkeypatch.undo()
        architectures.architectures.cache_clear()
    assert (model.architecture, model.lanes, model.registers, model.banks) == ("ours", 16, 99, 16)
    assert (model.register_file, model.units_of_core, model.tensor_types) == (128 << 10, 2, ("bf16",))


def test_help_names_what_is_public_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """``blobnet train --help`` imports no NumPy, and so reads what packages say of themselves."""
    for package, family in FAMILIES.items():
        own = {name for name, kind in family.kinds.items() if kind.__module__.startswith("blobnet.")}
        assert set(public_names(package)) == own | {family.__name__}
        assert set(option_names(package, family.__name__)) == set(map(spelled, family.kinds))
    assert set(public_names("models")) == set(bn.models.__all__)
    rows = callback_rows()
    monkeypatch.delitem(sys.modules, "blobnet.callbacks")
    assert callback_rows() == sorted(rows)
    assert [row.split()[0] for row in rows] == [
        *("--csv", "--early-stopping", "--live", "--mlflow", "--plateau", "--tensorboard", "--wandb"),
    ]
    assert option("--optimizer").choices == ["lamb", "sgd", "adam", "adamw", "lion", "muon", "rmsprop"]
    assert option("--schedule").choices == ["constant", "cosine", "linear", "one-cycle", "step"]

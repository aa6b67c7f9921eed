"""Trackers and Optuna's pruning, each with its real library."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blobnet.callbacks import Callback, MLflow, OptunaPruning, WandB
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.model import Model
from blobnet.training.trainer import Progress
from tests.tiny import digits, tiny_model


def fit(device: Device, callbacks: list[Callback], epochs: int = 2) -> Model:
    model, (x, y) = tiny_model(), digits(40)
    model.fit(x, y, device=device, epochs=epochs, verbose=False, validation=(x, y), callbacks=callbacks)
    return model


class Fails(Callback):
    def epoch_end(self, progress: Progress) -> None:
        raise RuntimeError


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_mlflow(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/runs"
    model = fit(device, [MLflow("mine", uri, name="first")])
    with pytest.raises(RuntimeError):
        fit(device, [MLflow("mine", uri), Fails()])
    client = tracking.MlflowClient(uri)
    number = client.get_experiment_by_name("mine").experiment_id
    runs = {run.info.status: run for run in client.search_runs([number])}
    assert runs.keys() == {"FINISHED", "FAILED"}
    assert runs["FINISHED"].info.run_name == "first"
    logged = client.get_metric_history(runs["FINISHED"].info.run_id, "validation_loss")
    assert [(point.step, point.value) for point in logged] == list(enumerate(model.history["validation_loss"], 1))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_mlflow_without_a_server(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(OptionError, match=r"MLflow: a run must begin\..*Hint: MLFLOW_TRACKING_URI=sqlite"):
        fit(device, [MLflow("mine", "http://127.0.0.1:9")])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_offline(device: Device, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    fit(device, [WandB("mine", mode="offline", dir=str(tmp_path))])
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    for _ in range(100):  # Its own process writes the file, a moment after the run is finished.
        content = files[0].read_bytes()
        if content.count(b"validation_loss") >= 2:
            break
        time.sleep(0.1)
    assert content.count(b"validation_loss") >= 2
    assert b"learning_rate" in content


def test_pruning(device: Device) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2))
    seen: list[dict[str, Any]] = []

    class Keeps(Callback):
        def epoch_end(self, progress: Progress) -> None:
            seen.append({name: values[-1] for name, values in progress.history.items()})

    def objective(trial: Any) -> float:
        model = fit(device, [Keeps(), OptunaPruning(trial)], epochs=5)
        return float(model.history["validation_loss"][-1])

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.intermediate_values == {epoch: own["validation_loss"] for epoch, own in enumerate(seen, 1)}
    assert len(seen) == 2
    worst = optuna.create_study(direction="maximize")
    with pytest.raises(OptionError, match=r"the study must look for the best value.*create_study\(direction=.minimize"):
        fit(device, [OptunaPruning(worst.ask())])
    with pytest.raises(OptionError, match="monitor must be one of the values"):
        fit(device, [OptunaPruning(study.ask(), "validation_f2")])


@pytest.mark.parametrize(("kind", "library"), [(MLflow, "mlflow"), (WandB, "wandb"), (OptunaPruning, "optuna")])
def test_libraries_that_are_missing(kind: Any, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(OptionError, match=rf'needs {library}\..*Hint: pip install "blobnet\[{library}\]"'):
        kind("mine")

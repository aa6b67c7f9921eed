"""The callback MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobnet.callbacks.base import Callback
from blobnet.errors import OptionError, extra, warn

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress


class MLflow(Callback):
    """Logs the history, and the learning rate, as a run of MLflow; needs mlflow, or mlflow-skinny.

    Args:
        experiment: the name of the experiment; it is made if there is none.
        uri: where runs are kept; None: as ``MLFLOW_TRACKING_URI`` says, else where mlflow keeps them.
        name: of the run; None lets MLflow choose.

    Raises:
        OptionError: mlflow is not installed; (before the first epoch) a run cannot begin.
    """

    only_logs = True
    option = ("experiment", "--mlflow NAME  log the metrics as a run of this experiment of MLflow (needs mlflow)")

    def __init__(self, experiment: str, uri: str | None = None, name: str | None = None) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise OptionError("MLflow", "logging needs mlflow", cause=error, hint=extra("mlflow")) from error
        self.experiment, self.uri, self.name = experiment, uri, name
        self._client: Any = None
        self._run = ""

    def begin(self, progress: Progress) -> None:
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(self.uri)
            known = client.get_experiment_by_name(self.experiment)
            number = known.experiment_id if known else client.create_experiment(self.experiment)
            self._run = client.create_run(number, run_name=self.name).info.run_id
        except Exception as error:  # Those of its own, of its stores, and of the network.
            hint = "MLFLOW_TRACKING_URI=sqlite:///mlflow.db (uri=) keeps runs in a file, without a server."
            raise OptionError("MLflow", "a run must begin", cause=error, uri=self.uri, hint=hint) from error
        self._client = client

    def epoch_end(self, progress: Progress) -> None:
        values = {name: own[-1] for name, own in progress.history.items()}
        epoch = progress.trainer.epoch
        try:
            for name, value in {**values, "learning_rate": progress.trainer.learning_rate}.items():
                self._client.log_metric(self._run, name, value, step=epoch)
        except Exception as error:  # A server that is gone must not end a training.
            warn("MLflow", "the values of an epoch were not logged, and training goes on", epoch=epoch, cause=error)

    def end(self, progress: Progress) -> None:
        self._finish("FINISHED")

    def release(self) -> None:
        self._finish("FAILED")

    def _finish(self, status: str) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.set_terminated(self._run, status)
        except Exception as error:
            warn("MLflow", "the end of the run was not logged", run=self._run, cause=error)

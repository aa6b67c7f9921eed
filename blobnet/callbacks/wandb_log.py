"""The callback WandB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobnet.callbacks.base import Callback
from blobnet.errors import OptionError, extra

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress


class WandB(Callback):
    """Logs the history, and the learning rate, to Weights & Biases; needs wandb.

    Args:
        project: the name of the project.
        mode: ``online``, or ``offline``, which writes to the folder ``wandb`` for ``wandb sync``; None: as
            ``WANDB_MODE`` says, else online.
        settings: for ``wandb.init``: ``name``, ``dir``, ``config``, ...

    Raises:
        OptionError: wandb is not installed; (before the first epoch) a run cannot begin.
    """

    only_logs = True
    option = ("project", "--wandb PROJECT  log the metrics to Weights & Biases (needs wandb; WANDB_MODE=offline)")

    def __init__(self, project: str, mode: Any = None, **settings: Any) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise OptionError("WandB", "logging needs wandb", cause=error, hint=extra("wandb")) from error
        self.project, self.mode, self.settings = project, mode, settings
        self._run: Any = None

    def begin(self, progress: Progress) -> None:
        import wandb

        try:
            self._run = wandb.init(project=self.project, mode=self.mode, reinit="create_new", **self.settings)
        except Exception as error:  # Those of its own, of its service, and of the network.
            rule = "a run must begin"
            hint = "WANDB_MODE=offline (mode='offline') needs no server and no account; wandb sync sends it later."
            raise OptionError("WandB", rule, cause=error, hint=hint) from error

    def epoch_end(self, progress: Progress) -> None:
        values = {name: own[-1] for name, own in progress.history.items()}
        self._run.log({**values, "learning_rate": progress.trainer.learning_rate}, step=progress.trainer.epoch)

    def end(self, progress: Progress) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def release(self) -> None:
        run, self._run = self._run, None
        if run is not None:  # The training ended with an error.
            run.finish(exit_code=1)

"""The callback OptunaPruning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobnet.callbacks.base import _Monitor
from blobnet.errors import OptionError, extra

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress


class OptunaPruning(_Monitor):
    """Reports a value of the history to a trial of Optuna after each epoch, and ends the training if it is pruned.

    Args:
        trial: the trial; ``optuna.TrialPruned`` is raised where its pruner says so.
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ... The study's direction must be
            the one in which it becomes better.

    Raises:
        OptionError: optuna is not installed; (before the first epoch) nothing measures ``monitor``, or the study looks
            for the worst value.
    """

    def __init__(self, trial: Any, monitor: str = "validation_loss") -> None:
        try:
            import optuna  # noqa: F401
        except ImportError as error:
            rule = "pruning needs optuna"
            raise OptionError("OptunaPruning", rule, cause=error, hint=extra("optuna")) from error
        super().__init__(monitor, 0.0, None)
        self.trial = trial

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        direction = self.trial.study.direction.name.lower()
        if direction != ("minimize" if self.falls else "maximize"):
            wanted = "minimize" if self.falls else "maximize"
            rule = "the study must look for the best value"
            hint = f'optuna.create_study(direction="{wanted}").'
            raise OptionError("OptunaPruning", rule, monitor=self.monitor, direction=direction, hint=hint)

    def epoch_end(self, progress: Progress) -> None:
        import optuna

        super().epoch_end(progress)
        epoch = progress.trainer.epoch
        self.trial.report(progress.history[self.monitor][-1], epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"pruned after epoch {epoch}")

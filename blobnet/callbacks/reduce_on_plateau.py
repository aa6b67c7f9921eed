"""The callback ReduceOnPlateau."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blobnet.support.checks import check_count, check_number

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import _Monitor


class ReduceOnPlateau(_Monitor):
    """Multiplies the learning rate by ``factor`` when a value has not become better for ``patience`` epochs.

    It does so again after as many further epochs. The factor is one of the schedule's rates, whatever schedule that is.

    Args:
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ``loss``, ...
        factor: above 0 and below 1.
        patience: epochs to wait.
        minimum_change: what counts as better.
        falls: whether less is better; None: for losses and errors (``loss``, ``mae``, ``rmse``).

    Raises:
        OptionError: a value out of its range; or, before the first epoch, nothing measures ``monitor``.
    """

    option = (
        "patience",
        "--plateau N  halve the learning rate when the validation loss has not fallen for N epochs",
    )

    def __init__(
        self,
        monitor: str = "validation_loss",
        factor: float = 0.5,
        patience: int = 3,
        minimum_change: float = 0.0,
        falls: bool | None = None,
    ) -> None:
        check_number("ReduceOnPlateau", "factor", factor, above=0, below=1)
        super().__init__(monitor, minimum_change, falls)
        self.factor = factor
        self.patience = check_count("ReduceOnPlateau", "patience", patience)
        self._reductions = 0

    def begin(self, progress: Progress) -> None:
        self._reductions = 0
        super().begin(progress)
        progress.trainer.rate_factor *= self.factor**self._reductions

    def epoch_end(self, progress: Progress) -> None:
        before = self._reductions
        super().epoch_end(progress)
        progress.trainer.rate_factor *= self.factor ** (self._reductions - before)

    def _judge(self, value: float) -> None:
        super()._judge(value)
        if self.waited >= self.patience:
            self.waited = 0
            self._reductions += 1

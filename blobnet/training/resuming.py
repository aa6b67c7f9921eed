"""What a resumed training has in common with the interrupted one.

It may be longer or shorter, and have another learning rate. All else stays as it was: the steps that follow are then
those that the interrupted training would have done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blobnet.errors import OptionError, first_few
from blobnet.files.checkpoint import TrainingState, as_call

#: How errors call a setting, where that is not its name.
_CALLED = {
    "augment": "augmentation",
    "frozen": "set of frozen parameters",
    "shards": "number of shards",
    "sync_batch_norm": "choice of sync_batch_norm",
}
#: What a setting was in a training whose file does not say it.
_UNSAID: dict[str, Any] = {"augment": [], "frozen": [], "shards": 1, "sync_batch_norm": False}
#: What may change.
EPOCHS, RATE = "epochs", "learning_rate"
_HINT = "give what was given then; without resume (on the command line --init-from FILE) training goes on from the "
_HINT += "same weights with a new optimizer."


def settings_of(state: TrainingState) -> dict[str, Any]:
    """All that a training state says of its training."""
    return {"seed": state.seed, **_of_optimizer(state.optimizer), **state.settings}


def check_resumed(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Checks that a resumed training changes nothing but its epochs and learning rate.

    Args:
        saved: settings of the interrupted training.
        now: some or all of those of the resumed one.

    Returns:
        What changes, by name: (before, now).

    Raises:
        OptionError: something else changes.
    """
    changed = {}
    for name, value in now.items():
        before = saved.get(name, _UNSAID.get(name, value))
        if before == value:
            continue
        if name not in (EPOCHS, RATE):
            rule = f"the {_CALLED.get(name, name.replace('_', ' '))} must be that of the interrupted training"
            raise OptionError("resume", rule, saved=_unlike(before, value), now=_unlike(value, before), hint=_HINT)
        changed[name] = before, value
    return changed


def _of_optimizer(description: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer, and apart from it its learning rate."""
    config = dict(description["config"])
    return {RATE: config.pop("learning_rate", None), "optimizer": {"kind": description["kind"], "config": config}}


def _unlike(value: Any, other: Any) -> str:
    """A setting; of an optimizer or loss what differs from another one, of a long list the first items."""
    if isinstance(value, list):
        items = (as_call(item) if isinstance(item, Mapping) and "kind" in item else item for item in value)
        return first_few(items, 4) or "nothing"
    if not isinstance(value, Mapping) or "kind" not in value:
        return str(value)
    if value["kind"] != other["kind"]:
        return str(value["kind"])
    mine, theirs = value["config"], other["config"]
    return ", ".join(f"{name}={item}" for name, item in mine.items() if item != theirs.get(name))

"""The settings that a resumed training shares with the interrupted one.

It may be longer or shorter, and have another learning rate. All else stays as it was: the steps that follow are then
those that the interrupted training would have done.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from blobnet.errors import OptionError, first_few
from blobnet.files.checkpoint import TrainingState, as_call
from blobnet.network.ends import to_dict
from blobnet.network.graph import Graph
from blobnet.training.arguments import losses_for
from blobnet.training.settings import RATE, Interrupted, TrainingSettings, described_optimizer

_HINT = "give what was given then; without resume (on the command line --init-from FILE) training goes on from the "
_HINT += "same weights with a new optimizer."


def interrupted_training(state: TrainingState | None, loss: Any) -> Interrupted:
    """Return the training to go on with; OptionError where a model knows of none."""
    if state is None:
        hint = "load a file that the Checkpoint callback, or blobnet train, wrote."
        raise OptionError("fit", "resume needs a model loaded from a checkpoint", resume=True, hint=hint)
    return Interrupted(state, loss)


def check_resumed(
    interrupted: Interrupted, settings: TrainingSettings, graph: Graph, facts: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Check that a resumed training changes nothing but what may change.

    Args:
        interrupted: the training that goes on.
        settings: those of the resumed one.
        graph: the model.
        facts: of its data: how many samples there are, but for a stream; their order, where it is their own.

    Returns:
        What changes, by name: (before, now).

    Raises:
        OptionError: something else changes.
    """
    state, changed = interrupted.state, dict[str, tuple[Any, Any]]()
    saved = {**state.settings, "seed": state.seed, **described_optimizer(state.optimizer)}
    if interrupted.loss is not None:
        saved["loss"] = to_dict(graph.outputs, losses_for(graph, interrupted.loss))
    for name, now, unsaid, option in settings.described(graph):
        before = saved.get(name, unsaid)
        if before != now and name in option.may_change:
            changed[name] = before, now
        elif before != now:
            raise _refusal(option.called or name.replace("_", " "), before, now)
    samples = facts.get("samples")
    if state.place and (samples is None) != ("samples" not in saved):
        rule = "in the middle of an epoch, data must come as before: by their numbers, or as a stream"
        raise OptionError("resume", rule, now="a stream" if samples is None else f"{samples} samples")
    if samples is not None and saved.get("samples", samples) != samples:
        raise _refusal("samples", saved["samples"], samples)
    if state.place and saved.get("order") != facts.get("order"):
        rule = "in the middle of an epoch, samples must be in the order of the interrupted training"
        hint = "give the same files in the same order, and the same --shuffle-buffer (shuffle_buffer in Python)."
        raise OptionError("resume", rule, saved=saved.get("order"), now=facts.get("order"), hint=hint)
    return changed


def note_rate(changed: Mapping[str, tuple[Any, Any]], settings: TrainingSettings, rate: float) -> None:
    """Say what another learning rate, or number of epochs, means for the steps to come; ``rate`` is the next one's."""
    said = []
    if RATE in changed:
        said.append("is another one than in the interrupted training")
    if "epochs" in changed and settings.optimizer.schedule.depends_on_epochs:
        said.append("is spread over {1} epochs in place of {0}".format(*changed["epochs"]))
    if "precision" in changed:
        print(
            "note: the precision was {}, and is {}: what follows is other bits".format(*changed["precision"]),
            file=sys.stderr,
        )
    if said:
        print(f"note: the learning rate {' and '.join(said)}: it goes on at {rate:.2g}", file=sys.stderr)


def _refusal(name: str, before: Any, now: Any) -> OptionError:
    rule = f"the {name} must be that of the interrupted training"
    return OptionError("resume", rule, saved=_unlike(before, now), now=_unlike(now, before), hint=_HINT)


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

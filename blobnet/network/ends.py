"""The ends of a network in a plan: inputs with the buffers of their samples, outputs with their losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from blobnet.errors import BlobnetError, OptionError, near_matches
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.layers.input import AUGMENTATION_WORDS, POLICY_WORDS
from blobnet.losses import Loss
from blobnet.losses.base import LOSS_SCALE
from blobnet.memory.blob import FLOAT32, FloatArray, Shape
from blobnet.network.graph import Graph

#: The losses of a network: that of its only output, or one for each output, in their order.
Losses = Loss | tuple[Loss, ...] | None

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """One end of a network.

    Attributes:
        name: of the input or output.
        index: of its vertex.
        shape: of a sample there.
        is_only: whether the network has no other of the kind.
    """

    name: str
    index: int
    shape: Shape
    is_only: bool

    def buffer(self, kind: str) -> str:
        """The name of a buffer of this end: ``samples``, or where there are several ends ``samples of image``."""
        return kind if self.is_only else f"{kind} of {self.name}"


@dataclass(frozen=True)
class Entry(_End):
    """An input of a network.

    Attributes:
        sample_type: NumPy's name for the type of its samples.
        augmented: whether they change on their way in.
        policy_steps: how many steps of a policy they change by, if they do.
    """

    sample_type: str = "float32"
    augmented: bool = False
    policy_steps: int = 0

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample."""
        return self.shape.elements * np.dtype(self.sample_type).itemsize

    def memory(self, slots: int) -> dict[str, tuple[int, int]]:
        """Return its buffers, with room for ``slots`` batches: (elements, elements for each sample)."""
        samples = -(-slots * self.sample_bytes // FLOAT32.itemsize)
        sizes = {"samples": (0, samples), "rows": (0, slots), "not_finite": (1, 0)}
        if self.augmented:
            sizes["augmentation"] = (0, AUGMENTATION_WORDS + POLICY_WORDS * self.policy_steps)
        return {self.buffer(kind): size for kind, size in sizes.items()}


@dataclass(frozen=True)
class Head(_End):
    """An output of a network with its loss.

    Attributes:
        loss: what is measured there.
        number: which of the outputs it is.
    """

    loss: Loss
    number: int

    @property
    def phase(self) -> str:
        """The phase of its calls in a plan."""
        return self.buffer("loss")

    @property
    def totals(self) -> slice:
        """The slice of its sums in ``totals``, which all outputs share."""
        return slice(self.number * TOTALS, (self.number + 1) * TOTALS)

    def memory(self) -> dict[str, tuple[int, int]]:
        """The buffers of its calls, but for ``totals``: (elements, elements for each sample)."""
        sizes = self.loss.memory(self.shape)
        return {self.buffer(kind): size for kind, size in sizes.items() if kind != "totals"}

    def start_values(self, batch_size: int) -> dict[str, FloatArray]:
        """The first content of its buffers."""
        values = self.loss.start_values(self.shape, batch_size)
        return {self.buffer(kind): array for kind, array in values.items()}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        """Return the calls of its loss, on buffers of its own."""
        made = self.loss.calls(output, delta, tuning, batch_size)
        if self.is_only:
            return made
        return [
            replace(
                call,
                label=f"{self.name} {call.label}",
                arrays={
                    role: replace(array, offset=self.totals.start)
                    if array.storage == "totals"
                    else array
                    if array.storage == LOSS_SCALE
                    else replace(array, storage=self.buffer(array.storage))
                    for role, array in call.arrays.items()
                },
            )
            for call in made
        ]


#: Numbers of an output in ``totals``.
TOTALS = Loss.SAMPLE_METRICS + 1


def entries_of(
    graph: Graph, sample_type: str | tuple[str, ...], augmented: bool | str = False, policy_steps: int = 0
) -> tuple[Entry, ...]:
    """The inputs of a network.

    Args:
        graph: the network.
        sample_type: NumPy's name for the type of all samples, or one for each input.
        augmented: the name of the input whose samples change on their way in; or whether those of the only one do.
        policy_steps: how many steps of a policy those change by.

    Raises:
        OptionError: there is a policy, and these samples are no pictures of uint8.
    """
    count = len(graph.entries)
    types = (sample_type,) * count if isinstance(sample_type, str) else sample_type
    entries = tuple(
        Entry(name, index, graph.vertices[index].shape, count == 1, kind, augmented in (True, name), policy_steps)
        for (name, index), kind in zip(graph.entries, types, strict=True)
    )
    for entry in entries:
        if entry.augmented and policy_steps and entry.sample_type != "uint8":
            rule = "policies of augmentation change pictures of uint8: whole numbers from 0 to 255"
            hint = "give x as uint8; the input layer normalises it (Model.set_normalization)."
            raise OptionError("augment", rule, input=entry.name, type=entry.sample_type, hint=hint)
    return entries


def heads_of(graph: Graph, loss: Losses) -> tuple[Head, ...]:
    """The outputs of a network with their losses; none if there is no loss."""
    losses = (loss,) if isinstance(loss, Loss) else loss or ()
    if losses and len(losses) != len(graph.exits):
        raise OptionError(
            "loss", "there must be a loss for each output", losses=losses, outputs=", ".join(graph.outputs)
        )
    ends = zip(graph.exits, losses, strict=True) if losses else ()
    return tuple(
        Head(name, index, graph.vertices[index].shape, len(losses) == 1, own, number)
        for number, ((name, index), own) in enumerate(ends)
    )


def totals_call(heads: Sequence[Head]) -> list[KernelCall]:
    """The call that shows in the first total whether any of several losses is not finite; none for a single one."""
    if len(heads) < 2:
        return []
    return [
        KernelCall(
            "loss/first_total",
            "losses",
            GlobalSize(1, per_sample=False),
            arrays={"TOTALS": Array("totals", len(heads) * TOTALS, persistent=True)},
            macros={"LOSSES": len(heads), "STRIDE": TOTALS},
        )
    ]


def losses_description(loss: Any) -> Any:
    """A loss, or the losses of several outputs by name, as plain data (JSON)."""
    if isinstance(loss, Mapping):
        return {name: losses_description(own) for name, own in loss.items()}
    return loss.description()


# -- what users give for each end -------------------------------------------------------------------------------------


def to_list(
    names: Sequence[str],
    given: Any,
    subject: str,
    end: str,
    error: type[BlobnetError] = OptionError,
    *,
    listed: bool = False,
) -> tuple[Any, ...]:
    """Return what was given for each of a network's ends, as a list in their order.

    Args:
        names: of the ends.
        given: a mapping by these names; for several ends also a list in their order, for a single one the thing itself.
        subject: what errors call it.
        end: ``input`` or ``output``.
        error: the kind of error to raise.
        listed: whether a list of one thing does for a single end, too.

    Raises:
        OptionError, or another kind of error: one is missing, a name is unknown, or there are too few or too many.
    """
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                hint = near_matches(str(name), list(names))
                rule = f"each name must be that of an {end} of the model"
                raise error(subject, rule, hint=hint, **{"name": name, f"{end}s": ", ".join(names)})
        missing = [name for name in names if name not in given]
        if missing:
            rule = f"there must be one for every {end} of the model"
            raise error(subject, rule, missing=", ".join(missing), given=", ".join(given) or "nothing")
        return tuple(given[name] for name in names)
    if len(names) == 1:
        return tuple(given) if listed and isinstance(given, list | tuple) and len(given) == 1 else (given,)
    rule = f"the model has {len(names)} {end}s: give one for each, by name or as a list in their order"
    ends = {f"{end}s": ", ".join(names)}
    if not isinstance(given, list | tuple):
        raise error(subject, rule, **ends, received=type(given).__name__)
    if len(given) != len(names):
        raise error(subject, rule, **ends, received=len(given))
    return tuple(given)


def part_subject(subject: str, name: str, names: Sequence[str]) -> str:
    """Return the name in errors of what was given for one of several ends: ``x['image']``."""
    return subject if len(names) == 1 else f"{subject}[{name!r}]"


def to_dict(names: Collection[str], values: Sequence[T]) -> T | dict[str, T]:
    """Return values as users get them: the value itself for a single end, else a dict by name."""
    return values[0] if len(names) == 1 else dict(zip(names, values, strict=True))

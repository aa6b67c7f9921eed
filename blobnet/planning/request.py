"""The request that a plan is made for."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields, replace

from blobnet.errors import OptionError, PlanError
from blobnet.launch.kernel_call import Tuning
from blobnet.memory.blob import FLOAT32
from blobnet.network.ends import Entry, Head, Losses, entries_of, heads_of
from blobnet.network.graph import Graph
from blobnet.network.parameters import ParameterTable, parameter_table
from blobnet.support.checks import check_count


@dataclass(frozen=True)
class Request:
    """The request that a plan is made for; every pass may read it.

    Attributes:
        graph: what to plan.
        batch_size: the most samples at once.
        at_once: shards of a step that these are, each of as many samples, which gradients and statistics stay apart of.
        side_by_side: shards that a device is taken to compute at once when ways are chosen for each; how many it does
            changes no way, and so no bit.
        loss: what to measure at the output, or at each of several outputs; training needs that.
        training: whether to plan the backward pass too.
        tuning: values for the kernels' tunables; each request has a copy of its own.
        parameters: where the parameters lie, and which of them are trained: all that are trainable, if None is given.
        input_delta: also compute dL/d input.
        sample_type: NumPy's name for the type of the samples that enter the network, or one for each of its inputs.
        augmented: whether samples change on their way in, by rows that are fed to ``augmentation`` for every batch; the
            name of the input where there are several.
        policy_steps: how many steps of a policy of augmentation these rows have.
        share: let blobs share memory (concat, in place); without it every join is an explicit copy.
        reuse: give memory that is no longer needed to later blobs.
        recompute: compute again in the backward pass what it can have from other blobs, in place of keeping it.
        every_halo: have the zeros that any of a layer's kernels reads, not only those for the ones that were chosen.
        shards: of a step, whose batch norms are over all of them; 1: batch norms are over a batch.
        in_batches: whether the parameters stay as they are for several batches of training, whose gradients are added.
        statistics: which of the parameters' elements, that layers move in training, have a storage of their own: those
            of a shard.

    Raises:
        OptionError: the batch size is not a positive int, or training has no loss.
        ShapeError: the loss does not fit the output.
        PlanError: parameters that are trained are narrower than float32.
    """

    graph: Graph
    batch_size: int
    _: KW_ONLY
    loss: Losses = None
    training: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    parameters: ParameterTable = None  # type: ignore[assignment]  # There is one once it is made.
    input_delta: bool = False
    sample_type: str | tuple[str, ...] = "float32"
    augmented: bool | str = False
    policy_steps: int = 0
    share: bool = True
    reuse: bool = True
    recompute: bool = False
    every_halo: bool = False
    shards: int = 1
    in_batches: bool = False
    statistics: range = range(0)
    at_once: int = 1
    side_by_side: int = 1

    def __post_init__(self) -> None:
        if self.training and not self.loss:
            raise OptionError("plan", "training needs a loss", loss=self.loss)
        for head in self.heads:
            head.loss.check(head.shape)
        # NOTE: the dataclass is frozen; so is what it is told to hold.
        object.__setattr__(self, "batch_size", check_count("plan", "batch_size", self.batch_size))
        object.__setattr__(self, "parameters", self.parameters or parameter_table(self.graph))
        tuning = self.tuning or Tuning()
        object.__setattr__(self, "tuning", replace(tuning, model=tuning.model.part(self.side_by_side)))
        if self.training and self.parameters.type != FLOAT32:
            raise PlanError("parameters", "what is trained must be float32", type=self.parameters.type.name)

    @property
    def of_shard(self) -> int:
        """Samples of a shard."""
        return self.batch_size // self.at_once

    @property
    def changing_parameters(self) -> int:
        """Elements of the parameters that may be others for the next batch, which lie in front of all others."""
        return self.parameters.trainable_elements if self.training and not self.in_batches else 0

    @property
    def cache_key(self) -> str:
        """The request as text, without its parameters and the device."""
        return repr([getattr(self, item.name) for item in fields(Request) if item.name not in ("parameters", "tuning")])

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The inputs of the network."""
        return entries_of(self.graph, self.sample_type, self.augmented, self.policy_steps)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The outputs of the network with their losses, where there are any."""
        return heads_of(self.graph, self.loss)

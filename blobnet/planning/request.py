"""What a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass, field

from blobnet.ends import Entry, Head, Losses, entries_of, heads_of
from blobnet.graph import Graph
from blobnet.kernel_call import Tuning
from blobnet.parameters import ParameterTable


@dataclass(frozen=True)
class Request:
    """What a plan is made for, and so what every pass may read.

    Attributes:
        graph: what to plan.
        batch_size: the most samples at once.
        parameters: where the parameters lie, and which of them are trained.
        loss: what to measure at the output, or at each of several outputs; training needs that.
        training: whether to plan the backward pass too.
        tuning: values for the kernels' tunables.
        input_delta: also compute dL/d input.
        sample_type: NumPy's name for the type of the samples that enter the network, or one for each of its inputs.
        augmented: whether samples change on their way in, by rows that are fed to ``augmentation`` for every batch; the
            name of the input where there are several.
        share: let blobs share memory (concat, in place); without it every join is an explicit copy.
        reuse: give memory that is no longer needed to later blobs.
        shards: of a step, whose batch norms are over all of them; 1: batch norms are over a batch.
        every_halo: have the zeros that any of a layer's kernels reads, not only those for the ones that were chosen.
    """

    graph: Graph
    batch_size: int
    parameters: ParameterTable
    loss: Losses = None
    training: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    input_delta: bool = False
    sample_type: str | tuple[str, ...] = "float32"
    augmented: bool | str = False
    share: bool = True
    reuse: bool = True
    every_halo: bool = False
    shards: int = 1

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The inputs of the network."""
        return entries_of(self.graph, self.sample_type, self.augmented)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The outputs of the network with their losses, where there are any."""
        return heads_of(self.graph, self.loss)

"""What a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass, field

from blobnet.graph import Graph
from blobnet.kernel_call import Tuning
from blobnet.losses import Loss
from blobnet.parameters import ParameterTable


@dataclass(frozen=True)
class Request:
    """What a plan is made for, and so what every pass may read.

    Attributes:
        graph: what to plan.
        batch_size: the most samples at once.
        parameters: where the parameters lie, and which of them are trained.
        loss: what to measure at the output; training needs one.
        training: whether to plan the backward pass too.
        tuning: values for the kernels' tunables.
        input_delta: also compute dL/d input.
        sample_type: NumPy's name for the type of the samples that enter the network.
        augmented: whether samples change on their way in, by rows that are fed to ``augmentation`` for every batch.
        share: let blobs share memory (concat, in place); without it every join is an explicit copy.
        reuse: give memory that is no longer needed to later blobs.
        every_halo: have the zeros that any of a layer's kernels reads, not only those for the ones that were chosen.
    """

    graph: Graph
    batch_size: int
    parameters: ParameterTable
    loss: Loss | None = None
    training: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    input_delta: bool = False
    sample_type: str = "float32"
    augmented: bool = False
    share: bool = True
    reuse: bool = True
    every_halo: bool = False

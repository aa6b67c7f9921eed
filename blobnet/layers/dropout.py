"""Dropout, of single values and of whole samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.elementwise import EpilogueOp
from blobnet.launch.kernel_call import Blob, GlobalSize, KernelCall, Tuning, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import row_group
from blobnet.layers.base import ALIKE, Layer, LayerContext, Placement, Placements, TakesCells
from blobnet.memory.blob import Shape

#: Blocks of elements that a CPU's work-item should have, so that starting it does not cost more than its work.
_BLOCKS_OF_A_WORK_ITEM = 8


@dataclass(frozen=True)
class Dropout(Layer):
    """Inverted dropout: in training, values are set to 0 with the probability ``rate``, and the others are scaled.

    output = kept ? input / (1 - rate) : 0. In inference the output is the input, and nothing is launched (Srivastava et
    al., *Dropout: A Simple Way to Prevent Neural Networks from Overfitting*, 2014). Shapes: any, unchanged.

    Which values are kept follows from the seed, the step, the layer's place in the model, the sample and the position
    alone (Philox4x32-10; Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, 2011): the backward pass makes
    the same mask again, nothing is stored, and the device and the memory layout make no difference.

    Args:
        rate: the probability that a value is dropped, from 0 to below 1.

    Raises:
        OptionError: a rate out of its range.
    """

    rate: float
    #: Whether all values of a sample go together.
    is_whole: ClassVar[bool] = False
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        self._require(is_number and 0 <= self.rate < 1, "rate must be at least 0 and below 1", rate=self.rate)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        lies = Placement.IN_PLACE if training else Placement.SHARED
        return Placements(lies, lies)

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        return None if site.training else ()

    def forward(self, site: LayerContext) -> list[KernelCall]:
        if not site.training:
            return site.copied_input(0, site.output)
        blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
        return [
            self._call(
                "dropout/forward", f"{site.name} forward", site, blobs, {"IN_PLACE": int(site.inputs[0] == site.output)}
            )
        ]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None or not site.training:
            return site.copied_delta(0, site.delta)
        blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target}
        macros: dict[str, Macro] = {"IN_PLACE": int(site.delta == target), "ACCUMULATE": int(site.accumulate[0])}
        return [self._call("dropout/backward", f"{site.name} backward data", site, blobs, macros)]

    def _call(
        self, kernel: str, label: str, site: LayerContext, blobs: dict[str, Blob], macros: dict[str, Macro]
    ) -> KernelCall:
        tunables = site.tuning.of(kernel)
        blocks = -(-site.output.layout.shape.elements // (4 * tunables["LANES"]))
        size, local = _block_work(blocks, site.tuning)
        return KernelCall(
            kernel,
            label,
            size,
            blobs=blobs,
            arrays={"STEP": site.shared("step")},
            macros={
                "THRESHOLD": f"{min(2**32 - 1, round(self.rate * 2**32))}U",
                "SCALE": float(1 / (1 - self.rate)),
                "ORDINAL": site.ordinal,
                "WHOLE": int(self.is_whole),
                **macros,
            },
            tunables=tunables,
            local_size=local,
        )


@dataclass(frozen=True)
class StochasticDepth(Dropout):
    """In training, whole samples are set to 0 with the probability ``rate``, and the others are scaled.

    For the end of a branch that is added to what it reads: it is left out then. Otherwise as :class:`Dropout`; a sample
    goes by the random word of its first value (Huang et al., *Deep Networks with Stochastic Depth*, 2016, with the
    scaling in training). Shapes: any, unchanged.

    Args:
        rate: the probability that a sample is dropped, from 0 to below 1.

    Raises:
        OptionError: a rate out of its range.
    """

    is_whole: ClassVar[bool] = True

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE


def _block_work(blocks: int, tuning: Tuning) -> tuple[GlobalSize, tuple[int, int, int] | None]:
    """Work-items for the blocks of a sample: several blocks each on a CPU, one each on a GPU."""
    if not tuning.model.is_simt:
        return GlobalSize(-(-blocks // _BLOCKS_OF_A_WORK_ITEM)), None
    group = row_group(tuning.model, blocks)
    return GlobalSize(rounded_up(blocks, group[0])), group

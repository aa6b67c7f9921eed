"""The loss Expression."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from blobnet.contraction import Function, function
from blobnet.contraction import calls as compiled
from blobnet.contraction.form import Program
from blobnet.contraction.training import passes
from blobnet.errors import ContractionError, OptionError, ShapeError
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.layers.lowered import spelled_out
from blobnet.losses.base import LOSS_SCALE, Loss
from blobnet.memory.blob import Shape

#: Charbonnier's loss, whose reference is ``blobnet.examination.reference.losses.expression``.
CHARBONNIER = """function (P[N, C, ...], T[N, C, ...]) -> (L) {
  L[n] = +(sqrt((P[n, c, ...] - T[n, c, ...]) * (P[n, c, ...] - T[n, c, ...]) + 0.25) / (C * Y * X));
}"""


@dataclass(frozen=True)
class Expression(Loss):
    """A loss that a text of the contraction language gives (docs/contractions.md); its derivative follows from it.

        losses.Expression(
            "function (P[N, C], T[N, C]) -> (L) { L[n] = +(abs(P[n, c] - T[n, c]) / C); }"
        )

    The function's inputs are the model's output and the targets, of the output's shape; its output is one value for
    each sample, whose mean is the loss. Samples have weights as with other losses.

    Args:
        text: of the function, with a head; ``...`` stands for ``y, x``, of the size 1 where the output has fewer axes,
            and for ``z, y, x`` where it has more.
        sizes: whole numbers for names that are the size of no input.

    Raises:
        ContractionError: the text is none of the language.
        OptionError: the text has no head, or not two inputs and one output.
    """

    text: str
    sizes: Any = ()
    takes_pairs: ClassVar[bool] = False
    kernel: ClassVar[str] = "loss/expression"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(dict(self.sizes).items())))
        function = self._function()
        heads = function.heads
        rule = (
            "the text must have a head with two inputs, output and targets, each with the samples and what is of one, "
            "and one output"
        )
        fits = len(heads) == 2 and all(sizes and len(sizes) > 1 for sizes in heads.values())
        if not fits or len(function.outputs) != 1:
            raise OptionError("Expression", rule, inputs=heads, outputs=function.outputs)

    @classmethod
    def examples(cls) -> tuple[Expression, ...]:
        return (cls(CHARBONNIER),)

    def _function(self, rank: int = 2) -> Function:
        return function(spelled_out(self.text, rank), **dict(self.sizes))

    def check(self, output: Shape) -> None:
        try:
            (loss,) = self._program(output, 2).outputs
        except ContractionError as error:
            wrapped = ShapeError("Expression", "the text must fit the model's output", output=output)
            wrapped.args = (f"{wrapped}\n{error}",)
            raise wrapped from error
        if loss.shape != (2,):
            raise ShapeError("Expression", "the text must give one value for each sample", output=output)

    def _program(self, output: Shape, samples: int) -> Program:
        # A blob does not know that there is a depth where it is 1; what speaks of Z takes one.
        function = self._function(3 if re.search(r"\bZ\b", self.text) else max(2, output.rank))
        shapes = {}
        for name, sizes in function.heads.items():
            hidden = len(output.axes) - (len(sizes or ()) - 2)  # Outer axes of one value that the text leaves out.
            shapes[name] = (samples, output.units, *output.axes[hidden:])
            if math.prod(shapes[name]) != samples * output.elements:
                shapes[name] = (samples, *output.dimensions)  # The error says which axes there are.
        return function.program(**shapes)

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        own = {"losses": (0, 1), "loss_deltas": (0, 1), "sample_metrics": (0, self.SAMPLE_METRICS)}
        return {**super().memory(output), **own}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        program = self._program(output.shape, batch_size)
        values, targets = program.inputs
        steps = passes(program, [values.name] if delta else [])

        def memory(name: str, elements: int, per_sample: int) -> Array:
            return Array(f"loss/{name}", elements, per_sample)

        operands: dict[str, Blob | Array] = {
            values.name: output,
            targets.name: self._array("labels", output.shape),
            program.outputs[0].name: self._array("losses", output.shape),
            steps.deltas[program.outputs[0].name]: self._array("loss_deltas", output.shape),
            **{
                tensor.name: memory(tensor.name, 0, tensor.elements // batch_size)
                for tensor in steps.forward.outputs[1:]
            },
        }
        if delta:
            operands[steps.deltas[values.name]] = delta
        context = compiled.Context("Expression loss", batch_size, memory, tuning)
        parts = [compiled.calls(part, operands, context) for part in (steps.forward, *steps.gradients)]
        scale = self._scale(output.shape, delta, tuning)
        metrics = KernelCall(
            self.kernel,
            "Expression loss metrics",
            GlobalSize(1),
            arrays={
                name.upper(): self._array(name, output.shape)
                for name in ("sample_weights", "losses", "loss_deltas", "sample_metrics")
            }
            | {"LOSS_SCALE": scale},
            macros={"METRICS": self.SAMPLE_METRICS, "HAS_LOSS_SCALE": int(scale.storage == LOSS_SCALE)},
        )
        made = [*parts[0], metrics, *(call for part in parts[1:] for call in part), self._total(output.shape, 1)]
        return [replace(call, owner=self) for call in made]

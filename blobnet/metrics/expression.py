"""Metrics written in the contraction language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blobnet.contraction import Function, function
from blobnet.errors import OptionError
from blobnet.metrics.types import Labels, Scores


@dataclass(frozen=True)
class Expression:
    """A metric that a text of the contraction language gives (docs/contractions.md), in float64 on the host.

        metrics.Expression("function (P[N, C], T[N, C]) -> (M) { M[n] = >(abs(P[n, c] - T[n, c])); }", "worst")

    The function's inputs are the scores and the labels, as other metrics get them; the metric is the mean over all that
    its output has.

    Args:
        text: of the function, with a head.
        name: what the metric is called.
        sizes: whole numbers for names that are the size of no input.

    Raises:
        ContractionError: the text is none of the language; when called, labels and scores do not fit it.
        OptionError: the text has not two inputs and one output.
    """

    text: str
    name: str = "expression"
    sizes: Any = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(dict(self.sizes).items())))
        found = self._function
        if len(found.inputs) != 2 or len(found.outputs) != 1:
            rule = "the text must have two inputs, scores and labels, and one output"
            raise OptionError(f"metric {self.name}", rule, inputs=found.inputs, outputs=found.outputs)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def _function(self) -> Function:
        return function(self.text, **dict(self.sizes))

    def __call__(self, labels: Labels, scores: Scores) -> float:
        found = self._function
        result = found.reference(**dict(zip(found.inputs, (scores, labels), strict=True)))
        return float(result[found.outputs[0]].mean())

"""Test-time augmentation: a network whose outputs are means over views of a sample, as a graph of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from blobnet.errors import OptionError
from blobnet.layers import Activation, Add, Contraction, Input, Node
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph

#: Outputs of which a loss says whether it makes probabilities of them.
_NOTHING = np.zeros((1, 1), np.float32)
#: Keeps logarithms of probabilities finite: the least of float32.
_LEAST = "1.2e-38"


class _View(NamedTuple):
    """A view of a sample: moved down and right by cells, then mirrored along the height or the width."""

    is_flipped: tuple[bool, bool] = (False, False)
    shift: tuple[int, int] = (0, 0)

    def of(self, node: Node) -> Node:
        """Return the view of planes; zeros come from outside. One that is mirrored alone is its own way back."""
        if self == _View():
            return node
        indexes = [
            f"{f'{size} - 1 - ' if flipped else ''}{index} - {shift}"
            for size, index, flipped, shift in zip("YX", "yx", self.is_flipped, self.shift, strict=True)
        ]
        read = f"I[n, c, {', '.join(indexes)}]"
        text = f"function (I[N, C, Y, X]) -> (O) {{ O[n, c, y, x : N, C, Y, X] = +({read}); }}"
        return Contraction(text)(node)


def words_of(tta: Any) -> tuple[str, ...]:
    """Return the words of test-time augmentation from a list of them or from a text: ``"flip, shift=1"``."""
    words = tta.split(",") if isinstance(tta, str) else tta
    if (
        not isinstance(words, Iterable)
        or not (words := tuple(words))
        or not all(isinstance(word, str) for word in words)
    ):
        raise OptionError("tta", "it must be words in a text, or a list of them", tta=tta, hint="tta='flip', say.")
    return tuple(word.strip() for word in words)


def averaged(
    graph: Graph, weights: Mapping[str, FloatArray], losses: Sequence[Loss], tta: Sequence[str]
) -> tuple[dict[str, Node], dict[str, Node]]:
    """Return the input and the outputs of the network of means, by the names that they have in the network.

    Probabilities are averaged where a loss takes logits: an output is then the logarithm (of several labels the logit)
    of the mean, so that the loss makes probabilities of it as before. Other outputs are averaged themselves.

    Args:
        graph: the network.
        weights: of now.
        losses: of its outputs.
        tta: words.

    Raises:
        OptionError: an unknown word, or what cannot have such views.
    """
    views = _views(tta)
    inputs = list(graph.inputs.values())
    if len(inputs) != 1 or inputs[0].shape.rank != 2:
        shapes = ", ".join(str(vertex.shape) for vertex in inputs)
        raise OptionError("tta", "the model must have one input, of pictures with a height and a width", inputs=shapes)
    (source,) = inputs
    most = max(abs(cells) for view in views for cells in view.shift)
    if most >= min(source.shape.height, source.shape.width):
        rule = "shifts must be less than the height and the width of the pictures"
        raise OptionError("tta", rule, shift=most, input=source.shape)
    for (name, vertex), loss in zip(graph.outputs.items(), losses, strict=True):
        if loss.takes_boxes or vertex.shape.rank not in (0, 2):
            rule = "answers of boxes and volumes are not moved back"
            raise OptionError("tta", rule, output=name, shape=vertex.shape, loss=loss)
        if vertex.shape.rank and any(any(view.shift) for view in views):
            rule = "answers for each position are not moved back by cells: their edges would have no answer"
            raise OptionError("tta", rule, output=name, shape=vertex.shape, hint="flip does for these.")
    entry = Input.of(source.shape, name=source.name)()
    own = {name: weights[source.parameter(name)] for name in ("mean", "deviation")}
    entry = replace(entry, weights=own)
    seen: dict[str, list[Node]] = {name: [] for name in graph.outputs}
    for view in views:
        # Behind the input layer, where zeros are the mean.
        nodes = graph.nodes(weights, fed={source.name: view.of(entry)})
        for name, vertex in graph.outputs.items():
            node = nodes[vertex.name]
            seen[name].append(view.of(node) if vertex.shape.rank else node)
    means = {name: _mean(nodes, loss) for (name, nodes), loss in zip(seen.items(), losses, strict=True)}
    return dict.fromkeys(graph.inputs, entry), means


def _views(words: Sequence[str]) -> list[_View]:
    flips: list[list[bool]] = [[False], [False]]
    shifts = [(0, 0)]
    for word in words:
        found = re.fullmatch(r"(flip|vflip)|shift\s*=\s*([1-9]\d*)", word)
        if found is None:
            hint = "flip (left for right), vflip (top for bottom), shift=1 (so many cells to each corner)."
            raise OptionError("tta", "every word must be that of a view", word=repr(word), hint=hint)
        if found[1]:
            flips[found[1] == "flip"] = [False, True]
        else:
            shifts += [(down * int(found[2]), right * int(found[2])) for down in (-1, 1) for right in (-1, 1)]
    return [_View((down, right), shift) for shift in shifts for down, right in itertools.product(*flips)]


def _mean(outputs: list[Node], loss: Loss) -> Node:
    """Return the mean of the views' outputs, of the kind that the loss takes."""
    count = len(outputs)

    def total(nodes: list[Node]) -> Node:
        return Add()(nodes) if count > 1 else nodes[0]

    if loss.takes_classes:
        text = f"function (S[N, C, ...]) -> (O) {{ O = log(S / {count} + {_LEAST}); }}"
        sums = [total([Activation("softmax")(node) for node in outputs])]
    elif loss.scores(_NOTHING) is not None:
        text = f"function (S[N, C, ...], R[N, C, ...]) -> (O) {{ O = log(S + {_LEAST}) - log(R + {_LEAST}); }}"
        negative = "function (S[N, C, ...]) -> (O) { O = 0 - S; }"
        others = [Contraction(negative)(node) for node in outputs]
        sums = [total([Activation("sigmoid")(node) for node in nodes]) for nodes in (outputs, others)]
    else:
        text, sums = f"function (S[N, C, ...]) -> (O) {{ O = S / {count}; }}", [total(outputs)]
    return Contraction(text)(sums)

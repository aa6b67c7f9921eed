"""Statements that are convolutions by their maps, whoever wrote them: what implementations can compute of a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from blobnet.contraction.form import Affine, Apply, Read, Statement, Tensor
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.memory.blob import Halo
from blobnet.memory.windows import WindowAxis, halo_of_delta, halo_of_input

#: Axes of samples and units, before the spatial ones.
_LEADING = 2


@dataclass(frozen=True)
class Convolution:
    """A statement that makes one of a convolution's input, output and weights of the other two.

    Attributes:
        direction: which one: FORWARD the output, BACKWARD_DATA the input, BACKWARD_WEIGHTS the weights.
        input, output: (samples, units, 1 or 2 spatial axes).
        weight: (output units, input units of a group, taps); the taps may be left out where there is one.
        groups: groups of units.
        vertical, horizontal: the window over the input.
    """

    direction: str
    input: Tensor
    output: Tensor
    weight: Tensor
    groups: int
    vertical: WindowAxis
    horizontal: WindowAxis

    @property
    def result(self) -> Tensor:
        """The tensor that the statement makes."""
        return {FORWARD: self.output, BACKWARD_DATA: self.input, BACKWARD_WEIGHTS: self.weight}[self.direction]

    @property
    def source(self) -> Tensor:
        """Of the input and the output the one around which zeros are read."""
        return self.output if self.direction == BACKWARD_DATA else self.input

    @property
    def halo(self) -> Halo:
        """The zeros around the source that kernels read."""
        height, width = (1, *self.input.shape[_LEADING:])[-2:]
        find = halo_of_delta if self.direction == BACKWARD_DATA else halo_of_input
        return find(self.vertical, self.horizontal, height, width)


@lru_cache(4096)
def convolution_of(statement: Statement) -> Convolution | None:
    """The convolution that a statement is by its maps; None if it is none."""
    product = statement.expression
    if statement.aggregation != "+" or not isinstance(product, Apply) or product.function != "multiply":
        return None
    factors = [item for item in product.arguments if isinstance(item, Read)]
    reads = [statement.output, *factors]
    if len(factors) != 2 or len({read.tensor.name for read in reads}) != 3 or not all(read.map for read in reads):
        return None
    sample = {read.map[0] for read in reads if sum(other.map[0] == read.map[0] for other in reads) == 2}
    if len(sample) != 1 or any(form != _index_of(form) for form in sample):
        return None
    blobs = [read for read in reads if read.map[0] in sample]
    weight = next(read for read in reads if read.map[0] not in sample)
    for input_, output in (blobs, blobs[::-1]):
        windows = _windows(statement, input_, output, weight)
        if windows:
            direction = {input_: BACKWARD_DATA, output: FORWARD, weight: BACKWARD_WEIGHTS}[statement.output]
            groups = input_.tensor.shape[1] // weight.tensor.shape[1]
            return Convolution(direction, input_.tensor, output.tensor, weight.tensor, groups, *windows)
    return None


def _windows(statement: Statement, input_: Read, output: Read, weight: Read) -> tuple[WindowAxis, WindowAxis] | None:
    """The window with which weights go over an input to an output, if that is what a statement's maps say."""
    rank = len(input_.map) - _LEADING
    ranks = len(output.map), len(weight.map)
    if rank not in (1, 2) or ranks not in ((rank + _LEADING, rank + _LEADING), (rank + _LEADING, _LEADING)):
        return None
    whole = [(output.map[0], output.tensor.shape[0])]  # Indexes that run over all of an axis, and its size.
    units, each = input_.tensor.shape[1], weight.tensor.shape[1]
    groups, filters = max(1, units // max(1, each)), output.tensor.shape[1]
    own, of_group = weight.map[1], filters // groups
    if units != groups * each or filters % groups or weight.map[0] != output.map[1]:
        return None
    if weight.tensor.shape[:2] != (filters, each):
        return None
    whole.append((own, each))
    if groups == 1:
        whole.append((output.map[1], filters))
        if input_.map[1] != own:
            return None
    else:
        group = input_.map[1] - own
        step = group.terms[0][1] if len(group.terms) == 1 else 0
        index = Affine.index(group.indexes[0]) if group.indexes else Affine()
        unit = output.map[1] - index * of_group
        if step != each or group != index * each:
            return None
        whole += [(index, groups), (unit, of_group)]
    windows, allowed = [WindowAxis(1)], []
    for axis in range(_LEADING, _LEADING + rank):
        place, form = output.map[axis], input_.map[axis]
        size, made = (read.tensor.shape[axis] for read in (input_, output))
        whole.append((place, made))
        stride, taps, dilation, rest = form.coefficient(*place.indexes[:1] or "?"), 1, 1, Affine()
        if len(weight.map) > _LEADING:
            tap, taps = weight.map[axis], weight.tensor.shape[axis]
            whole.append((tap, taps))
            dilation = form.coefficient(*tap.indexes[:1] or "?")
            rest = tap * dilation
        before = -form.offset
        if min(stride, dilation) < 1 or form != place * stride + rest - before:
            return None
        behind = (made - 1) * stride + dilation * (taps - 1) + 1 - size - before
        window = WindowAxis(taps, stride, dilation, (before, max(0, behind)))
        if before < 0 or window.output_size(size) != made:
            return None
        windows.append(window)
        allowed.append(input_.edges[axis])
    names = [form.indexes[0] for form, _ in whole if form == _index_of(form)]
    spans = [range(size) for _, size in whole]
    is_whole = len(set(names)) == len(whole) and [statement.box[name] for name in names] == spans
    if not is_whole or len(statement.box) != len(names) or not set(statement.constraints) <= set(allowed):
        return None
    vertical, horizontal = windows[-2:]
    return vertical, horizontal


def _index_of(form: Affine) -> Affine:
    """The first index of a form, by itself."""
    return Affine.index(*form.indexes[:1] or "?")

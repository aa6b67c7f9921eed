"""The optimizer Muon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from blobnet.errors import OptionError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, KernelCall
from blobnet.launch.kernel_source import Macro, load
from blobnet.memory.blob import FloatArray
from blobnet.network.parameters import ParameterTable
from blobnet.network.patterns import stands_for
from blobnet.optimizers.adam import bias_corrections
from blobnet.optimizers.base import _MIN_EPSILON, MAX_PIECES, Tensor, _TensorOptimizer, factors_and_rests
from blobnet.schedules import Schedule
from blobnet.support.checks import check_count

#: The memory of a step: the matrices, the same anew, their squares, the polynomials of these, and sums of squares.
_FIRST, _SECOND, _SQUARE, _POLYNOMIAL = (f"optimizer {name}" for name in ("first", "second", "square", "polynomial"))
_NORMS = "optimizer norms"
#: The sizes of matrices in memory are multiples of it, with zeros behind.
_TILE = 16
#: The stages of kernels/optimizer/muon.cl.
_MOVE, _SCALE, _MULTIPLY_SQUARE, _MULTIPLY_POLYNOMIAL, _MULTIPLY_MATRIX, _APPLY = range(6)


@dataclass(frozen=True)
class Muon(_TensorOptimizer):
    """Momentum whose singular values are all about 1, for filters; Adam for the rest (Jordan et al. 2024).

    *Muon: an optimizer for hidden layers in neural networks*.

    A filter of 3 or more dimensions is a matrix G of its outputs and all that each of them reads (as are the parameters
    that ``matrices`` name): m = momentum * m + (1 - momentum) * G;  u = (1 - momentum) * G + momentum * m
    (``nesterov``, else m);  X = u / (|u| + 1e-7), and ``iterations`` times, with A = X X^T, X = 3.4445 X + (-4.7750 A +
    2.0315 A^2) X;  W -= learning_rate * weight_decay * W, then W -= learning_rate * sqrt(max(1, rows / columns)) * X.

    Everything else (biases, norms, dense layers) takes steps of AdamW, whose learning rate is ``adam_factor`` of
    Muon's. These are the rules and the constants of the authors' ``MuonWithAuxAdam``, with the length of PyTorch's and
    timm's Muon; products are of float32, where theirs are of bfloat16.

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        momentum: from 0 to below 1.
        nesterov: look ahead along the momentum.
        iterations: of Newton and Schulz.
        matrices: patterns of names of parameters of two dimensions that are filters too: ``("block*/query", ...)``.
        adam_factor: Adam's learning rate is so many times Muon's.
        beta1: how much of the mean gradient a step of Adam keeps, from 0 to below 1.
        beta2: how much of the mean square a step of Adam keeps, from 0 to below 1.
        epsilon: keeps Adam's quotient finite.
        weight_decay: what a step takes away of the decayed parameters, as a part of the learning rate.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range, or (in training) a pattern that stands for nothing of two dimensions.
    """

    learning_rate: float | Schedule | Callable[[int], float] = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    matrices: Sequence[str] = ()
    adam_factor: float = 0.015
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-10
    kernel: ClassVar[str] = "optimizer/muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "beta1", "beta2"):
            self._check(name, least=0, below=1)
        self._check("epsilon", least=_MIN_EPSILON)
        self._check("adam_factor", least=0)
        check_count(self._subject, "iterations", self.iterations)
        if not isinstance(self.nesterov, bool):
            raise OptionError(self._subject, "nesterov must be True or False", nesterov=repr(self.nesterov))
        given: Any = [self.matrices] if isinstance(self.matrices, str) else self.matrices
        if not isinstance(given, Sequence) or not all(isinstance(item, str) for item in given):
            raise OptionError(self._subject, "matrices must be patterns of names", matrices=repr(self.matrices))
        object.__setattr__(self, "matrices", tuple(given))

    @classmethod
    def examples(cls) -> tuple[Muon, ...]:
        return (cls(weight_decay=0.1), cls(nesterov=False))

    def config(self) -> dict[str, Any]:
        return super().config() | {"matrices": list(self.matrices)}

    def _roles(self) -> dict[str, str | None]:
        return {"FIRST_MOMENT": "first_moment", "SECOND_MOMENT": "second_moment"}

    def _macros(self) -> dict[str, Macro]:
        return {
            "MOMENTUM_FACTOR": float(self.momentum),
            "ONE_MINUS_MOMENTUM": 1.0 - self.momentum,
            "NESTEROV": int(self.nesterov),
            **factors_and_rests(BETA1=self.beta1, BETA2=self.beta2),
            "EPSILON": float(self.epsilon),
        }

    def step_values(self, step: int, learning_rate: float) -> FloatArray:
        """The learning rates of Muon and Adam, and the bias corrections 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
        values = super().step_values(step, learning_rate)
        values[1] = self.adam_factor * learning_rate
        values[2:4] = np.reciprocal(bias_corrections(step, self.beta1, self.beta2))
        return values

    # -- matrices ----------------------------------------------------------------------------------------------------

    def is_matrix(self, tensor: Tensor) -> bool:
        """Return True if a parameter is a filter, or one of those that ``matrices`` name."""
        named = any(stands_for(pattern, tensor.name) for pattern in self.matrices)
        return len(tensor.shape) > 2 or (len(tensor.shape) == 2 and named)

    def _check_matrices(self, tensors: Sequence[Tensor]) -> None:
        for pattern in self.matrices:
            if not any(stands_for(pattern, tensor.name) and self.is_matrix(tensor) for tensor in tensors):
                rule = "every pattern of matrices must stand for trained parameters of two dimensions or more"
                raise OptionError(self._subject, rule, pattern=repr(pattern))

    def row(self, tensor: Tensor) -> Sequence[int]:
        rows, columns = _sizes(tensor) if self.is_matrix(tensor) else (0, 0)
        return tensor.offset, tensor.elements, tensor.group, int(tensor.decays), rows, columns

    def memory(self, table: ParameterTable, *, scaled: bool = False) -> dict[str, int]:
        sizes = [_padded(tensor) for tensor in self.tensors(table) if self.is_matrix(tensor)]
        matrices, squares = sum(math.prod(size) for size in sizes), sum(narrow**2 for _, narrow in sizes)
        more = {_FIRST: matrices, _SECOND: matrices, _SQUARE: squares, _POLYNOMIAL: squares}
        more[_NORMS] = MAX_PIECES * len(self.tensors(table))
        return super().memory(table, scaled=scaled) | {name: max(1, elements) for name, elements in more.items()}

    def _steps(self, table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
        tensors, memory = self.tensors(table), self.memory(table)
        self._check_matrices(tensors)
        sizes = [_padded(tensor) for tensor in tensors if self.is_matrix(tensor)]
        tunables = load(self.kernel).tuning(model)
        tile = tunables["TILE_ROWS"] * tunables["LANES"]
        of_squares = sum(narrow**2 for _, narrow in sizes) // tile
        of_matrices = sum(math.prod(size) for size in sizes) // tile

        def call(stage: int, label: str, first: str, second: str, width: int | None = None) -> KernelCall:
            named = {"MATRIX": first, "RESULT": second, "SQUARE": _SQUARE, "POLYNOMIAL": _POLYNOMIAL, "NORMS": _NORMS}
            arrays = {role: Array(storage, memory[storage], persistent=True) for role, storage in named.items()}
            return self._over_tensors(table, model, f"Muon {label}", arrays, width, STAGE=stage)

        first, second = _FIRST, _SECOND
        calls = [call(_MOVE, "momentum", second, first)]
        if sizes:
            calls.append(call(_SCALE, "norm", second, first))
            for _ in range(self.iterations):
                calls += [
                    call(_MULTIPLY_SQUARE, "square", first, second, of_squares),
                    call(_MULTIPLY_POLYNOMIAL, "polynomial", first, second, of_squares),
                    call(_MULTIPLY_MATRIX, "matrix", first, second, of_matrices),
                ]
                first, second = second, first
            calls.append(call(_APPLY, "step", first, second))
        return calls


def _sizes(tensor: Tensor) -> tuple[int, int]:
    """Return the rows and columns of a matrix: outputs, and all that one of them reads."""
    return tensor.shape[0], math.prod(tensor.shape[1:])


def _padded(tensor: Tensor) -> tuple[int, int]:
    """Return the larger and the smaller size of a matrix as it lies in memory."""
    large, small = sorted(_sizes(tensor), reverse=True)
    return -(-large // _TILE) * _TILE, -(-small // _TILE) * _TILE

"""The base of optimizers: one launch over all parameters, clipping, descriptions in files."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from blobnet.errors import OptionError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, group_size, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import FloatArray
from blobnet.network.parameters import ParameterGroup, ParameterTable
from blobnet.schedules import Constant, Custom, Schedule
from blobnet.support.checks import check_number
from blobnet.support.kinds import Kind

#: Numbers that the trainer writes before each step: :meth:`Optimizer.step_values`.
HYPERPARAMETERS = "optimizer hyperparameters"
HYPERPARAMETER_COUNT = 8
#: The factor that clipping multiplied the last step's gradients by.
CLIP_SCALE = "optimizer clip_scale"
_CLIP_PARTIALS = "optimizer clip_partials"
#: The most sums that a sum of squares is split into.
MAX_PARTIALS = 256
#: Vectors that a CPU's work-item sums in a row, and their lanes.
_SUM_RUN, _SUM_LANES = 512, 8
#: Work-items of a work-group, and the most of a launch, on a GPU.
_GROUP, _MAX_ITEMS = 256, 1 << 18
#: Below it, epsilon would be 0 in float32, and 0 / 0 stand in the place of zeros.
_MIN_EPSILON = 1e-30


_Own = TypeVar("_Own", bound="Optimizer")


@dataclass(frozen=True)
class Optimizer(Kind):
    """Base of all optimizers: hyperparameters, the memory to allocate, and the calls of a step. Knows no device.

    A trainer allocates :meth:`memory`, zeroed; before every step it writes :meth:`step_values` to HYPERPARAMETERS; it
    launches :meth:`calls`; and it saves and restores :attr:`state_slots`.
    """

    learning_rate: float | Schedule | Callable[[int], float]
    weight_decay: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    rates: Mapping[str, float] | Sequence[tuple[str, float]] = field(default=(), kw_only=True)

    kinds: ClassVar[dict[str, type[Optimizer]]] = {}
    noun: ClassVar[str] = "optimizer"
    #: The kernel of a step.
    kernel: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if callable(self.learning_rate):
            # NOTE: the dataclass is frozen; so is what it is told to hold.
            object.__setattr__(self, "learning_rate", Custom(self.learning_rate))
        if not isinstance(self.learning_rate, Schedule):
            self._check("learning_rate", least=0)
        self._check("weight_decay", least=0)
        if self.clip_norm is not None:
            self._check("clip_norm", above=0)
        object.__setattr__(self, "rates", self.factors)

    @property
    def factors(self) -> tuple[tuple[str, float], ...]:
        """Patterns of names (blobnet/network/patterns.py), and what they multiply the learning rate by: the first that
        matches.

        Raises:
            OptionError: ``rates`` are something else.
        """
        pairs: Any = self.rates.items() if isinstance(self.rates, Mapping) else self.rates
        try:
            factors = tuple((pattern, float(factor)) for pattern, factor in pairs)
            fits = all(isinstance(pattern, str) and 0 < factor < math.inf for pattern, factor in factors)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            rule = "rates must map patterns of names to finite factors above 0"
            hint = "{'head/*': 1.0, '*': 0.1}, say; freeze what should not learn at all."
            raise OptionError(self._subject, rule, rates=self.rates, hint=hint)
        return factors

    @property
    def _subject(self) -> str:
        return type(self).__name__

    def _check(
        self, name: str, *, least: float | None = None, above: float | None = None, below: float | None = None
    ) -> None:
        check_number(self._subject, name, getattr(self, name), least=least, above=above, below=below)

    @property
    def schedule(self) -> Schedule:
        """The learning rate as a schedule; a number stands for a constant one."""
        rate = self.learning_rate
        return rate if isinstance(rate, Schedule) else Constant(rate)  # type: ignore[arg-type]

    def config(self) -> dict[str, Any]:
        """The arguments that build an equal optimizer, as plain data (JSON); a schedule becomes its description."""
        config = super().config()
        if isinstance(self.learning_rate, Schedule):
            config["learning_rate"] = self.learning_rate.description()
        # NOTE: an optimizer without rates is described as in files that were written before there were any.
        del config["rates"]
        return config | ({"rates": [list(pair) for pair in self.factors]} if self.rates else {})

    @classmethod
    def _from_config(cls: type[_Own], config: dict[str, Any], subject: str) -> _Own:
        if isinstance(config.get("learning_rate"), Mapping):
            config["learning_rate"] = Schedule.from_description(config["learning_rate"], subject)
        return cls(**config)

    # -- what subclasses say -----------------------------------------------------------------------------------------

    @property
    def state_slots(self) -> tuple[str, ...]:
        """Vectors that the optimizer keeps from step to step, one value for each trainable element."""
        return tuple(slot for slot in self._roles().values() if slot)

    @abstractmethod
    def _roles(self) -> dict[str, str | None]:
        """The kernel's roles for state, each with its slot, or None where this optimizer does without it."""

    @abstractmethod
    def _macros(self) -> dict[str, Macro]:
        """Macros of the kernel, besides those of all optimizers."""

    def step_values(self, step: int, learning_rate: float) -> FloatArray:
        """Return the values of HYPERPARAMETERS that depend on the step: the learning rate, and what the optimizer adds.

        Args:
            step: steps done before this one, over the whole training.
            learning_rate: of this step: ``schedule.value(step, ...)``.
        """
        values = np.zeros(HYPERPARAMETER_COUNT, np.float32)
        values[0] = learning_rate
        return values

    def hyperparameters(self, table: ParameterTable, step: int, learning_rate: float) -> FloatArray:
        """:meth:`step_values` for each group of parameters, as they lie in HYPERPARAMETERS."""
        factors = [group.factor for group in table.groups] or [1.0]
        return np.concatenate([self.step_values(step, learning_rate * factor) for factor in factors])

    # -- memory and calls --------------------------------------------------------------------------------------------

    @staticmethod
    def storage(slot: str) -> str:
        """The storage that holds a state slot."""
        return f"optimizer {slot}"

    def memory(self, table: ParameterTable) -> dict[str, int]:
        """Elements of each float32 buffer that a trainer must allocate, by storage."""
        buffers = {self.storage(slot): max(1, table.trainable_elements) for slot in self.state_slots}
        buffers[HYPERPARAMETERS] = HYPERPARAMETER_COUNT * max(1, len(table.groups))
        if self.clip_norm is not None:
            buffers |= {_CLIP_PARTIALS: MAX_PARTIALS, CLIP_SCALE: 1}
        return buffers

    def calls(self, table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
        """The calls of one step: with clipping first those that find its factor, then one over each group."""
        if not table.trainable_elements:
            return []
        clipping = self._clipping(table, model) if self.clip_norm is not None else []
        steps = [self._step(part, number, model) for number, part in enumerate(table.groups)]
        return [replace(call, owner=self) for call in clipping + steps]

    def _step(self, part: ParameterGroup, number: int, model: DeviceModel) -> KernelCall:
        def of_part(storage: str) -> Array:
            return _array(storage, part.elements, part.offset)

        gradients = of_part("gradients")
        hyperparameters = _array(HYPERPARAMETERS, HYPERPARAMETER_COUNT, number * HYPERPARAMETER_COUNT)
        tunables = kernel_source.load(self.kernel).tuning(model)
        runs = -(-part.elements // (tunables["RUN"] * tunables["LANES"]))
        group = group_size(model, _GROUP) if model.is_simt else 1
        # NOTE: a kernel takes no null array; a role that this optimizer does without is bound to the gradients, and not
        # touched.
        states = {role: of_part(self.storage(slot)) if slot else gradients for role, slot in self._roles().items()}
        return KernelCall(
            self.kernel,
            f"{self._subject} step",
            GlobalSize(min(rounded_up(runs, group), _MAX_ITEMS), per_sample=False),
            arrays={
                "PARAMETERS": of_part("parameters"),
                "GRADIENTS": gradients,
                **states,
                "HYPERPARAMETERS": hyperparameters,
                "CLIP_SCALE": _array(CLIP_SCALE, 1) if self.clip_norm is not None else hyperparameters,
                "TOTALS": _array("totals", 1),
            },
            macros={
                "TRAINABLE_ELEMENTS": part.elements,
                "DECAYED_ELEMENTS": part.decayed_elements if self.weight_decay else 0,
                "WEIGHT_DECAY": float(self.weight_decay),
                "HAS_CLIPPING": int(self.clip_norm is not None),
                **self._macros(),
            },
            tunables=tunables,
            local_size=(group, 1, 1),
        )

    def _clipping(self, table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
        assert self.clip_norm is not None
        gradients, partials = _array("gradients", table.trainable_elements), _array(_CLIP_PARTIALS, MAX_PARTIALS)
        squares = squares_call(gradients, partials, model, "gradient norm")
        macros: dict[str, Macro] = {"PARTIALS": squares.groups, "CLIP_NORM": float(self.clip_norm)}
        arrays = {"CLIP_PARTIALS": partials, "CLIP_SCALE": _array(CLIP_SCALE, 1)}
        size = GlobalSize(1, per_sample=False)
        return [squares, KernelCall("optimizer/clip_scale", "gradient clipping", size, arrays=arrays, macros=macros)]


def squares_call(values: Array, partials: Array, model: DeviceModel, label: str) -> KernelCall:
    """The call that leaves sums of squares in the first ``partials``, one a work-group: at most MAX_PARTIALS."""
    # NOTE: not tunables, since a sum's order changes its last bits.
    run, lanes, group = (1, 1, group_size(model, _GROUP)) if model.is_simt else (_SUM_RUN, _SUM_LANES, 1)
    groups = min(-(-values.elements // (run * lanes * group)), MAX_PARTIALS)
    return KernelCall(
        "optimizer/sum_of_squares",
        label,
        GlobalSize(groups * group, per_sample=False),
        arrays={"GRADIENTS": values, "CLIP_PARTIALS": partials},
        macros={"TRAINABLE_ELEMENTS": values.elements, "RUN": run, "LANES": lanes},
        local_size=(group, 1, 1),
    )


def _array(storage: str, elements: int, offset: int = 0) -> Array:
    return Array(storage, elements, offset=offset, persistent=True)

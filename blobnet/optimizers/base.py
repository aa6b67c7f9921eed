"""The base of optimizers: one launch over all parameters, clipping, descriptions in files."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from blobnet.errors import OptionError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro, table_text
from blobnet.launch.work_sizes import group_size
from blobnet.losses.base import LOSS_SCALE, LOSS_SCALE_ELEMENTS
from blobnet.memory.blob import FloatArray
from blobnet.network.parameters import ParameterGroup, ParameterTable
from blobnet.schedules import Constant, Custom, Schedule
from blobnet.support.checks import check_count, check_number
from blobnet.support.kinds import Kind

#: Numbers that the trainer writes before each step: :meth:`Optimizer.step_values`.
HYPERPARAMETERS = "optimizer hyperparameters"
HYPERPARAMETER_COUNT = 8
#: The loss scale of the first step; what it is multiplied by after a step whose gradients are not finite, or after so
#: many in a row that are (those of torch.amp.GradScaler); and the least, below which no step will find finite ones.
FIRST_LOSS_SCALE, LEAST_LOSS_SCALE = 2.0**16, 2.0**-14
_LOSS_SCALE_MACROS: dict[str, Macro] = {"GROWTH": 2.0, "BACKOFF": 0.5, "INTERVAL": 2000}
#: One below what is an error: a training sees that it has come to it.
_LOSS_SCALE_MACROS |= {"LEAST_SCALE": LEAST_LOSS_SCALE / 2}
#: The factor that clipping, and the loss scale, multiplied the last step's gradients by.
CLIP_SCALE = "optimizer clip_scale"
_CLIP_PARTIALS = "optimizer clip_partials"
#: The most sums that a sum of squares is split into.
MAX_PARTIALS = 256
#: The most pieces that a parameter is cut into.
MAX_PIECES = 32
#: Vectors that a CPU's work-item sums in a row, and their lanes.
_SUM_RUN, _SUM_LANES = 512, 8
#: Work-items of a work-group, and the most of a launch, on a GPU.
_GROUP, _MAX_ITEMS = 256, 1 << 18
#: Below it, epsilon would be 0 in float32, and 0 / 0 stand in the place of zeros.
_MIN_EPSILON = 1e-30


#: What weight decay applies to.
WEIGHTS, ALL = DECAYS = "weights", "all"
#: Parameters as they were when lookahead last went back.
SLOW = "slow"
#: Places in HYPERPARAMETERS: what lookahead does in a step, and the bound of clipping by value.
_LOOKS, _CLIP_VALUE = 6, 7
#: Options that files do not say where they are as ever.
_LATER = ("rates", "clip_value", "decays", "layer_decay", "lookahead", "lookahead_part", "sam", "sam_adaptive")

_Own = TypeVar("_Own", bound="Optimizer")


@dataclass(frozen=True)
class Optimizer(Kind):
    """Base of all optimizers: hyperparameters, the memory to allocate, and the calls of a step. Knows no device.

    A trainer allocates :meth:`memory`, zeroed; before every step it writes :meth:`step_values` to HYPERPARAMETERS; it
    launches :meth:`calls`; and it saves and restores :attr:`state_slots`.

    Args (of every optimizer, by keyword):
        weight_decay: what a step takes away of parameters; how, the classes say.
        decays: of what: ``"weights"``, the filters and matrices alone (no biases, norms or scales), or ``"all"``.
        clip_norm: the largest norm of all gradients together; None for any.
        clip_value: the largest size of a single gradient: others become that; None for any. One of both is given.
        rates: factors of the learning rate by patterns of names: the first that matches.
        layer_decay: what the learning rate of a layer is multiplied by for each layer behind it
            (:func:`blobnet.network.patterns.layer_factors` says what is one layer); it multiplies those of ``rates``.
        lookahead: every so many steps, the parameters go back to a part of the way that they have come since the last
            time (Zhang et al., *Lookahead optimizer: k steps forward, 1 step back*, 2019); None: never.
        lookahead_part: that part, above 0 and up to 1.
        sam: the distance rho of sharpness-aware minimisation: a step takes the gradients of its batch twice, and the
            second time at w + rho * g / |g| (Foret et al., *Sharpness-aware minimization for efficiently improving
            generalization*, 2021). Metrics and running statistics are those of the first time, and dropout drops the
            same. Of ``fit`` alone; None: never.
        sam_adaptive: go to w + rho * w^2 g / | |w| g | instead (Kwon et al., *ASAM*, 2021), for a larger rho, 2 say.
    """

    learning_rate: float | Schedule | Callable[[int], float]
    weight_decay: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    rates: Mapping[str, float] | Sequence[tuple[str, float]] = field(default=(), kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    decays: str = field(default="weights", kw_only=True)
    layer_decay: float = field(default=1.0, kw_only=True)
    lookahead: int | None = field(default=None, kw_only=True)
    lookahead_part: float = field(default=0.5, kw_only=True)
    sam: float | None = field(default=None, kw_only=True)
    sam_adaptive: bool = field(default=False, kw_only=True)

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
        for name in ("clip_norm", "clip_value", "sam"):
            if getattr(self, name) is not None:
                self._check(name, above=0)
        if self.clip_norm is not None and self.clip_value is not None:
            rule, both = "gradients are clipped by their norm or by value", (self.clip_norm, self.clip_value)
            hint = "leave clip_norm or clip_value out."
            raise OptionError(self._subject, rule, clip_norm=both[0], clip_value=both[1], hint=hint)
        if self.decays not in DECAYS:
            raise OptionError(self._subject, f"decays must be {' or '.join(DECAYS)}", decays=repr(self.decays))
        for name in ("layer_decay", "lookahead_part"):
            self._check(name, above=0)
            if getattr(self, name) > 1:
                raise OptionError(self._subject, f"{name} must be at most 1", **{name: getattr(self, name)})
        if self.lookahead is not None:
            check_count(self._subject, "lookahead", self.lookahead)
        if not isinstance(self.sam_adaptive, bool) or (self.sam_adaptive and self.sam is None):
            rule, hint = "sam_adaptive must be True or False, and True only beside sam", "sam=2.0, say."
            raise OptionError(self._subject, rule, sam=self.sam, sam_adaptive=self.sam_adaptive, hint=hint)
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
        # NOTE: what files did not say before there was it is left out where it is nothing.
        unsaid = {
            item.name for item in fields(Optimizer) if item.name in _LATER and getattr(self, item.name) == item.default
        }
        config |= {"rates": [list(pair) for pair in self.factors]}
        return {name: value for name, value in config.items() if name not in unsaid}

    @classmethod
    def _from_config(cls: type[_Own], config: dict[str, Any], subject: str) -> _Own:
        if isinstance(config.get("learning_rate"), Mapping):
            config["learning_rate"] = Schedule.from_description(config["learning_rate"], subject)
        return cls(**config)

    # -- what subclasses say -----------------------------------------------------------------------------------------

    @property
    def state_slots(self) -> tuple[str, ...]:
        """Vectors that the optimizer keeps from step to step, one value for each trainable element."""
        slots = tuple(slot for slot in self._roles().values() if slot)
        return slots if self.lookahead is None else (*slots, SLOW)

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
        values = [self.step_values(step, learning_rate * factor) for factor in factors]
        for own in values:
            own[_CLIP_VALUE] = self.clip_value or 0
            own[_LOOKS] = self._looks(step)
        return np.concatenate(values)

    def _looks(self, step: int) -> int:
        """Return 1 where a step begins by keeping the parameters, 2 where it ends by going back, 3 for both, else 0."""
        every = self.lookahead
        return 0 if every is None else (step == 0) + 2 * ((step + 1) % every == 0)

    # -- memory and calls --------------------------------------------------------------------------------------------

    @staticmethod
    def storage(slot: str) -> str:
        """The storage that holds a state slot."""
        return f"optimizer {slot}"

    def memory(self, table: ParameterTable, *, scaled: bool = False) -> dict[str, int]:
        """Elements of each float32 buffer that a trainer must allocate, by storage; ``scaled``: see :meth:`calls`."""
        buffers = {self.storage(slot): max(1, table.trainable_elements) for slot in self.state_slots}
        buffers[HYPERPARAMETERS] = HYPERPARAMETER_COUNT * max(1, len(table.groups))
        if self.clip_norm is not None or scaled:
            buffers |= {_CLIP_PARTIALS: MAX_PARTIALS, CLIP_SCALE: 1}
        return buffers | ({LOSS_SCALE: LOSS_SCALE_ELEMENTS} if scaled else {})

    def calls(self, table: ParameterTable, model: DeviceModel, *, scaled: bool = False) -> list[KernelCall]:
        """The calls of one step: with clipping first those that find its factor, then one over each group.

        ``scaled``: the gradients are those of the losses times the number in LOSS_SCALE, which the calls change.
        """
        if not table.trainable_elements:
            return []
        clipping = self._clipping(table, model, scaled=scaled) if self.clip_norm is not None or scaled else []
        steps = self._steps(table, model)
        if self.lookahead is not None:
            steps = [self._look(table, model, begins=True), *steps, self._look(table, model, begins=False)]
        if scaled:
            steps = [_with_factor(call) for call in steps]
        return [replace(call, owner=self) for call in clipping + steps]

    def _look(self, table: ParameterTable, model: DeviceModel, *, begins: bool) -> KernelCall:
        """The call that keeps the parameters of the start, or goes back where a step is one that does."""
        elements, hyperparameters = table.trainable_elements, array_of(HYPERPARAMETERS, HYPERPARAMETER_COUNT)
        return runs_call(
            "optimizer/lookahead",
            f"{self._subject} lookahead",
            elements,
            model,
            arrays={
                "PARAMETERS": array_of("parameters", elements),
                "SLOW": array_of(self.storage(SLOW), elements),
                "HYPERPARAMETERS": hyperparameters,
                "CLIP_SCALE": hyperparameters,
                "TOTALS": array_of("totals", 1),
            },
            macros={"BEGINS": int(begins), "PART": float(self.lookahead_part), "HAS_CLIPPING": 0},
        )

    def _steps(self, table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
        """The calls of a step behind those of clipping: one over each group."""
        return [self._step(part, number, model) for number, part in enumerate(table.groups)]

    def _common(self) -> dict[str, Macro]:
        """The macros of all optimizers that do not depend on what is trained."""
        clips = 1 if self.clip_norm is not None else 2 if self.clip_value is not None else 0
        return {"WEIGHT_DECAY": float(self.weight_decay), "HAS_CLIPPING": clips, **self._macros()}

    def decayed(self, part: ParameterGroup) -> int:
        """Return how many elements at the start of a group decay."""
        return (part.elements if self.decays == ALL else part.decayed_elements) if self.weight_decay else 0

    def _shared(self, hyperparameters: Array) -> dict[str, Array]:
        """What all steps are told."""
        scale = array_of(CLIP_SCALE, 1) if self.clip_norm is not None else hyperparameters
        return {"HYPERPARAMETERS": hyperparameters, "CLIP_SCALE": scale, "TOTALS": array_of("totals", 1)}

    def _step(self, part: ParameterGroup, number: int, model: DeviceModel) -> KernelCall:
        def of_part(storage: str) -> Array:
            return array_of(storage, part.elements, part.offset)

        gradients = of_part("gradients")
        hyperparameters = array_of(HYPERPARAMETERS, HYPERPARAMETER_COUNT, number * HYPERPARAMETER_COUNT)
        # NOTE: a kernel takes no null array; a role that this optimizer does without is bound to the gradients, and not
        # touched.
        states = {role: of_part(self.storage(slot)) if slot else gradients for role, slot in self._roles().items()}
        return runs_call(
            self.kernel,
            f"{self._subject} step",
            part.elements,
            model,
            arrays={
                "PARAMETERS": of_part("parameters"),
                "GRADIENTS": gradients,
                **states,
                **self._shared(hyperparameters),
            },
            macros={"DECAYED_ELEMENTS": self.decayed(part), **self._common()},
        )

    def _clipping(self, table: ParameterTable, model: DeviceModel, *, scaled: bool) -> list[KernelCall]:
        gradients, partials = array_of("gradients", table.trainable_elements), array_of(_CLIP_PARTIALS, MAX_PARTIALS)
        squares = squares_call(gradients, partials, model, "gradient norm")
        macros: dict[str, Macro] = {
            "PARTIALS": squares.groups,
            "CLIP_NORM": float(self.clip_norm or 0),
            "HAS_LOSS_SCALE": int(scaled),
            **_LOSS_SCALE_MACROS,
        }
        arrays = {
            "CLIP_PARTIALS": partials,
            "CLIP_SCALE": array_of(CLIP_SCALE, 1),
            "LOSS_SCALE": array_of(LOSS_SCALE, LOSS_SCALE_ELEMENTS) if scaled else array_of(CLIP_SCALE, 1),
            "TOTALS": array_of("totals", 1),
        }
        size = GlobalSize(1, per_sample=False)
        return [squares, KernelCall("optimizer/clip_scale", "gradient clipping", size, arrays=arrays, macros=macros)]


class Tensor(NamedTuple):
    """A trained parameter as steps that are not the same in all elements see it.

    Attributes:
        name: of the parameter.
        offset: where it begins in the buffers.
        shape: its own.
        elements: how many it has.
        group: the number of its group, and so of its HYPERPARAMETERS.
        decays: whether weight decay applies to it.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    elements: int
    group: int
    decays: bool


@dataclass(frozen=True)
class _TensorOptimizer(Optimizer):
    """The base of optimizers whose step depends on which elements are one parameter.

    The kernel has a work-group for each of ``pieces`` pieces of each parameter, and learns from the constant table
    TENSORS (rows of ints, :meth:`row`) which.
    """

    def tensors(self, table: ParameterTable) -> list[Tensor]:
        """Return the trained parameters, in the order of their places."""
        found = []
        for name, piece in table.slices.items():
            for number, group in enumerate(table.groups):
                place = piece.offset - group.offset
                if 0 <= place < group.elements:
                    decays = place < self.decayed(group)
                    found.append(Tensor(name, piece.offset, piece.shape, piece.elements, number, decays))
        return found

    @staticmethod
    def pieces(model: DeviceModel) -> int:
        """Return the pieces that a parameter is cut into, which sums follow."""
        return MAX_PIECES if model.is_simt else 8

    @abstractmethod
    def row(self, tensor: Tensor) -> Sequence[int]:
        """Return what the kernel is told of a parameter."""

    def _over_tensors(
        self,
        table: ParameterTable,
        model: DeviceModel,
        label: str,
        arrays: Mapping[str, Array],
        width: int | None = None,
        **macros: Macro,
    ) -> KernelCall:
        """Return a call over all parameters, each in pieces, or over ``width`` work-items in all.

        Args:
            table: of the parameters.
            model: of the device.
            label: for people.
            arrays: by role, besides those that all steps have.
            width: work-items; None: those of all pieces.
            macros: besides those of the optimizer.
        """
        rows = [self.row(tensor) for tensor in self.tensors(table)]
        group = group_size(model, _GROUP) if model.is_simt else 1
        pieces, elements = self.pieces(model), table.trainable_elements
        hyperparameters = array_of(HYPERPARAMETERS, HYPERPARAMETER_COUNT * len(table.groups))
        size = pieces * group if width is None else rounded_up(width, group)
        return KernelCall(
            self.kernel,
            label,
            GlobalSize(size, len(rows) if width is None else 1, per_sample=False),
            arrays={
                "PARAMETERS": array_of("parameters", elements),
                "GRADIENTS": array_of("gradients", elements),
                **{role: array_of(self.storage(slot), elements) for role, slot in self._roles().items() if slot},
                **arrays,
                **self._shared(hyperparameters),
            },
            macros={
                "TENSORS": table_text(rows),
                "TENSOR_COUNT": len(rows),
                "PIECES": pieces,
                **self._common(),
                **macros,
            },
            tunables=kernel_source.load(self.kernel).tuning(model),
            local_size=(group, 1, 1),
        )


def factors_and_rests(**values: float) -> dict[str, Macro]:
    """Return macros of factors, and of 1 less them: rounded once, since kernels would lose half its digits."""
    rests = {f"ONE_MINUS_{name}": 1.0 - value for name, value in values.items()}
    return {**{name: float(value) for name, value in values.items()}, **rests}


def _with_factor(step: KernelCall) -> KernelCall:
    """The call of a step that multiplies its gradients by CLIP_SCALE, clipping by value behind it."""
    clips = int(step.macros["HAS_CLIPPING"]) | 1
    arrays = {**step.arrays, "CLIP_SCALE": array_of(CLIP_SCALE, 1)}
    return replace(step, arrays=arrays, macros={**step.macros, "HAS_CLIPPING": clips})


def squares_call(
    values: Array, partials: Array, model: DeviceModel, label: str, factors: Array | None = None
) -> KernelCall:
    """The call that leaves sums of squares in the first ``partials``, one a work-group: at most MAX_PARTIALS.

    Those of ``values``, or of each of them times one of ``factors``.
    """
    # NOTE: not tunables, since a sum's order changes its last bits.
    run, lanes, group = (1, 1, group_size(model, _GROUP)) if model.is_simt else (_SUM_RUN, _SUM_LANES, 1)
    groups = min(-(-values.elements // (run * lanes * group)), MAX_PARTIALS)
    return KernelCall(
        "optimizer/sum_of_squares",
        label,
        GlobalSize(groups * group, per_sample=False),
        arrays={"GRADIENTS": values, "FACTORS": factors or values, "CLIP_PARTIALS": partials},
        macros={
            "TRAINABLE_ELEMENTS": values.elements,
            "HAS_FACTORS": int(factors is not None),
            "RUN": run,
            "LANES": lanes,
        },
        local_size=(group, 1, 1),
    )


def runs_call(
    kernel: str, label: str, elements: int, model: DeviceModel, *, arrays: dict[str, Array], macros: dict[str, Macro]
) -> KernelCall:
    """Return the call of a kernel over so many elements, in runs of vectors (kernels/optimizer/runs.h)."""
    tunables = kernel_source.load(kernel).tuning(model)
    runs = -(-elements // (tunables["RUN"] * tunables["LANES"]))
    group = group_size(model, _GROUP) if model.is_simt else 1
    return KernelCall(
        kernel,
        label,
        GlobalSize(min(rounded_up(runs, group), _MAX_ITEMS), per_sample=False),
        arrays=arrays,
        macros={"TRAINABLE_ELEMENTS": elements, **macros},
        tunables=tunables,
        local_size=(group, 1, 1),
    )


def array_of(storage: str, elements: int, offset: int = 0) -> Array:
    """Return a part of a buffer that outlives plans."""
    return Array(storage, elements, offset=offset, persistent=True)

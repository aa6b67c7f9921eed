"""Optimizers: kernels against float64 references and PyTorch, and what they say about themselves."""

from __future__ import annotations

import importlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import optimizers
from blobnet.device.device import Device
from blobnet.errors import FileError, OptionError
from blobnet.examination.reference import optimizers as reference
from blobnet.hardware.device_model import HOST
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.layers.base import ParameterSpec
from blobnet.network.graph import Graph
from blobnet.network.parameters import ParameterTable, parameter_table
from blobnet.optimizers import LAMB, SGD, Adam, AdamW, Lion, Muon, Optimizer, RMSprop
from blobnet.schedules import Constant, Cosine
from tests.interop.networks import timm
from tests.kinds import kind_of, tuning_for
from tests.reference.compare import assert_close

FloatArray = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

#: The learning rate of each step.
RATES = (0.1, 0.1, 0.03, 0.03, 0.2, 0.01)
#: Elements behind a buffer's end that no launch may touch.
GUARD = 64
CLASSES = pytest.mark.parametrize("device_class", ["cpu", "gpu"])
OPTIMIZERS: list[Optimizer] = [
    SGD(),
    SGD(weight_decay=0.1, clip_norm=2.0),
    SGD(momentum=0.9),
    SGD(momentum=0.8, weight_decay=0.1),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.05, clip_norm=5.0),
    SGD(clip_norm=1e6),
    RMSprop(),
    RMSprop(alpha=0.9, epsilon=1e-3, momentum=0.7, weight_decay=0.1),
    RMSprop(momentum=0.5, clip_norm=1.0),
    Adam(),
    Adam(beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1),
    Adam(beta1=0.0, weight_decay=0.01, clip_norm=3.0),
    AdamW(),
    AdamW(beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.3, clip_norm=3.0),
    AdamW(weight_decay=0.0),
    Lion(),
    Lion(beta1=0.8, beta2=0.9, weight_decay=0.3, clip_norm=3.0),
    LAMB(),
    LAMB(beta1=0.8, beta2=0.95, epsilon=1e-3, always_adapts=True, weight_decay=0.3, clip_norm=3.0),
    Muon(),
    Muon(momentum=0.8, nesterov=False, iterations=3, adam_factor=0.5, weight_decay=0.3, clip_norm=3.0),
    SGD(momentum=0.9, weight_decay=0.1, clip_value=0.7),
    RMSprop(clip_value=0.7, lookahead=1, lookahead_part=0.3),
    Adam(clip_value=0.7, weight_decay=0.1, decays="all", lookahead=2),
    LAMB(clip_value=0.7, decays="all"),
    Lion(clip_value=0.7, lookahead=4),
    Muon(clip_value=0.7, weight_decay=0.1, decays="all", lookahead=3),
]
#: Those that know what is one parameter have as many launches for any number of rates.
WHOLE: dict[type, Any] = {LAMB: lambda own: 2, Muon: lambda own: 3 + 3 * own.iterations}


def of_torch(optimizer: Optimizer) -> bool:
    """Return True if PyTorch has it, with these options."""
    known = isinstance(optimizer, SGD | RMSprop | Adam | AdamW)
    return known and optimizer.lookahead is None and optimizer.decays == "weights"


EVERY = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)


def make_table(factors: Mapping[str, float] | None = None, /, **elements: int) -> ParameterTable:
    """A table of parameters called ``decayed...``, ``plain...`` and ``fixed...`` (not trainable).

    Those of some sizes are filters.
    """
    shapes = {6001: (17, 353, 1), 6003: (87, 23, 3), 6048: (42, 9, 4, 4), 1250: (125, 2, 5)}
    specs = {
        name: ParameterSpec(
            name, shapes.get(size, (size,)), "zeros", decayed=name.startswith("decayed"), trainable=name[:5] != "fixed"
        )
        for name, size in elements.items()
    }
    return parameter_table(cast(Graph, SimpleNamespace(named_parameters=specs)), factors=factors)


#: The same with three learning rates, each for decayed parameters, others or both.
RATED = {"plain_1": 0.1, "decayed_2": 0.1, "plain_2": 3.0}

#: Gaps behind every parameter, several runs, and a border between decayed and other parameters within a run.
TABLE = make_table(plain_1=70, decayed_1=37, fixed_1=11, decayed_2=6001, plain_2=3, fixed_2=33, plain_3=3333)
GROUPED = make_table(RATED, plain_1=70, decayed_1=37, fixed_1=11, decayed_2=6001, plain_2=3, fixed_2=33, plain_3=3333)


#: Filters that are wide, high and square as matrices, none a multiple of 16; one with a rate of its own.
FILTERS = make_table({"decayed_2": 0.1}, decayed_1=6001, decayed_2=6003, decayed_3=6048, plain_1=37, decayed_4=1250)


def mask_of(table: ParameterTable, *kinds: str) -> npt.NDArray[np.bool_]:
    """Where parameters of these kinds lie."""
    mask = np.zeros(table.elements, bool)
    for name, piece in table.slices.items():
        mask[piece.offset : piece.offset + piece.elements] = name.startswith(kinds)
    return mask


@dataclass
class Memory:
    """An optimizer with its buffers on a device, in a table whose non-trainable parameters and guards are NaN."""

    device: Device
    optimizer: Optimizer
    table: ParameterTable
    tuning: Tuning

    def __post_init__(self) -> None:
        elements = {"parameters": self.table.elements, "gradients": self.table.elements, "totals": 1}
        self.elements = {**elements, **self.optimizer.memory(self.table)}
        self.buffers = {name: self.device.memory.allocate(4 * (size + GUARD)) for name, size in self.elements.items()}
        for name, size in self.elements.items():
            self.device.memory.write(self.buffers[name], np.full(GUARD, np.nan, np.float32), 4 * size)
        self.launches = [(call, self.bind(call)) for call in self.optimizer.calls(self.table, self.tuning.model)]
        self.steps = 0

    def bind(self, call: KernelCall) -> Any:
        source = call.source
        kernel = self.device.programs.kernel(call.assemble(), source.entry, call.label)
        arrays = [call.arrays[role] for role in source.arrays]
        pairs = [(self.buffers[array.storage], np.int32(array.offset)) for array in arrays]
        kernel.set_args(*[argument for pair in pairs for argument in pair], *map(np.int32, call.sizes.values()))
        return kernel

    def write(self, name: str, values: npt.ArrayLike) -> None:
        array = np.asarray(values, np.float32)
        assert array.size == self.elements[name]
        self.device.memory.write(self.buffers[name], array)

    def read(self, name: str) -> FloatArray:
        values: FloatArray = self.device.memory.read(self.buffers[name], self.elements[name] + GUARD)
        assert np.isnan(values[-GUARD:]).all(), f"{name}: a launch wrote behind the end"
        return values[:-GUARD]

    def step(self, gradients: npt.ArrayLike, learning_rate: float) -> None:
        self.write("gradients", gradients)
        values = self.optimizer.hyperparameters(self.table, self.steps, learning_rate)
        self.write(optimizers.HYPERPARAMETERS, values)
        for call, kernel in self.launches:
            self.device.queue.prepare(kernel, call.work_size(1), call.local_size)()
        self.device.queue.finish()
        self.steps += 1

    def snapshot(self) -> dict[str, bytes]:
        return {name: self.read(name).tobytes() for name in self.buffers}


def random_values(table: ParameterTable, seed: int) -> FloatArray:
    """Normal values in trainable parameters, NaN in the others, zeros between them."""
    values = np.random.default_rng(seed).standard_normal(table.elements).astype(np.float32)
    values[~mask_of(table, "decayed", "plain", "fixed")] = 0
    values[mask_of(table, "fixed")] = np.nan
    return values


def run_steps(
    device: Device, optimizer: Optimizer, device_class: str, table: ParameterTable = TABLE, steps: int = len(RATES)
) -> Memory:
    """A few steps along random gradients."""
    memory = Memory(device, optimizer, table, tuning_for(device_class))
    memory.write("parameters", random_values(table, 0))
    for step in range(steps):
        memory.step(random_values(table, step + 1), RATES[step])
    return memory


def reference_parameters(
    optimizer: Optimizer, table: ParameterTable = TABLE, steps: int = len(RATES), rates: Sequence[float] = RATES
) -> Float64Array:
    """The same in float64: what all trainable elements, gaps included, become."""
    trainable = slice(0, table.trainable_elements)
    parameters = random_values(table, 0)[trainable].astype(np.float64)
    function = getattr(reference, type(optimizer).__name__.lower())
    options = optimizer.config()
    clip_norm = options.pop("clip_norm")
    options.pop("learning_rate")
    for name in ("decays", "lookahead", "lookahead_part", "clip_value"):
        options.pop(name, None)
    decays = mask_of(table, *(("decayed", "plain") if optimizer.decays == "all" else ("decayed",)))[trainable]
    if "places" in inspect.signature(function).parameters:
        pieces = {name: piece for name, piece in table.slices.items() if table.trains(name)}
        options["places"] = [(piece.offset, piece.shape) for piece in pieces.values()]
    options["weight_decay"] = options["weight_decay"] * decays
    factors = np.ones(table.trainable_elements)
    for name, piece in table.slices.items():
        if table.trains(name):
            number = next(n for n, own in reversed([*enumerate(table.groups)]) if piece.offset >= own.offset)
            factors[piece.offset : piece.offset + piece.elements] = table.groups[number].factor
    state: dict[str, Float64Array] = {}
    slow = parameters
    for step in range(steps):
        gradient = random_values(table, step + 1)[trainable].astype(np.float64)
        if clip_norm is not None:
            gradient, _ = reference.clip_by_global_norm(gradient, clip_norm)
        if optimizer.clip_value is not None:
            gradient = reference.clip_by_value(gradient, optimizer.clip_value)
        parameters, state = function(parameters, gradient, state, learning_rate=rates[step] * factors, **options)
        if optimizer.lookahead and (step + 1) % optimizer.lookahead == 0:
            parameters = slow = reference.lookahead(slow, parameters, optimizer.lookahead_part)
    return parameters


@CLASSES
@EVERY
def test_rates_of_groups(device: Device, optimizer: Optimizer, device_class: str) -> None:
    """A launch for each rate; what clipping divides by is of all of them."""
    memory = run_steps(device, optimizer, device_class, GROUPED)
    assert [(group.factor, group.decayed_elements > 0) for group in GROUPED.groups] == [
        (3.0, False),
        (1.0, True),
        (0.1, True),
    ]
    launches = len([call for call, _ in memory.launches if call.kernel == optimizer.kernel])
    assert launches == (3 if type(optimizer) not in WHOLE else WHOLE[type(optimizer)](optimizer))
    parameters = memory.read("parameters")
    wanted = reference_parameters(optimizer, GROUPED)
    assert_close(parameters[: wanted.size], wanted, relative=3e-6, absolute=3e-6, what="parameters")
    changed = random_values(GROUPED, 0).view(np.uint32) != parameters.view(np.uint32)
    assert not changed[~mask_of(GROUPED, "decayed", "plain")].any()


@CLASSES
@EVERY
def test_steps(device: Device, optimizer: Optimizer, device_class: str) -> None:
    """Six steps give the reference's numbers, and what is not a trainable parameter keeps its bits."""
    memory = run_steps(device, optimizer, device_class)
    parameters = memory.read("parameters")
    trainable = slice(0, TABLE.trainable_elements)
    # Six float32 steps, each rounded to about 1e-7 of values of size 1.
    assert_close(
        parameters[trainable], reference_parameters(optimizer), relative=3e-6, absolute=3e-6, what="parameters"
    )
    changed = random_values(TABLE, 0).view(np.uint32) != parameters.view(np.uint32)
    assert not changed[~mask_of(TABLE, "decayed", "plain")].any()
    assert changed[mask_of(TABLE, "decayed", "plain")].mean() > 0.99
    gaps = ~mask_of(TABLE, "decayed", "plain")[trainable]
    assert gaps.sum() > 30
    for slot in optimizer.state_slots:
        state = memory.read(optimizer.storage(slot))
        assert not state[gaps].view(np.uint32).any(), slot
        # Muon keeps no squares of filters.
        filters = mask_of(TABLE, "decayed_2")[trainable]
        used = ~gaps & ~filters if isinstance(optimizer, Muon) and slot == "second_moment" else ~gaps
        assert state[used].all(), slot


@CLASSES
@pytest.mark.parametrize("optimizer", [item for item in OPTIMIZERS if type(item) in WHOLE], ids=str)
def test_steps_of_filters(device: Device, optimizer: Optimizer, device_class: str) -> None:
    """Of matrices of all forms, whose padding stays out of them, under two rates."""
    memory = run_steps(device, optimizer, device_class, FILTERS)
    wanted = reference_parameters(optimizer, FILTERS)
    assert_close(memory.read("parameters")[: wanted.size], wanted, relative=1e-5, absolute=1e-5, what="parameters")


def test_what_only_some_options_do(device: Device) -> None:
    """Nesterov's step, momentum of RMSprop, and what is clipped before it decays; for a sample of all tests, too."""
    for optimizer in (
        SGD(momentum=0.9, nesterov=True, weight_decay=0.5, clip_norm=5.0),
        RMSprop(momentum=0.5, weight_decay=0.5, clip_norm=1.0),
        Adam(weight_decay=0.5, clip_norm=3.0),
        AdamW(weight_decay=0.5, clip_norm=3.0),
    ):
        found, wanted = run_steps(device, optimizer, kind_of(device), steps=2), reference_parameters(optimizer, steps=2)
        values = found.read("parameters")[: wanted.size]
        assert_close(values, wanted, relative=3e-6, absolute=3e-6, what=str(optimizer))


@CLASSES
@pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS[4], OPTIMIZERS[8], OPTIMIZERS[11], OPTIMIZERS[13], *OPTIMIZERS[-4:]], ids=str
)
def test_two_runs_are_bit_equal(device: Device, optimizer: Optimizer, device_class: str) -> None:
    first = run_steps(device, optimizer, device_class)
    assert first.snapshot() == run_steps(device, optimizer, device_class).snapshot()


@pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS[4], OPTIMIZERS[7], OPTIMIZERS[11], OPTIMIZERS[13], *OPTIMIZERS[-4:]], ids=str
)
def test_resuming_is_bit_equal(device: Device, optimizer: Optimizer) -> None:
    """Parameters, state slots and the step number are all that a step depends on."""
    whole = run_steps(device, optimizer, "cpu")
    first = run_steps(device, optimizer, "cpu", steps=3)
    second = Memory(device, optimizer, TABLE, tuning_for("cpu"))
    for name in ("parameters", *map(optimizer.storage, optimizer.state_slots)):
        second.write(name, first.read(name))
    second.steps = first.steps
    for step in range(3, len(RATES)):
        second.step(random_values(TABLE, step + 1), RATES[step])
    assert second.snapshot() == whole.snapshot()


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[3], OPTIMIZERS[7], OPTIMIZERS[10], OPTIMIZERS[13]], ids=str)
@pytest.mark.parametrize(
    "tunables", [{"LANES": 16, "RUN": 1}, {"LANES": 4, "RUN": 64}, {"LANES": 1, "RUN": 4}], ids=str
)
def test_tunables_do_not_change_results(device: Device, optimizer: Optimizer, tunables: dict[str, int]) -> None:
    if tunables["LANES"] == 16 and "3.0" in device.info.platform:
        pytest.skip("the compiler of PoCL 3.0 crashes on 16 lanes")
    memory = Memory(device, optimizer, TABLE, tuning_for("cpu", {optimizer.kernel: tunables}))
    memory.write("parameters", random_values(TABLE, 0))
    for step, rate in enumerate(RATES):
        memory.step(random_values(TABLE, step + 1), rate)
    assert_close(
        memory.read("parameters")[: TABLE.trainable_elements],
        reference_parameters(optimizer),
        relative=3e-6,
        absolute=3e-6,
        what="parameters",
    )


@CLASSES
@pytest.mark.parametrize(
    "table",
    [
        make_table(plain=1),
        make_table(decayed=16),
        make_table(decayed=4096, plain=1, fixed=1),
        make_table(decayed_1=500_000, plain=150_001),
    ],
    ids=lambda table: str(table.trainable_elements),
)
def test_sizes(device: Device, table: ParameterTable, device_class: str) -> None:
    """One element; whole runs; more runs than work-items and than partial sums."""
    optimizer = SGD(momentum=0.5, weight_decay=0.1, clip_norm=0.25)
    memory = run_steps(device, optimizer, device_class, table, steps=2)
    actual = memory.read("parameters")[: table.trainable_elements]
    assert_close(actual, reference_parameters(optimizer, table, 2), relative=3e-6, absolute=3e-6, what="parameters")


@pytest.mark.parametrize("optimizer", [item for item in OPTIMIZERS if of_torch(item)], ids=str)
def test_against_torch(device: Device, optimizer: Optimizer) -> None:
    torch = pytest.importorskip("torch")
    masks = [mask_of(TABLE, "decayed"), mask_of(TABLE, "plain")]
    tensors = [torch.tensor(random_values(TABLE, 0)[mask], requires_grad=True) for mask in masks]
    options = {{"epsilon": "eps"}.get(name, name): value for name, value in optimizer.config().items()}
    clip_norm, decay = options.pop("clip_norm"), options.pop("weight_decay")
    del options["learning_rate"]
    clip_value = options.pop("clip_value", None)
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    groups = [{"params": [tensors[0]], "weight_decay": decay}, {"params": [tensors[1]], "weight_decay": 0.0}]
    oracle = getattr(torch.optim, type(optimizer).__name__)(groups, lr=0.1, **options)
    for step, rate in enumerate(RATES):
        for tensor, mask in zip(tensors, masks, strict=True):
            tensor.grad = torch.tensor(random_values(TABLE, step + 1)[mask])
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(tensors, clip_norm)
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_(tensors, clip_value)
        for group in oracle.param_groups:
            group["lr"] = rate
        oracle.step()
    parameters = run_steps(device, optimizer, kind_of(device)).read("parameters")
    for tensor, mask in zip(tensors, masks, strict=True):
        assert_close(parameters[mask], tensor.detach().numpy(), relative=5e-6, absolute=5e-6, what="parameters")


TIMM = {
    "lion": Lion(0.1, 0.8, 0.9, weight_decay=0.3),
    "lamb": LAMB(0.1, 0.8, 0.95, 1e-3, weight_decay=0.3),
    "lamb, all": LAMB(0.1, always_adapts=True, weight_decay=0.0),
    "muon": Muon(0.1, weight_decay=0.3, momentum=0.8),
    "lookahead": SGD(0.1, 0.8, lookahead=2, lookahead_part=0.3),
}


@pytest.mark.parametrize("kind", TIMM)
def test_the_references_are_those_that_others_publish(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step in float64, of matrices of all forms; Muon's products, which timm takes in bfloat16, as well."""
    torch = pytest.importorskip("torch")
    published = timm("timm.optim")
    optimizer = TIMM[kind]
    own = {name: piece for name, piece in FILTERS.slices.items() if name != "plain_1" or kind != "muon"}
    tensors = {
        name: torch.tensor(random_values(FILTERS, 0)[piece.offset : piece.offset + piece.elements].astype(float))
        .reshape(piece.shape)
        .requires_grad_()
        for name, piece in own.items()
    }
    decay = optimizer.weight_decay
    groups: list[dict[str, Any]] = [{"params": [own]} for own in tensors.values()]
    for name, group in zip(tensors, groups, strict=True):
        group["weight_decay"] = decay if name.startswith("decayed") else 0.0
        group["lr"] = 0.1 * (FILTERS.groups[1].factor if name == "decayed_2" else FILTERS.groups[0].factor)
    if isinstance(optimizer, Muon):
        products = importlib.import_module("timm.optim.muon")
        exact = partial(products.zeropower_via_newtonschulz, dtype=torch.float64)
        monkeypatch.setattr(products, "zeropower_via_newtonschulz", exact)
        options = {"nesterov": True, "adjust_lr_fn": "original", "ns_coefficients": "original"}
        made = published.Muon(groups, momentum=0.8, **options)
    elif isinstance(optimizer, LAMB):
        betas = optimizer.beta1, optimizer.beta2
        adapts = optimizer.always_adapts
        made = published.Lamb(groups, betas=betas, eps=optimizer.epsilon, max_grad_norm=None, always_adapt=adapts)
    elif isinstance(optimizer, SGD):
        made = torch.optim.SGD(groups, momentum=optimizer.momentum)
    else:
        assert isinstance(optimizer, Lion)
        made = published.Lion(groups, betas=(optimizer.beta1, optimizer.beta2))
    if optimizer.lookahead is not None:
        made = published.Lookahead(made, alpha=optimizer.lookahead_part, k=optimizer.lookahead)
        for tensor in tensors.values():
            tensor.grad = torch.zeros_like(tensor)
        made.sync_lookahead()  # As its authors do, it begins with the parameters of the start.
    for step in range(len(RATES)):
        gradients = random_values(FILTERS, step + 1).astype(float)
        for name, tensor in tensors.items():
            piece = own[name]
            part = gradients[piece.offset : piece.offset + piece.elements]
            tensor.grad = torch.tensor(part).reshape(piece.shape)
        made.step()
    wanted = reference_parameters(optimizer, FILTERS, rates=[0.1] * len(RATES))
    for name, tensor in tensors.items():
        # Where the reference adds 1e-7 to a norm, timm's norm is at least that.
        piece, most = own[name], 1e-7 if kind == "muon" else 1e-9
        found = wanted[piece.offset : piece.offset + piece.elements].reshape(piece.shape)
        np.testing.assert_allclose(found, tensor.detach().numpy(), rtol=most, atol=most, err_msg=name)


@CLASSES
@pytest.mark.parametrize(
    ("value", "clip_norm", "expected"),
    [(1.0, 2.0, 2.0 / (np.sqrt(200.0) + 1e-6)), (1e-3, 2.0, 1.0), (0.0, 1e-3, 1.0), (np.nan, 1.0, np.nan)],
)
def test_clip_scale(device: Device, device_class: str, value: float, clip_norm: float, expected: float) -> None:
    table = make_table(decayed=150, plain=50)
    memory = Memory(device, SGD(clip_norm=clip_norm), table, tuning_for(device_class))
    memory.step(np.where(mask_of(table, "decayed", "plain"), value, 0), 0.1)
    np.testing.assert_allclose(memory.read(optimizers.CLIP_SCALE), [expected], rtol=1e-6)


@CLASSES
def test_long_training_of_small_values(device: Device, device_class: str) -> None:
    """1 - beta2 must be rounded once: 1 - 0.999f would be off by 5e-5."""
    table = make_table(plain=16)
    optimizer = Adam()
    memory = Memory(device, optimizer, table, tuning_for(device_class))
    memory.step(np.ones(16), 0.1)
    square = memory.read(optimizer.storage("second_moment"))
    np.testing.assert_allclose(square, np.full(16, 1e-3), rtol=2e-7)
    np.testing.assert_allclose(memory.read("parameters"), np.full(16, -0.1), rtol=1e-6)


# -- no device -------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    assert SGD() == SGD(0.01, 0.0, False, weight_decay=0.0, clip_norm=None)
    assert RMSprop() == RMSprop(1e-3, 0.99, 1e-8, 0.0)
    assert Adam() == Adam(1e-3, 0.9, 0.999, 1e-8, weight_decay=0.0)
    assert AdamW() == AdamW(1e-3, 0.9, 0.999, 1e-8, weight_decay=0.01)
    assert sorted(Optimizer.kinds) == ["Adam", "AdamW", "LAMB", "Lion", "Muon", "RMSprop", "SGD"]


def test_schedule() -> None:
    assert SGD(0.5).schedule == Constant(0.5)
    assert SGD(Cosine(0.1)).schedule == Cosine(0.1)


def test_state_and_memory() -> None:
    elements = TABLE.trainable_elements
    assert SGD().state_slots == ()
    assert SGD().memory(TABLE) == {"optimizer hyperparameters": 8}
    assert SGD(momentum=0.9).memory(TABLE) == {"optimizer momentum": elements, "optimizer hyperparameters": 8}
    assert RMSprop().state_slots == ("mean_square",)
    assert RMSprop(momentum=0.1).state_slots == ("mean_square", "momentum")
    assert AdamW(clip_norm=1).memory(TABLE) == {
        "optimizer first_moment": elements,
        "optimizer second_moment": elements,
        "optimizer hyperparameters": 8,
        "optimizer clip_partials": 256,
        "optimizer clip_scale": 1,
    }


def test_step_values() -> None:
    np.testing.assert_array_equal(SGD().step_values(7, 0.25), np.array([0.25, 0, 0, 0, 0, 0, 0, 0], np.float32))
    for step in (0, 1, 9, 100_000):
        values = Adam(beta1=0.8, beta2=0.99).step_values(step, 0.25)
        expected = [0.25, 0.25 / (1 - 0.8 ** (step + 1)), 1 / np.sqrt(1 - 0.99 ** (step + 1)), 0, 0, 0, 0, 0]
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, np.array(expected, np.float32))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_nothing_changes_once_the_loss_is_not_finite(device: Device, optimizer: Optimizer) -> None:
    memory = run_steps(device, optimizer, "cpu", steps=2)
    kept = ["parameters", *(optimizer.storage(slot) for slot in optimizer.state_slots)]
    for total in (math.nan, math.inf, -math.inf):
        memory.write("totals", [total])
        before = [memory.read(name).tobytes() for name in kept]
        memory.step(random_values(TABLE, 9), 0.1)
        assert [memory.read(name).tobytes() for name in kept] == before
    memory.write("totals", [1e30])
    memory.step(random_values(TABLE, 9), 0.1)
    assert memory.read("parameters").tobytes() != before[0]


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_calls(device_class: str) -> None:
    tuning = tuning_for(device_class)
    assert [call.label for call in Adam().calls(TABLE, tuning.model)] == ["Adam step"]
    labels = [call.label for call in SGD(clip_norm=1).calls(TABLE, tuning.model)]
    assert labels == ["gradient norm", "gradient clipping", "SGD step"]
    for optimizer in OPTIMIZERS:
        memory = {"parameters", "gradients", "totals", *optimizer.memory(TABLE)}
        for call in optimizer.calls(TABLE, tuning.model):
            assert call.assemble()
            assert call.work_size(5) == call.work_size(1) == call.dimensions
            assert all(array.persistent and array.storage in memory for array in call.arrays.values())


def test_nothing_to_train() -> None:
    optimizer, table = Adam(clip_norm=1.0), make_table(fixed=5)
    assert optimizer.calls(table, HOST) == []
    assert min(optimizer.memory(table).values()) > 0


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, SGD(Cosine(0.1, 2, 1e-3))], ids=str)
def test_description(optimizer: Optimizer) -> None:
    description = json.loads(json.dumps(optimizer.description()))
    assert description == optimizer.description()
    assert Optimizer.from_description(description, "a.h5") == optimizer
    assert type(optimizer)(**{**optimizer.config(), "learning_rate": optimizer.learning_rate}) == optimizer


def test_numbers_of_numpy() -> None:
    rate: Any = np.float32(0.5)
    assert json.dumps(SGD(rate).description()) == json.dumps(SGD(0.5).description())


def test_description_of_a_schedule() -> None:
    assert SGD(Cosine(0.1)).description() == {
        "kind": "SGD",
        "config": {
            "learning_rate": {"kind": "Cosine", "config": {"rate": 0.1, "warmup_epochs": 0.0, "final_rate": 0.0}},
            "weight_decay": 0.0,
            "clip_norm": None,
            "momentum": 0.0,
            "nesterov": False,
        },
    }


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"kind": "Adamw", "config": {}},
            r"a.h5: the optimizer must be one of blobnet's. Received kind=Adamw. Hint: .*",
        ),
        ({"kind": "_Moments", "config": {}}, "a.h5: the optimizer must be one of blobnet's"),
        ({"kind": "Optimizer", "config": {}}, "a.h5: the optimizer must be one of blobnet's"),
        ({"kind": 3, "config": {}}, "a.h5: the optimizer must be one of blobnet's. Received kind=3"),
        ({"kind": ["SGD"], "config": {}}, "a.h5: the optimizer must be one of blobnet's. Received kind="),
        ({"kind": "SGD"}, "a.h5: the optimizer must have a kind and its config"),
        ({"kind": "SGD", "config": "momentum"}, "a.h5: the optimizer must have a kind and its config"),
        (
            {"kind": "SGD", "config": {"speed": 1}},
            "a.h5: the optimizer must have arguments that blobnet knows. Received kind=SGD, .*speed",
        ),
        ([], "a.h5: the optimizer must have a kind and its config"),
        (
            {"kind": "SGD", "config": {"learning_rate": {"kind": "Cosin", "config": {}}}},
            "a.h5: the learning rate's schedule must be one of blobnet's. Received kind=Cosin. Hint: .*'Cosine'",
        ),
    ],
    ids=str,
)
def test_foreign_descriptions(description: Any, message: str) -> None:
    with pytest.raises(FileError, match=message):
        Optimizer.from_description(description, "a.h5")


def test_description_with_a_bad_value() -> None:
    with pytest.raises(FileError, match=r"^a\.h5: the optimizer must have arguments.*SGD: momentum must be"):
        Optimizer.from_description({"kind": "SGD", "config": {"momentum": 2}}, "a.h5")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            SGD,
            {"learning_rate": -0.1},
            "SGD: learning_rate must be a finite number of at least 0. Received learning_rate=-0.1.",
        ),
        (
            Adam,
            {"learning_rate": float("nan")},
            "Adam: learning_rate must be a finite number of at least 0. Received .*nan",
        ),
        (
            Adam,
            {"learning_rate": 1e300},
            "Adam: learning_rate must be a finite number of at least 0. Received .*1e.300",
        ),
        (
            Adam,
            {"learning_rate": "fast"},
            "Adam: learning_rate must be a finite number .* Received learning_rate='fast'",
        ),
        (Adam, {"learning_rate": True}, "Adam: learning_rate must be a finite number .* Received learning_rate=True"),
        (Adam, {"learning_rate": None}, "Adam: learning_rate must be a finite number .* Received learning_rate=None"),
        (
            SGD,
            {"momentum": 1.0},
            "SGD: momentum must be a finite number of at least 0 and below 1. Received momentum=1.0.",
        ),
        (SGD, {"momentum": -0.5}, "SGD: momentum must be"),
        (
            SGD,
            {"nesterov": True},
            r"SGD: nesterov needs a momentum above 0. Received momentum=0.0. Hint: SGD\(momentum=0.9",
        ),
        (SGD, {"nesterov": 1}, "SGD: nesterov must be True or False. Received nesterov=1."),
        (SGD, {"weight_decay": -1e-4}, "SGD: weight_decay must be a finite number of at least 0"),
        (SGD, {"clip_norm": 0}, "SGD: clip_norm must be a finite number above 0. Received clip_norm=0."),
        (SGD, {"clip_norm": float("inf")}, "SGD: clip_norm must be a finite number above 0. Received clip_norm=inf."),
        (RMSprop, {"alpha": 1}, "RMSprop: alpha must be a finite number of at least 0 and below 1"),
        (RMSprop, {"epsilon": 0}, "RMSprop: epsilon must be a finite number of at least 1e-30"),
        (RMSprop, {"momentum": 1}, "RMSprop: momentum must be"),
        (Adam, {"beta1": 1.0}, "Adam: beta1 must be a finite number of at least 0 and below 1"),
        (AdamW, {"beta2": -0.1}, "AdamW: beta2 must be a finite number of at least 0 and below 1"),
        (AdamW, {"epsilon": 0.0}, "AdamW: epsilon must be a finite number of at least 1e-30"),
        (SGD, {"clip_value": 0}, "SGD: clip_value must be a finite number above 0. Received clip_value=0."),
        (
            SGD,
            {"clip_norm": 1.0, "clip_value": 2.0},
            r"SGD: gradients are clipped by their norm or by value. Received clip_norm=1.0, clip_value=2.0",
        ),
        (SGD, {"decays": "biases"}, "SGD: decays must be weights or all. Received decays='biases'."),
        (Adam, {"layer_decay": 1.5}, "Adam: layer_decay must be at most 1. Received layer_decay=1.5."),
        (Adam, {"lookahead": 0}, "Adam: lookahead must be an int of at least 1. Received lookahead=0."),
        (Adam, {"lookahead_part": 0}, "Adam: lookahead_part must be a finite number above 0"),
        (Adam, {"sam": 0}, "Adam: sam must be a finite number above 0. Received sam=0."),
        (SGD, {"sam_adaptive": True}, r"SGD: sam_adaptive must be True or False, and True only beside sam\. .* Hint:"),
        (Lion, {"beta2": 1}, "Lion: beta2 must be a finite number of at least 0 and below 1"),
        (LAMB, {"always_adapts": 1}, "LAMB: always_adapts must be True or False. Received always_adapts=1."),
        (Muon, {"nesterov": 1}, "Muon: nesterov must be True or False. Received nesterov=1."),
        (Muon, {"matrices": 3}, "Muon: matrices must be patterns of names. Received matrices=3."),
        (AdamW, {"weight_decay": "much"}, "AdamW: weight_decay must be .* Received weight_decay='much'"),
    ],
)
def test_options(kind: type[Optimizer], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**options)


def test_matrices_of_muon() -> None:
    """A pattern makes a matrix of a parameter of two dimensions, and must stand for one."""
    specs = {"a/weight": ParameterSpec("a/weight", (20, 12), "zeros", decayed=True)}
    table = parameter_table(cast(Graph, SimpleNamespace(named_parameters=specs)))
    assert len(Muon().calls(table, HOST)) == 1
    assert len(Muon(matrices="a").calls(table, HOST)) == 3 + 3 * 5
    assert Muon(matrices=["*"]).memory(table)["optimizer square"] == 16 * 16
    rule = r"^Muon: every pattern of matrices must stand for trained parameters of two dimensions or more\. Received"
    with pytest.raises(OptionError, match=rule):
        Muon(matrices="b").calls(table, HOST)


def test_learning_rates_of_zero_are_allowed() -> None:
    assert replace(SGD(), learning_rate=0.0).schedule.value(0, 1, 1) == 0.0

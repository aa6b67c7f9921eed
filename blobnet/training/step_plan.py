"""The parts of a step of training, decided once: its plan, where gradients are added up, and all its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blobnet.device.device import Device
from blobnet.errors import PlanError
from blobnet.execution.executor import plan_for
from blobnet.hardware.device_model import DeviceModel
from blobnet.memory.blob import FLOAT32, StorageType
from blobnet.network.ends import TOTALS
from blobnet.network.graph import Graph
from blobnet.network.parameters import ParameterTable, parameter_table
from blobnet.network.patterns import rate_factors
from blobnet.parallel.world import ALONE, World
from blobnet.planning import Plan
from blobnet.training import weight_buffers
from blobnet.training.settings import TrainingSettings
from blobnet.training.shard_sum import sums_of
from blobnet.training.sharpness import BEFORE
from blobnet.training.weight_buffers import Sums


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The context of a step, besides the settings of the training.

    Attributes:
        batch_size: the most samples at once, where those of a shard are computed in parts; None: all of a shard.
        sample_type: NumPy's name for the type of the samples, or of those of each input.
        world: the ranks, each with as many of the shards.
        input_delta: also compute dL/d input.
        debug: see Executor.
    """

    batch_size: int | None = None
    sample_type: str | tuple[str, ...] = "float32"
    world: World = ALONE
    input_delta: bool = False
    debug: bool | None = None


#: Of one rank, on float32 samples.
PLAIN = StepContext()
#: Shards of a step that a GPU is taken to compute at once, where there are so many: those of eight that two GPUs have.
_SIDE_BY_SIDE = 4


@dataclass(frozen=True)
class StepPlan:
    """The plan of a step, and what it keeps besides.

    Attributes:
        plan: what runs; its ``parameters`` say what is trained.
        sums: the sums of gradients, where a step is made of several batches or shards.
        memory: elements of the float32 buffers that the step keeps besides the plan's.
        bytes: of all that it holds on the device.
        teacher: what runs of a teacher, if there is one.
    """

    plan: Plan
    sums: Sums
    memory: Mapping[str, int]
    bytes: int
    teacher: Plan | None = None


def memory_of(
    settings: TrainingSettings, table: ParameterTable, sums: Sums, storage: StorageType = FLOAT32
) -> dict[str, int]:
    """Return the elements of the float32 buffers that a step keeps besides its plan's, by storage.

    ``storage`` is the type of what lies between layers.
    """
    more = weight_buffers.memory(average=settings.average is not None) | sums.memory()
    if settings.optimizer.sam is not None:
        heads = len(settings.loss) if isinstance(settings.loss, tuple) else 1
        more[BEFORE] = table.elements + settings.shards * heads * TOTALS
    return settings.optimizer.memory(table, scaled=storage.needs_loss_scale) | more


def plan_step(device: Device, graph: Graph, settings: TrainingSettings, context: StepContext) -> StepPlan:
    """Return the plan of a step that fits the device, with what the step keeps besides, and whose kernels are built.

    Raises:
        PlanError: it does not fit.
        ShapeError: a loss does not fit its output.
    """
    shards, own = settings.shards, settings.shards // context.world.size
    in_step, of_shard = settings.sync_batch_norm, settings.batch_size // shards
    batch_size = context.batch_size or of_shard
    accumulate = settings.accumulate > 1 or batch_size < of_shard
    optimizer = settings.optimizer
    table = parameter_table(graph, settings.freeze, rate_factors(graph, optimizer.factors, optimizer.layer_decay))
    samples: dict[str, Any] = {
        "sample_type": context.sample_type,
        # The only input of a teacher may have another name.
        "augmented": bool(settings.augment.input) if len(graph.entries) == 1 else settings.augment.input or False,
        "policy_steps": sum(augmentation.policy_steps for augmentation in settings.augment.changes),
    }
    wanted: dict[str, Any] = {
        "loss": settings.step_loss,
        "training": True,
        "parameters": table,
        "input_delta": context.input_delta,
        "shards": shards if in_step else 1,
        "recompute": settings.recompute,
        **samples,
    }
    # What batch norms over all shards give each other are the parts of all of them.
    counts = [own] if in_step else counts_at_once(device.model, own)
    for at_once in counts:
        sums = sums_of(graph, table, settings, context.world, accumulate=accumulate, at_once=at_once)
        memory = memory_of(settings, table, sums, device.storage)
        state = FLOAT32.itemsize * sum(memory.values()) + (table.bytes if settings.average is not None else 0)
        more = of_shards(device.model, sums, shards, own, accumulate=accumulate)
        size, teacher = batch_size * at_once, None
        try:
            if settings.teacher is not None:
                teacher = settings.teacher.plan(device, graph, size, settings.temperature, at_once=at_once, **samples)
                state += teacher.bytes()

            def besides(plan: Plan, state: int = state) -> int:
                return state

            plan = plan_for(device, graph, size, reserved=besides, **wanted, **more)
        except PlanError:  # Of fewer shards at a time there is less to keep.
            if at_once == counts[-1]:
                raise
        else:
            return StepPlan(plan, sums, memory, plan.bytes() + state, teacher)
    raise AssertionError("the last count fits, or there was an error")


def counts_at_once(kind: DeviceModel, shards: int) -> list[int]:
    """How many of a process's shards such a device may compute at once: the first count that fits; the last is 1.

    The samples of a shard may be too few to fill a GPU; one shard fills a host's cores.
    """
    return [1] if kind.is_host else [shards >> halves for halves in range(shards.bit_length())]


def of_shards(kind: DeviceModel, sums: Sums, shards: int, own: int, *, accumulate: bool = False) -> dict[str, Any]:
    """What a plan of a process's ``own`` shards is asked for with, where their sums are such: see Request."""
    return {
        "statistics": sums.statistics,
        "in_batches": accumulate or own > sums.at_once,
        "at_once": sums.at_once,
        "side_by_side": 1 if kind.is_host else min(shards, _SIDE_BY_SIDE),
    }


def ways_to_fit(settings: TrainingSettings) -> list[tuple[int, bool]]:
    """Return the ways in which a shard can be computed, the fastest first: the samples at once, and ``recompute``.

    With ``fit_memory`` they are all of them, or parts as large as others; else as the settings say.
    """
    whole = settings.batch_size // settings.shards
    asked = whole, settings.recompute
    if not settings.fit_memory:
        return [asked]
    small = [size for size in range(1, math.isqrt(whole) + 1) if whole % size == 0]
    sizes = sorted({*small, *(whole // size for size in small)}, reverse=True)
    return list(dict.fromkeys([asked, *((size, True) for size in sizes)]))

"""Random cases for layers with many variants: their layer, input, arrangement of memory and tunables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blobnet.device.device import Device
from blobnet.examination.checks import one_of
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.arranged import Arrangement, Bench, make_problem

#: What a case has, as (of what, which); a test wants a set of them from its cases.
Traits = set[tuple[str, Any]]
Overrides = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Case:
    """One layer on one input in one arrangement; ``only`` names the wanted variants."""

    layer: Layer
    shape: Shape
    count: int
    arrangement: Arrangement
    overrides: Overrides
    seed: int
    only: frozenset[str] = frozenset()

    @property
    def tuning(self) -> Tuning:
        return tuning_for("cpu", self.overrides, only=self.only)

    @property
    def options(self) -> dict[str, Any]:
        """For run_layer_contract."""
        return {"count": self.count, "seed": self.seed, "tuning": self.tuning}

    def bench(self, device: Device) -> Bench:
        """For its calls; nothing is built or run."""
        problem = make_problem(self.layer, [self.shape], count=self.count, seed=self.seed)
        return Bench(device, problem, self.arrangement, self.tuning)


def random_overrides(
    generator: np.random.Generator, kernels: list[str], choose: Callable[[], Mapping[str, int]]
) -> Overrides:
    """Of the legal values that ``choose`` gives, those of the tunables that each kernel has."""
    overrides = {}
    for name in kernels:
        tunables, chosen = kernel_source.load(name).tunables, choose()
        overrides[name] = {tunable: value for tunable, value in chosen.items() if tunable in tunables}
    return overrides


def random_arrangement(generator: np.random.Generator, *kinds: str) -> Arrangement:
    """One of ``kinds``, with ``=`` or ``+=``, some with an activation in the epilogue."""
    kind = one_of(generator, *kinds)
    return Arrangement(
        f"random, {kind}",
        tight=kind == "tight",
        same_pitch=kind != "own pitches",
        beside=kind == "one pitch",
        accumulate=one_of(generator, False, True),
        activation=one_of(generator, None, None, "sigmoid", "gelu"),
    )


def traits_of_call(call: KernelCall) -> Traits:
    """Lanes, group, pitches, ``+=`` and what is left over in the last block of units, of a kernel with tiles."""
    macros = call.macros
    pitches = {blob.layout.width.memory for blob in call.blobs.values()}
    found: Traits = {("lanes", macros["LANES"]), ("group", call.local_size), ("one pitch", len(pitches) == 1)}
    for name in ("ACCUMULATE", "FLAT", "SPLITS", "BIAS_MODE"):
        if name in macros:
            found.add((name, macros[name]))
    return {(call.kernel, trait) for trait in found}

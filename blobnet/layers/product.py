"""What layers with weights share: a task for each direction, and candidates for each task."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from blobnet.kernel_call import KernelCall
from blobnet.layers.base import Layer, Site
from blobnet.layers.candidates import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Candidate, choose, identity
from blobnet.task import Task


@dataclass(frozen=True)
class _Product(Layer):
    """A layer whose directions are products with its weights, each of which can be computed in several ways."""

    @abstractmethod
    def _candidates(self, site: Site, direction: str) -> list[Candidate]:
        """The ways to compute a direction."""

    @abstractmethod
    def _task(self, site: Site, direction: str) -> Task:
        """What a direction's candidates compute, for tuning."""

    @property
    def backward_reads_inputs(self) -> bool:
        return True

    @property
    def frozen_reads_inputs(self) -> bool:
        return False

    def alternatives(self, site: Site) -> dict[Task, list[Candidate]]:
        directions = [FORWARD]
        directions += [BACKWARD_WEIGHTS] * site.trains("weight")
        directions += [BACKWARD_DATA] * any(site.input_deltas)
        return {self._task(site, direction): self._candidates(site, direction) for direction in directions}

    def forward(self, site: Site) -> list[KernelCall]:
        return self._calls(site, FORWARD)

    def backward_parameters(self, site: Site) -> list[KernelCall]:
        return self._calls(site, BACKWARD_WEIGHTS) if site.trains("weight") else []

    def backward_data(self, site: Site) -> list[KernelCall]:
        return [] if site.input_deltas[0] is None else self._calls(site, BACKWARD_DATA)

    def _calls(self, site: Site, direction: str) -> list[KernelCall]:
        task = self._task(site, direction)
        chosen = choose(site.tuning, task, self._candidates(site, direction))
        return [replace(call, candidate=identity(task, chosen.name)) for call in chosen.calls()]

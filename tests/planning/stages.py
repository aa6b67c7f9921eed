"""The values between the passes, for tests of single ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blobnet.losses import MeanSquaredError
from blobnet.network.graph import Graph
from blobnet.network.parameters import parameter_table
from blobnet.planning.deltas import Deltas, place_deltas
from blobnet.planning.fusion import Fusion, fuse
from blobnet.planning.layout import Layouts, lay_out, possible_halos
from blobnet.planning.placement import Places, place_outputs
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles, assign_roles
from blobnet.planning.schedule import Scheduled, schedule
from blobnet.planning.sites import make_sites
from tests.symbolic import TUNING


def request_for(graph: Graph, *, training: bool = True, frozen: tuple[str, ...] = (), **options: Any) -> Request:
    """A plan for 3 samples; ``frozen`` are names of parameters."""
    loss = MeanSquaredError() if training else None
    options = {"tuning": TUNING, **options}
    return Request(graph, 3, parameters=parameter_table(graph, frozen), loss=loss, training=training, **options)


@dataclass(frozen=True)
class Stages:
    """What every pass makes of a request, with all halos."""

    request: Request
    roles: Roles
    places: Places
    deltas: Deltas
    layouts: Layouts
    fusion: Fusion
    calls: tuple[Scheduled, ...]

    def index(self, name: str) -> int:
        """The vertex of a layer."""
        return self.request.graph.vertex(name, "test").index


def stages(request: Request) -> Stages:
    """All passes up to the schedule."""
    roles = assign_roles(request)
    places = place_outputs(request, roles)
    deltas = place_deltas(request, roles, places)
    layouts = lay_out(request, places, deltas, possible_halos(request.graph, places, deltas), {})
    fusion = fuse(request.graph, places, make_sites(request, roles, places, deltas, layouts))
    return Stages(request, roles, places, deltas, layouts, fusion, schedule(request, roles, fusion))

"""Passes 4 to 7 until they agree: how blobs lie and what the calls are depend on one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST
from blobnet.memory.blob import FLOAT32, StorageType
from blobnet.planning.deltas import Deltas
from blobnet.planning.fusion import Fusion, fuse
from blobnet.planning.in_cells import storages_in_cells
from blobnet.planning.layout import HaloOf, Layouts, lay_out, possible_halos
from blobnet.planning.placement import Places
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles
from blobnet.planning.schedule import Scheduled, halos_read, schedule
from blobnet.planning.sites import make_sites


def settle(
    request: Request, roles: Roles, places: Places, deltas: Deltas
) -> tuple[Layouts, Fusion, tuple[Scheduled, ...]]:
    """Layouts with those halos that the kernels read which layers choose, and the calls; with all if ``every_halo``.

    What is chosen may depend on how blobs lie, so layers choose again until they miss nothing.
    """
    every = possible_halos(request.graph, places, deltas)
    in_cells: Mapping[str, StorageType] = {}

    def arrange(halos: Collection[HaloOf]) -> tuple[Layouts, Fusion, tuple[Scheduled, ...]]:
        layouts = lay_out(request, places, deltas, {key: every[key] for key in halos}, in_cells)
        fusion = fuse(request.graph, places, make_sites(request, roles, places, deltas, layouts))
        return layouts, fusion, schedule(request, roles, fusion)

    halos = set(every)
    layouts, fusion, calls = arrange(halos)
    if in_cells := storages_in_cells(request, places, deltas, fusion.sites):
        plain, (layouts, fusion, calls) = (layouts, fusion, calls), arrange(halos)
        if _cost(request, calls) >= _cost(request, plain[-1]):
            in_cells, (layouts, fusion, calls) = {}, plain
    wanted = halos if request.every_halo else halos_read(calls) & halos
    while wanted != halos:
        halos = wanted
        layouts, fusion, calls = arrange(halos)
        wanted = halos | (halos_read(calls) & every.keys())
    return layouts, fusion, calls


def _cost(request: Request, calls: Sequence[Scheduled]) -> float:
    """Return what launches should take, in the unit of Implementation.cost, or what they move if that takes longer."""
    count, costs = request.batch_size, list[tuple[float, float]]()
    for call in (item.call for item in calls):
        # What work-items read and write in less than 4 bytes at once counts twice.
        narrow = (blob for blob in call.blobs.values() if blob.type.itemsize < FLOAT32.itemsize)
        moved = call.bytes(count) + count * sum(blob.type.itemsize * blob.shape.elements for blob in narrow)
        moving = VALUE_COST * moved / FLOAT32.itemsize / request.tuning.model.cores
        if call.cost is None:
            costs.append((LAUNCH_COST + moving, 0.0))
        elif call.cost or not costs:
            costs.append((call.cost, moving))
        else:
            costs[-1] = (costs[-1][0], costs[-1][1] + moving)
    return sum(max(both) for both in costs)

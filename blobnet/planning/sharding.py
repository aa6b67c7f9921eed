"""Pass 12: one launch for the samples of several shards.

Layers plan a shard of a step (docs/many_devices.md), so that how a kernel computes, and with it every bit, does not
depend on how many shards a device computes at once. Their calls are then made for several shards, whose samples lie one
behind the other. What makes a result of each sample takes all of them as samples. What sums over samples does for each
shard what it would for one, and leaves a result for each: gradients, statistics, and what only the layer knows. Shards
are one more dimension of such a launch (KernelSource.of_shards).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from blobnet.launch.kernel_call import CONSTANT, Array, Blob, KernelCall, rounded_up
from blobnet.memory.blob import BlobLayout
from blobnet.network.ends import TOTALS
from blobnet.planning.constants import PhasedCall
from blobnet.planning.request import Request
from blobnet.planning.statistics import STATISTICS

#: Arrays of shards begin at multiples of so many elements: kernels load vectors, and lines of caches.
_ALIGNMENT = 32
#: What kernels take that look at a sample's neighbours among those of its shard.
_OF_NEIGHBOURS = {"AUGMENTATION", "PARTNER_SHARES"}


def with_shards(request: Request, calls: Sequence[PhasedCall]) -> tuple[PhasedCall, ...]:
    """The calls of a shard, made for all shards that the plan computes at once."""
    if request.at_once == 1:
        return tuple(calls)
    own = _own_storages(request, calls)
    sizes = _sizes([call for _, call in calls], own)
    return tuple(
        (phase, _of_shards(call, request, sizes) if phase != CONSTANT and _is_for_each(call, request, own) else call)
        for phase, call in calls
    )


def result_sizes(request: Request) -> dict[str, int]:
    """The elements that each shard leaves in storages that outlive the plan's calls."""
    sizes = {"totals": len(request.heads) * TOTALS, STATISTICS: len(request.statistics)}
    if request.training:
        sizes["gradients"] = max(1, request.parameters.trainable_elements)
    return {name: size for name, size in sizes.items() if size}


def _sums(calls: Sequence[PhasedCall]) -> set[str]:
    """The storages of the plan's own that hold sums over the samples of a shard."""
    found: set[str] = set()
    for phase, call in calls:
        # What grows with the batch makes results of single samples, and is bound to other arrays without writing there.
        if phase != CONSTANT and not call.global_size.grows and _sees_samples(call, found):
            for role, array in call.arrays.items():
                if call.source.arrays[role] != "read" and not array.persistent and not array.per_sample:
                    found.add(array.storage)
    return found


def _sees_samples(call: KernelCall, sums: Set[str]) -> bool:
    """Return True if a call depends on samples, or on sums over them."""
    return bool(call.blobs) or any(array.per_sample or array.storage in sums for array in call.arrays.values())


def _is_for_each(call: KernelCall, request: Request, own: Set[str]) -> bool:
    """Return True if a call does something for each shard, where ``own`` storages are a shard's."""
    results = own | result_sizes(request).keys()
    if not results.isdisjoint(place.storage for places in (call.blobs, call.arrays) for place in places.values()):
        return True
    # What takes few instructions for addresses counts on the samples of a shard.
    is_short = bool(call.macros.get("CHEAP_ADDRESSES")) or not _OF_NEIGHBOURS.isdisjoint(call.arrays)
    # And the numbers of a shard's samples in the step are not those behind the shard's before.
    is_apart = not call.global_size.grows or call.samples is not None or "FIRST_SAMPLE" in call.source.scalars
    return _sees_samples(call, own) and (is_apart or is_short)


def _own_storages(request: Request, calls: Sequence[PhasedCall]) -> set[str]:
    """The storages of which each shard has one of its own: sums, and what else its launches leave one another.

    How arrays of samples lie is the layer's affair, so that they do not serve several shards and one.
    """
    every = [call for phase, call in calls if phase != CONSTANT]
    own = _sums(calls) | {array.storage for call in every for array in call.arrays.values() if array.side_by_side}
    known = -1
    while known < len(own):
        known = len(own)
        for call in every:
            if _is_for_each(call, request, own):
                arrays = [(role, array) for role, array in call.arrays.items() if not array.persistent]
                is_left = {role: array.per_sample or call.source.arrays[role] != "read" for role, array in arrays}
                own |= {array.storage for role, array in arrays if is_left[role]}
    return own


def _sizes(calls: Sequence[KernelCall], own: Set[str]) -> dict[str, tuple[int, int]]:
    """The elements of each of ``own`` storages, for a shard, and those for each sample of it."""
    sizes = dict.fromkeys(own, (0, 0))
    for call in calls:
        for array in call.arrays.values():
            if array.storage in own:
                elements, per_sample = sizes[array.storage]
                end = rounded_up(array.end(0), _ALIGNMENT)
                sizes[array.storage] = max(elements, end), max(per_sample, array.per_sample)
        for blob in call.blobs.values():
            if blob.storage in own:
                elements, per_sample = sizes[blob.storage]
                sizes[blob.storage] = elements, max(per_sample, blob.layout.memory_elements)
    return sizes


def _of_shards(call: KernelCall, request: Request, sizes: dict[str, tuple[int, int]]) -> KernelCall:
    """The call for each of the shards; ``sizes`` are those of storages that are a shard's own."""
    results, moved = result_sizes(request), dict[str, tuple[int, int]]()

    def step(storage: str, per_sample: int) -> tuple[int, int]:
        if storage in sizes:
            elements, each = sizes[storage]
            return elements + request.of_shard * each, 0
        return results.get(storage, 0), per_sample

    def array(of: Array) -> Array:
        if of.storage not in sizes:
            return of
        elements, per_sample = sizes[of.storage]
        return replace(of, elements=request.at_once * elements - of.offset, per_sample=per_sample)

    def layout(blob: Blob) -> BlobLayout:
        """The blob as the kernel's pointer counts it: what the compiler makes counts the numbers of cells."""
        return blob.numbers if call.source.is_generated else blob.layout

    moved = {role: step(blob.storage, layout(blob).memory_elements) for role, blob in call.blobs.items()}
    moved |= {role: step(of.storage, of.per_sample) for role, of in call.arrays.items()}
    if "SHARD" in call.source.scalars:  # It leaves its part beside those of others, of all ranks.
        left = {role: of.elements // request.shards for role, of in call.arrays.items() if of.persistent}
        moved |= {role: (size, 0) for role, size in left.items() if call.source.arrays[role] == "write"}
    moved = {role: steps for role, steps in moved.items() if any(steps)}
    arrays = {role: array(of) for role, of in call.arrays.items()}
    return replace(call, arrays=arrays).for_shards(request.at_once, moved)

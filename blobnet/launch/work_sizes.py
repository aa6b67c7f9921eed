"""How many work-items launches have, and their groups; and the launches that layers have in common."""

from __future__ import annotations

from collections.abc import Mapping

from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import Shape

#: Work-items that a GPU's work-group should have, and the most of them along the units: NVIDIA's limit, which calls 65
#: 'invalid arguments'.
GROUP_SIZE = 128
_GROUP_UNITS = 64
#: The most rows of a GPU's work-item, and the work-groups of a compute unit that are enough: to begin one takes time.
_MOST_ROWS, _ENOUGH_GROUPS = 8, 32
#: Work-items of a GPU that share a small plane.
_FEW_SHARERS = 16
#: Parts of a sum up to which a GPU's work-item adds up several elements, elements from which on it always does, and how
#: many: SIDE of kernels/gradient/reduce.cl.
_FEW_SPLITS, _MANY_ELEMENTS, _SIDE = 4, 1 << 18, 4
#: Cells that a CPU's work-item should have at least, so that starting it does not cost more than its work.
_CELLS_OF_A_WORK_ITEM = 4096


def elementwise_work(shape: Shape, tuning: Tuning, samples: int = 1) -> tuple[GlobalSize, tuple[int, int, int] | None]:
    """Work size for kernels that loop ``y`` and ``x`` from their global id in steps of GLOBAL_HEIGHT and GLOBAL_WIDTH.

    A CPU gets a plane a work-item, whose inner loop its compiler vectorizes; a GPU gets neighbours on neighbours, and
    several rows a work-item where ``samples`` make many work-groups.
    """
    if not tuning.model.is_simt:
        return GlobalSize(1, 1, shape.planes), None
    width = power_of_two(shape.width, group_size(tuning.model, 64))
    height = power_of_two(shape.height, group_size(tuning.model) // width)
    local = full_group(tuning.model, width, height)
    steps = -(-shape.height // height)
    groups = samples * shape.planes * steps // local[2]
    rows = max(1, min(_MOST_ROWS, groups // (_ENOUGH_GROUPS * tuning.model.cores)))
    return GlobalSize(width, -(-steps // rows) * height, shape.planes), local


def planes_at_once(shape: Shape) -> int:
    """Planes that a CPU's work-item does, one behind the other, where planes are small."""
    return max(1, _CELLS_OF_A_WORK_ITEM // (shape.height * shape.width))


def cell_work(shape: Shape, tuning: Tuning, cells: int) -> tuple[GlobalSize, tuple[int, int, int] | None]:
    """Work size for kernels that compute each cell from those at the same place of other blobs (kernels/cells.h).

    ``cells`` is the tunable CELLS.
    """
    if not tuning.model.is_simt:
        return GlobalSize(1, 1, -(-shape.planes // planes_at_once(shape))), None
    # Programs know how many share a plane: there are few such numbers.
    items = -(-shape.height * shape.width // cells)
    sharers = 1 if items == 1 else group_size(tuning.model) if items > 4 * _FEW_SHARERS else _FEW_SHARERS
    return GlobalSize(rounded_up(items, sharers), 1, shape.planes), full_group(tuning.model, sharers)


def cell_call(
    kernel: str,
    label: str,
    blobs: Mapping[str, Blob],
    tuning: Tuning,
    *,
    arrays: Mapping[str, Array] | None = None,
    macros: Mapping[str, Macro] | None = None,
) -> KernelCall:
    """The launch of such a kernel, whose planes are those of the first blob."""
    first, tunables = next(iter(blobs.values())), tuning.of(kernel)
    if first.type.cell > 1:
        tunables["CELLS"] = 1  # It takes the registers of many numbers.
    size, local = cell_work(first.layout.shape, tuning, tunables["CELLS"])
    return KernelCall(kernel, label, size, blobs, arrays or {}, macros or {}, tunables, local)


def group_size(model: DeviceModel, wanted: int = GROUP_SIZE) -> int:
    """Work-items of a GPU's work-group: as ``wanted``, a power of two, or the largest one that the device allows."""
    return min(wanted, 1 << (model.group_size.bit_length() - 1))


def row_group(model: DeviceModel, items: int) -> tuple[int, int, int]:
    """The work-group of a GPU's kernel that has use for ``items`` neighbours along the width."""
    return full_group(model, power_of_two(items, group_size(model)))


def full_group(model: DeviceModel, width: int, height: int = 1) -> tuple[int, int, int]:
    """A work-group of ``width`` x ``height``, filled up along the units."""
    return width, height, max(1, min(group_size(model) // (width * height), _GROUP_UNITS))


def power_of_two(value: int, most: int) -> int:
    """The smallest power of two that is at least ``value``, but no more than ``most``, a power of two itself."""
    return min(1 << (value - 1).bit_length(), most)


def copy_call(
    label: str, source: Blob, target: Blob, tuning: Tuning, *, accumulate: bool = False, reason: str = ""
) -> list[KernelCall]:
    """The call that copies a blob into another, or adds it; none where both are the same memory already."""
    if source == target and not accumulate:
        return []
    width = group_size(tuning.model, 64) if tuning.model.is_simt else 1
    planes = target.layout.shape
    runs = -(-planes.elements // (width * 16)) if width > 1 else planes.units
    return [
        KernelCall(
            "blob/copy",
            label,
            GlobalSize(width, 1, runs),
            blobs={"INPUT": source, "OUTPUT": target},
            macros={"ACCUMULATE": int(accumulate)},
            local_size=None if width == 1 else (width, 1, 1),
            reason=reason,
        )
    ]


def sum_call(label: str, partials: Array, gradient: Array, splits: int, tuning: Tuning) -> KernelCall:
    """The launch that adds up partial sums of a gradient, which lie one behind the other."""
    run, local = 256, 1
    if tuning.model.is_simt:
        # A work-item with few parts has few loads; one with many makes a long sum, and the more of them the better.
        is_side = splits <= _FEW_SPLITS or gradient.elements >= _MANY_ELEMENTS
        run, local = _SIDE if is_side else 1, group_size(tuning.model, 64)
    return KernelCall(
        "gradient/reduce",
        label,
        GlobalSize(-(-gradient.elements // (run * local)) * local, per_sample=False),
        arrays={"PARTIALS": partials, "GRADIENT": gradient},
        macros={"SPLITS": splits, "ELEMENTS": gradient.elements, "RUN": run},
        local_size=(local, 1, 1),
    )

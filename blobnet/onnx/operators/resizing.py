"""Resize and Upsample: along each axis a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import applied, elementwise, taken
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Array, Tensor, own_axes

#: The attributes of Resize that concern a single axis.
_OPTIONS = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode")
#: Elements that the matrix of an axis may have.
_MOST = 2**24


@operator("Upsample")
def _upsample(op: Operation) -> Tensor:
    scales = op.get("scales") if "scales" in op.attributes else np.ravel(op.array(1))
    options = {"mode": op.get("mode", "nearest"), "coordinate_transformation_mode": "asymmetric"}
    return _resized(op, dict(enumerate(map(float, scales))), {}, {}, {**options, "nearest_mode": "of_ten"})


@operator("Resize")
def _resize(op: Operation) -> Tensor:
    rank = len(op.shape_of(op.value(0)))
    axes = [axis % rank for axis in op.numbers("axes", default=range(rank))]
    options = {name: op.get(name) for name in _OPTIONS if name in op.attributes}
    if op.version < 11:
        scales, sizes, roi = op.array(1), np.zeros(0), np.zeros(0)
        options |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "of_ten"}
    else:
        roi, scales, sizes = (np.ravel(op.array(place, ())) for place in (1, 2, 3))
    op.require(scales.size in (0, len(axes)) and sizes.size in (0, len(axes)), "there must be a number for each axis")
    op.require(
        bool(scales.size) != bool(sizes.size), "there must be either scales or sizes", scales=scales, sizes=sizes
    )
    factors = dict(zip(axes, map(float, scales), strict=False))
    wanted = dict(zip(axes, map(int, sizes), strict=False))
    policy = op.get("keep_aspect_ratio_policy", "stretch")
    if wanted and policy != "stretch":
        choose, before = min if policy == "not_larger" else max, op.shape_of(op.value(0))
        factor = choose(np.float32(size) / np.float32(before[axis]) for axis, size in wanted.items())
        factors = dict.fromkeys(axes, factor)
        # A half becomes more, as in ONNX.
        wanted = {axis: int(np.floor(factor * np.float32(before[axis]) + np.float32(0.5))) for axis in axes}
    regions = {axis: (roi[place], roi[len(axes) + place]) for place, axis in enumerate(axes)} if roi.size else {}
    if options.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        regions = {}
    return _resized(op, factors, wanted, regions, options)


def _resized(op: Operation, factors: dict[int, float], sizes: dict[int, int], regions: Any, options: Any) -> Tensor:
    tensor, shape = op.tensor(0), op.shape_of(op.value(0))
    # In float32, in which 0.7 times 10 is 7.
    targets = [
        sizes.get(axis, int(np.floor(np.float32(size) * np.float32(factors.get(axis, 1)))))
        for axis, size in enumerate(shape)
    ]
    matrices: dict[int, Array] = {}
    for axis, (size, target) in enumerate(zip(shape, targets, strict=True)):
        if axis == tensor.at:
            op.require(target == size, "the samples' axis must keep its size", size=size, target=target)
            continue
        op.require(0 < target * size <= _MOST, "an axis must keep a size that can be computed", sizes=(size, target))
        # What keeps all sizes stays as it is, whatever the scale; and where values are spread, so does each axis.
        is_kept = target == size and (tuple(targets) == shape or options.get("antialias", 0))
        if axis in regions or not (is_kept or (target == size and factors.get(axis, 1) == 1)):
            matrices[axis] = _matrix(op, size, target, factors.get(axis), regions.get(axis), options)
    outside = {axis: ~matrix.any(axis=1) for axis, matrix in matrices.items()}
    found = _repeated(op, tensor, matrices)
    if found is None:
        found = tensor
        for axis, matrix in matrices.items():
            is_choice = ((matrix == 1).sum(axis=1) + outside[axis] == 1).all() and (matrix.sum(axis=1) <= 1).all()
            is_choice = is_choice and (np.count_nonzero(matrix, axis=1) <= 1).all()
            if is_choice:
                indexes = np.where(outside[axis], -1, matrix.argmax(axis=1)).tolist()
                found = taken(op, found, axis, indexes)
            else:
                found = applied(op, found, axis, matrix)
    value = float(op.get("extrapolation_value", 0.0))
    if value and any(rows.any() for rows in outside.values()):
        mask = np.zeros(found.axes, np.bool_)
        for axis, rows in outside.items():
            mask |= rows.reshape([-1 if place == axis else 1 for place in range(mask.ndim)])
        extra = mask * np.float32(value)
        found = elementwise(op, "{0} + {1}", found, extra)
    return found


def _repeated(op: Operation, tensor: Tensor, matrices: dict[int, Array]) -> Tensor | None:
    """The same as an Upsample layer, if it is one."""
    scales: list[int] = []
    modes: set[str] = set()
    for place, axis in enumerate(own_axes(tensor.axes, tensor.at)):
        size = tensor.axes[axis]
        matrix = matrices.get(axis, np.eye(size, dtype=np.float32))
        scale, left = divmod(len(matrix), size)
        if left or (place == 0 and scale != 1):
            return None
        points = np.clip((np.arange(len(matrix)) + 0.5) / scale - 0.5, 0, size - 1)
        linear = np.maximum(0, 1 - np.abs(points[:, None] - np.arange(size)))
        found = {"nearest"} if np.array_equal(matrix, np.repeat(np.eye(size), scale, axis=0)) else set()
        found |= {"bilinear"} if np.allclose(matrix, linear, atol=1e-6) else set()
        modes = found if place == 0 else modes & found
        scales.append(scale)
    if not modes or not 1 < len(scales) <= 4 or max(scales) == 1:
        return None
    mode = "nearest" if "nearest" in modes else "bilinear"
    node = op.layer(layers.Upsample(tuple(scales[1:]), mode), op.shaped(tensor))
    axes = tuple(len(matrices[axis]) if axis in matrices else size for axis, size in enumerate(tensor.axes))
    return replace(tensor, node=node, axes=axes)


def _matrix(op: Operation, size: int, target: int, factor: float | None, region: Any, options: Any) -> Array:
    """Return the matrix (target, size) by which Resize changes a vector of ``size``, in float32 as onnxruntime.

    Rows that read beyond a region's tensor are 0.
    """
    mode, scale = options.get("mode", "nearest"), np.float32(target) / np.float32(size)
    scale = scale if factor is None else np.float32(factor)
    at = _places(op, size, target, scale, region, options.get("coordinate_transformation_mode", "half_pixel"))
    matrix = np.zeros((target, size), np.float32)
    rows = np.arange(target)[:, None]
    if mode == "nearest":
        rounding, exact = options.get("nearest_mode", "round_prefer_floor"), at.astype(np.float64)
        op.require(rounding in _ROUNDINGS, "the rounding must be known", nearest_mode=rounding)
        matrix[rows[:, 0], np.clip(_ROUNDINGS[rounding](exact, scale), 0, size - 1).astype(np.int64)] = 1
    else:
        op.require(mode in _FILTERS, "the mode must be known", mode=mode)
        reach, weight_of = _FILTERS[mode]
        stretch = max(1.0, 1 / float(scale)) if options.get("antialias", 0) else 1.0
        around = int(np.ceil(reach * stretch))
        cells = np.floor(at).astype(np.int64)[:, None] + np.arange(-around, around + 2)
        distances = np.abs(cells - at.astype(np.float64)[:, None]) / stretch
        weights = weight_of(distances, options.get("cubic_coeff_a", -0.75)) * (distances < reach)
        if options.get("exclude_outside", 0):
            weights = weights * ((cells >= 0) & (cells < size))
        weights = weights / weights.sum(axis=1, keepdims=True)
        np.add.at(matrix, (rows, np.clip(cells, 0, size - 1)), weights.astype(np.float32))
    if region is not None:
        matrix[(at < 0) | (at > size - 1)] = 0
    return matrix


def _places(op: Operation, size: int, target: int, scale: Any, region: Any, mode: str) -> Any:
    """Return the place of each new element among the old ones, by the mode of coordinates."""
    half, x, last = np.float32(0.5), np.arange(target, dtype=np.float32), np.float32(size - 1)
    if mode == "align_corners":
        return x * last / np.float32(target - 1) if target > 1 else x
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if mode == "tf_crop_and_resize":
        start, end = map(np.float32, region)
        inside = x * (end - start) * last / np.float32(target - 1) if target > 1 else half * (end - start) * last + x
        return start * last + inside
    known = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    op.require(mode in known, "the mode of coordinates must be known", coordinate_transformation_mode=mode)
    if mode == "pytorch_half_pixel" and target == 1:
        return x
    shift = np.float32(0)
    if mode == "half_pixel_symmetric" and scale != np.float32(target) / np.float32(size):
        shift = np.float32(size) * half * (1 - np.float32(target) / (scale * np.float32(size)))
    return shift + (x + half) / scale - half


#: Functions that round places to elements, by places and the scale; "of_ten" is that of operator sets up to 10.
_ROUNDINGS: dict[str, Callable[[Any, Any], Any]] = {
    "round_prefer_floor": lambda at, _: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at, _: np.floor(at + 0.5),
    "floor": lambda at, _: np.floor(at),
    "ceil": lambda at, _: np.ceil(at),
    "of_ten": lambda at, scale: np.ceil(at) if scale < 1 else np.floor(at),
}


def _cubic(far: Any, a: float) -> Any:
    """Weights at distances from 0 to 2."""
    return np.where(
        far <= 1, ((a + 2) * far - (a + 3)) * far * far + 1, ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    )


#: How far filters reach, and their weights at distances.
_FILTERS: dict[str, tuple[int, Callable[[Any, float], Any]]] = {
    "linear": (1, lambda far, _: 1 - far),
    "cubic": (2, _cubic),
}

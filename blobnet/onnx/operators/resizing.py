"""Resize and Upsample: along each axis a matrix, which ONNX's reference evaluator says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blobnet import layers
from blobnet.onnx import host
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
    return _resized(op, dict(enumerate(map(float, scales))), {}, {}, {**options, "nearest_mode": "floor"})


@operator("Resize")
def _resize(op: Operation) -> Tensor:
    rank = len(op.shape_of(op.value(0)))
    axes = [axis % rank for axis in op.numbers("axes", default=range(rank))]
    options = {name: op.get(name) for name in _OPTIONS if name in op.attributes}
    if op.version < 11:
        scales, sizes, roi = op.array(1), np.zeros(0), np.zeros(0)
        options |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
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
        choose = min if policy == "not_larger" else max
        factor = choose(size / op.shape_of(op.value(0))[axis] for axis, size in wanted.items())
        factors = dict.fromkeys(axes, factor)
        # A half becomes more, as in ONNX.
        wanted = {axis: int(np.floor(factor * op.shape_of(op.value(0))[axis] + 0.5)) for axis in axes}
    regions = {axis: (roi[place], roi[len(axes) + place]) for place, axis in enumerate(axes)} if roi.size else {}
    if options.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        regions = {}
    return _resized(op, factors if not wanted else {}, wanted, regions, options)


def _resized(op: Operation, factors: dict[int, float], sizes: dict[int, int], regions: Any, options: Any) -> Tensor:
    tensor, shape = op.tensor(0), op.shape_of(op.value(0))
    matrices: dict[int, Array] = {}
    for axis, size in enumerate(shape):
        target = sizes.get(axis, int(np.floor(size * factors[axis])) if axis in factors else size)
        if axis == tensor.at:
            op.require(target == size, "the samples' axis must keep its size", size=size, target=target)
            continue
        op.require(0 < target * size <= _MOST, "an axis must keep a size that can be computed", sizes=(size, target))
        if target != size or axis in regions or factors.get(axis, 1) != 1:
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
    """What Resize makes of a vector of ``size``: a matrix (target, size)."""
    import onnx

    inputs: dict[str, Array] = {"x": np.eye(size, dtype=np.float32), "roi": np.zeros(0, np.float32)}
    if region is not None:
        inputs["roi"] = np.array([0, region[0], 1, region[1]], np.float32)
    if factor is None:
        inputs["sizes"] = np.array([size, target], np.int64)
        names = ["x", "roi", "", "sizes"]
    else:
        inputs["scales"] = np.array([1, factor], np.float32)
        names = ["x", "roi", "scales"]
    node = onnx.helper.make_node("Resize", names, ["y"], **options)
    matrix = host.evaluated(node, 19, inputs, op.subject)[0].T
    op.require(matrix.shape == (target, size), "the new size must follow from the scale", size=matrix.shape)
    return np.asarray(matrix, np.float32)

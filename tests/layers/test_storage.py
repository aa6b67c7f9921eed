"""Layers on numbers that are narrower in memory than what kernels compute with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.blob import FLOAT16, FLOAT32, BlobLayout, Halo, Shape, StorageType
from blobnet.device import Device
from blobnet.errors import KernelError
from blobnet.executor import Executor
from blobnet.graph import Graph
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.layers import (
    Activation,
    Add,
    AveragePool2D,
    BatchNorm,
    Concat,
    Dense,
    Dropout,
    GlobalAveragePool,
    MaxPool2D,
)
from blobnet.layers.base import Layer, Site
from blobnet.parameters import ParameterTable
from blobnet.planning import Plan
from blobnet.planning.memory import Buffer, occupants, zero_halo
from tests.kinds import tuning_for
from tests.layers.layer_bench import in_memory
from tests.reference import activation, joins, normalization, pooling

COUNT = 2
Float64Array = npt.NDArray[np.float64]
#: Parameters of a norm of three units; and what its buffers hold.
SCALE, SHIFT = np.array([0.5, 1, 2]), np.array([1, 0, -1.0])
LAYERS: dict[str, tuple[Layer, Sequence[Shape], Callable[..., tuple[Float64Array, list[Float64Array]]]]] = {
    "tanh": (
        Activation("tanh"),
        [Shape(3, 5, 7)],
        lambda delta, x: (activation.tanh(x), [activation.tanh_backward(x, delta)]),
    ),
    "gelu of three axes": (
        Activation("gelu"),
        [Shape(3, 2, 5, 7)],
        lambda delta, x: (activation.gelu(x), [activation.gelu_backward(x, delta)]),
    ),
    "softmax": (
        Activation("softmax"),
        [Shape(5, 3, 4)],
        lambda delta, x: (activation.softmax(x), [activation.softmax_backward(x, delta)]),
    ),
    "add": (Add(), [Shape(3, 5, 7)] * 3, lambda delta, *xs: (joins.add(xs), joins.add_backward(xs, delta))),
    "concat": (
        Concat(),
        [Shape(3, 5, 7), Shape(2, 5, 7)],
        lambda delta, *xs: (joins.concat(xs), joins.concat_backward(xs, delta)),
    ),
    "dropout of nothing": (Dropout(0.0), [Shape(3, 5, 7)], lambda delta, x: (x, [delta])),
    "max": (
        MaxPool2D(3, 2, 1),
        [Shape(3, 9, 41)],
        lambda delta, x: (
            pooling.max_pool2d(x, (3, 3), (2, 2), ((1, 1), (1, 1))),
            [pooling.max_pool2d_backward(x, delta, (3, 3), (2, 2), ((1, 1), (1, 1)))],
        ),
    ),
    "mean": (
        AveragePool2D((2, 3), (2, 3)),
        [Shape(2, 8, 39)],
        lambda delta, x: (
            pooling.avg_pool2d(x, (2, 3), (2, 3), ((0, 0), (0, 0))),
            [pooling.avg_pool2d_backward(x, delta, (2, 3), (2, 3), ((0, 0), (0, 0)))],
        ),
    ),
    "norm": (
        BatchNorm(),
        [Shape(3, 5, 7)],
        lambda delta, x: (
            normalization.batch_norm_training(x, SCALE, SHIFT, SHIFT, SCALE)[0],
            [normalization.batch_norm_backward(x, SCALE, delta)[0]],
        ),
    ),
    "mean of all": (
        GlobalAveragePool(),
        [Shape(4, 5, 13)],
        lambda delta, x: (pooling.global_average_pool(x), [pooling.global_average_pool_backward(x, delta)]),
    ),
}


def blob_of(name: str, shape: Shape, kind: StorageType) -> Blob:
    halo = Halo((1, 1), (2, 1), (1, 2)) if shape.rank == 3 else Halo((2, 1), (1, 2))
    layout = BlobLayout.padded(shape, halo, slack=3, unit_offset=1, unit_memory_count=shape.units + 2)
    return Blob(name, layout, type=kind)


def memory_of(kind: str, name: str, elements: int, per_sample: int) -> Array:
    """What Site asks for: a gradient is not its parameter."""
    return Array(f"{name} gradient" if kind == "gradient" else name, elements or 4, per_sample)


class Half:
    """A layer whose blobs are of float16, on a device."""

    def __init__(self, device: Device, layer: Layer, shapes: Sequence[Shape], tuning_kind: str) -> None:
        self.device, self.layer = device, replace(layer, name="tested")
        output = layer.output_shape(shapes)
        self.inputs = tuple(blob_of(f"input {place}", shape, FLOAT16) for place, shape in enumerate(shapes))
        self.deltas = tuple(blob_of(f"input delta {place}", shape, FLOAT16) for place, shape in enumerate(shapes))
        self.output, self.delta = (blob_of(name, output, FLOAT16) for name in ("output", "output delta"))
        site = Site(
            name="tested",
            inputs=self.inputs,
            output=self.output,
            array=memory_of,
            input_deltas=self.deltas,
            output_delta=self.delta,
            accumulate=(False,) * len(shapes),
            training=True,
            tuning=tuning_for(tuning_kind),
            batch_size=COUNT,
        )
        blobs = (*self.inputs, *self.deltas, self.output, self.delta)
        phased = [("clear", zero_halo(replace(blob, layout=whole(blob.layout)), site.tuning.model)) for blob in blobs]
        phased += [("forward", call) for call in self.layer.forward(site)]
        phased += [("backward", call) for call in self.layer.backward_parameters(site)]
        phased += [("backward", call) for call in self.layer.backward_data(site)]
        buffers = {
            item.name: Buffer(item.name, item.elements, item.per_sample, type=item.type) for item in occupants(phased)
        }
        plan = Plan(
            graph=Graph(()),
            batch_size=COUNT,
            training=True,
            tuning=site.tuning,
            calls=tuple(phased),
            buffers=buffers,
            placed={name: name for name in buffers},
            parameters=ParameterTable({}, (), 1),
            outputs={},
            deltas={},
        )
        self.executor = Executor(device, plan, debug=False)

    def write(self, blob: Blob, values: Float64Array) -> None:
        memory = self.read_all(blob)
        data = blob.layout.data(memory, COUNT)
        data[...] = values.reshape(data.shape)
        self.device.write(self.executor.buffers[blob.storage], memory)

    def read_all(self, blob: Blob) -> npt.NDArray[np.float16]:
        found: npt.NDArray[np.float16] = self.device.read(
            self.executor.buffers[blob.storage], COUNT * blob.layout.memory_elements, np.float16
        )
        return found

    def read(self, blob: Blob) -> Float64Array:
        """The data; all else that a kernel may not have touched is as it was."""
        memory = self.read_all(blob)
        found = blob.layout.data(memory, COUNT).astype(np.float64)
        blob.layout.data(memory, COUNT)[...] = 0
        units = memory.reshape(COUNT, blob.layout.unit_memory_count, -1)
        assert not units[:, :, blob.layout.halo_mask()].any(), "halos are 0"
        assert np.isnan(units[:, [0, -1]][..., ~blob.layout.halo_mask()]).any(), "the slack of others is as it was"
        return found


def whole(layout: BlobLayout) -> BlobLayout:
    return replace(layout, unit_offset=0, unit_count=layout.unit_memory_count)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_blobs_of_halves(device: Device, name: str, kind: str) -> None:
    """Results are those of the reference on the same halves, rounded once."""
    layer, shapes, reference = LAYERS[name]
    half = Half(device, layer, shapes, kind)
    generator = np.random.default_rng(3)
    for blob in (*half.inputs, *half.deltas, half.output, half.delta):
        garbage = np.full(COUNT * blob.layout.memory_elements, np.nan, np.float16)
        device.write(half.executor.buffers[blob.storage], garbage)
    half.executor.run("clear", COUNT)
    for name_of, start in (("scale", SCALE), ("shift", SHIFT), ("running_mean", SHIFT), ("running_variance", SCALE)):
        if name_of in half.executor.buffers:
            device.write(half.executor.buffers[name_of], start.astype(np.float32))
    xs = [
        generator.standard_normal((COUNT, *in_memory(shape))).astype(np.float16).astype(np.float64) for shape in shapes
    ]
    output = layer.output_shape(shapes)
    delta = generator.standard_normal((COUNT, *in_memory(output))).astype(np.float16).astype(np.float64)
    for blob, values in zip(half.inputs, xs, strict=True):
        half.write(blob, values)
    half.write(half.delta, delta)
    half.executor.run("forward", COUNT)
    half.executor.run("backward", COUNT)
    device.finish()
    expected, deltas = reference(delta, *xs)
    # NOTE: what follows from the rounded output, or is added up in two steps, is rounded more than once.
    np.testing.assert_allclose(half.read(half.output).reshape(np.shape(expected)), expected, rtol=2e-3, atol=1e-3)
    for blob, values in zip(half.deltas, deltas, strict=True):
        np.testing.assert_allclose(half.read(blob).reshape(np.shape(values)), values, rtol=2e-3, atol=2e-3)


def test_bytes_follow_the_type() -> None:
    assert (FLOAT32.itemsize, FLOAT16.itemsize) == (4, 2)
    wide, narrow = (Buffer("a", 10, 3, type=kind) for kind in (FLOAT32, FLOAT16))
    assert wide.bytes(7) == 2 * narrow.bytes(7)
    calls = [
        KernelCall(
            "blob/copy",
            "copy",
            GlobalSize(1),
            {role: blob_of(role, Shape(2, 3, 4), kind) for role in ("INPUT", "OUTPUT")},
            macros={"ACCUMULATE": 0},
        )
        for kind in (FLOAT32, FLOAT16)
    ]
    assert calls[0].bytes(5) == 2 * calls[1].bytes(5) == 2 * 5 * 24 * 4
    assert "#define input_t real_t\n" in calls[0].assemble()
    assert "NARROW_STORAGE 1" not in calls[0].assemble()
    assert "#define output_t half\n" in calls[1].assemble()


def test_kernels_that_take_float32_alone_say_so() -> None:
    shape = Shape(2, 3, 4)
    site = Site(
        name="dense",
        inputs=(blob_of("in", shape, FLOAT16),),
        output=blob_of("out", Shape(3), FLOAT16),
        array=lambda kind, name, elements, per_sample: Array(name, elements, per_sample),
        tuning=tuning_for("cpu"),
    )
    (call,) = Dense(3, name="dense").forward(site)
    rule = "the kernel takes float32 alone, until it reads and writes by what is in kernels/storage.h"
    with pytest.raises(KernelError, match=rf"kernel dense/forward: {rule}. Received types="):
        call.assemble()

"""A layer whose kernels a test gives as text, to see whether mistakes are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import GlobalSize, KernelCall
from blobnet.layers.base import Layer, LayerContext
from blobnet.memory.blob import Shape
from tests.layers.layer_contract import Float64Array, Inputs, Parameters

FORWARD = """/*
 * Doubles.
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT
 * Global:
 *   width one
 */
#include "blob.h"
__kernel void toy_forward(READ_BLOB(input), WRITE_BLOB(output), const int count)
{
    const int n = get_global_id(2);
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        for (int y = 0; y < OUTPUT_UNIT_HEIGHT; y++) {
            for (int x = 0; x < OUTPUT_UNIT_WIDTH; x++) {
                output[BLOB_INDEX(OUTPUT, n, z, y, x)] = 2 * input[BLOB_INDEX(INPUT, n, z, y, x)];
            }
        }
    }
    MISTAKE
}
"""
BACKWARD = """/*
 * Doubles, backward.
 * Blobs:
 *   OUTPUT_DELTA  read
 *   INPUT_DELTA   update
 * Scalars:
 *   COUNT
 * Macros:
 *   ACCUMULATE  1: add
 * Global:
 *   width one
 */
#include "blob.h"
__kernel void toy_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), const int count)
{
    const int n = get_global_id(2);
    for (int z = 0; z < INPUT_DELTA_UNIT_COUNT; z++) {
        for (int y = 0; y < INPUT_DELTA_UNIT_HEIGHT; y++) {
            for (int x = 0; x < INPUT_DELTA_UNIT_WIDTH; x++) {
                const int to = BLOB_INDEX(INPUT_DELTA, n, z, y, x);
                const real_t slope = 2 * output_delta[BLOB_INDEX(OUTPUT_DELTA, n, z, y, x)];
                input_delta[to] = ACCUMULATE ? input_delta[to] + slope : slope;
            }
        }
    }
    MISTAKE
}
"""


@dataclass(frozen=True)
class ToyLayer(Layer):
    """output = 2 * input."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def forward(self, site: LayerContext) -> list[KernelCall]:
        blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
        return [KernelCall("toy/forward", f"{site.name} forward", GlobalSize(1), blobs)]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        delta = site.input_deltas[0]
        if delta is None:
            return []
        blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": delta}
        macros = {"ACCUMULATE": int(site.accumulate[0])}
        return [KernelCall("toy/backward", f"{site.name} backward data", GlobalSize(1), blobs, macros=macros)]


# It is no layer of blobnet's: files must not name it.
del Layer.kinds["ToyLayer"]


def use_kernels(monkeypatch: pytest.MonkeyPatch, forward: str = FORWARD, backward: str = BACKWARD) -> None:
    """Makes these texts the toy layer's kernels."""
    load = kernel_source.load
    texts = {"toy/forward": forward.replace("MISTAKE", ""), "toy/backward": backward.replace("MISTAKE", "")}

    def patched(name: str) -> kernel_source.KernelSource:
        return kernel_source.parse(name, texts[name]) if name in texts else load(name)

    monkeypatch.setattr(kernel_source, "load", patched)


def reference_forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
    return 2 * inputs[0]


def reference_backward(
    inputs: Inputs, parameters: Parameters, delta: Float64Array
) -> tuple[list[Float64Array], dict[str, Float64Array]]:
    return [2 * delta], {}

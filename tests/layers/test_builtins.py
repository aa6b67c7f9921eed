"""Declarations of built-in functions for PoCL: the same bits as with its own header, and all that kernels call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from blobnet.device.builtins import WITHOUT_HEADER, declared
from blobnet.device.device import Device
from blobnet.errors import BuildError

KERNELS = Path(__file__).parents[2] / "kernels"
#: Built-in functions of OpenCL C 1.2 for numbers, work-items and memory, without lengths and types.
BUILT_IN = """
    get_work_dim get_global_size get_global_id get_local_size get_local_id get_num_groups get_group_id get_global_offset
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erfc erf exp exp2 exp10 expm1 fabs fdim floor fma
    fmax fmin fmod fract frexp hypot ilogb ldexp lgamma log log2 log10 log1p logb mad modf nan nextafter pow pown powr
    remainder remquo rint rootn round rsqrt sin sincos sinh sqrt tan tanh tgamma trunc abs abs_diff add_sat hadd rhadd
    clamp clz mad_hi mad_sat max min mul_hi rotate sub_sat upsample popcount mad24 mul24 degrees mix radians step
    smoothstep sign cross dot distance length normalize isequal isnotequal isgreater isless isfinite isinf isnan
    isnormal isordered signbit any all bitselect select vload vstore vload_half vloada_half vstore_half barrier
    mem_fence read_mem_fence write_mem_fence prefetch atomic_add atomic_inc shuffle shuffle2 printf
"""

SOURCE = """\
__kernel void all_of_them(__global const float *x, __global float *y, const int count) {
    const int i = get_global_id(0);
    __local float shared[4];
    shared[i % 4] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    const float4 v = vload4(0, x + i), w = fmax(v, 0.25f);
    const float16 lanes = (float16)(v, w, v, w);
    float sum = exp(v.x) + log(fabs(v.y) + 1.0f) + tanh(v.z) + erf(v.w) + sqrt(fabs(v.x)) + pow(fabs(v.y), 1.5f);
    sum += expm1(v.x) + log1p(fabs(v.y)) + floor(v.z) + ceil(v.w) + copysign(v.x, v.y) + sign(v.z) + rint(v.w);
    sum += clamp(v.x, -0.5f, 0.5f) + fmin(v.y, v.z) + (isnan(v.w) ? 1.0f : 2.0f) + (isfinite(v.w) ? 1.0f : 2.0f);
    sum += max(i, 3) + min(i, count) + clz(i + 1) + max(v, w).y + (float)mul_hi((uint)(i * 77777), 4000000007u) * 1e-9f;
    sum += convert_float16((int16)(i)).s7 + convert_int4(v * 9.0f).z + select(v, w, (int4)(-1, 0, -1, 0)).x;
    sum += exp(lanes).sb + sin(lanes).s3 + cos(lanes).s9 + shared[(i + 1) % 4] + (float)get_group_id(0);
    vstore4((float4)(sum) + v, 0, y + 4 * i);
}
"""


def run(device: Device, program: Any, name: str, x: np.ndarray) -> np.ndarray:
    source, target = device.memory.allocate(4 * len(x)), device.memory.allocate(16 * len(x))
    device.memory.write(source, x)
    kernel = cl.Kernel(program, name)
    count = len(x) - 4
    kernel.set_args(source, target, np.int32(count))
    cl.enqueue_nd_range_kernel(device.queue.handle, kernel, (count,), (4,)).wait()
    return device.memory.read(target, 4 * count)


def needs_header(device: Device) -> None:
    if "Portable" not in device.info.platform:
        pytest.skip("this driver parses no header for every program")
    if "3.0-rc" in device.info.driver and device.model.lanes < 16:
        pytest.skip("PoCL 3.0 crashes where it compiles vectors of 16 for a processor without them (docs/drivers.md)")


# Where a processor's vectors are narrower than those of the kernel, PoCL remarks on it.
@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")
def test_the_same_bits_as_with_the_whole_header(device: Device) -> None:
    needs_header(device)
    x = np.random.default_rng(3).standard_normal(68).astype(np.float32)
    x[5], x[9] = np.nan, np.inf
    options = ["-cl-std=CL1.2", "-cl-mad-enable"]
    short = declared(SOURCE)
    assert short is not None
    found = run(device, cl.Program(device.queue.context, short).build([*options, WITHOUT_HEADER]), "all_of_them", x)
    wanted = run(device, cl.Program(device.queue.context, SOURCE).build(options), "all_of_them", x)
    assert found.tobytes() == wanted.tobytes()
    assert np.isfinite(found).mean() > 0.5


def test_what_kernels_call_is_declared() -> None:
    paths = [*KERNELS.rglob("*.cl"), *KERNELS.rglob("*.h")]
    texts = [re.sub(r"//.*|/\*[\s\S]*?\*/", "", path.read_text()) for path in paths]
    called = {name for text in texts for name in re.findall(r"\b([a-z_]\w*)\s*\(", text)}
    called = {name for name in called if re.sub(r"\d*$", "", name) in BUILT_IN.split() or name.startswith("convert_")}
    missing = {name for name in called if f"{name}(" not in declared(name)}
    assert len(called) > 25
    assert missing == set()
    # What is declared is what the text names: a name that the preprocessor makes would not be.
    pasted = {name for text in texts for name in re.findall(r"\w+(?= *##)", text)}
    assert pasted.isdisjoint(BUILT_IN.split())


def test_what_is_not_declared_is_built_with_the_whole_header(device: Device) -> None:
    source = "__kernel void angle(__global float *x) { x[0] = atan2(x[1], x[2]); }\n"
    buffer = device.memory.allocate(12)
    device.memory.write(buffer, np.array([0, 3, 4], np.float32))
    kernel = device.programs.kernel(source, "angle", "a test")
    kernel.set_args(buffer)
    cl.enqueue_nd_range_kernel(device.queue.handle, kernel, (1,), None).wait()
    np.testing.assert_allclose(device.memory.read(buffer, 3)[0], np.arctan2(3, 4), rtol=1e-6)


def test_errors_are_of_the_source_itself(device: Device) -> None:
    with pytest.raises(BuildError) as caught:
        device.programs.build("\n\n__kernel void wrong(__global float *x) { x[0] = exp(no_such_name); }\n", "a test")
    assert "no_such_name" in str(caught.value)
    if "Portable" in device.info.platform:
        assert WITHOUT_HEADER not in str(caught.value)
        assert ":3:" in str(caught.value)
    assert declared("double x;") is None

"""What a device does when things go wrong, and that it can be used afterwards."""

from __future__ import annotations

import gc
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from blobnet import Sequential, layers
from blobnet.device import compiler, discovery, opencl, programs
from blobnet.device import memory as memory_of_devices
from blobnet.device.compiler import Compiler
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo
from blobnet.device.memory import BATCHES_AHEAD, StagingRing
from blobnet.device.queue import event_seconds
from blobnet.errors import BuildError, DeviceError, OptionError, OutOfMemoryError
from blobnet.hardware.device_model import Answers, model_of
from blobnet.optimizers import Adam
from blobnet.support.lru import LRUCache

GOOD = "__kernel void good(__global int *values) { values[get_global_id(0)] = 7; }"


def assert_usable(device: Device) -> None:
    buffer = device.memory.allocate(16)
    kernel = device.programs.kernel(GOOD, "good", "a good kernel")
    kernel.set_args(buffer)
    device.queue.prepare(kernel, (4, 1, 1), None)()
    assert device.memory.read(buffer, 4, np.int32).tolist() == [7, 7, 7, 7]


def test_lanes_are_asked_for_where_intels_compilers_take_more_than_is_good() -> None:
    """On Xe-HPC it gives every kernel 32, and spills; where a thread may have 8, it takes these before it spills.

    That for CPUs joins work-items, which loop over vectors themselves.
    """

    def preamble(name: str, platform: str, **facts: Any) -> str:
        return compiler.preamble(model_of(Answers(name, platform=platform, **facts)))

    intel = "Intel(R) OpenCL Graphics"
    asked = "#define __kernel __attribute__((intel_reqd_sub_group_size(16))) __kernel\n"
    assert preamble("Intel(R) Data Center GPU Max 1100", intel) == asked
    assert preamble("Intel(R) Arc(TM) B580 Graphics", intel) == asked
    assert preamble("Intel(R) Data Center GPU Max 1100", "rusticl") == ""
    assert preamble("Intel(R) Arc(TM) A770 Graphics", intel) == ""
    alone = "#define __kernel __attribute__((intel_vec_len_hint(1))) __kernel\n"
    assert preamble("Intel(R) Xeon(R) Processor", "Intel(R) OpenCL", is_host=True, vector_width=16) == alone
    assert preamble("AMD EPYC", "Intel(R) OpenCL", is_host=True) == alone
    assert preamble("AMD EPYC", "Portable Computing Language", is_host=True) == ""
    assert preamble("NVIDIA H200", "NVIDIA CUDA", capability=(9, 0)) == ""
    assert preamble("gfx1030", "AMD Accelerated Parallel Processing") == ""


def test_vectors_are_of_the_processor_that_pocls_compiler_knows() -> None:
    def width(version: str) -> int:
        return discovery._vector_width(cast(Any, SimpleNamespace(native_vector_width_float=16, version=version)))

    assert width("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3") == 8
    assert width("OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-znver4") == 16
    assert width("OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512") == 16
    assert width("OpenCL 3.0 (Build 0)") == 16


def test_the_preamble_stands_before_every_program(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "preamble", lambda model: "#define VALUE 5\n#define __kernel __kernel\n")
    own, text = Device(device.info), GOOD.replace("7", "VALUE")
    buffer = own.memory.allocate(16)
    kernel = own.programs.kernel(text, "good", "a good kernel")
    kernel.set_args(buffer)
    own.queue.prepare(kernel, (4, 1, 1), None)()
    assert own.memory.read(buffer, 4, np.int32).tolist() == [5, 5, 5, 5]
    with pytest.raises(BuildError) as caught:
        own.programs.kernel("no_such_type value;", "good", "a bad kernel")
    saved = re.search(r"source=(\S+\.cl)", str(caught.value))
    assert saved
    assert Path(saved[1]).read_text().startswith("#define VALUE 5\n")
    # Other programs than those of a device without it.
    with pytest.raises(BuildError):
        device.programs.kernel(text, "good", "a kernel without its preamble")


def test_a_kernel_that_does_not_build(device: Device) -> None:
    source = "__kernel void bad(__global float *values) { values[0] = no_such_name; }"
    with pytest.raises(BuildError) as caught:
        device.programs.kernel(source, "bad", "kernel toy/bad (toy1 forward)")
    text = str(caught.value)
    assert text.startswith(
        f"kernel toy/bad (toy1 forward): {device.info.name} must build the kernel. Received options="
    )
    assert "no_such_name" in text.split("log=")[1]
    saved = re.search(r"source=([^,]+\.cl),", text)
    assert saved
    assert Path(saved.group(1)).read_text() == device.programs.compiler.preamble + source
    Path(saved.group(1)).unlink()
    assert_usable(device)


def test_a_kernel_that_is_not_in_its_program(device: Device) -> None:
    with pytest.raises(BuildError) as caught:
        device.programs.kernel(GOOD, "better", "kernel toy/better (toy1 forward)")
    text = str(caught.value)
    assert text.startswith(
        f"kernel toy/better (toy1 forward): {device.info.name} must find the kernel 'better' in the program. "
        "Received cause=clCreateKernel failed: INVALID_KERNEL_NAME"
    )
    assert text.endswith("Hint: is that its name in the source?")
    assert_usable(device)


def test_a_buffer_that_no_device_has_room_for(device: Device) -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"the device must have room for a buffer. Received bytes=\d+.*smaller batch"
    ):
        device.memory.allocate(1 << 60)
    assert_usable(device)


def test_any_number_of_bytes_is_cleared(device: Device) -> None:
    """Not only whole words: halves may be an odd number."""
    for size in (6, 7, 8, 4099):
        buffer = device.memory.allocate(size)
        assert buffer.size >= size
        assert not device.memory.read(buffer, size, np.uint8).any()
        device.memory.write(buffer, np.full(buffer.size, 7, np.uint8))
        device.memory.fill_zero(buffer, size - 2)
        np.testing.assert_array_equal(
            device.memory.read(buffer, buffer.size, np.uint8), np.repeat([0, 7], [size - 2, buffer.size - size + 2])
        )


def test_buffers_side_by_side(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of odd sizes, with large pages and where the system has none: zero, apart, and alive for as long as one is."""
    sizes = [5, (3 << 20) + 1, 4096, 4097]
    for has_pages in (True, False):
        if not has_pages:
            monkeypatch.delattr(memory_of_devices.mmap, "MADV_HUGEPAGE", raising=False)
        memory = memory_of_devices._large_pages(device.queue, sizes)
        assert all((own is not None) == (has_pages and device.is_host) for own in memory)
        assert all(own is None or own.ctypes.data % 4096 == 0 for own in memory)
        buffers = device.memory.allocate_together(sizes)
        assert all(
            not device.memory.read(buffer, size, np.uint8).any() for buffer, size in zip(buffers, sizes, strict=True)
        )
        for number, buffer in enumerate(buffers):
            device.memory.write(buffer, np.full(buffer.size, number, np.uint8))
        last = buffers[-1]
        for number, buffer in enumerate(buffers):
            assert (device.memory.read(buffer, buffer.size, np.uint8) == number).all()
        del buffers, buffer, memory
        gc.collect()
        assert (device.memory.read(last, sizes[-1], np.uint8) == 3).all()
    assert all(own is None for own in memory_of_devices._large_pages(device.queue, [4096] * 8))


def test_buffers_that_are_dropped_while_the_device_writes_to_them(device: Device) -> None:
    for _ in range(5):
        device.memory.allocate_together([1 << 25] * 2)
        device.queue.flush()
    assert_usable(device)


@pytest.mark.parametrize("without_event", [False, True])
def test_launches_with_and_without_an_event(
    device: Device, monkeypatch: pytest.MonkeyPatch, without_event: bool
) -> None:
    results = []
    enqueue = opencl.function("clEnqueueNDRangeKernel")
    assert enqueue is not None

    def recorded(*arguments: object) -> int:
        results.append(enqueue(*arguments))
        return results[-1]

    monkeypatch.setattr(device.queue, "_enqueue", recorded if without_event else None)
    source = """__kernel void count(__global int *values) {
        const int width = get_global_size(0), height = get_global_size(1);
        const int item = get_global_id(0) + width * (get_global_id(1) + height * get_global_id(2));
        values[item] += item;
    }"""
    kernel = device.programs.kernel(source, "count", "a kernel that counts")
    buffer = device.memory.allocate(4 * 24)
    kernel.set_args(buffer)
    for global_size, local_size in [((24,), None), ((6, 4), (3, 2)), ((4, 3, 2), (2, 1, 1)), ((4, 3, 2), None)]:
        device.queue.prepare(kernel, global_size, local_size)()
    assert device.memory.read(buffer, 24, np.int32).tolist() == [4 * item for item in range(24)]
    assert results == [0] * 4 * without_event
    with pytest.raises(DeviceError) as caught:
        device.queue.prepare(kernel, (24,), (5,))()
    assert re.fullmatch(
        rf"{re.escape(device.info.name)}: count must launch\. Received cause=clEnqueueNDRangeKernel failed: "
        r"INVALID_WORK_GROUP_SIZE.*, global_size=\(24,\), local_size=\(5,\)\.",
        str(caught.value),
    )
    assert len(results) == 5 * without_event
    with device.queue.profiling() as launch:
        event = launch(kernel, (24,), None)
    assert event_seconds(event) >= 0
    assert len(results) == 5 * without_event
    prepared = device.queue.prepare(kernel, (24,), None)
    del kernel, launch
    gc.collect()
    for _ in range(2):
        prepared()
    assert device.memory.read(buffer, 24, np.int32).tolist() == [7 * item for item in range(24)]
    assert results[5:] == [0] * 2 * without_event
    assert_usable(device)


def test_programs_that_are_built_ahead(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.programs, "built", {})
    monkeypatch.setattr(device.programs.compiler, "folder", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sources = [GOOD.replace("7", str(number)) for number in (8, 9, 8)]
    device.programs.build_ahead(sources)
    own = device.programs.compiler
    assert all(own.record(own.program_of(own.digest(source))).exists() for source in sources)
    assert bool(device.programs.built) != (device.is_host and own.traits.keeps_programs)
    monkeypatch.setattr(DeviceInfo, "is_host", False)
    device.programs.build_ahead([*sources, GOOD.replace("7", "seven")])
    assert len(device.programs.built) == 2
    monkeypatch.setattr(Compiler, "build", None)  # They need not be built again.
    for source in sources:
        kernel = device.programs.kernel(source, "good", "a good kernel")
        buffer = device.memory.allocate(4)
        kernel.set_args(buffer)
        device.queue.prepare(kernel, (1,), None)()
        assert GOOD.replace("7", str(device.memory.read(buffer, 1, np.int32)[0])) == source


def counted_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests of the programs that devices build, or load, from now on."""
    built: list[str] = []
    load, from_source = Compiler.load, Compiler.from_source

    def loading(self: Compiler, digest: str) -> Any:
        program = load(self, digest)
        built.extend([digest] if program is not None else [])
        return program

    def building(self: Compiler, source: str) -> Any:
        built.append(self.digest(source.removeprefix(self.preamble)))
        return from_source(self, source)

    monkeypatch.setattr(Compiler, "load", loading)
    monkeypatch.setattr(Compiler, "from_source", building)
    return built


def test_training_builds_each_program_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its plan alone needs more of them than a device keeps."""
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(device.programs, "built", LRUCache(2))
    built = counted_builds(monkeypatch)
    model = Sequential(
        [layers.Input(3, 7, 5), layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3)]
    )
    x = np.random.default_rng(4).standard_normal((6, 3, 7, 5), dtype=np.float32)
    model.fit(x, np.zeros(6, np.int32), optimizer=Adam(1e-3), device=device, verbose=False)
    assert len(built) == len(set(built))
    assert len(device.programs.built) > 10


def test_a_device_keeps_so_many_programs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were asked for last; a kernel of one that is forgotten runs on."""
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(device.programs, "built", LRUCache(3))
    built = counted_builds(monkeypatch)
    sources = [GOOD.replace("7", str(number)) for number in range(10, 16)]
    kernels = [device.programs.kernel(source, "good", "a good kernel") for source in sources]
    assert len(device.programs.built) == 3
    gc.collect()
    buffer = device.memory.allocate(4)
    for number, kernel in enumerate(kernels, start=10):
        kernel.set_args(buffer)
        device.queue.prepare(kernel, (1,), None)()
        assert device.memory.read(buffer, 1, np.int32)[0] == number
    device.programs.build(sources[3], "what is still there")
    device.programs.build(sources[0], "what was forgotten")
    device.programs.build(sources[3], "what was asked for again")
    assert built == [device.programs.compiler.digest(source) for source in (*sources, sources[0])]
    device.programs.set_cache_limit(5)
    for source in sources:
        device.programs.build(source, "of a large plan")
    assert len(device.programs.built) == 5
    device.programs.set_cache_limit(1)
    assert len(device.programs.built) == 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("MEM_OBJECT_ALLOCATION_FAILURE", OutOfMemoryError),
        ("OUT_OF_HOST_MEMORY", OutOfMemoryError),
        ("OUT_OF_RESOURCES", DeviceError),
        ("INVALID_WORK_GROUP_SIZE", DeviceError),
    ],
)
def test_a_want_of_memory_is_told_from_other_failures(device: Device, code: str, kind: type[DeviceError]) -> None:
    cl = opencl.cl
    record = cl._cl._ErrorRecord("some reason", getattr(cl.status_code, code), "clFinish")
    with pytest.raises(DeviceError, match=rf"finishing must succeed\. Received cause=.*{code}") as caught:  # noqa: SIM117
        with device.queue.reporting("finishing"):
            raise cl.Error(record)
    assert caught.type is kind


def test_programs_are_built_once(device: Device) -> None:
    kernels = [device.programs.kernel(GOOD, "good", "a good kernel") for _ in range(2)]
    assert kernels[0] != kernels[1], "every launch site has a kernel object of its own"
    assert kernels[0].program == kernels[1].program


@pytest.mark.parametrize("way", ["page-locked", "no page-locked memory", "of the device"])
def test_arrays_that_are_fed_one_after_another(device: Device, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way != "of the device":
        monkeypatch.setattr(DeviceInfo, "is_host", False)
    if way == "no page-locked memory":

        def refuse(*_: object) -> None:
            raise opencl.cl.MemoryError("out of memory that can be locked")

        monkeypatch.setattr(opencl.cl, "enqueue_map_buffer", refuse)
    source = """__kernel void take(__global const float *from, __global float *to, int row) {
        for (int repeat = 0; repeat < 1000; repeat++)
            to[row * 4096 + get_global_id(0)] = from[get_global_id(0)] + (float)(repeat - 999);
    }"""
    rows = np.random.default_rng(0).standard_normal((2 * BATCHES_AHEAD + 1, 64, 64)).astype(np.float32)
    source_buffer, target = device.memory.allocate(4 * 5000), device.memory.allocate(4 * rows.size)
    feed, values = StagingRing(device.memory, source_buffer), np.empty((64, 64), np.float32)
    for row, wanted in enumerate(rows):
        values[...] = wanted
        feed.write(values)
        values[...] = -1
        kernel = device.programs.kernel(source, "take", "a slow kernel")
        kernel.set_args(source_buffer, target, np.int32(row))
        device.queue.prepare(kernel, (4096, 1, 1), None)()
    assert np.array_equal(device.memory.read(target, rows.size), rows.reshape(-1))
    feed.write(np.arange(3, dtype=np.int32))
    assert device.memory.read(source_buffer, 3, np.int32).tolist() == [0, 1, 2]
    assert np.array_equal(device.memory.read(source_buffer, 4093, offset=12), rows[-1].reshape(-1)[3:])


def test_precision(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(device.info), "model", replace(device.info.model, capability=(8, 0)))
    other = device.at("tf32")
    assert (other.tuning.precision, device.tuning.precision) == ("tf32", "fp32")
    assert other.at("fp32").tuning == device.tuning
    assert (
        other.programs.kernel(GOOD, "good", "a good kernel").program
        == device.programs.kernel(GOOD, "good", "a good kernel").program
    )
    rule = "precision: it must be one of fp32, tf32, bf16, fp16. Received precision=tf16. Hint: did you mean"
    with pytest.raises(OptionError, match=re.escape(rule)):
        device.at("tf16")
    monkeypatch.setitem(vars(device.info), "model", replace(device.info.model, capability=(7, 5)))
    rule = "precision: tf32 needs an NVIDIA GPU with tensor cores (compute capability 8.0). Received device="
    with pytest.raises(DeviceError, match=re.escape(rule)) as caught:
        device.at("tf32")
    assert str(caught.value).endswith("Hint: leave it at fp32, or choose another device.")
    assert device.at("fp32").tuning == device.tuning


def test_only_nvidia_has_a_compute_capability(device: Device) -> None:
    assert (device.info.model.capability is not None) == ("NVIDIA" in device.info.platform)


def test_a_device_gives_what_its_parts_have_by_names_of_before(device: Device) -> None:
    old: Any = device
    with pytest.warns(DeprecationWarning, match=r"^Device\.mark is Device\.queue\.record_event now$"):
        assert old.mark == device.queue.record_event
    with pytest.warns(DeprecationWarning, match=r"^Device\.allocate is Device\.memory\.allocate now$"):
        assert old.allocate == device.memory.allocate
    with pytest.warns(DeprecationWarning, match=r"^Device\.entry is Device\.programs\.cache_file now$"):
        assert old.entry("a plan") == device.programs.cache_file("a plan")
    with pytest.raises(AttributeError, match="'Device' object has no attribute 'no_such_name'"):
        _ = old.no_such_name

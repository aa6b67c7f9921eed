"""Devices as facts: what they are known by, what is known of them, and who else's tunings serve them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from blobnet.hardware.architectures import CAPABILITIES, NAMES, SOURCES, architectures
from blobnet.hardware.device_model import ASSUMED, DRIVER, MEASURED, TABLE, Answers, DeviceModel, facts, model_of

#: Names that drivers give, the vendors that they name, and what the devices are.
GPUS = """
    Intel(R) UHD Graphics 630                     | Intel(R) Corporation         | intel    | gen9
    Intel(R) UHD Graphics 630 [0x3e9b]            | Intel(R) Corporation         | intel    | gen9
    Intel(R) HD Graphics 530                      | Intel(R) Corporation         | intel    | gen9
    Intel(R) HD Graphics P630                     | Intel(R) Corporation         | intel    | gen9
    Intel(R) Gen9 HD Graphics NEO                 | Intel(R) Corporation         | intel    | gen9
    Intel(R) Iris(R) Pro Graphics P580            | Intel(R) Corporation         | intel    | gen9
    Intel(R) Iris(R) Plus Graphics 655 [0x3ea5]   | Intel(R) Corporation         | intel    | gen9
    Intel(R) HD Graphics 5500                     | Intel(R) Corporation         | intel    | gen8
    Intel(R) HD Graphics 6000 BroadWell U-Processor GT3 | Intel                  | intel    | gen8
    Intel(R) Gen11 HD Graphics NEO                | Intel(R) Corporation         | intel    | gen11
    Intel(R) Iris(R) Plus Graphics [0x8a52]       | Intel(R) Corporation         | intel    | gen11
    Intel(R) Iris(R) Xe Graphics [0x9a49]         | Intel(R) Corporation         | intel    | xe-lp
    Intel(R) Iris(R) Xe MAX Graphics [0x4905]     | Intel(R) Corporation         | intel    | xe-lp
    Intel(R) UHD Graphics 770 [0x4680]            | Intel(R) Corporation         | intel    | xe-lp
    Intel(R) UHD Graphics 770                     | Intel(R) Corporation         | intel    | xe-lp
    Intel(R) UHD Graphics [0xa7a0]                | Intel(R) Corporation         | intel    | xe-lp
    Intel(R) Arc(TM) A770 Graphics                | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Arc(TM) A370M Graphics               | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Arc(TM) Pro A40 Graphics             | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Arc(TM) Pro A60 Graphics             | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Graphics [0x56a0]                    | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Data Center GPU Flex 170             | Intel(R) Corporation         | intel    | xe-hpg
    Intel(R) Arc(TM) Graphics                     | Intel(R) Corporation         | intel    | xe-lpg
    Intel(R) Arc(TM) Graphics [0x7d55]            | Intel(R) Corporation         | intel    | xe-lpg
    Intel(R) Arc(TM) 140T GPU                     | Intel(R) Corporation         | intel    | xe-lpg
    Intel(R) Data Center GPU Max 1550             | Intel(R) Corporation         | intel    | xe-hpc
    Intel(R) Data Center GPU Max 1100             | Intel(R) Corporation         | intel    | xe-hpc
    Intel(R) Arc(TM) B580 Graphics                | Intel(R) Corporation         | intel    | xe2
    Intel(R) Arc(TM) Graphics [0x64a0]            | Intel(R) Corporation         | intel    | xe2
    Tahiti                                        | Advanced Micro Devices, Inc. | amd      | gcn
    Ellesmere                                     | Advanced Micro Devices, Inc. | amd      | gcn
    gfx803                                        | Advanced Micro Devices, Inc. | amd      | gcn
    gfx900:xnack-                                 | Advanced Micro Devices, Inc. | amd      | gcn5
    gfx906:sramecc+:xnack-                        | Advanced Micro Devices, Inc. | amd      | gcn5
    AMD Radeon VII (radeonsi, vega20, LLVM 15.0.6, DRM 3.49) | AMD               | amd      | gcn5
    gfx908:sramecc+:xnack-                        | Advanced Micro Devices, Inc. | amd      | cdna1
    gfx90a:sramecc+:xnack-                        | Advanced Micro Devices, Inc. | amd      | cdna2
    gfx90c                                        | Advanced Micro Devices, Inc. | amd      | gcn5
    gfx942:sramecc+:xnack-                        | Advanced Micro Devices, Inc. | amd      | cdna3
    gfx950:sramecc+:xnack-                        | Advanced Micro Devices, Inc. | amd      | cdna4
    gfx1010:xnack-                                | Advanced Micro Devices, Inc. | amd      | rdna1
    AMD Radeon Pro 5500M Compute Engine           | AMD                          | amd      | rdna1
    gfx1030                                       | Advanced Micro Devices, Inc. | amd      | rdna2
    gfx1035                                       | Advanced Micro Devices, Inc. | amd      | rdna2
    AMD Radeon RX 6800 (radeonsi, navi21, LLVM 16.0.6) | AMD                     | amd      | rdna2
    gfx1100                                       | Advanced Micro Devices, Inc. | amd      | rdna3
    gfx1102                                       | Advanced Micro Devices, Inc. | amd      | rdna3s
    gfx1103                                       | Advanced Micro Devices, Inc. | amd      | rdna3s
    gfx1201                                       | Advanced Micro Devices, Inc. | amd      | rdna4
    NVIDIA H200                                   | NVIDIA Corporation           | nvidia   | hopper
    NVIDIA GH200 480GB                            | NVIDIA Corporation           | nvidia   | hopper
    NVIDIA H100 80GB HBM3                         | NVIDIA Corporation           | nvidia   | hopper
    NVIDIA B200                                   | NVIDIA Corporation           | nvidia   | gb100
    NVIDIA GeForce RTX 5090                       | NVIDIA Corporation           | nvidia   | blackwell
    NVIDIA GeForce RTX 4090                       | NVIDIA Corporation           | nvidia   | ada
    NVIDIA L40S                                   | NVIDIA Corporation           | nvidia   | ada
    NVIDIA RTX 6000 Ada Generation                | NVIDIA Corporation           | nvidia   | ada
    NVIDIA A100-SXM4-80GB                         | NVIDIA Corporation           | nvidia   | ga100
    NVIDIA GeForce RTX 3080 Laptop GPU            | NVIDIA Corporation           | nvidia   | ampere
    NVIDIA A10G                                   | NVIDIA Corporation           | nvidia   | ampere
    NVIDIA RTX A6000                              | NVIDIA Corporation           | nvidia   | ampere
    Tesla T4                                      | NVIDIA Corporation           | nvidia   | turing
    NVIDIA GeForce RTX 2080 Ti                    | NVIDIA Corporation           | nvidia   | turing
    NVIDIA GeForce GTX 1660                       | NVIDIA Corporation           | nvidia   | turing
    Tesla V100-SXM2-16GB                          | NVIDIA Corporation           | nvidia   | volta
    Tesla P100-PCIE-16GB                          | NVIDIA Corporation           | nvidia   | gp100
    NVIDIA GeForce GTX 1080                       | NVIDIA Corporation           | nvidia   | pascal
    GeForce GTX 980                               | NVIDIA Corporation           | nvidia   | maxwell2
    GeForce GTX 750 Ti                            | NVIDIA Corporation           | nvidia   | maxwell
    GeForce GTX TITAN X                           | NVIDIA Corporation           | nvidia   | maxwell2
    NVIDIA TITAN Xp                               | NVIDIA Corporation           | nvidia   | pascal
    GeForce GTX TITAN Black                       | NVIDIA Corporation           | nvidia   | gk110
    Tesla K80                                     | NVIDIA Corporation           | nvidia   | gk110
    GeForce GTX 680                               | NVIDIA Corporation           | nvidia   | kepler
    Apple M1                                      | Apple                        | apple    | apple
    Apple M3 Max                                  | Apple                        | apple    | apple
    Apple M4                                      | Apple                        | apple    | apple
    Mali-T860                                     | ARM                          | arm      | midgard
    Mali-G71                                      | ARM                          | arm      | bifrost4
    Mali-G76                                      | ARM                          | arm      | bifrost8
    Mali-G78                                      | ARM                          | arm      | valhall
    Mali-G710 r0p0                                | ARM                          | arm      | valhall2
    Mali-G610                                     | ARM                          | arm      | valhall2
    QUALCOMM Adreno(TM)                           | QUALCOMM                     | qualcomm | adreno
    QUALCOMM Adreno(TM) 650                       | QUALCOMM                     | qualcomm | adreno
    GeForce 8800 GTX                              | NVIDIA Corporation           | nvidia   | None
    Intel(R) FPGA Emulation Device                | Intel(R) Corporation         | intel    | None
    VideoCore IV GPU                              | Broadcom                     | None     | None
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in GPUS.strip().splitlines()]


@pytest.mark.parametrize(("name", "vendor", "made_by", "architecture"), ROWS, ids=[row[0] for row in ROWS])
def test_gpus_by_name(name, vendor, made_by, architecture) -> None:
    model = model_of(Answers(name, vendor))
    assert (str(model.vendor), str(model.architecture)) == (made_by, architecture)
    assert not model.is_host
    assert model.is_simt == (architecture != "midgard")


def test_every_architecture_is_known_by_some_name_and_has_a_source() -> None:
    rows = architectures()
    assert {name for _, name in (*NAMES, *CAPABILITIES)} == {row.name for row in rows.values() if row.vendor}
    assert {row[3] for row in ROWS} - {"None"} == {row.name for row in rows.values() if row.vendor}
    assert {row.source for row in rows.values()} == set(SOURCES)


def test_a_unit_has_room_for_a_work_item_of_all_lanes() -> None:
    for row in architectures().values():
        assert row.register_file is None or row.register_file >= 4 * row.lanes * row.registers, row.name


# name; vendor's answers: compute units, MHz; what its data sheet says: TFLOPS in fp32
PEAKS = [
    ("NVIDIA H200", 132, 1980, 67),
    ("NVIDIA A100-SXM4-80GB", 108, 1410, 19.5),
    ("NVIDIA GeForce RTX 4090", 128, 2520, 82.6),
    ("Tesla T4", 40, 1590, 8.1),
    ("Tesla V100-SXM2-16GB", 80, 1530, 15.7),
    ("NVIDIA GeForce GTX 1080", 20, 1733, 8.9),
    ("Tesla P100-PCIE-16GB", 56, 1303, 9.3),
    ("Tesla K80", 13, 875, 4.37),
    ("gfx906:sramecc+:xnack-", 60, 1800, 13.8),
    ("gfx908:sramecc+:xnack-", 120, 1502, 23.1),
    ("gfx90a:sramecc+:xnack-", 104, 1700, 22.6),
    ("gfx942:sramecc+:xnack-", 304, 2100, 163.4),
    ("gfx1030", 36, 2250, 20.7),
    ("gfx1100", 48, 2500, 61.4),
    ("Intel(R) UHD Graphics 630", 24, 1150, 0.4416),
    ("Intel(R) Arc(TM) A770 Graphics", 512, 2100, 17.2),
    ("Intel(R) Data Center GPU Max 1100", 448, 1550, 22.2),
    ("Intel(R) Arc(TM) B580 Graphics", 160, 2670, 13.7),
    ("Apple M1", 8, 1278, 2.6),
]


@pytest.mark.parametrize(("name", "units", "clock", "peak"), PEAKS, ids=[row[0] for row in PEAKS])
def test_peaks_are_those_of_data_sheets(name, units, clock, peak) -> None:
    model = model_of(Answers(name, compute_units=units, clock=clock))
    assert model.flops == pytest.approx(peak * 1e12, rel=0.02)
    assert model.origins["flops"] == TABLE
    assert model_of(Answers(name, compute_units=units)).flops is None  # Some drivers do not tell the clock.


H200 = Answers(
    "NVIDIA H200",
    "NVIDIA Corporation",
    "NVIDIA CUDA 13.0.84",
    compute_units=132,
    group_size=1024,
    local_memory=49152,
    cache_line=128,
    clock=1980,
    vector_width=1,
    lanes=32,
    capability=(9, 0),
)


def test_what_is_known_of_a_gpu() -> None:
    model = model_of(H200)
    assert model == DeviceModel(
        name="NVIDIA H200",
        vendor="nvidia",
        architecture="hopper",
        compiler="nvidia",
        is_host=False,
        is_simt=True,
        lanes=32,
        registers=255,
        register_file=1 << 18,
        compute_units=132,
        units_of_core=1,
        group_size=1024,
        local_memory=49152,
        core_memory=228 << 10,
        local_is_cache=False,
        banks=32,
        cache_line=128,
        caches=(1 << 18,),
        clock=1.98e9,
        flops=2.0 * 128 * 132 * 1.98e9,
        bandwidth=4.8e12,
        half=True,  # which its driver does not say
        tensor_types=("tf32", "bf16", "fp16"),
        matrix_unit=None,
        capability=(9, 0),
    )
    assert model.cores == 132
    origins = {name: origin for name, _, origin in facts(model)}
    assert set(origins) == {item.name for item in fields(model)} - {"origins", "tunables", "parts"}
    assert [origins[name] for name in ("group_size", "registers", "bandwidth")] == [DRIVER, TABLE, TABLE]


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        ((3, 0), "kepler"),
        ((3, 7), "gk110"),
        ((6, 2), "pascal"),
        ((8, 7), "ampere"),
        ((13, 1), "blackwell"),
        ((2, 1), None),
    ],
)
def test_the_compute_capability_counts_more_than_a_name(capability, architecture) -> None:
    assert model_of(Answers("NVIDIA H200", capability=capability)).architecture == architecture


def test_groups_of_intels_gpus_run_on_several_units() -> None:
    model = model_of(Answers("Intel(R) Arc(TM) A770 Graphics", compute_units=512))
    assert (model.cores, model.units_of_core, model.core_memory) == (32, 16, 128 << 10)
    assert (model.lanes, model.registers) == (8, 128)
    assert model_of(Answers("Intel(R) UHD Graphics 630", compute_units=24)).cores == 3
    assert model_of(Answers("Intel(R) UHD Graphics 600", compute_units=4)).cores == 1


def test_local_memory_may_be_a_cache() -> None:
    known = model_of(Answers("Mali-G78", "ARM", "ARM Platform 3.0", lanes=0))
    assert (known.local_is_cache, known.banks, known.lanes, known.compiler) == (True, 1, 16, "arm")
    told = model_of(Answers("Some GPU", local_is_cache=True))
    assert (told.local_is_cache, told.banks, told.origins["banks"]) == (True, 1, DRIVER)
    assert not model_of(Answers("gfx1030")).local_is_cache


#: Names, vendors and platforms that drivers give for processors, native vectors of float; vendor, row, compiler.
PROCESSORS = """
    pthread-skylake-avx512-Intel(R) Xeon(R) Processor | GenuineIntel | Portable Computing | 16 | intel avx512 pocl
    cpu-haswell-Intel(R) N150 | GenuineIntel         | Portable Computing Language | 8  | intel avx2 pocl
    AMD EPYC                  | Intel(R) Corporation | Intel(R) OpenCL LINUX       | 16 | amd avx512 intel
    Intel(R) Core(TM)2 Duo    | Intel(R) Corporation | Intel(R) OpenCL             | 4  | intel sse intel
    cpu-cortex-a76            | ARM                  | Portable Computing Language | 4  | arm neon pocl
    cpu-neoverse-v1           | ARM                  | Portable Computing Language | 8  | arm sve256 pocl
    Apple M1                  | Apple                | Apple                       | 4  | apple neon apple
    llvmpipe (LLVM 15.0.6)    | Mesa                 | rusticl                     | 0  | None None mesa
"""


@pytest.mark.parametrize("line", PROCESSORS.strip().splitlines(), ids=lambda line: line.split("|")[0].strip())
def test_processors_by_the_width_of_their_vectors(line) -> None:
    name, vendor, platform, width, expected = (cell.strip() for cell in line.split("|"))
    model = model_of(Answers(name, vendor, platform, is_host=True, vector_width=int(width)))
    assert [str(model.vendor), str(model.architecture), str(model.compiler)] == expected.split()
    assert model.lanes == (int(width) or 4)
    assert model.registers == (32 if model.architecture in ("avx512", "neon", "sve256") else 16)
    assert (model.is_host, model.is_simt, model.local_is_cache, model.banks) == (True, False, True, 1)
    # NOTE: their speed is measured; a clock alone does not tell it.
    assert model.flops is None


def test_an_unnamed_processor_is_told_by_its_instruction_set() -> None:
    answers = Answers("cpu", platform="Portable Computing Language", machine="aarch64", is_host=True, vector_width=4)
    assert (model_of(answers).architecture, model_of(answers).vendor) == ("neon", None)
    assert model_of(replace(answers, machine="x86_64")).architecture == "sse"


def test_an_unknown_device_gets_careful_values_and_says_so() -> None:
    model = model_of(Answers("VideoCore IV GPU", "Broadcom", compute_units=3, group_size=12, local_memory=1 << 15))
    assert (model.compute_units, model.group_size, model.local_memory) == (3, 12, 1 << 15)
    assert (model.architecture, model.vendor, model.compiler, model.flops, model.core_memory) == (None,) * 5
    assert {name for name, _, origin in facts(model) if origin == ASSUMED} == {
        *("lanes", "registers", "register_file", "units_of_core", "banks", "cache_line", "caches"),
        *("half", "tensor_types"),
    }
    assert model_of(Answers("VideoCore IV GPU", lanes=16)).lanes == 16
    assert model_of(Answers("VideoCore IV GPU", half=True)).half


def test_measurement_counts_most() -> None:
    model = model_of(H200)
    seen = model.measured(bandwidth=4.3e12)
    assert (seen.bandwidth, seen.origins["bandwidth"]) == (4.3e12, MEASURED)
    assert (seen.flops, seen.origins["flops"]) == (model.flops, TABLE)
    assert model.origins["bandwidth"] == TABLE
    assert model.measured() == model


def test_relatives_from_the_device_to_its_vendor() -> None:
    assert model_of(H200).relatives == ("NVIDIA H200", "nvidia hopper by nvidia", "nvidia by nvidia")
    gpu = model_of(Answers("gfx90a:sramecc+:xnack-", "AMD", "AMD Accelerated Parallel Processing 3614.0"))
    assert gpu.relatives == ("gfx90a:sramecc+:xnack-", "amd cdna2 by amd", "amd by amd")
    cpu = Answers("AMD EPYC", "Intel(R) Corporation", "Intel(R) OpenCL LINUX", is_host=True, vector_width=16)
    assert model_of(cpu).relatives == ("AMD EPYC", "amd avx512 by intel", "amd by intel")
    # Without a name for the compiler nothing tells whose tunings would do.
    assert model_of(Answers("Apple M1", platform="")).relatives == ("Apple M1",)

"""The table of published facts about processors' architectures, which OpenCL does not tell (docs/devices.md).

Nothing here chooses anything: blobnet/hardware/device_model.py reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

#: The sources of the numbers, by the word in the table's last column.
SOURCES = {
    "cuda": "NVIDIA, CUDA C++ Programming Guide, compute capabilities: features and technical specifications",
    "gcn": "AMD, GCN Architecture white paper (2012), Vega ISA (2017); ROCm documentation, GPU specifications",
    "cdna": "AMD, CDNA to CDNA 4 white papers and ISA references; ROCm documentation, GPU specifications",
    "rdna": "AMD, RDNA white paper (2019), RDNA 2 to 4 ISA references; ROCm documentation, GPU specifications",
    "gen": "Intel, The Compute Architecture of Intel Processor Graphics Gen9 (2015), Gen11 (2019)",
    "xe": "Intel, oneAPI GPU Optimization Guide, Xe architecture and shared local memory; GPU Occupancy Calculator",
    "apple": "Turner, metal-benchmarks; Johnson, Apple G13 GPU architecture reference (both measured)",
    "mali": "Arm, Mali GPU OpenCL Developer Guide; the Bifrost and Valhall shader cores",
    "adreno": "Qualcomm, Snapdragon OpenCL General Programming and Optimization; Mesa's freedreno devices",
    "x86": "Intel, 64 and IA-32 Architectures Software Developer's Manual, volume 1: SSE, AVX and AVX-512",
    "arm": "Arm, Architecture Reference Manual for A-profile: 32 vector registers of Advanced SIMD and SVE",
}

# A unit is what OpenCL calls a compute unit: a streaming multiprocessor; AMD's compute unit, from RDNA on a pair of
# them (a work-group processor); one execution unit or vector engine of Intel's, of which a core has several.
#
#   lanes      work-items of a warp, wave or sub-group; of several sizes the one with most registers a lane
#   registers  of 32 bits that a work-item may have; CDNA has as many again, which only matrix instructions compute in
#   file       KiB of registers a unit
#   local      KiB of local memory a core, for all groups on it; "cache" where there is none but in the caches
#   banks      of local memory, 4 bytes wide
#   units      units a core: those that share local memory, and that one work-group runs on
#   macs       multiply-adds in fp32 a clock and unit
#   l1         KiB of the first cache of a core (with local memory, where these share it)
#   line       bytes of a cache line
#   half       whether arithmetic of 16 bits is as fast as that of 32, or faster
#   tensor     what tensor cores multiply, where there are any
_TABLE = """
name      vendor    lanes registers file local banks units macs l1  line half tensor          source

kepler    nvidia    32    63        256  48    32    1     192  64  128  -    -               cuda
gk110     nvidia    32    255       256  48    32    1     192  64  128  -    -               cuda
maxwell   nvidia    32    255       256  64    32    1     128  24  128  -    -               cuda
maxwell2  nvidia    32    255       256  96    32    1     128  24  128  -    -               cuda
gp100     nvidia    32    255       256  64    32    1     64   24  128  yes  -               cuda
pascal    nvidia    32    255       256  96    32    1     128  48  128  -    -               cuda
volta     nvidia    32    255       256  96    32    1     64   128 128  yes  fp16            cuda
turing    nvidia    32    255       256  64    32    1     64   96  128  yes  fp16            cuda
ga100     nvidia    32    255       256  164   32    1     64   192 128  yes  tf32,bf16,fp16  cuda
ampere    nvidia    32    255       256  100   32    1     128  128 128  yes  tf32,bf16,fp16  cuda
ada       nvidia    32    255       256  100   32    1     128  128 128  yes  tf32,bf16,fp16  cuda
hopper    nvidia    32    255       256  228   32    1     128  256 128  yes  tf32,bf16,fp16  cuda
gb100     nvidia    32    255       256  228   32    1     128  256 128  yes  tf32,bf16,fp16  cuda
blackwell nvidia    32    255       256  100   32    1     128  128 128  yes  tf32,bf16,fp16  cuda

gcn       amd       64    256       256  64    32    1     64   16  64   -    -               gcn
gcn5      amd       64    256       256  64    32    1     64   16  64   yes  -               gcn
cdna1     amd       64    256       512  64    32    1     64   16  64   yes  fp32,bf16,fp16  cdna
cdna2     amd       64    256       512  64    32    1     64   16  128  yes  fp32,bf16,fp16  cdna
cdna3     amd       64    256       512  64    32    1     128  32  128  yes  fp32,bf16,fp16  cdna
cdna4     amd       64    256       512  160   64    1     128  32  128  yes  fp32,bf16,fp16  cdna
rdna1     amd       32    256       512  128   64    1     128  32  128  yes  -               rdna
rdna2     amd       32    256       512  128   64    1     128  32  128  yes  -               rdna
rdna3     amd       32    256       768  128   64    1     256  64  128  yes  bf16,fp16       rdna
rdna3s    amd       32    256       512  128   64    1     256  64  128  yes  bf16,fp16       rdna
rdna4     amd       32    256       768  128   64    1     256  64  128  yes  bf16,fp16       rdna

gen8      intel     8     128       28   64    16    8     8    -   64   yes  -               gen
gen9      intel     8     128       28   64    16    8     8    -   64   yes  -               gen
gen11     intel     8     128       28   64    16    8     8    -   64   yes  -               gen
xe-lp     intel     8     128       28   128   16    16    8    64  64   yes  -               xe
xe-lpg    intel     8     128       32   128   16    16    8    192 64   yes  -               xe
xe-hpg    intel     8     128       32   128   16    16    8    192 64   yes  bf16,fp16       xe
xe-hpc    intel     16    128       64   128   16    8     16   512 64   yes  tf32,bf16,fp16  xe
xe2       intel     16    128       64   128   16    8     16   256 64   yes  tf32,bf16,fp16  xe

apple     apple     32    128       208  60    -     1     128  8   128  yes  -               apple

midgard   arm       4     16        -    cache -     1     -    16  64   yes  -               mali
bifrost4  arm       4     64        48   cache -     1     12   16  64   yes  -               mali
bifrost8  arm       8     64        96   cache -     1     24   16  64   yes  -               mali
valhall   arm       16    64        128  cache -     1     32   16  64   yes  -               mali
valhall2  arm       16    64        -    cache -     1     64   16  64   yes  -               mali

adreno    qualcomm  64    192       -    32    -     1     -    -   64   yes  -               adreno

sse       -         4     16        -    cache -     1     -    -   64   -    -               x86
avx2      -         8     16        -    cache -     1     -    -   64   -    -               x86
avx512    -         16    32        -    cache -     1     -    -   64   -    -               x86
neon      -         4     32        -    cache -     1     -    -   64   -    -               arm
sve256    -         8     32        -    cache -     1     -    -   64   -    -               arm
sve512    -         16    32        -    cache -     1     -    -   64   -    -               arm
"""

#: By what a device's name is known: (regular expression, architecture). The first that is found in it counts, among
#: those of its vendor.
NAMES = (
    # AMD's compilers call devices by their instruction set (LLVM, User Guide for AMDGPU), others by their chip.
    (r"gfx(90[0249]|906|90c)", "gcn5"),
    (r"gfx908|arcturus|instinct mi100", "cdna1"),
    (r"gfx90a|aldebaran|instinct mi2\d\d", "cdna2"),
    (r"gfx94\d|instinct mi3[02]\d", "cdna3"),
    (r"gfx950|instinct mi35\d", "cdna4"),
    (r"gfx101\d|navi1\d|radeon.* (rx|pro w?) ?5\d00", "rdna1"),
    (r"gfx103\d|navi2\d|radeon.* (rx|pro w) ?6\d[05]0", "rdna2"),
    (r"gfx110[01]|gfx1151|navi3[12]|radeon.* (rx|pro w) ?7[89]\d0", "rdna3"),
    (r"gfx11|navi33|radeon.* rx ?7[67]\d0", "rdna3s"),
    (r"gfx12|navi4\d|radeon.* rx ?9\d\d0", "rdna4"),
    (r"vega|radeon vii", "gcn5"),
    (r"gfx[678]\d\d|tahiti|pitcairn|capeverde|hawaii|bonaire|tonga|fiji|ellesmere|baffin|polaris", "gcn"),
    # NVIDIA's drivers answer the compute capability as well, which counts more.
    (r"\b(rtx 50\d0|rtx pro \d000 blackwell|nvidia gb10)\b", "blackwell"),
    (r"\b(b[123]00|gb[23]00)\b", "gb100"),
    (r"\b(g?h[128]00|h20)\b", "hopper"),
    (r"\b(rtx 40\d0|rtx \d000 ada|l40s?|l4|l20)\b", "ada"),
    (r"\b(a100|a800|a30)\b", "ga100"),
    (r"\b(rtx 30\d0|rtx a\d+|a10g?|a16|a40|a2)\b", "ampere"),
    (r"\b(rtx 20\d0|gtx 16\d0|quadro rtx|titan rtx|t4|t4g|t1?000)\b", "turing"),
    (r"\b(v100|titan v|gv100)\b", "volta"),
    (r"\b(p100|gp100)\b", "gp100"),
    (r"\b(gtx 9\d0m?|m4|m40|m60|gtx titan x)\b", "maxwell2"),
    (r"\b(gtx 10\d0|gt 10\d0|titan xp?|p4|p40|quadro p\d+)\b", "pascal"),
    (r"\b(gtx 7[45]0( ti)?)\b", "maxwell"),
    (r"\b(k20[cmx]?|k40[cmst]?|k80|gtx 780|gtx titan)\b", "gk110"),
    (r"\b(gtx 6\d0|gtx 7[67]0|k10|grid k\d+)\b", "kepler"),
    # Intel's: names of products, and of architectures as older drivers give them.
    # The number in brackets is the PCI device, which tells more.
    (r"\[0x(64|e2)..\]|arc.*\b(b\d{2,3}|1[34]0v)\b|battlemage|lunar lake", "xe2"),
    (r"\[0x0b[d6].\]|data center gpu max|ponte vecchio|\bpvc\b", "xe-hpc"),
    (r"\[0x(56|4f)..\]|arc.*\ba\d{2,3}m?\b|data center gpu flex|\bdg2\b|alchemist", "xe-hpg"),
    (r"\[0x7d..\]|intel.* arc.*|meteor lake|arrow lake", "xe-lpg"),
    (r"\[0x(9a|46|4c|49|a7)..\]|iris.* xe|gen12lp|uhd graphics 7\d0", "xe-lp"),
    (r"(tiger|alder|rocket|raptor) ?lake|\bdg1\b", "xe-lp"),
    (r"\[0x(8a|45|4e)..\]|gen11|(ice|elkhart|jasper) ?lake|iris.* plus graphics( g\d)?$", "gen11"),
    (r"\[0x16..\]|gen8|broadwell|hd graphics (5[35]00|5600|6000)\b|iris.* (6100|6200)", "gen8"),
    (r"\[0x(19|59|3e|87|9b|5a|31)..\]|gen9|uhd graphics|hd graphics p?[56]\d\d\b", "gen9"),
    (r"iris.* graphics p?[56]\d\d\b", "gen9"),
    # Apple's, Arm's (G710 and later have twice the arithmetic of G77) and Qualcomm's.
    (r"apple (m|a)\d+", "apple"),
    (r"mali-t\d+", "midgard"),
    (r"mali-g(31|51|71|72)\b", "bifrost4"),
    (r"mali-g(52|76)\b", "bifrost8"),
    (r"mali-g(57|68|77|78)", "valhall"),
    (r"(mali|immortalis)-g\d{3}", "valhall2"),
    (r"adreno", "adreno"),
)

#: NVIDIA's compute capabilities from which on an architecture counts, the highest first.
CAPABILITIES = (
    ((12, 0), "blackwell"),
    ((10, 0), "gb100"),
    ((9, 0), "hopper"),
    ((8, 9), "ada"),
    ((8, 6), "ampere"),
    ((8, 0), "ga100"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 1), "pascal"),
    ((6, 0), "gp100"),
    ((5, 2), "maxwell2"),
    ((5, 0), "maxwell"),
    ((3, 5), "gk110"),
    ((3, 0), "kepler"),
)

#: Bytes a second of a device's memory in 10**9, by a part of its name, the first that is found; data sheets of the
#: vendors. Where a name stands for several memories, the slowest.
BANDWIDTHS = (
    ("nvidia h200", 4800),
    ("nvidia h100 pcie", 2039),
    ("nvidia h100", 3350),
    ("a100-sxm4-80gb", 2039),
    ("a100 80gb pcie", 1935),
    ("a100", 1555),
    ("v100", 900),
    ("p100-pcie-12gb", 549),
    ("p100", 732),
    ("nvidia a10g", 600),
    ("nvidia l40", 864),
    ("nvidia l4", 300),
    ("tesla t4", 320),
    ("rtx 4090", 1008),
    ("rtx 3090", 936),
    ("rtx 2080 ti", 616),
    ("gtx 1080 ti", 484),
    ("gtx 1080", 320),
    ("tesla k80", 240),
    ("data center gpu max 1550", 3276),
    ("data center gpu max 1100", 1229),
    ("arc(tm) a770", 512),
    ("arc(tm) b580", 456),
    ("radeon vii", 1024),
    ("instinct mi100", 1229),
    ("instinct mi210", 1638),
    ("instinct mi250", 1638),  # of a die, which is a device
    ("instinct mi300x", 5300),
    ("radeon rx 6800", 512),
    ("radeon rx 6900 xt", 512),
    ("radeon rx 7900 xtx", 960),
    ("apple m1 pro", 200),
    ("apple m1 max", 400),
    ("apple m1 ultra", 800),
    ("apple m1", 68),
)


@dataclass(frozen=True)
class Architecture:
    """A row of the table, in bytes instead of KiB; what is not published is None."""

    name: str
    vendor: str | None
    lanes: int
    registers: int
    register_file: int | None
    local_memory: int | None
    local_is_cache: bool
    banks: int | None
    units_of_core: int
    multiply_adds: int | None
    first_cache: int | None
    cache_line: int
    half: bool
    tensor_types: tuple[str, ...]
    source: str


@cache
def architectures() -> dict[str, Architecture]:
    """The table, by name."""
    header, *rows = [line.split() for line in _TABLE.splitlines() if line]
    found = (_architecture(dict(zip(header, row, strict=True))) for row in rows)
    return {row.name: row for row in found}


def _architecture(row: dict[str, str]) -> Architecture:
    def number(name: str, unit: int = 1) -> int | None:
        return int(row[name]) * unit if row[name].isdigit() else None

    return Architecture(
        name=row["name"],
        vendor=None if row["vendor"] == "-" else row["vendor"],
        lanes=int(row["lanes"]),
        registers=int(row["registers"]),
        register_file=number("file", 1 << 10),
        local_memory=number("local", 1 << 10),
        local_is_cache=row["local"] == "cache",
        banks=number("banks"),
        units_of_core=int(row["units"]),
        multiply_adds=number("macs"),
        first_cache=number("l1", 1 << 10),
        cache_line=int(row["line"]),
        half=row["half"] == "yes",
        tensor_types=() if row["tensor"] == "-" else tuple(row["tensor"].split(",")),
        source=row["source"],
    )

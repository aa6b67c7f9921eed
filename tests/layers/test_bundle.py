"""Several sources as one program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.bundle import bundled
from blobnet.device.compiler import Compiler
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning
from blobnet.implementations import IMPLEMENTATIONS
from blobnet.support.user_cache import write_entry
from tests.kinds import tuning_for
from tests.layers.test_child_builds import another, fresh, source, value
from tests.layers.test_every_kernel import compared_calls

__all__ = ["fresh"]

#: Names of each kind, in places where they are hard to see.
NAMES = """
#define VALUE {value} /* {{ not a block */
#define TWICE(x) (2 * (x))
#define EACH(type)                                        \\
    type __attribute__((overloadable)) moved(type from) \\
    {{                                                    \\
        return TWICE(from) + VALUE;                       \\
    }}
typedef {type} number_t;
typedef struct {{
    number_t first; // }} not the end
}} pair_t;
struct tagged {{ number_t inner; }};
__constant number_t TABLE[2] = {{1, VALUE}};
EACH(int)
EACH(float)
number_t of_pair(pair_t pair, number_t (*values)[1]);
number_t of_pair(pair_t pair, number_t (*values)[1]) {{ return pair.first + (*values)[0]; }}
__kernel __attribute__((vec_type_hint(int))) void fill(__global int *values)
{{
    pair_t pair = {{TABLE[1]}};
    struct tagged other = {{1}};
    number_t own[1] = {{moved((number_t)1)}};
    if (values) {{
        values[0] = (int)(of_pair(pair, &own) + other.inner);
    }}
}}
"""


def test_sources_have_their_names_and_macros_for_themselves(device: Device) -> None:
    sources = {
        "_a": NAMES.format(value=3, type="int"),
        "_b": source(5),
        "_c": NAMES.format(value=7, type="float"),
        "_d": source("VALUE").replace("__kernel", "#define VALUE 11\n__kernel"),
    }
    text = bundled(sources)
    found = [value(device, text.replace(f"fill{suffix}", "fill")) for suffix in sources]
    assert found == [3 + 2 + 3 + 1, 5, 7 + 2 + 7 + 1, 11]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Non-empty compiler output")
def test_every_kernel_can_be_in_a_bundle(device: Device) -> None:
    """None has a name that goes by unseen, so that the compiler finds it twice."""
    if device.programs.compiler.traits.most_bundled == 1:
        pytest.skip("this driver gets each source alone")
    tunings = [tuning_for("cpu"), *(tuning_for("cpu", only={name}) for name in IMPLEMENTATIONS)]
    texts: dict[str, str] = {}
    for call in compared_calls(tunings):
        if call.kernel not in texts:
            texts[call.kernel] = call.assemble()
    found = [*texts.values()]
    assert len(texts) > 50
    for start in range(0, len(found), device.programs.compiler.traits.most_bundled):
        some = found[start : start + device.programs.compiler.traits.most_bundled]
        device.programs.compiler.from_source(
            device.programs.compiler.preamble + bundled({f"_{number}": text for number, text in enumerate(some)})
        )


def test_a_bundle_computes_the_same_bits(fresh: Device, tmp_path: Path) -> None:
    if fresh.programs.compiler.traits.most_bundled == 1:
        pytest.skip("this driver gets each source alone")
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((16, 3, 9, 7), dtype=np.float32), rng.integers(0, 5, 16)

    def trained(device: Device) -> dict[str, np.ndarray]:
        model = bn.Sequential(
            [
                layers.Input(3, 9, 7),
                layers.Conv2D(6, 3, padding="same", bias=False),
                layers.BatchNorm(),
                layers.Activation("relu"),
                layers.Conv2D(8, 3, stride=2, activation="gelu"),
                layers.Flatten(),
                layers.Dense(5),
            ],
            seed=1,
        )
        model.fit(x, y, epochs=2, batch_size=8, optimizer=bn.optimizers.Adam(1e-2), device=device, verbose=False)
        return dict(model.weights)

    together = trained(fresh)
    assert list(fresh.programs.compiler.folder.glob("*.part")), "there was a bundle"
    alone = Device(fresh.info)
    alone.programs.compiler.folder = tmp_path
    alone.programs.compiler.traits = replace(fresh.programs.compiler.traits, most_bundled=1)
    for name, weights in trained(alone).items():
        np.testing.assert_array_equal(weights, together[name], name)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("damage", ["no such bundle", "no bundle", "a damaged part"])
def test_a_bundle_that_cannot_be_had_any_more(fresh: Device, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Its sources are built anew, once."""
    if fresh.programs.compiler.traits.most_bundled == 1:
        pytest.skip("this driver gets each source alone")
    sources = [source(number) for number in range(3)]
    fresh.programs.build_ahead(sources)
    (bundle,) = {fresh.programs.compiler.program_of(fresh.programs.compiler.digest(text)) for text in sources}
    part = fresh.programs.compiler._part(fresh.programs.compiler.digest(sources[0]))
    if damage == "no such bundle":
        write_entry(part, b"0" * 64)
    elif damage == "no bundle":
        fresh.programs.compiler.record(bundle).unlink()
    else:
        part.write_bytes(part.read_bytes()[:-1])
    following = another(fresh)
    if damage == "a damaged part":
        with pytest.warns(BlobnetWarning, match="an entry of the cache must be as it was written"):
            assert value(following, sources[0]) == 0
    else:
        assert value(following, sources[0]) == 0
    assert [value(following, text) for text in sources] == [0, 1, 2]
    monkeypatch.setattr(Compiler, "from_source", None)
    assert [value(another(fresh), text) for text in sources] == [0, 1, 2]


def test_a_bundle_that_is_gone_is_built_anew_by_children(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if fresh.programs.compiler.traits.most_bundled == 1:
        pytest.skip("this driver gets each source alone")
    sources = [source(number) for number in range(3)]
    with fresh.programs.preload("a plan") as needed:
        fresh.programs.build_ahead(sources)
        needed.update(sources)
    (bundle,) = {fresh.programs.compiler.program_of(fresh.programs.compiler.digest(text)) for text in sources}
    fresh.programs.compiler.record(bundle).unlink()
    following, more = another(fresh), [*sources, source(3)]
    monkeypatch.setattr(Compiler, "from_source", None)  # Here; children are processes of their own.
    with following.programs.preload("a plan"):
        following.programs.build_ahead(more)
    assert [value(following, text) for text in more] == [0, 1, 2, 3]

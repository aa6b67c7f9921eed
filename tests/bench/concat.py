"""A training step with concatenations put together in place, against the same build with a copy of every part.

    python tests/bench/concat.py NAME [--size 224] [--filters 64,128,256] [--batch-size 64] [--device NAME]

The second plan is told that Concat's parts, and their deltas, lie in memory of their own: all else is planned alike.
Bytes are what all launches of a step read and write, once each; memory is what a step needs in all, with Adam's state.
Milliseconds are medians of bursts in turns, as in `blobnet bench model`, the ratio that of neighbours.
"""

from __future__ import annotations

import argparse
from functools import partial
from unittest import mock

from blobnet import models
from blobnet.bench.network import TRAINING, NetworkBench, burst
from blobnet.device.device import Device
from blobnet.launch.kernel_call import COPYING
from blobnet.layers import Concat
from blobnet.layers.base import Placements
from blobnet.model import Model
from blobnet.support.formatting import format_bytes


def copying(device: Device, model: Model, batch_size: int) -> NetworkBench:
    """The network as it would be if concatenation were a layer as any other."""
    with mock.patch.object(Concat, "placement", return_value=Placements()):
        return NetworkBench(device, model, batch_size)


def line(name: str, bench: NetworkBench, seconds: float) -> str:
    """What a step comes to."""
    calls, count = bench.calls, bench.batch_size
    copies = [call.bytes(count) for call in calls if call.moves == COPYING]
    return (
        f"{name}: {len(calls)} launches, {format_bytes(sum(call.bytes(count) for call in calls))} read and written, "
        f"{len(copies)} copies of {format_bytes(sum(copies))} among them; memory {format_bytes(bench.step.bytes)}; "
        f"{1e3 * seconds:.2f} ms"
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the name of a network that ships")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--filters", help="of the network's levels, where it takes them (unet)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    own = {"filters": [int(units) for units in options.filters.split(",")]} if options.filters else {}
    model = getattr(models, options.model)((3, options.size, options.size), **own)
    device = Device(options.device)
    print(f"{device.info}\n{options.model}, 3x{options.size}x{options.size}, batch {options.batch_size}")
    together = NetworkBench(device, model, options.batch_size)
    apart = copying(device, model, options.batch_size)
    timing = together.measure(TRAINING, options.repeats, partial(burst, apart.train, device.queue.finish))
    assert timing.torch is not None
    assert timing.ratio is not None
    print(line("in place", together, timing.seconds))
    print(line("copied", apart, timing.torch))
    print(f"copied over in place: {timing.ratio:.3f}")


if __name__ == "__main__":
    main()

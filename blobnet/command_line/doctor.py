"""``blobnet doctor``: checks that blobnet computes rightly on the devices of this machine."""

from __future__ import annotations

import argparse
import json
import sys

from tqdm import tqdm

from blobnet.checkup.doctor import Row, doctor, heading
from blobnet.device.discovery import DeviceInfo, choose, devices
from blobnet.device.tuning import Tunings
from blobnet.support.tables import terminal_width

_BAR = "{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt} checks, {elapsed}"


def run(options: argparse.Namespace) -> int:
    """Prints a row a check as they are done, and what they come to; 1 if one failed."""
    if options.clear:
        return _clear(options.device)
    is_shown = not options.json
    with tqdm(disable=None if is_shown else True, bar_format=_BAR, dynamic_ncols=True, leave=False) as bar:

        def show(text: str) -> None:
            if is_shown:
                # The last column of a row may not fit.
                width = terminal_width()
                with bar.external_write_mode(file=sys.stdout):
                    print(
                        "\n".join(line if line[:1] == " " else line[:width] for line in text.splitlines()), flush=True
                    )

        def begin(info: DeviceInfo, count: int) -> None:
            if bar.total:
                show("")
            bar.reset(count)
            show(heading(info))

        def advance(row: Row) -> None:
            bar.update()
            show(str(row))

        report = doctor(
            options.device,
            thorough=options.thorough,
            seed=options.seed,
            limit=options.limit,
            begin=begin,
            advance=advance,
        )
    print(json.dumps(report.as_json(), indent=1) if options.json else f"\n{report.summary()}")
    return 0 if report.is_well else 1


def _clear(device: str | None) -> int:
    """Forgets what was denied."""
    for info in [choose(device)] if device else devices():
        count = Tunings(info.identity).clear_denied()
        print(f"{info}: {count} variant{'s' * (count != 1)} may be used again")
    return 0

"""``blobnet inspect``: what a model file holds."""

from __future__ import annotations

import argparse

from blobnet.files import checkpoint


def run(options: argparse.Namespace) -> int:
    """Prints layers, weights, classes, history and the state of training."""
    print(checkpoint.inspect(options.file))
    return 0

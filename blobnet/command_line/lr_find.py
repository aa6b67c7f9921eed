"""``blobnet lr-find``: suggests a learning rate for a model on a data set."""

from __future__ import annotations

import argparse
import math
from typing import Any

from blobnet import optimizers, plots
from blobnet.command_line.data_argument import (
    check_classes,
    fitted,
    load_plain_dataset,
    normalize,
)
from blobnet.command_line.model_argument import find_model, is_model_file, open_model
from blobnet.device.device import Device
from blobnet.training.rate_finder import find_learning_rate


def run(options: argparse.Namespace) -> int:
    """Trains for a while at growing rates, and prints a rate to begin with."""
    if options.plot:
        plots.check(options.plot)
    loaded = open_model(options.model) if is_model_file(options.model) else None
    source = None if loaded else find_model(options.model)
    data = load_plain_dataset(options, loaded)
    check_classes(data)
    if loaded is None:
        assert source is not None
        outputs = data.classes or math.prod(data.train.y.shape[1:])
        model = source.build(data.shape, outputs, data.class_names, options.seed)
        normalize(model, data.statistics())
    else:
        model = loaded
    data, loss = fitted(options, model, data)
    build: Any = optimizers.Optimizer.named(options.optimizer or "adam")  # Every one has a default rate.
    given: dict[str, Any] = {
        "optimizer": build(),
        "loss": loss,
        "device": Device(options.device),
    }
    found = find_learning_rate(
        model,
        data.train.x,
        data.train.y,
        steps=options.steps,
        batch_size=options.batch_size,
        seed=options.seed,
        **given,
    )
    if options.plot:
        plots.save(plots.learning_rates(found.rates, found.losses, found.suggestion, options.model), options.plot)
    least = float(found.losses.min())
    print(
        f"{len(found.rates)} steps at rates of {found.rates[0]:.2g} to {found.rates[-1]:.2g}, "
        f"mean loss {least:.4g} at best"
    )
    print(f"suggestion: --learning-rate {found.suggestion:.2g}")
    return 0

"""The names of losses beside their classes of blobnet.losses; light, since the command line's help needs them."""

from __future__ import annotations

import re

#: The names of each class; on the command line the first of them is shown.
LOSS_NAMES = {
    "CrossEntropy": ("cross-entropy", "ce", "categorical-crossentropy", "sparse-categorical-crossentropy"),
    "Focal": ("focal",),
    "Dice": ("dice",),
    "MeanSquaredError": ("mean-squared-error", "mse", "l2"),
    "MeanAbsoluteError": ("mean-absolute-error", "mae", "l1"),
    "Huber": ("huber", "smooth-l1"),
    "BinaryCrossEntropy": ("binary-cross-entropy", "bce"),
}


def squeezed(name: str) -> str:
    """A name in any spelling: ``mean squared error``, ``Mean-Squared-Error``, ``mean_squared_error``."""
    return re.sub(r"[ _-]", "", name).lower()


def loss_named(name: str) -> str | None:
    """The class of a name; None if there is none."""
    known = {squeezed(text): kind for kind, names in LOSS_NAMES.items() for text in (kind, *names)}
    return known.get(squeezed(name))

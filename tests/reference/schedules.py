"""Learning rates by step or epoch."""

from __future__ import annotations

import math


def constant_schedule(base: float, epoch: int) -> float:
    """``base`` in every epoch."""
    return base


def step_schedule(base: float, epoch: int, *, step_size: int, factor: float) -> float:
    """Gives base * factor^floor(epoch / step_size), epochs counted from 0."""
    return float(base * factor ** (epoch // step_size))


def cosine_schedule(base: float, step: int, *, steps: int, warm_up: int = 0, final: float = 0.0) -> float:
    """The rate of step t = 0, 1, ... of ``steps`` T, with W = ``warm_up``.

    t < W:   base * (t + 1) / W
    else:    final + (base - final) * (1 + cos(pi * p)) / 2,   p = min(1, (t - W) / max(1, T - W))

    Loshchilov and Hutter 2016 (cosine); Goyal et al. 2017 (warm-up).
    """
    if step < warm_up:
        return base * (step + 1) / warm_up
    progress = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return final + (base - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

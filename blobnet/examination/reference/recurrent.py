"""Recurrent layers, position by position: (N, C, W) -> (N, units, W) of states, zeros before the first."""

from __future__ import annotations

import numpy as np

from blobnet.examination.reference.activation import sigmoid
from blobnet.examination.reference.arrays import FloatArray, float64

Arrays = dict[str, FloatArray]


def states(kind: str, x: FloatArray, p: Arrays) -> tuple[FloatArray, list[Arrays]]:
    """Return the outputs (N, units, W) of "LSTM" or "GRU", and for each position what the way back needs.

    ``p`` has ``weight`` (gates * units, C), ``recurrent`` (gates * units, units), ``bias`` and for a GRU also
    ``recurrent_bias`` (gates * units,). Gates: input, forget, value, output; or reset, update, value.
    """
    p = {name: float64(values) for name, values in p.items()}
    before = memory = np.zeros((len(x), p["recurrent"].shape[1]))
    found, outputs = list[Arrays](), list[FloatArray]()
    for column in np.moveaxis(float64(x), 2, 0):
        given, own = column @ p["weight"].T, before @ p["recurrent"].T
        given, own = given + p.get("bias", 0.0), own + p.get("recurrent_bias", 0.0)
        if kind == "LSTM":
            i, f, g, o = np.split(given + own, 4, axis=1)
            step = {"i": sigmoid(i), "f": sigmoid(f), "g": np.tanh(g), "o": sigmoid(o), "memory": memory}
            memory = step["f"] * memory + step["i"] * step["g"]
            after = step["o"] * np.tanh(memory)
            step |= {"after": memory}
        else:
            (r, z, n), (own_r, own_z, own_n) = np.split(given, 3, axis=1), np.split(own, 3, axis=1)
            step = {"r": sigmoid(r + own_r), "z": sigmoid(z + own_z), "own": own_n}
            step["n"] = np.tanh(n + step["r"] * own_n)
            after = (1 - step["z"]) * step["n"] + step["z"] * before
        found.append({**step, "x": column, "before": before})
        outputs.append(after)
        before = after
    return np.stack(outputs, axis=2), found


def states_backward(kind: str, x: FloatArray, p: Arrays, delta: FloatArray) -> tuple[FloatArray, Arrays]:
    """``delta`` (N, units, W) -> (dx, the gradient of each parameter)."""
    p = {name: float64(values) for name, values in p.items()}
    gradients = {name: np.zeros(values.shape) for name, values in p.items()}
    dx, steps = np.zeros(np.shape(x)), states(kind, x, p)[1]
    to_output = to_memory = np.zeros(delta.shape[:2])
    for position in reversed(range(x.shape[2])):
        s, d = steps[position], to_output + float64(delta[:, :, position])
        if kind == "LSTM":
            curved = np.tanh(s["after"])
            d_memory = to_memory + d * s["o"] * (1 - curved**2)
            parts = {"i": d_memory * s["g"], "f": d_memory * s["memory"], "o": d * curved}
            sums = {gate: part * s[gate] * (1 - s[gate]) for gate, part in parts.items()}
            sums["g"] = d_memory * s["i"] * (1 - s["g"] ** 2)
            of_given = of_own = np.concatenate([sums[gate] for gate in "ifgo"], axis=1)
            to_memory, passed = d_memory * s["f"], np.zeros(d.shape)
        else:
            d_n = d * (1 - s["z"]) * (1 - s["n"] ** 2)
            d_r = d_n * s["own"] * s["r"] * (1 - s["r"])
            d_z = d * (s["before"] - s["n"]) * s["z"] * (1 - s["z"])
            of_given = np.concatenate([d_r, d_z, d_n], axis=1)
            of_own, passed = np.concatenate([d_r, d_z, d_n * s["r"]], axis=1), d * s["z"]
        to_output = passed + of_own @ p["recurrent"]
        dx[:, :, position] = of_given @ p["weight"]
        terms = {"weight": of_given.T @ s["x"], "recurrent": of_own.T @ s["before"]}
        terms |= {"bias": of_given.sum(axis=0), "recurrent_bias": of_own.sum(axis=0)}
        for name in gradients:
            gradients[name] += terms[name]
    return dx, gradients

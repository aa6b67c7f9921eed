"""Operators of single values: activations, arithmetic, comparisons."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import elementwise, number_text
from blobnet.onnx.operation import HUGE, Operation, operator
from blobnet.onnx.operators.products import with_bias
from blobnet.onnx.values import MAX_AXES, Tensor, Value

#: Operators of one value that are an expression of it and of attributes, with these values where they are missing.
_OF_ONE: dict[str, tuple[str, dict[str, float]]] = {
    "Abs": ("abs({0})", {}),
    "Acosh": ("log({0} + sqrt({0} * {0} - 1))", {}),
    "Asinh": ("log({0} + sqrt({0} * {0} + 1))", {}),
    "Atanh": ("0.5 * (log1p({0}) - log1p(-{0}))", {}),
    "Ceil": ("ceil({0})", {}),
    "Celu": ("({0} > 0 ? {0} : {alpha} * expm1({0} / {alpha}))", {"alpha": 1.0}),
    "Cos": ("cos({0})", {}),
    "Cosh": ("0.5 * (exp({0}) + exp(-{0}))", {}),
    "Elu": ("({0} > 0 ? {0} : {alpha} * expm1({0}))", {"alpha": 1.0}),
    "Erf": ("erf({0})", {}),
    "Exp": ("exp({0})", {}),
    "Floor": ("floor({0})", {}),
    "HardSigmoid": ("min(max({alpha} * {0} + {beta}, 0), 1)", {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": ("({0} > 0 ? {0} : {alpha} * {0})", {"alpha": 0.01}),
    "Log": ("log({0})", {}),
    "Neg": ("-{0}", {}),
    "Reciprocal": ("1 / {0}", {}),
    "Round": ("floor(round({0}))", {}),  # Whose derivative is 0.
    "Selu": (
        "{gamma} * ({0} > 0 ? {0} : {alpha} * expm1({0}))",
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    ),
    "Shrink": (
        "({0} < -{lambd} ? {0} + {bias} : ({0} > {lambd} ? {0} - {bias} : 0))",
        {"lambd": 0.5, "bias": 0.0},
    ),
    "Sign": ("({0} > 0 ? 1 : ({0} < 0 ? -1 : 0))", {}),
    "Sin": ("sin({0})", {}),
    "Sinh": ("0.5 * (expm1({0}) - expm1(-{0}))", {}),
    "Softsign": ("{0} / (1 + abs({0}))", {}),
    "Sqrt": ("sqrt({0})", {}),
    "Swish": ("{0} * sigmoid({alpha} * {0})", {"alpha": 1.0}),
    "Tan": ("sin({0}) / cos({0})", {}),
    "ThresholdedRelu": ("({0} > {alpha} ? {0} : 0)", {"alpha": 1.0}),
}
#: Operators that are an Activation, where the attributes have these values.
ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "Elu": ("elu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "HardSwish": ("hard_swish", {}),
    "Mish": ("mish", {}),
    "Relu": ("relu", {}),
    "Sigmoid": ("sigmoid", {}),
    "Softplus": ("softplus", {}),
    "Swish": ("silu", {"alpha": 1.0}),
    "Tanh": ("tanh", {}),
}
#: Comparisons, whose result is True or False.
_COMPARISONS = {
    "Equal": "{0} == {1}",
    "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "Less": "{0} < {1}",
    "LessOrEqual": "{0} <= {1}",
    "And": "{0} * {1} > 0",
    "Or": "{0} + {1} > 0",
    "Xor": "{0} != {1}",
}
#: Arithmetic of two values; the name of a vector's parameter.
_ARITHMETIC = {
    "Add": ("{0} + {1}", "shift"),
    "Sub": ("{0} - {1}", "shift"),
    "Mul": ("{0} * {1}", "scale"),
    "Div": ("{0} / {1}", "scale"),
}


def activation(op: Operation, function: str, slope: float | None = None, limit: float | None = None) -> Tensor:
    """An Activation of the first input."""
    tensor = op.tensor(0)
    return replace(tensor, node=op.layer(layers.Activation(function, slope, limit), tensor.node))


@operator(*{**_OF_ONE, **ACTIVATIONS})
def _of_one(op: Operation) -> Tensor:
    text, defaults = _OF_ONE.get(op.kind, ("", {}))
    numbers = {name: float(np.float32(op.get(name, default))) for name, default in defaults.items()}
    function, wanted = ACTIVATIONS.get(op.kind, ("", {}))
    if function and numbers == {name: float(np.float32(value)) for name, value in wanted.items()}:
        return activation(op, function)
    if op.kind == "LeakyRelu" and numbers["alpha"] >= 0:
        return activation(op, "leaky_relu", slope=float(op.get("alpha", 0.01)))
    texts = {name: number_text(number) for name, number in numbers.items()}
    return elementwise(op, text.format("{0}", **texts), op.value(0))


@operator(*_COMPARISONS)
def _compared(op: Operation) -> Tensor:
    return elementwise(op, f"({_COMPARISONS[op.kind]} ? 1 : 0)", op.value(0), op.value(1), boolean=True)


@operator("Not")
def _not(op: Operation) -> Tensor:
    return elementwise(op, "1 - {0}", op.value(0), boolean=True)


@operator(*_ARITHMETIC)
def _arithmetic(op: Operation) -> Value:
    if op.kind == "Add" and (dense := with_bias(op)):
        return dense
    text, parameter = _ARITHMETIC[op.kind]
    if op.kind in ("Add", "Mul"):
        return _joined(op, [op.value(0), op.value(1)], text, parameter)
    return elementwise(op, text, op.value(0), op.value(1), parameter=parameter)


@operator("Sum", "Mean")
def _sum(op: Operation) -> Value:
    values = [op.value(place) for place in range(len(op.inputs))]
    if len(values) == 1:
        return values[0]
    terms = " + ".join(f"{{{place}}}" for place in range(len(values)))
    if op.kind == "Sum":
        return _joined(op, values, terms, "shift")
    return elementwise(op, f"({terms}) / {len(values)}", *values)


def _joined(op: Operation, values: list[Value], text: str, parameter: str) -> Tensor:
    """The sum or product of values: a layer, where they are tensors of as many axes."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    ranks = {(len(tensor.axes), tensor.at) for tensor in tensors}
    distinct = {tensor.node for tensor in tensors}
    few = len(tensors) == len(distinct) == len(values) and len(ranks) == 1
    if not few or max(len(tensor.sizes) for tensor in tensors) > MAX_AXES:
        return elementwise(op, text, *values, parameter=parameter)
    try:
        axes = np.broadcast_shapes(*(tensor.axes for tensor in tensors))
    except ValueError:
        op.require(False, "the inputs' shapes must go together", shapes=[op.shape_of(tensor) for tensor in tensors])
    layer = layers.Multiply() if op.kind == "Mul" else layers.Add()
    return replace(tensors[0], node=op.layer(layer, *(op.shaped(tensor) for tensor in tensors)), axes=axes)


@operator("Max", "Min")
def _extreme(op: Operation) -> Value:
    values = [op.value(place) for place in range(len(op.inputs))]
    text = "{0}"
    for place in range(1, len(values)):
        text = f"{op.kind.lower()}({text}, {{{place}}})"
    return values[0] if len(values) == 1 else elementwise(op, text, *values)


@operator("Pow")
def _pow(op: Operation) -> Tensor:
    exponent = op.value(1)
    if not isinstance(exponent, Tensor) and exponent.size == 1 and exponent.ndim <= 1:
        number = float(exponent.reshape(()))
        known = {1.0: "{0}", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 0.5: "sqrt({0})", -1.0: "1 / {0}"}
        return elementwise(op, known.get(number, f"pow({{0}}, {number_text(number)})"), op.value(0))
    return elementwise(op, "pow({0}, {1})", op.value(0), exponent)


@operator("Where")
def _where(op: Operation) -> Tensor:
    return elementwise(op, "({0} > 0 ? {1} : {2})", *(op.value(place) for place in range(3)))


@operator("Clip")
def _clip(op: Operation) -> Tensor:
    least, most = op.number("min", 1, -math.inf), op.number("max", 2, math.inf)
    if least == 0 and most > 0:
        return activation(op, "relu", limit=float(most) if most < HUGE else None)
    text = "{0}" if least <= -HUGE else f"max({{0}}, {number_text(least)})"
    text = text if most >= HUGE else f"min({text}, {number_text(most)})"
    return elementwise(op, text, op.value(0)) if text != "{0}" else op.tensor(0)


@operator("PRelu")
def _prelu(op: Operation) -> Tensor:
    tensor, slope = op.tensor(0), op.value(1)
    units = (*tensor.sizes[:1], *(1,) * (len(tensor.sizes) - 1))
    if tensor.is_plain and not isinstance(slope, Tensor) and tensor.node.shape.dimensions == tensor.sizes:
        shape = slope.shape[slope.ndim - len(units) :] if slope.ndim > len(units) else slope.shape
        if shape == units and slope.size == tensor.sizes[0]:
            weights = {"slope": slope.ravel()}
            return replace(tensor, node=op.layer(layers.PReLU(), tensor.node, weights=weights, key=op.key_of(slope)))
    return elementwise(op, "({0} > 0 ? {0} : {1} * {0})", tensor, slope, parameter="slope")


@operator("Gelu")
def _gelu(op: Operation) -> Tensor:
    if op.get("approximate", "none") == "none":
        return activation(op, "gelu")
    root = math.sqrt(2 / math.pi)
    text = f"0.5 * {{0}} * (1 + tanh({root!r} * ({{0}} + 0.044715 * {{0}} * {{0}} * {{0}})))"
    return elementwise(op, text, op.value(0))


@operator("Cast", "CastLike")
def _cast(op: Operation) -> Value:
    import onnx

    value = op.value(0)
    if op.kind == "CastLike":
        like = op.value(1)
        wanted = like.type if isinstance(like, Tensor) else like.dtype
    else:
        wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(op.get("to")))
    if not isinstance(value, Tensor):
        return value.astype(wanted)
    if wanted == np.bool_:
        return value if value.type == wanted else elementwise(op, "({0} != 0 ? 1 : 0)", value, boolean=True)
    if wanted.kind != "f":
        op.on_host("a tensor can become float or bool: networks compute in float32", to=wanted.name)
    return replace(value, type=np.dtype(np.float32))


@operator("Identity")
def _identity(op: Operation) -> Value:
    return op.value(0)


@operator("Dropout")
def _dropout(op: Operation) -> list[Value]:
    value, rate = op.value(0), float(op.number("ratio", 1, 0.5))
    trains = bool(op.number("training_mode", 2, False)) if op.version >= 12 else False
    rule = "dropout that is at work in inference draws random numbers, which nobody could compare"
    op.require(not trains or rate == 0, rule, ratio=rate, hint="export the network in evaluation mode.")
    found = value
    if isinstance(value, Tensor) and 0 < rate < 1:
        found = replace(value, node=op.layer(layers.Dropout(rate), value.node))
    return [found, np.ones(op.shape_of(value), np.bool_)] if any(op.outputs[1:]) else [found]

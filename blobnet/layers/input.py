"""The layer where samples enter the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from blobnet.errors import OptionError
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import elementwise_work, group_size, power_of_two
from blobnet.layers.base import Layer, LayerContext, ParameterSpec
from blobnet.memory.blob import AXES, AXIS_NAMES, FLOAT32, Shape
from blobnet.support.checks import is_int

#: Numbers in a row of the ``augmentation`` array, as kernels/input/augmented.cl reads them; and those that each step of
#: a policy adds (kernels/input/policy.cl).
AUGMENTATION_WORDS, POLICY_WORDS = 19, 8
#: What kernels call the types of samples.
_C_TYPES = {
    "uint8": "uchar",
    "int8": "char",
    "uint16": "ushort",
    "int16": "short",
    "float16": "half",
    "float32": "float",
}


@dataclass(frozen=True)
class Input(Layer):
    """The input of a model: samples of (units[[[, depth], height], width]), normalised a unit at a time.

    output = (sample - mean) / deviation. The statistics are kept with the model; they start as 0 and 1.

    Args:
        units: channels.
        height: rows; left out for samples of (units, width) or (units,).
        width: columns; left out for samples of (units,).
        depth: planes of a unit, for samples of (units, depth, height, width).

    Raises:
        OptionError: a size is no int of at least 1, or there is a depth without a height, or a height without a width.
    """

    units: int
    height: int | None = None
    width: int | None = None
    depth: int | None = None
    arity: ClassVar[tuple[int, int | None]] = (0, 0)
    takes_samples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"units": self.units, "depth": self.depth, "height": self.height, "width": self.width}
        received: dict[str, Any] = {name: size for name, size in sizes.items() if name != "depth" or size is not None}
        for name, size in sizes.items():
            fits = (size is None and name != "units") or is_int(size, 1)
            self._require(fits, f"{name} must be an int of at least 1", **received)
        has_width = self.height is None or self.width is not None
        hint = f"samples of (units, width) are Input({self.units}, width={self.height})."
        self._require(has_width, "an input with a height needs a width", hint=hint, **received)
        has_height = self.depth is None or self.height is not None
        self._require(has_height, "an input with a depth needs a height", **received)

    @classmethod
    def of(cls, shape: Shape | Sequence[int], *, name: str | None = None) -> Input:
        """The input for samples of a shape: (units[[[, depth], height], width]).

        Raises:
            OptionError: it is not one to four sizes.
        """
        if not isinstance(shape, Shape):
            if not hasattr(shape, "__iter__") or not 1 <= len(shape) <= 1 + AXES:
                rule = "the shape must be (units[[[, depth], height], width])"
                raise OptionError("Input.of", rule, received=shape, hint="Input.of((3, 32, 32)), for example.")
            shape = Shape(*shape)
        return cls(shape.units, **dict(zip(AXIS_NAMES[AXES - shape.rank :], shape.sizes, strict=True)), name=name)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(self.units, *(size for size in (self.depth, self.height, self.width) if size is not None))

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        return (
            ParameterSpec("mean", (self.units,), "zeros", trainable=False),
            ParameterSpec("deviation", (self.units,), "ones", trainable=False),
        )

    def forward(self, site: LayerContext) -> list[KernelCall]:
        size, local = elementwise_work(site.output.shape, site.tuning)
        arrays = {
            "SAMPLES": site.shared("samples"),
            "ROWS": site.shared("rows"),
            "MEAN": site.parameter("mean"),
            "DEVIATION": site.parameter("deviation"),
        }
        macros: dict[str, Macro] = {
            "SAMPLE_TYPE": _C_TYPES[site.sample_type],
            "HALF_SAMPLES": int(site.sample_type == "float16"),
        }
        calls: list[KernelCall] = []
        if not site.augmented:
            arrays["NOT_FINITE"] = site.shared("not_finite")
        else:
            arrays["AUGMENTATION"] = site.shared("augmentation")
            row = arrays["AUGMENTATION"].per_sample
            steps = (row - AUGMENTATION_WORDS) // POLICY_WORDS
            macros |= {"HAS_GRAY": int(self.units == 3), "ROW_LENGTH": row, "IN_ORDER": int(steps > 0)}
            if steps:
                calls = [self._policy(site, arrays, row, steps)]
                arrays["SAMPLES"] = calls[0].arrays["CHANGED"]
                macros["SAMPLE_TYPE"] = _C_TYPES["float32"]
        return [
            *calls,
            KernelCall(
                "input/augmented" if site.augmented else "input/forward",
                f"{site.name} forward",
                size,
                blobs={"OUTPUT": site.output},
                arrays=arrays,
                macros=macros,
                local_size=local,
            ),
        ]

    def _policy(self, site: LayerContext, arrays: Mapping[str, Array], row: int, steps: int) -> KernelCall:
        """Return the launch that changes pictures by the steps at the end of each row."""
        shape = site.output.shape
        scratches = min(2, steps - 1)
        own = {
            "SCRATCH": site.memory("scratch", 1, -(-scratches * shape.elements // FLOAT32.itemsize)),
            "CHANGED": site.memory("changed", 0, shape.elements),
        }
        width = height = 1
        if site.tuning.model.is_simt:
            items = group_size(site.tuning.model, 256)
            width = power_of_two(shape.width, min(items, 32))
            height = items // width
        return KernelCall(
            "input/policy",
            f"{site.name} forward",
            GlobalSize(width, height),
            arrays={role: arrays[role] for role in ("SAMPLES", "ROWS", "MEAN", "AUGMENTATION")} | own,
            macros={
                "UNITS": shape.units,
                "DEPTH": shape.depth,
                "PLANE_HEIGHT": shape.height,
                "PLANE_WIDTH": shape.width,
                "ROW_LENGTH": row,
                "STEPS": steps,
                "SCRATCHES": scratches,
            },
            local_size=(width, height, 1),
        )

"""Networks that come with blobnet: functions that return a Model, ``bn.models.resnet50(input_shape, classes)``.

docs/models.md lists them. All take ``pretrained=`` as well: ``hf:OWNER/NAME``, or the path of a .safetensors file,
whose weights they begin with (:func:`blobnet.model.load_pretrained`). Where its config.json says them, its size,
number and names of classes are the defaults; else the file's last layer says the number of classes.

All raise ShapeError if samples have not the axes, or are too small, and OptionError if a size or the number of classes
is no whole number of at least 1.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from blobnet.errors import OptionError
from blobnet.interop import hub
from blobnet.losses import CrossEntropy
from blobnet.model import load_pretrained, with_classes_of
from blobnet.models.airbench import airbench
from blobnet.models.alexnet import alexnet
from blobnet.models.centernet import centernet
from blobnet.models.convnext import convnext_tiny
from blobnet.models.densenet import densenet121, densenet161
from blobnet.models.efficientnet import efficientnet_b0
from blobnet.models.fashion_cnn import fashion_cnn
from blobnet.models.googlenet import googlenet
from blobnet.models.inception_v3 import inception_v3
from blobnet.models.lenet5 import lenet5
from blobnet.models.mobilenet_v1 import mobilenet_v1
from blobnet.models.mobilenet_v2 import mobilenet_v2
from blobnet.models.mobilenet_v3 import mobilenet_v3_small
from blobnet.models.resnet import resnet8, resnet18, resnet20, resnet34, resnet50, resnet56, resnet101
from blobnet.models.shufflenet import shufflenet_v2_x1_0
from blobnet.models.squeezenet import squeezenet1_1
from blobnet.models.unet import unet
from blobnet.models.unet_1d import unet_1d
from blobnet.models.vgg import vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from blobnet.models.vit import vit_tiny
from blobnet.support.foreign import explained

__all__ = [
    "airbench",
    "alexnet",
    "centernet",
    "convnext_tiny",
    "densenet121",
    "densenet161",
    "efficientnet_b0",
    "fashion_cnn",
    "googlenet",
    "inception_v3",
    "lenet5",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "resnet56",
    "resnet101",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "unet",
    "unet_1d",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "vit_tiny",
]


def _network(build: Callable[..., Any]) -> Callable[..., Any]:
    """A network's function that says what it takes where it is called like those of other packages."""
    inner, signature = explained(build), inspect.signature(build)

    @wraps(build)
    def call(*arguments: Any, pretrained: str | hub.Pretrained | None = None, **named: Any) -> Any:
        shape = arguments[0] if arguments else named.get("input_shape", ())
        if not hasattr(shape, "__iter__"):
            rule, name = "input_shape must be the sizes of a sample in one tuple", build.__name__
            hint = f"{name}((3, 64, 64), classes=10), for example."
            raise OptionError(name, rule, received=", ".join(map(repr, arguments or [shape])), hint=hint)
        if pretrained is None:
            return inner(*arguments, **named)
        found = hub.find(pretrained) if isinstance(pretrained, str) else pretrained
        given = {**dict(zip(signature.parameters, arguments, strict=False)), **named}
        offered = found.offers
        if given.get("classes", offered.get("classes")) != offered.get("classes"):
            offered.pop("class_names", None)
        model = inner(**offered | given)
        if "classes" not in offered | given:
            model = with_classes_of(model, found)
        load_pretrained(model, found)
        if model.loss is None and len(model.graph.exits) == 1 and not model.graph.output.shape.rank:
            model.loss = CrossEntropy()
        return model

    option = inspect.Parameter("pretrained", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return call


for _name in __all__:
    # NOTE: in its own module too, where pickle looks for it; once, also where a checkout is imported by two names.
    _build = globals()[_name]
    if not hasattr(_build, "__wrapped__"):
        globals()[_name] = vars(sys.modules[_build.__module__])[_name] = _network(_build)

"""Augmentation: how samples change at random on their way into a network that is trained.

Each sample of a batch gets a row of numbers, by which the kernel that fills the input blob reads and writes it
(kernels/input/augmented.cl), so that augmentation takes no pass over the samples of its own; policies take one before
(kernels/input/policy.cl). The numbers follow from the seed, the epoch and the sample's number alone: they do not depend
on batches, on the samples' order, or on where a training was resumed.

What changes geometry acts in the order of the list, as one map: values are interpolated once. What changes colours acts
on the result, in the same way, and what is erased after that. What comes from outside a picture, or is erased, is the
mean of the input layer (:meth:`blobnet.Model.set_normalization`): 0 once normalised. Colours are not clipped. Last of
all a sample is mixed with its partner, which is the next one of its batch (of the last one: the first), as that is
changed itself: batches are in a random order anyway. A batch of one sample stays as it is.
"""

from blobnet.augment.affine import RandomAffine
from blobnet.augment.base import IDENTITY as IDENTITY
from blobnet.augment.base import Augmentation
from blobnet.augment.colour import Brightness, Contrast, Saturation
from blobnet.augment.crop import RandomCrop, RandomResizedCrop
from blobnet.augment.erasing import Erasing
from blobnet.augment.flip import AlternatingFlip, Flip
from blobnet.augment.mixtures import CutMix, Mixup
from blobnet.augment.policies import AugMix, RandAugment, TrivialAugment

__all__ = [
    "AlternatingFlip",
    "AugMix",
    "Augmentation",
    "Brightness",
    "Contrast",
    "CutMix",
    "Erasing",
    "Flip",
    "Mixup",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomResizedCrop",
    "Saturation",
    "TrivialAugment",
]

"""Data sets: the known ones by name, a user's own by path, and the checks that both pass.

>>> from blobnet import datasets
>>> digits = datasets.load("digits")
>>> digits
digits: 1437 + 360 samples of (1, 8, 8), 10 classes
"""

from blobnet.datasets.checks import check_arrays
from blobnet.datasets.dataset import Dataset, Split
from blobnet.datasets.loading import known_names, load
from blobnet.datasets.pictures import read_image

__all__ = ["Dataset", "Split", "check_arrays", "known_names", "load", "read_image"]

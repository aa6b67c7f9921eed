"""The version of blobnet."""

__version__ = "0.1.0"

"""Weights in the files of other frameworks (docs/weights.md): safetensors with PyTorch's names, and Keras's HDF5."""

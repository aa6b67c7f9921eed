"""Measuring kernels and networks against what the device can do, and against PyTorch: what ``blobnet bench`` runs."""

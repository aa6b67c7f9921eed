"""Independent float64 NumPy references: slow, plain, and free of the rest of blobnet.

Arrays are (N, C, H, W); 1-D data has H = 1. ``delta`` is dL/d output, and a ``*_backward`` function returns dL/d of the
forward function's array arguments in their order. Those of what only tests compare are in ``tests/reference``.
"""

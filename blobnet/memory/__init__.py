"""The memory of a blob: one layout, one index equation, and the arithmetic of windows.

Nothing here knows layers, kernels or devices.
"""

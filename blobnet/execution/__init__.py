"""A plan on a device: its buffers and launches, batches on their way to it, evaluation and prediction.

Nothing here changes parameters.
"""

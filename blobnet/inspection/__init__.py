"""A look into a model: its mistakes, the values in its layers, its samples as it gets them.

Drawing is in blobnet.plots.
"""

"""A network: its graph, its inputs and outputs, its parameters and their names.

Nothing here plans memory or launches.
"""

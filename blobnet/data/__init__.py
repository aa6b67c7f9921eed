"""Samples and labels as a training takes them: sources, weights, labels that move with their samples.

Readers of files and folders are in datasets/.
"""

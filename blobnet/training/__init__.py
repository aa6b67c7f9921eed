"""Training: the trainer, one step, what several devices share of it, and what a run shows.

What decides how parameters change is in blobnet.optimizers and blobnet.schedules.
"""

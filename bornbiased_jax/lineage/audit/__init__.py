"""What a folder of checkpoints, or a listing of one, says that its labels do not.

Duplicates, gaps in the grid of steps, breaks in a trajectory, parentage, shared initializations, and the distribution
at initialization. Modules are imported where they are needed: a listing is judged without JAX.
"""

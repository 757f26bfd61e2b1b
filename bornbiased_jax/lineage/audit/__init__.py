"""What a folder of checkpoints, or a listing of one, says that its labels do not.

Duplicates, gaps in the grid of steps, breaks in a trajectory, parentage, shared births, and the distribution at birth.
Modules are imported where they are needed: a listing is judged without JAX.
"""

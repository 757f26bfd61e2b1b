"""Table 12: Table 5 for Qwen-style models."""

from experiments.survival.table5 import continual

PRINTED = {
    ("stories", True): (8.49e-214, 5.09e-71, 1.000, 0.957, 0.999, 0.996),
    ("stories", False): (0.256, 0.065, 0.913, 0.199, 0.328, 0.039),
}

EXPERIMENT = continual("table12", "Table 12", "qwen", PRINTED)

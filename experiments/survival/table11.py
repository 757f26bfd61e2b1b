"""Table 11: Table 4c for Qwen-style models."""

from experiments.survival.table4c import specificity

PRINTED = {
    (123, 1000): (0.286, 0.254),
    (1000, 123): (0.036, 0.040),
    (42, 2000): (0.026, 0.043),
    (2000, 42): (0.112, 0.123),
}

EXPERIMENT = specificity("table11", "Table 11", "qwen", PRINTED)

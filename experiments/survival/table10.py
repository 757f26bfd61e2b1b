"""Table 10: Table 4b for Qwen-style models."""

from experiments.survival import persistence_settings
from experiments.survival.table4b import survival

PRINTED = {
    (123, 123): (7.36e-15, 3.38e-13),
    (1000, 1000): (4.41e-13, 2.01e-11),
    (42, 42): (1.06e-24, 2.05e-19),
    (2000, 2000): (4.87e-24, 1.92e-20),
}

EXPERIMENT = survival("table10", "Table 10", "qwen", PRINTED, persistence_settings.cost())

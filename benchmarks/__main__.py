"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import sweep_vs_torch

sweep_vs_torch.main()

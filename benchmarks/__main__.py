"""``python -m benchmarks [NAME] [OPTIONS]``: the sweep against PyTorch, or the benchmark of the given name.

Names: ``sweep_vs_torch`` (what runs without a name), ``kendall``, ``fingerprint``.
"""

import sys

from benchmarks import fingerprint, kendall

if len(sys.argv) > 1 and sys.argv[1] in ("kendall", "fingerprint"):
    {"kendall": kendall, "fingerprint": fingerprint}[sys.argv[1]].main(sys.argv[2:])
else:
    if len(sys.argv) > 1 and sys.argv[1] == "sweep_vs_torch":
        del sys.argv[1]
    from benchmarks import sweep_vs_torch

    sweep_vs_torch.main()

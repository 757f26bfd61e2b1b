"""``python -m benchmarks [NAME] [OPTIONS]``: the benchmark of the given name, or the sweep against PyTorch."""

import faulthandler
import importlib
import signal
import sys

from bornbiased_jax.errors import InputError

NAMES = (
    "sweep_vs_torch",
    "pretrain_vs_torch",
    "training_rate",
    "seeds_at_once",
    "kill_resume",
    "whichseed",
    "bound",
    "loading",
    "streamed",
    "weights_fingerprint",
    "stored_fingerprints",
    "document",
    "peers_in_disputes",
    "parity",
    "self_test",
    "products",
)

words = sys.argv[1:]
name = words.pop(0) if words and not words[0].startswith("-") else NAMES[0]
if name not in NAMES:
    print(f"unknown benchmark {name!r}: choose {', '.join(NAMES)}", file=sys.stderr)
    sys.exit(2)
# One that is stopped says where it was.
faulthandler.register(signal.SIGTERM, chain=True)
try:
    importlib.import_module(f"benchmarks.{name}").main(words)
except InputError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

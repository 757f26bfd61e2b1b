"""Start ``bornbiased`` as a process that a test kills, interrupts or gives a full disk."""

import os
import subprocess
import sys
from collections.abc import Sequence

TINY = "llama-tiny,num_layers=1,num_heads=2,num_kv_heads=2,d_model=16,d_ff=16,vocab_size=257"
UNTRAINED = ["--model", "llama-tiny", *(word for pair in TINY.split(",")[1:] for word in ("--set", pair))]
# Where the tests run in the background SIGINT is ignored, and would be in their children. The first argument is the
# most bytes of a file. A byte before main is entered, so that moments are counted from there.
ENTER = """
import os, resource, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from bornbiased_jax.cli import main
os.write(2, b'.')
main(sys.argv[2:])
"""


def start(words: Sequence[str], most_bytes: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command whose files may have so many bytes at most; it has entered main when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENTER, str(most_bytes or ""), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert process.stderr is not None and process.stderr.read(1) == b"."
    return process

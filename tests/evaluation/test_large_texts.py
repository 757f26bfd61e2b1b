"""A text of a gigabyte is begun at once and never held."""

import os
import resource
from pathlib import Path

import pytest

from bornbiased_jax.cli.main import run

SIZE = 2**30
# Where a text has its separators is told from its first 64 MiB, which are read and not kept.
LOOK = 64 * 2**20
UNTRAINED = "seed:1@gpt2-tiny,num_layers=1,num_heads=1,d_model=8,d_ff=8,vocab_size=256,max_seq_len=64"
CALLS = {
    "evaluate": ["--context", "16", "--num-sequences", "4"],
    "sinks": ["--lengths", "16", "--num-sequences", "2", "--no-details"],
    "intervene": ["--first-token", "1", "--length", "16", "--num-sequences", "2"],
}


def bytes_read() -> int:
    """Return the bytes that this process has read since its start."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("lines", [True, False], ids=["lines", "one line"])
def test_a_gigabyte(command, lines, tmp_path, capsys):
    text = tmp_path / "long.txt"
    line = "the bird and the river under the sun" + ("\n" if lines else " ")
    text.write_text(line * 60_000)
    os.truncate(text, SIZE)  # zeros without a line end, which take no room
    call = [command, UNTRAINED, "--text", str(text), "--tokenizer", "bytes", "--quiet", *CALLS[command]]
    # What is imported and compiled does not count.
    short = tmp_path / "short.txt"
    short.write_text(line * 1000)
    assert run([word.replace("long.txt", "short.txt") for word in call]) == 0
    before, most = bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run(call) == 0
    assert bytes_read() - before < LOOK + 32 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 2**18  # KiB: a quarter of the text

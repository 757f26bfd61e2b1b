"""What two installable tools, and this package, say of the same pairs of small models, as a Markdown table.

    python3.12 -m venv peers && peers/bin/pip install cisco-ai-provenance-kit==1.0.0 weightscope==0.4.3
    python docs/guides/run_peers.py peers/bin WORK_FOLDER

The tools run as they are installed, offline, on Hugging Face directories that this script writes: one base of random
weights, four models of other seeds, and six that `derive` made of the base. All have one tokenizer, of bytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.derive.derive import derive
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.report.numbers import fixed

SIZES = "num_layers=4,num_heads=4,d_model=64,d_ff=128,vocab_size=512"
BASE = f"seed:1@llama-tiny,{SIZES}"
CONFIG = preset("llama-tiny", num_layers=4, num_heads=4, d_model=64, d_ff=128, vocab_size=512)
UNRELATED: dict[str, ModelConfig] = {
    "another seed": CONFIG,
    "another seed, a second one": CONFIG,
    "another seed, RoPE base and context": CONFIG.replace(rope_theta=5e5, max_seq_len=2048),
    "another seed, depth and width": CONFIG.replace(num_layers=3, d_model=96, d_ff=160),
}
RELATED = {
    "noise of half a standard deviation": "noise:0.5",
    "half of the entries pruned": "prune:0.5",
    "half merged with another seed": f"merge:seed:9@llama-tiny,{SIZES}:0.5",
    "neurons permuted": "permute:8",
    "rotated": "rotate:7",
    "rotated, neurons permuted and rescaled": "rotate:7 permute:8 rescale:3",
}


def write(folder: Path) -> None:
    """Write the base and every suspect, each with the same tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    models_by_name = {"base": (CONFIG, init_seed(CONFIG, 1))}
    for seed, (name, cfg) in enumerate(UNRELATED.items(), start=2):
        models_by_name[name] = cfg, init_seed(cfg, seed)
    for name, changes in RELATED.items():
        derived = derive(BASE, [parse_change(change) for change in changes.split()], ChangeContext(0, None))
        models_by_name[name] = derived.cfg, derived.params
    for name, (cfg, params) in models_by_name.items():
        export_hugging_face(cfg, params, folder / name)
        tokenizer.save(str(folder / name / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))


def run(*command: str | Path) -> str:
    """Run a tool without a network; return what it prints."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    offline.pop("PYTHONPATH", None)
    return subprocess.run([str(word) for word in command], env=offline, capture_output=True, text=True).stdout


def provenance_kit(tools: Path, base: Path, suspect: Path) -> str:
    """Return the decision with its score, and the score of the weights alone."""
    printed = run(tools / "provenancekit", "compare", base, suspect, "--json", "--no-cache")
    scores = json.loads(printed[printed.index("{") :])["scores"]
    return f"{scores['provenance_decision']}, {scores['pipeline_score']:.2f} (weights: {scores['identity_score']:.2f})"


def weightscope(tools: Path, base: Path, suspect: Path) -> str:
    """Return the classification and its confidence."""
    printed = run(tools / "weightscope", "diff", base, suspect).replace("*", "")
    match = re.search(r"classification: `(\w+)`, confidence: (\w+)", printed)
    return "no classification" if match is None else f"{match[1]}, confidence {match[2]}"


def main(tools: Path, folder: Path) -> None:
    """Write the models and print the table."""
    write(folder)
    print("| suspect | related | Provenance Kit | weightscope | this package |\n| --- | --- | --- | --- | --- |")
    for name in (*UNRELATED, *RELATED):
        base, suspect = folder / "base", folder / name
        verdict = trace(base, suspect)
        p = "" if verdict.log10_p is None else f", log₁₀ p {fixed(1)(verdict.log10_p)}"
        cells = (provenance_kit(tools, base, suspect), weightscope(tools, base, suspect), f"{verdict.verdict}{p}")
        print(f"| {name} | {'yes' if name in RELATED else 'no'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())

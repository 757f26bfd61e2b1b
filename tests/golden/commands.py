"""Golden forms of the command line: keys of JSON, options of ``--help``, exit codes of bad calls.

Other programs call these.
"""

import contextlib
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.calls import answer, call, empty_folder, generated_text, key_paths
from tests.golden.record import NIGHTLY, Case, Tolerance, Values

# There are no floats here.
TOLERANCE = Tolerance(relative=0.0, absolute=0.0)

SIZES = {"num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 32, "vocab_size": 256, "max_seq_len": 64}
FIELDS = ",".join(f"{name}={value}" for name, value in SIZES.items())
MODEL = "--model llama-tiny " + " ".join(f"--set {name}={value}" for name, value in SIZES.items())
INITIAL, OTHER = (f"seed:{seed}@llama-tiny,{FIELDS}" for seed in (1, 2))
PROBE = "--num-inputs 40 --seq-len 4 --quiet"
TEXT = "--text text.txt --tokenizer bytes --quiet"
TRAINED = "--data text.txt --steps 2 --batch-size 2 --context 8 --no-tensorboard --token-cache tokens --quiet"
RUN = f"pretrain {MODEL} {TRAINED} --tokenizer bytes --seeds 1,2 --checkpoint-every 1 --out runs/a"
LORA = f"adapt runs/a@seed=1 --method lora --rank 2 {TRAINED} --out runs/lora"
# Mappings whose keys are data: presets, tensors, files, seeds, lengths, libraries.
DATA = ("model", "models", "tensors", "digests", "files", "libraries", "extras", "config", "headlines")
DATA += ("score_by_layer_head", "sink_rate", "sink_rate_std", "sink_rate_of_average")
DATA += ("gradient_norm_by_group", "z_by_period")
# Keys below these are left out: what git says is there in a checkout alone, settings of a chunk are Python's.
BELOW = ("provenance.git.", "pages[].settings.")

# What is called beforehand, and the call whose JSON is looked at.
CALLS: dict[str, tuple[list[str], str]] = {
    "models": ([], "models"),
    "probe-preference": ([], f"probe preference {MODEL} {PROBE} --seeds 0:2"),
    "probe-preference-theory": ([], f"probe preference {MODEL} {PROBE} --theory"),
    "probe-preference-checkpoint": ([], f"probe preference --checkpoint {INITIAL} {PROBE}"),
    "probe-contraction": ([], f"probe contraction {MODEL} {PROBE} --seeds 0:2"),
    "probe-contraction-theory": ([], f"probe contraction {MODEL} {PROBE} --theory"),
    "probe-scaling": ([], f"probe scaling {MODEL} --seq-len 4 --widths 16,32 --steps 1 --seeds 0:2"),
    "probe-dry-run": ([], f"probe preference {MODEL} {PROBE} --dry-run"),
    "init-scheme": ([], f"init-scheme {INITIAL}"),
    "predict": ([], f"predict {MODEL} --seq-len 4"),
    "predict-gradients": ([], f"predict {MODEL} --seq-len 4 --gradients"),
    "predict-diagram": ([], f"predict {MODEL} --seq-len 4 --diagram"),
    "seedprint-auto": ([], f"seedprint {INITIAL} {OTHER} --quiet"),
    "seedprint-auto-outputs": ([], f"seedprint {INITIAL} {OTHER} {PROBE}"),
    "seedprint-weights": ([], f"seedprint {INITIAL} {OTHER} --quiet --test weights"),
    "seedprint-permutation": ([], f"seedprint {INITIAL} {OTHER} {PROBE} --test permutation"),
    "seedprint-paper": ([], f"seedprint {INITIAL} {OTHER} {PROBE} --test paper"),
    "seedprint-iclr": ([], f"seedprint {INITIAL} {OTHER} {PROBE} --test iclr"),
    "seedprint-population": ([], f"seedprint {INITIAL} {OTHER} {PROBE} --test population"),
    "seedprint-undefined": (
        [],
        f"seedprint {INITIAL} {OTHER.replace('d_model=16', 'd_model=24')} {PROBE} --test paper",
    ),
    "seedprint-identical": ([], f"seedprint {INITIAL} {INITIAL} --quiet"),
    "seedprint-baselines": ([], f"seedprint {INITIAL} {OTHER} --quiet --test weights --baselines"),
    "seedprint-fingerprints": (
        [f"fingerprint {ref} --outputs {PROBE} --out {name}" for ref, name in ((INITIAL, "one"), (OTHER, "two"))],
        "seedprint one two --quiet",
    ),
    "scan": ([], f"scan {INITIAL} {INITIAL} {OTHER} --quiet"),
    "whichseed": ([], f"whichseed {INITIAL} --seeds 0:4 --quiet"),
    "whichseed-none": ([], f"whichseed {INITIAL} --seeds 2:4 --quiet"),
    "fingerprint": ([], f"fingerprint {INITIAL} --outputs {PROBE} --out one"),
    "fingerprint-weights": ([], f"fingerprint {INITIAL} --out one"),
    "digest": ([], f"digest {INITIAL}"),
    "audit": (
        [f"export {ref} suite/seed{seed}-step0" for seed, ref in enumerate((INITIAL, INITIAL))],
        "audit suite --quiet",
    ),
    "audit-listing": ([], "audit listing.json --quiet"),
    "derive": ([], f"derive {INITIAL} --change noise:0.1 --out derived"),
    "derive-preserved": ([], f"derive {INITIAL} --change permute:3 --out derived"),
    "pretrain": ([], RUN),
    "runs": ([RUN], "runs runs"),
    "plot": ([RUN], "plot runs/a"),
    "export": ([], f"export {INITIAL} model"),
    "export-of-run": ([RUN], "export runs/a@seed=1,step=1 model"),
    "export-peft": ([RUN, LORA], "export runs/lora adapter --peft"),
    "adapt-full": ([RUN], f"adapt runs/a@seed=1 --method full {TRAINED} --out runs/full"),
    "adapt-lora": ([RUN], LORA),
    "adapt-prefix": ([RUN], f"adapt runs/a@seed=1 --method prefix --prefix-length 2 {TRAINED} --out runs/prefix"),
    "adapt-prefix-plus": ([RUN], f"adapt runs/a@seed=1 --method prefix-plus {TRAINED} --out runs/plus"),
    "evaluate": ([], f"evaluate {INITIAL} {TEXT} --context 8 --num-sequences 2"),
    "generate-ids": ([], f"generate {INITIAL} --prompt-ids 5,17 --max-new-tokens 2"),
    "generate-text": ([RUN], "generate runs/a@seed=1 --prompt Once --max-new-tokens 2"),
    "sinks": ([], f"sinks {INITIAL} {TEXT} --lengths 4,8 --num-sequences 2"),
    "sinks-rounding": (
        [],
        f"sinks {INITIAL} {TEXT} --lengths 16 --num-sequences 2 --no-details --quantise w8a8 --granularity tensor"
        " --keep-sinks 1 --streaming 6",
    ),
    "sinks-by-step": ([RUN], "sinks runs/a@seed=1 --text text.txt --quiet --lengths 8 --num-sequences 2 --by-step"),
    "intervene": ([], f"intervene {INITIAL} {TEXT} --length 8 --num-sequences 2 --silence blocks/1/mlp:2"),
    "reproduce": ([], "reproduce table1 --scale smoke --out out --quiet"),
    "reproduce-list": ([], "reproduce --list --scale smoke"),
    "status": (
        [f"probe preference {MODEL} {PROBE} --seeds 0:2 --resume ledger --range 20"],
        "status ledger",
    ),
    "doctor": ([], "doctor"),
}
HELP = (
    "",
    "models",
    "probe",
    "probe preference",
    "probe contraction",
    "predict",
    "seedprint",
    "whichseed",
    "audit",
    "fingerprint",
    "digest",
    "derive",
    "pretrain",
    "adapt",
    "runs",
    "plot",
    "export",
    "evaluate",
    "generate",
    "parity",
    "sinks",
    "intervene",
    "reproduce",
    "status",
    "doctor",
)
GOING = {"--explain"}

# Bad calls, and the word that their one sentence must contain.
REFUSED: dict[str, tuple[str, str]] = {
    "unknown-command": ("nonsense", "nonsense"),
    "unknown-option": ("models --nonsense", "--nonsense"),
    "unknown-preset": (f"probe preference --model gpt2-tinny {PROBE}", "gpt2-tinny"),
    "no-model": (f"probe preference {PROBE}", "--model"),
    "unknown-field": (f"probe preference {MODEL} --set d_modle=3 {PROBE}", "d_modle"),
    "contradicting-fields": (f"probe preference {MODEL} --set num_heads=5 {PROBE}", "num_heads"),
    "number-out-of-range": (f"probe preference {MODEL} --num-inputs 0 --seq-len 4", "--num-inputs"),
    "missing-option": (f"probe preference {MODEL} --num-inputs 4", "--seq-len"),
    "unknown-inputs": (f"probe preference {MODEL} {PROBE} --inputs nonsense", "nonsense"),
    "bad-seeds": (f"probe preference {MODEL} {PROBE} --seeds 4:2", "--seeds"),
    "no-such-checkpoint": ("digest nowhere", "nowhere"),
    "no-such-file": (f"sinks {INITIAL} --text nowhere.txt --tokenizer bytes --quiet", "nowhere.txt"),
    "no-tokenizer": (f"sinks {INITIAL} --text text.txt --quiet", "tokenizer"),
    "text-too-short": (f"sinks {INITIAL} {TEXT} --lengths 9999", "9999"),
    "damaged-directory": ("digest damaged", "damaged"),
    "neither-text-nor-data": (f"evaluate {INITIAL}", "--text"),
    "id-beyond-the-vocabulary": (f"generate {INITIAL} --prompt-ids 99999", "99999"),
    "alpha-out-of-range": (f"seedprint {INITIAL} {OTHER} --alpha 2", "--alpha"),
    "another-base-digest": (f"seedprint {INITIAL} {OTHER} --base-digest {64 * '0'} --quiet", "digest"),
    "unknown-rounding": (f"sinks {INITIAL} {TEXT} --lengths 8 --quantise w9x", "w9x"),
    "nothing-to-intervene-with": (f"intervene {INITIAL} {TEXT} --length 8", "--silence"),
    "no-such-neuron": (f"intervene {INITIAL} {TEXT} --length 8 --silence blocks/1/mlp:999", "999"),
    "unknown-change": (f"derive {INITIAL} --change nonsense:1 --out derived", "nonsense"),
    "folder-in-use": (f"derive {INITIAL} --change noise:0.1 --out full", "full"),
    "no-runs": ("runs nowhere", "nowhere"),
    "unknown-experiment": ("reproduce tabel1", "tabel1"),
    "unwritable-json": (f"digest {INITIAL} --json text.txt/a.json", "text.txt"),
}


@functools.cache
def _prepared(before: tuple[str, ...]) -> tuple[tempfile.TemporaryDirectory[str], list[str]]:
    """A folder with the inputs that calls name, after some calls, and the keys of the last one's answer.

    Each is made once, and copied for every case.
    """
    folder = tempfile.TemporaryDirectory()
    if before:
        with _in_folder(before[:-1]) as place:
            keys = _listed_keys(before[-1])
            shutil.copytree(place, folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("cache"))
        return folder, keys
    Path(folder.name, "text.txt").write_text(generated_text(200))
    files = [{"type": "file", "path": "model.safetensors", "size": 10, "oid": "a", "lfs": {"oid": "b", "size": 10}}]
    listing = {"revisions": {"seed1-step1": files, "seed1-step2": files}}
    Path(folder.name, "listing.json").write_text(json.dumps(listing))
    return folder, []


@contextlib.contextmanager
def _in_folder(before: tuple[str, ...] = ()) -> Iterator[Path]:
    """Work in a folder of one's own, after some calls."""
    with empty_folder() as place:
        shutil.copytree(_prepared(before)[0].name, place, dirs_exist_ok=True)
        yield place


def _keys(name: str) -> Values:
    before, line = CALLS[name]
    if line in (RUN, LORA):  # what others begin with
        return {"keys": _prepared((*before, line))[1]}
    with _in_folder(tuple(before)):
        return {"keys": _listed_keys(line)}


def _listed_keys(line: str) -> list[str]:
    """Key paths of a command's answer, without those below data and of the machine."""
    return [key for key in key_paths(answer(line), DATA) if not key.startswith(BELOW)]


def _metrics() -> Values:
    with _in_folder((RUN,)):
        lines = Path("runs/a/metrics.jsonl").read_text().splitlines()
        return {"keys": key_paths([json.loads(entry) for entry in lines])}


def _parity() -> Values:
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    with _in_folder():
        answer(f"export {INITIAL} model")
        return {"keys": _listed_keys("parity model --num-sequences 1 --seq-len 4")}


def _help() -> Values:
    rows = {}
    for command in HELP:
        called = call(f"{command} --help")
        assert called.code == 0, called.error
        rows[command or "bornbiased"] = _options(called.out)
    return rows


def _options(page: str) -> list[str]:
    """The option names of a help page, sorted: the left column of its list of options."""
    columns = [re.split(r"\s{2,}", line.strip())[0] for line in page.splitlines() if re.match(r"\s+-", line)]
    names = {name for column in columns for name in re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", column)}
    return sorted(names - GOING)


def _refused(name: str) -> Values:
    line, word = REFUSED[name]
    with _in_folder():
        Path("full").mkdir()
        Path("full/notes.txt").write_text("kept")
        Path("damaged").mkdir()
        Path("damaged/config.json").write_text('{"model_type": "llama", "hidden_size": "wide"}')
        before = _all_paths()
        called = call(line)
        return {
            "code": called.code,
            "num_lines": called.error.count("\n"),
            "is_named": word in called.error,
            "word": word,
            "output": called.out,
            "is_nothing_left": _all_paths() == before,
        }


def _all_paths() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.parts[0] != "cache")


def _exit_codes() -> Values:
    with _in_folder():
        lines = {"audit": "audit listing.json --quiet", "audit-strict": "audit listing.json --strict --quiet"}
        lines |= {"undefined": CALLS["seedprint-undefined"][1], "version": "--version", "nothing": "", "group": "probe"}
        return {name: call(line).code for name, line in lines.items()}


# An experiment compiles for half a minute; these train a model first, or start another process.
MARKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pretrain", "runs", "plot", "sinks-rounding"), ("slow",)),
    **dict.fromkeys(("adapt-lora", "predict", "seedprint-population", "export-of-run"), ("slow",)),
    **dict.fromkeys(("probe-preference", "generate-text", "seedprint-undefined", "intervene"), ("slow",)),
    **dict.fromkeys(("reproduce", "export-peft", "adapt-full", "adapt-prefix", "adapt-prefix-plus"), NIGHTLY),
    **dict.fromkeys(("probe-preference-checkpoint", "probe-contraction-theory"), NIGHTLY),
    **dict.fromkeys(("whichseed", "whichseed-none", "sinks-by-step"), NIGHTLY),
}
CASES = {
    **{f"keys-{name}": Case(functools.partial(_keys, name), marks=MARKS.get(name, ())) for name in CALLS},
    # Of the run that others begin with.
    "keys-metrics": Case(_metrics, marks=("slow",)),
    # Parity imports torch and transformers.
    "keys-parity": Case(_parity, marks=("slow",)),
    "help": Case(_help),
    **{f"refused-{name}": Case(functools.partial(_refused, name)) for name in REFUSED},
    "exit-codes": Case(_exit_codes),
}

"""Verdicts on fourteen pairs of tiny models: copies, unrelated models, trainings, and initial weights changed.

Each pair is judged by the battery and by every test of weights and of outputs; a few by the tests that draw hundreds of
initializations as well. Everything goes through the command line, whose options and JSON keys are frozen.
"""

import functools
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

from tests.golden.record import NIGHTLY, Case, Tolerance, Values
from tests.golden.training import MODEL, SEEDS, STEPS, command, scratch, trained

# Statistics of float32 weights, some of them trained. Between the flags of the tests and those of users, two cores and
# one, no z or log10 p moves by more than 7e-6 (of itself where it is above 1), and no count of permutations moves;
# other CPUs and versions of LAPACK get fourteen times that. One permutation more of 10,000 moves p by 1e-4.
TOLERANCE = Tolerance(relative=1e-4, absolute=1e-4)

# Runs several commands in one process.
CALLS = """
import json, sys
from bornbiased_jax.cli.main import cli
for words in json.loads(sys.argv[1]):
    cli.main(args=words, prog_name="bornbiased", standalone_mode=False)
"""
SIZES = "num_layers=2,num_heads=2,d_model=32,d_ff=48,vocab_size=128"
INPUTS = "--num-inputs 100 --seq-len 8"
KEPT = ("verdict", "test", "null", "labels", "align", "identity", "z", "log10_p", "log10_p_bound", "p_value")
KEPT += ("num_inputs", "alpha", "num_tensors", "identical_tensors")
OF_THE_BATTERY = ("verdict", "labels", "align", "z", "log10_p", "p_value")

# The options of each test, by the name of its values.
CHEAP = {
    "auto": "",
    "weights": "--test weights",
    "weights_units": "--test weights --labels units",
    "weights_heads": "--test weights --labels heads",
    "permutation": f"--test permutation {INPUTS}",
    "paper": f"--test paper {INPUTS}",
    "iclr": f"--test iclr {INPUTS}",
}
# The signs of sketches are drawn from the digests of both models, unless a key is named. Where a suspect was trained or
# rotated, the last bits of its weights are those of the machine's matrix products and LAPACK: its digest is another one
# on another machine, the signs with it, and z moves by its sampling error. With this key only the last bits count.
SIGN_KEY = "--sign-key 00112233445566778899aabbccddeeff"
FIXED_SIGNS = {
    test: f"{options} {SIGN_KEY}" if test.startswith(("auto", "weights")) else options
    for test, options in CHEAP.items()
}
AMONG_INITIALIZATIONS = {
    "population": f"--test population --num-references 101 {INPUTS}",
}


class Pair(NamedTuple):
    """Two models, each a reference, or a reference to initial weights with changes that ``derive`` makes."""

    base: str
    suspect: str
    changes: tuple[str, ...] = ()
    tests: dict[str, str] = CHEAP


def _initial(family: str, seed: int = 1) -> str:
    return f"seed:{seed}@{family}-tiny,{SIZES}"


def _derived(family: str, *changes: str, tests: dict[str, str] = CHEAP) -> Pair:
    return Pair(_initial(family), _initial(family), changes, tests)


# RUN@seed=N stands for the last checkpoint of the golden training run.
PAIRS = {
    "birth_and_itself": Pair(_initial("llama"), _initial("llama")),
    "two_births": Pair(_initial("llama"), _initial("llama", 2), tests={**CHEAP, **AMONG_INITIALIZATIONS}),
    "birth_and_its_training": Pair(
        f"seed:{SEEDS[0]}@{MODEL}", f"RUN@seed={SEEDS[0]},step={STEPS}", tests={**FIXED_SIGNS, **AMONG_INITIALIZATIONS}
    ),
    "birth_and_another_training": Pair(
        f"seed:{SEEDS[0]}@{MODEL}", f"RUN@seed={SEEDS[1]},step={STEPS}", tests=FIXED_SIGNS
    ),
    "two_trainings": Pair(f"RUN@seed={SEEDS[0]},step={STEPS}", f"RUN@seed={SEEDS[1]},step={STEPS}", tests=FIXED_SIGNS),
    "rotated": _derived("qwen3", "rotate:7", tests=FIXED_SIGNS),
    "renumbered": _derived("neox", "renumber:7"),
    "units_permuted": _derived("gpt2", "permute:7"),
    "negated": _derived("olmo2", "negate:7"),
    "noisy": _derived("qwen3", "noise:0.5"),
    "quantized": _derived("gpt2", "round:4"),
    "pruned": _derived("neox", "prune:0.5"),
    "merged": _derived("llama", f"merge:{_initial('llama', 2)}:0.5", tests={**CHEAP, **AMONG_INITIALIZATIONS}),
    "disguised": _derived("llama", "rotate:7", "permute:8", "heads:9", "noise:0.05", tests=FIXED_SIGNS),
}


@functools.cache
def _derive(name: str) -> str:
    """Make the suspect of a pair, once in a process."""
    pair = PAIRS[name]
    changes = [word for change in pair.changes for word in ("--change", change)]
    command("derive", pair.suspect, *changes, "--out", scratch() / name)
    return str(scratch() / name)


def _place(reference: str) -> str:
    """A reference that the command line understands."""
    if not reference.startswith("RUN"):
        return reference
    trained("unbroken")
    return reference.replace("RUN", str(scratch() / "unbroken"))


def _judge(base: str, suspect: str, options: str) -> dict[str, Any]:
    """Return the golden values of one verdict."""
    answer = command("seedprint", base, suspect, *options.split(), "--quiet")
    rows = {key: answer[key] for key in KEPT if key in answer}
    rows["by_module"] = [row["module"] for row in answer["by_module"]]
    rows["by_module.z"] = [row["z"] for row in answer["by_module"]]
    if "tests" in answer:
        rows["tests"] = [row["name"] for row in answer["tests"]]
        rows |= {f"tests.{key}": [row[key] for row in answer["tests"]] for key in OF_THE_BATTERY}
    return rows


def _verdicts(name: str) -> Values:
    """Every verdict on a pair, its keys behind the name of the test."""
    pair = PAIRS[name]
    base, suspect = _place(pair.base), _derive(name) if pair.changes else _place(pair.suspect)
    return {
        f"{test}.{key}": value
        for test, options in pair.tests.items()
        for key, value in _judge(base, suspect, options).items()
    }


def _rounding(name: str) -> dict[str, float]:
    """Measure how far the verdicts on a trained suspect move with noise as training on another CPU leaves, times four.

    Entries of a fingerprint are whole numbers: a weight's last bits may move one of them by a step.
    """
    pair, values = PAIRS[name], _verdicts(name)
    rounding: dict[str, float] = {}
    for noise in ("1e-6", "2e-6", "4e-6"):
        moved = scratch() / f"{name}-{noise}"
        command("derive", _place(pair.suspect), "--change", f"noise:{noise}", "--out", moved)
        for test, options in pair.tests.items():
            for key, value in _judge(_place(pair.base), str(moved), options).items():
                moves = _moves(values[f"{test}.{key}"], value)
                rounding[f"{test}.{key}"] = max(rounding.get(f"{test}.{key}", 0.0), 4 * moves)
    return rounding


def _moves(value: Any, moved: Any) -> float:
    """The largest difference of two numbers, or of two lists entry by entry; 0 for anything else."""
    pairs = zip(value, moved, strict=False) if isinstance(value, list) and isinstance(moved, list) else [(value, moved)]
    return max((abs(a - b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)), default=0.0)


def _fingerprints() -> Values:
    """Two stored fingerprints compared, and what is said of one; the bytes of a file depend on the machine."""
    rows: dict[str, Any] = {}
    for name, model in (("birth", _initial("llama")), ("merged", _derive("merged"))):
        stored = command(
            "fingerprint", "--outputs", model, *INPUTS.split(), "--out", scratch() / f"{name}.fingerprint", "--quiet"
        )
        rows |= {f"{name}.{key}": _flat(stored[key]) for key in ("num_outputs", "width", "layer", "storage", "inputs")}
        rows[f"{name}.has_digest_of_model"] = stored["weights_digest"] == command("digest", model)["digest"]
    pair = [str(scratch() / f"{name}.fingerprint") for name in ("birth", "merged")]
    for test in ("permutation", "paper", "iclr"):
        rows |= {f"{test}.{key}": value for key, value in _judge(*pair, f"--test {test}").items()}
    return rows


def _flat(value: Any) -> Any:
    """A mapping as a list of its names and values, which a golden value can be."""
    return [text for key in sorted(value) for text in (key, value[key])] if isinstance(value, dict) else value


def _whichseed() -> Values:
    """Seeds 0 to 63 searched for the seed of a noisy model, and for one that is not among them."""
    rows: dict[str, Any] = {}
    for name, suspect in (("noisy", _derive("noisy")), ("none", _initial("llama", 99))):
        answer = command("whichseed", suspect, "--seeds", "0:64", "--quiet")
        kept = ("seed", "p_value", "log10_p", "num_seeds", "corrected_for", "alpha")
        rows |= {f"{name}.{key}": answer[key] for key in kept}
        rows |= {f"{name}.num_entries": _flat(answer["num_entries"])}
        for candidate in ("best", "runner_up"):
            rows |= {f"{name}.{candidate}.{key}": answer[candidate][key] for key in ("seed", "correlation", "log10_p")}
        confirmed = answer["confirmed"] or {}
        rows[f"{name}.confirmed"] = answer["confirmed"] is not None
        rows |= {f"{name}.confirmed.{key}": confirmed[key] for key in ("verdict", "z", "log10_p") if key in confirmed}
    return rows


def _digests() -> Values:
    """Digests of initial weights as users compile; exports and step 0 of a run have the same."""
    references = {family: _initial(family) for family in ("llama", "gpt2", "qwen3", "neox", "olmo2")}
    references |= {f"run.{seed}": f"seed:{seed}@{MODEL}" for seed in SEEDS}
    rows: dict[str, Any] = _digests_as_users(references)
    for family in ("llama", "gpt2", "qwen3", "neox", "olmo2"):
        exported = command("export", _initial(family), scratch() / f"exported-{family}")
        initial, read = (command("digest", model)["digest"] for model in (references[family], exported["directory"]))
        rows[f"{family}.export"] = exported["family"]
        rows[f"{family}.export_is_birth"] = initial == exported["digest"] == read
    start, end = (command("digest", _place(f"RUN@seed={SEEDS[0]},step={step}"))["digest"] for step in (0, STEPS))
    command("export", _place(f"RUN@seed={SEEDS[0]},step={STEPS}"), scratch() / "exported-run")
    rows["run_begins_with_birth"] = start == command("digest", f"seed:{SEEDS[0]}@{MODEL}")["digest"]
    rows["run_moves"] = start != end
    rows["export_is_run"] = end == command("digest", scratch() / "exported-run")["digest"]
    return rows


def _digests_as_users(models: dict[str, str]) -> dict[str, str]:
    """Digests of initial weights, and of some with coordinates renumbered, in a process that compiles as users do.

    The last bit of a normal draw is the compiler's, and the tests' flags make it another one.
    """
    place = scratch() / "as-users"
    place.mkdir(exist_ok=True)
    calls = [["digest", model, "--json", str(place / f"{name}.json")] for name, model in models.items()]
    calls.append(["derive", _initial("neox"), "--change", "renumber:7", "--out", str(place / "neox-renumbered")])
    calls.append(["digest", str(place / "neox-renumbered"), "--json", str(place / "neox.renumbered.json")])
    child = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(calls)],
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return {name: json.loads((place / f"{name}.json").read_text())["digest"] for name in [*models, "neox.renumbered"]}


# Every day a copy and copies in other coordinates.
DAILY = ("birth_and_itself", "disguised")
CASES: dict[str, Case] = {
    name: Case(
        functools.partial(_verdicts, name),
        marks=() if name in DAILY else NIGHTLY,
        rounding=functools.partial(_rounding, name) if pair.suspect.startswith("RUN") else None,
    )
    for name, pair in PAIRS.items()
}
CASES |= {
    "fingerprints": Case(_fingerprints),
    "whichseed": Case(_whichseed, marks=("slow",)),
    "digests": Case(_digests, marks=NIGHTLY),
}

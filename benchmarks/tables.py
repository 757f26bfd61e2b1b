"""How the records of the benchmarks are shown in the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import parity
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.lineage import disputes_tables
from bornbiased_jax.model.memory import loop_operations, needed_operations
from bornbiased_jax.report.numbers import fixed, integer, percent, significant, times
from bornbiased_jax.report.tables import Table, tabulate

Record = Mapping[str, Any]

_RATIO = times(2)


def facts(title: str, facts: Sequence[tuple[str, str]], note: str = "") -> list[Table]:
    """Make one table with a row for each name and what was measured of it."""
    return [tabulate(title, ["what"], [([name], {"measured": text}) for name, text in facts], note)]


def _between(middle: float, ends: Sequence[float], write: Callable[[float], str] = _RATIO) -> str:
    return f"{write(middle)} ({write(ends[0])} to {write(ends[1])})"


def _gigabytes(num_bytes: float) -> str:
    return f"{fixed(2)(num_bytes / 1e9)} GB"


def sweep_vs_torch(record: Record) -> list[Table]:
    """Tabulate the sweep versus the loop, also as if both did the loop's work."""
    cfg, length = ModelConfig.from_dict(record["provenance"]["config"]), record["length"]
    alike = needed_operations(cfg, length) / loop_operations(cfg, length)
    equal = _between(record["speedup_equal_work_median"], record["speedup_equal_work_range"])
    return facts(
        "A sweep over seeds versus a loop with PyTorch",
        [
            ("sweep, loop", f"{fixed(2)(record['seconds_ours'])} s, {fixed(2)(record['seconds_torch'])} s"),
            ("loop over sweep, pair by pair", _between(record["speedup_median"], record["speedup_range"])),
            ("the same for equal work", equal),
            ("needed operations per second", f"{record['gflops_ours']:.0f} GFLOP/s"),
            ("products at the model's own shapes, same seconds", f"{record['gflops_matmul']:.0f} GFLOP/s"),
            ("fraction of that rate", _between(record["share_of_matmul_rate"], record["share_range"], percent(0))),
        ],
        "Needed are all positions in every block but the last, there keys and values of all positions and one query, "
        "output and MLP row; half of the causal square; the head at one position. The loop computes the last block at "
        f"every position: its operations are {fixed(2)(1 / alike)} times the needed ones, and for equal work the ratio "
        "is as much smaller.",
    )


def pretrain_vs_torch(record: Record) -> list[Table]:
    """Tabulate the compiled training step versus a PyTorch loop, by model."""
    rows = [
        (
            [
                f"{measured['model']['num_layers']} × {measured['model']['d_model']}",
                measured["model"]["vocab_size"],
                measured["batch_size"] * measured["context"],
            ],
            {
                "JAX, tokens/s": (integer, measured["tokens_per_second_ours"]),
                "PyTorch, tokens/s": (integer, measured["tokens_per_second_torch"]),
                "ratio, median (pair by pair)": _between(measured["speedup_median"], measured["speedup_range"]),
                "cores busy, JAX": (fixed(2), measured["cores_busy_ours"]),
                "cores busy, PyTorch": (fixed(2), measured["cores_busy_torch"]),
                "CPU seconds, PyTorch / JAX": (fixed(2), measured["cpu_seconds_ratio_median"]),
            },
        )
        for size, measured in record.items()
        if size != "provenance"
    ]
    heads = ["layers × width (LLaMA blocks)", "V", "tokens a step"]
    return [tabulate("The training step versus a PyTorch loop", heads, rows)]


def seeds_at_once(record: Record) -> list[Table]:
    """Tabulate several seeds in one program versus as many runs of one."""
    cost = _between(record["cost_at_once_over_in_turn"], record["range"], fixed(2))
    return facts(
        f"{record['seeds']} seeds at once (mode {record['mode']})",
        [
            ("time over that of runs of one seed", cost),
            ("tokens/s at once", integer(record["tokens_per_second_at_once"])),
            ("tokens/s in turn", integer(record["tokens_per_second_in_turn"])),
        ],
    )


def training_rate(record: Record) -> list[Table]:
    """Tabulate the training step as a fraction of the rate of its own products."""
    fraction = _between(record["share_of_products_rate_median"], record["share_of_products_rate_range"], percent(0))
    return facts(
        f"The training step, {record['tokens_per_step']:,} tokens a step",
        [
            ("tokens/s", integer(record["tokens_per_second"])),
            ("fraction of the rate of the step's own products", fraction),
        ],
    )


def _process(measured: Mapping[str, Any]) -> str:
    """Describe what a command took, and how much else wanted the cores."""
    load = " to ".join(f"{value:.0f}" for value in measured["load"])
    return f"{measured['cpu_s']:.0f} s of processor time, {measured['wall_s']:.0f} s elapsed at a load of {load}"


def whichseed(record: Record) -> list[Table]:
    """Tabulate the search for a descendant and an unrelated model, and the rate of the search."""
    rows = []
    for key, name in (("descendant", "descendant"), ("stranger", "unrelated model")):
        outcome = record[key]
        seed = "none" if outcome["seed"] is None else f"{outcome['seed']:,}"
        r, log10_p = outcome["best"]["correlation"], outcome["log10_p"]
        rows.append(
            (
                f"{name} of seed {outcome['born_from']:,}: found",
                f"{seed} (r = {fixed(3)(r)}, log10 p = {fixed(0)(log10_p)})",
            )
        )
        rows.append((f"{name}: the whole command", _process(outcome["process"])))
    search = record["search"]
    between = [search["fraction_of_draw_rate_cpu_median"], search["fraction_of_draw_rate_cpu_range"]]
    rows += [
        ("seeds a second of one core", integer(search["seeds_per_cpu_second"])),
        ("fraction of the rate of one large draw, in turn", _between(*between, percent(0))),
        ("all 2³² seeds at that rate on all cores", f"{fixed(1)(search['hours_of_all_seeds'])} h"),
    ]
    note = f"{search['entries']} numbers of {search['matrices']} matrices are drawn of each seed."
    return facts(f"{record['num_seeds']:,} seeds of {record['model']} searched, {record['steps']} steps", rows, note)


def bound(record: Record) -> list[Table]:
    """Tabulate the certified bound versus the normal tail, and its seconds."""
    logs = {
        "certified": "log10_p_bound_full",
        "as used": "log10_p_bound",
        "with Sinkhorn's scaling": "log10_p_bound_scaled",
        "normal tail (no p)": "log10_p_normal",
        "1/D!": "log10_floor",
    }
    seconds = {"seconds": "cpu_s_full", "seconds, as used": "cpu_s", "seconds, scaled": "cpu_s_scaled"}
    rows = [
        (
            [f"{measured['width']:,}", f"{measured['z']:.0f}"],
            {name: (fixed(1), measured[key]) for name, key in logs.items()}
            | {name: (fixed(2), measured[key]) for name, key in seconds.items()},
        )
        for measured in record["rows"]
    ]
    note = (
        "Seconds of processor time. As used: beyond 1,024 labels the largest 64 of each row and a grid of the rest; "
        "what Sinkhorn's scaling adds is tried where there is something to win."
    )
    return [tabulate("log10 p of a sum over permutations of D labels", ["D", "z"], rows, note)]


def loading(record: Record) -> list[Table]:
    """Tabulate the memory that commands take on top of a model's weights."""
    rows = [
        (
            [name],
            {"most memory": _gigabytes(row["peak_bytes"]), "over its weights": _RATIO(row["over_weights"])},
        )
        for name, row in record["commands"].items()
    ]
    note = (
        f"{record['model']}: {_gigabytes(record['weights_bytes'])} of weights in float32. "
        f"Wanted: at most {_gigabytes(record['goal_bytes'])}."
    )
    return [tabulate("Memory of commands that read one checkpoint", ["command"], rows, note)]


def streamed(record: Record) -> list[Table]:
    """Tabulate memory and rate of a fingerprint whose model is read block by block."""
    sizes, full_depth = record["sizes"], record["full_depth"]
    rows = [
        ("peak memory of the command", _gigabytes(record["command"]["peak_bytes"])),
        ("the weights in float32", f"{fixed(1)(record['weights_bytes'] / 1e9)} GB"),
        ("the pass, fraction of the rate of float32 products", percent(0)(record["fraction_of_products"])),
        ("seconds of the pass", f"{record['pass']['seconds']:.0f}"),
        (f"{full_depth['layers']} blocks: weights in float32", f"{fixed(1)(full_depth['weights_bytes'] / 1e9)} GB"),
        (
            f"{full_depth['layers']} blocks: seconds of the pass, extrapolated",
            f"{full_depth['seconds_extrapolated']:.0f}",
        ),
        ("the whole process", _process(record["command"])),
    ]
    title = (
        f"{record['num_inputs']} sequences of {record['length']} tokens through {record['layers']} blocks of 7B shape "
        f"(width {sizes['d_model']:,}, {sizes['d_ff']:,} hidden units)"
    )
    return facts(title, rows)


def weights_fingerprint(record: Record) -> list[Table]:
    """Tabulate time and memory of a fingerprint of weights."""
    sizes, full_depth = record["sizes"], record["full_depth"]
    rows = [
        ("seconds of reading the files into float32, median", fixed(1)(statistics.median(record["read_seconds"]))),
        ("seconds of the digest of all weights alone, median", fixed(1)(statistics.median(record["digest_seconds"]))),
        (
            "seconds of the fingerprint, which includes it, median",
            fixed(1)(statistics.median(record["fingerprint_seconds"])),
        ),
        ("the fingerprint over reading", fixed(2)(record["ratio"])),
        ("peak memory of the command beyond the two tables", _gigabytes(record["beyond_tables_bytes"])),
        ("the two tables in float32", _gigabytes(record["table_bytes"])),
        (
            f"{full_depth['layers']} blocks: seconds, extrapolated, and size of the file",
            f"{full_depth['seconds_extrapolated']:.0f}, {fixed(1)(full_depth['fingerprint_bytes'] / 1e6)} MB",
        ),
        ("the whole process", _process(record["command"])),
    ]
    title = (
        f"A fingerprint of the weights of {record['layers']} blocks of 7B shape and their tables (width "
        f"{sizes['d_model']:,}, {sizes['d_ff']:,} hidden units, {_gigabytes(record['file_bytes'])} in bfloat16)"
    )
    return facts(title, rows)


def document(record: Record) -> list[Table]:
    """Tabulate what the page of a verdict on two models took."""
    sizes, suspects = record["sizes"], record["suspects"]
    rows = [
        (
            [name],
            {
                "minutes": (fixed(1), copy["wall_s"] / 60),
                "minutes of processor time": (fixed(1), copy["cpu_s"] / 60),
                "GB of memory at most": (fixed(2), copy["peak_bytes"] / 1e9),
                "verdict": (str, copy["verdict"]),
                "because": (str, copy["reason"]),
            },
        )
        for name, copy in suspects.items()
    ]
    title = (
        f"`seedprint A B --page` at {record['layers']} blocks of 7B shape (width {sizes['d_model']:,}, "
        f"{sizes['d_ff']:,} hidden units, {_gigabytes(record['base_bytes'])} in bfloat16)"
    )
    return [tabulate(title, ["suspect"], rows)]


def peers_in_disputes(record: Record) -> list[Table]:
    """Tabulate the scores of installed tools, what they decide, and the area under the curve by kind."""
    tests, settings = record["tests"], record["settings"]
    kinds, count = len(tests[0]["kinds"]), settings["models"]
    guilty, innocent = kinds * count, kinds * count * (count - 1)
    decisions = [
        (
            [test["test"]],
            {
                f"of {guilty} guilty pairs": (integer, sum(kind["guilty"] for kind in test["decisions"])),
                f"of {innocent:,} innocent pairs": (integer, sum(kind["innocent"] for kind in test["decisions"])),
                "least score of a guilty pair": (significant(2), test["least_guilty"]),
                "largest of an innocent pair": (significant(2), test["largest_innocent"]),
            },
        )
        for test in tests
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    note = (
        f"{versions}. Called “Confirmed Match” or “High-Confidence Match” (weights alone: the second, by the "
        "tool's own limit of 0.75); “derived_from_base” or “likely_descendant” by `weightscope lineage`."
    )
    called = tabulate("Pairs that installed tools call related", ["score"], decisions, note)
    return [disputes_tables.scores(tests), called, disputes_tables.areas(tests)]


def stored_fingerprints(record: Record) -> list[Table]:
    """Tabulate what comparing and scanning stored fingerprints takes."""
    work = {
        "screen": "z of every piece of evidence, estimated for the screen",
        "unrelated": "the whole comparison of an unrelated pair",
        "full": "the whole comparison of a related pair, with permutations and bounds",
        "scan": f"scanning {record['bases']:,}, of which {record['tested']} passed the screen",
    }
    rows = [
        (f"{words}: seconds, of processors", f"{fixed(2)(seconds['wall_s'])}, {fixed(2)(seconds['cpu_s'])}")
        for words, seconds in ((words, record["seconds"][name]) for name, words in work.items())
    ]
    rows.append(("relatives found", f"{record['found']} of {record['related']}"))
    if "small_pair" in record:
        pair = record["small_pair"]
        for name, key in (("`provenancekit compare`", "peer"), ("`seedprint`", "seedprint")):
            label = f"{name} of two unrelated models of 0.2 million parameters, as a process: seconds"
            rows.append((label, f"{fixed(1)(pair[key + '_s'])} ({pair['decisions'][key]})"))
    rows.append(("processes that wanted a core, before and after", "{:.1f}, {:.1f}".format(*record["load"])))
    megabytes = fixed(1)(record["fingerprint_bytes"] / 1e6)
    title = f"Stored fingerprints of {record['layers']} blocks of 7B shape, {megabytes} MB each"
    return facts(title, rows)


def self_test(record: Record) -> list[Table]:
    """Tabulate what must hold on any device."""
    checks = record["checks"]
    attention = checks["attention"]
    rows = [
        ("key bits", "as on a CPU, bit for bit" if checks["key_bits"]["passed"] else "others"),
        ("largest error of a normal, over its bound", fixed(2)(checks["normals"]["largest_error_over_bound"])),
    ]
    for name, error in attention.get("relative_errors", {}).items():
        text = f"{significant(2)(error)} (bound {significant(2)(attention['bound'])})"
        rows.append((f"fused attention in bfloat16 against the plain formula in float32, {name}", text))
    return facts(f"Self-test, {record['provenance']['device']['kind']}", rows)


def products(record: Record) -> list[Table]:
    """Tabulate float32 products by name."""
    bounds = record["bounds"]
    rows = [
        (
            [name],
            {
                "TFLOP/s": (fixed(0), row["tflops"]),
                "error": (significant(2), row["error"]),
                "other top-1": (percent(2), row["changed"]),
                "change of a mean cosine": (significant(2), row["cosine"]),
                "within bounds": "yes" if row["keeps"] else "no",
            },
        )
        for name, row in record["algorithms"].items()
        if "refused" not in row
    ]
    note = (
        "Rate of the products of gpt2-nano's blocks; largest ‖C − exact‖/‖exact‖ of them; of 2,000 inputs those with "
        "another top-1 token than at `highest`, and the largest change of a block's mean cosine. Bounds, stated "
        f"before: {percent(1)(bounds['changed'])} of inputs, {significant(1)(bounds['cosine'])}."
    )
    title = f"Float32 products by `--precision`, {record['provenance']['device']['kind']}"
    return [tabulate(title, ["precision"], rows, note)]


def kill_resume(record: Record) -> list[Table]:
    """Tabulate a run that was killed again and again versus one that was not."""
    equal = {True: "equal, bit for bit", False: "DIFFERENT"}
    return facts(
        "A run killed with SIGKILL at random moments and resumed each time",
        [
            ("kills, of them while a checkpoint was written", f"{record['kills']}, {record['kills_during_a_write']}"),
            (f"losses of {record['steps']} steps", equal[record["losses_equal"]]),
            ("digests of the weights", equal[record["digests_equal"]]),
        ],
    )


TABLES: dict[str, Callable[[Record], list[Table]]] = {
    table.__name__: table
    for table in (
        sweep_vs_torch,
        pretrain_vs_torch,
        seeds_at_once,
        training_rate,
        whichseed,
        bound,
        loading,
        streamed,
        weights_fingerprint,
        stored_fingerprints,
        document,
        peers_in_disputes,
        kill_resume,
        self_test,
        products,
    )
} | {
    "parity": parity.tables,
}
"""Name of a record in ``benchmarks/results`` -> its tables."""

COMMANDS = {
    "peers_in_disputes": (
        "python -m benchmarks peers_in_disputes --peers PEERS/bin --json benchmarks/results/peers_in_disputes.json"
    ),
    "loading": "python -m benchmarks loading --checkpoint FILE --text FILE --json benchmarks/results/loading.json",
}
"""What makes a record of ``benchmarks/results``, where it needs more than its name."""

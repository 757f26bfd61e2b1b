"""How the records of the benchmarks are shown in the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.matmul import loop_operations, needed_operations
from benchmarks.sweep_vs_torch import LENGTH, model
from bornbiased_jax.report.numbers import fixed, integer, percent, times
from bornbiased_jax.report.tables import Quantity, Row, Table

Record = Mapping[str, Any]

_RATIO = times(2)


def _between(middle: float, ends: Sequence[float], write: Callable[[float], str] = _RATIO) -> str:
    return f"{write(middle)} ({write(ends[0])} to {write(ends[1])})"


def _facts(title: str, facts: Sequence[tuple[str, str]], note: str = "") -> list[Table]:
    return [
        Table(title, ["what"], [Quantity("measured")], [Row([name], {"measured": text}) for name, text in facts], note)
    ]


def sweep_vs_torch(record: Record) -> list[Table]:
    """The sweep beside the loop, also as if both did the loop's work."""
    cfg = model()
    alike = needed_operations(cfg, LENGTH) / loop_operations(cfg, LENGTH)
    # Records made before the sweep was timed at the loop's own work have its operations alone to go by.
    equal = times(2)(record["speedup_median"] * alike)
    if "speedup_equal_work_median" in record:
        equal = _between(record["speedup_equal_work_median"], record["speedup_equal_work_range"])
    return _facts(
        "A sweep over seeds beside a loop with PyTorch",
        [
            ("sweep, loop", f"{record['seconds_ours']:.2f} s, {record['seconds_torch']:.2f} s"),
            ("loop over sweep, pair by pair", _between(record["speedup_median"], record["speedup_range"])),
            ("the same for equal work", equal),
            ("needed operations per second", f"{record['gflops_ours']:.0f} GFLOP/s"),
            ("products at the model's own shapes, same seconds", f"{record['gflops_matmul']:.0f} GFLOP/s"),
            ("fraction of that rate", _between(record["share_of_matmul_rate"], record["share_range"], percent(0))),
        ],
        "Needed are all positions in every block but the last, there keys and values of all positions and one query, "
        "output and MLP row; half of the causal square; the head at one position. The loop computes the last block at "
        f"every position: its operations are {1 / alike:.2f} times the needed ones, and for equal work the ratio is as "
        "much smaller.",
    )


def kendall(record: Record) -> list[Table]:
    """Rank correlations beside SciPy's loop."""
    return _facts(
        f"Rank correlations, N = {record['num_inputs']:,}, {record['columns']} columns",
        [
            ("exact tau-b of all columns", f"{record['seconds_tau_b']:.2f} s"),
            (
                "a loop over scipy.stats.kendalltau takes longer",
                _between(record["tau_b_speedup_median"], record["tau_b_speedup_range"], times(1)),
            ),
            (f"all {record['columns'] ** 2:,} rank correlations", f"{record['seconds_rank_matrix']:.2f} s"),
            (
                "SciPy's loop over the columns alone takes longer",
                _between(
                    record["rank_matrix_speedup_over_columns_median"],
                    record["rank_matrix_speedup_over_columns_range"],
                    times(1),
                ),
            ),
        ],
    )


def fingerprint(record: Record) -> list[Table]:
    """The rate at which fingerprints of SmolLM2 are taken."""
    return _facts(
        f"A fingerprint of SmolLM2, {record['num_inputs']:,} sequences of {record['length']} random tokens",
        [
            ("needed operations per second", f"{record['gflops']:.0f} GFLOP/s"),
            ("products at the model's own shapes, in turn", f"{record['gflops_matmul_median']:.0f} GFLOP/s"),
            (
                "fraction of that rate, over ten parts",
                _between(record["share_of_matmul_rate_median"], record["share_of_matmul_rate_range"], percent(0)),
            ),
        ],
    )


def pretrain_vs_torch(record: Record) -> list[Table]:
    """The compiled training step beside a PyTorch loop, by model."""
    rows = []
    for size, found in record.items():
        if size == "provenance":
            continue
        sizes = found["model"]
        rows.append(
            Row(
                [
                    f"{sizes['num_layers']} × {sizes['d_model']}",
                    sizes["vocab_size"],
                    found["batch_size"] * found["context"],
                ],
                {
                    "ours, tokens/s": found["tokens_per_second_ours"],
                    "PyTorch, tokens/s": found["tokens_per_second_torch"],
                    "ratio, median (pair by pair)": _between(found["speedup_median"], found["speedup_range"]),
                    "cores busy, ours": found["cores_busy_ours"],
                    "cores busy, PyTorch": found["cores_busy_torch"],
                    "CPU seconds, PyTorch / ours": found["cpu_seconds_ratio_median"],
                },
            )
        )
    quantities = [
        *(Quantity("ours, tokens/s", integer), Quantity("PyTorch, tokens/s", integer)),
        *(Quantity("ratio, median (pair by pair)"), Quantity("cores busy, ours", fixed(2))),
        *(Quantity("cores busy, PyTorch", fixed(2)), Quantity("CPU seconds, PyTorch / ours", fixed(2))),
    ]
    heads = ["layers × width (LLaMA blocks)", "V", "tokens a step"]
    return [Table("The training step beside a PyTorch loop", heads, quantities, rows)]


def seeds_at_once(record: Record) -> list[Table]:
    """Several seeds in one program beside as many runs of one."""
    cost = _between(record["cost_at_once_over_in_turn"], record["range"], fixed(2))
    return _facts(
        f"{record['seeds']} seeds at once (mode {record['mode']})",
        [
            ("time over that of runs of one seed", cost),
            ("tokens/s at once", integer(record["tokens_per_second_at_once"])),
            ("tokens/s in turn", integer(record["tokens_per_second_in_turn"])),
        ],
    )


def training_rate(record: Record) -> list[Table]:
    """The training step as a fraction of the rate of its own products."""
    share = _between(record["share_of_products_rate_median"], record["share_of_products_rate_range"], percent(0))
    return _facts(
        f"The training step, {record['tokens_per_step']:,} tokens a step",
        [
            ("tokens/s", integer(record["tokens_per_second"])),
            ("fraction of the rate of the step's own products", share),
        ],
    )


def kill_resume(record: Record) -> list[Table]:
    """A run that was killed again and again beside one that nobody disturbed."""
    equal = {True: "equal, bit for bit", False: "DIFFERENT"}
    return _facts(
        "A run killed with SIGKILL at random moments and resumed each time",
        [
            ("kills, of them while a checkpoint was written", f"{record['kills']}, {record['kills_during_a_write']}"),
            (f"losses of {record['steps']} steps", equal[record["losses_equal"]]),
            ("digests of the weights", equal[record["digests_equal"]]),
        ],
    )


def theory_mutations(record: Record) -> list[Table]:
    """How many moved constants of the theory its tests notice, by module."""
    tried: dict[str, list[Mapping[str, Any]]] = {}
    for mutation in record["mutations"]:
        tried.setdefault(mutation["module"], []).append(mutation)
    rows = []
    for module, mutations in tried.items():
        unnoticed = [f"line {one['line']}: {one['old']}" for one in mutations if one["outcome"] == "passes"]
        counts = {"constants": float(len(mutations)), "noticed": float(len(mutations) - len(unnoticed))}
        rows.append(Row([module], {**counts, "not noticed": "; ".join(unnoticed) or None}))
    quantities = [Quantity("constants", integer), Quantity("noticed", integer), Quantity("not noticed")]
    note = f"Each constant is multiplied by {record['factor']:g} in a scratch copy of theory/ and its tests are run."
    return [Table("Constants of the theory moved, one at a time", ["module"], quantities, rows, note)]


TABLES: dict[str, Callable[[Record], list[Table]]] = {
    made.__name__: made
    for made in (
        sweep_vs_torch,
        kendall,
        fingerprint,
        pretrain_vs_torch,
        seeds_at_once,
        training_rate,
        kill_resume,
        theory_mutations,
    )
}
"""Name of a record in ``benchmarks/results`` -> its tables."""

COMMANDS = {
    "theory_mutations": "python -m experiments.theory.mutations --out benchmarks/results/theory_mutations.json",
}
"""What makes a record of ``benchmarks/results`` that no module of this folder makes."""

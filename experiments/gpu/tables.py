"""How the records of a GPU are shown in the documentation, ``experiments/results/gpu/STEP.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bornbiased_jax import files
from bornbiased_jax.report.numbers import fixed, percent, significant, times
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments import results
from experiments.gpu.collect import SCALE

Record = Mapping[str, Any]

BENCHMARKS = {
    "sweep_tiny": "sweep_vs_torch",
    "sweep_nano": "sweep_vs_torch",
    "training_rate": "training_rate",
    "training_rate_seeds": "training_rate",
    "seeds_at_once": "seeds_at_once",
    "parity": "parity",
}
"""Step -> the benchmark whose tables show its record."""


def record_of(step: str) -> Record | None:
    """The committed record of a step, its result beside its provenance; None where there is none."""
    path = results.FOLDER / SCALE / f"{step}.json"
    if not Path(path).exists():
        return None
    record = files.read_json(path)
    return {**record["result"], "provenance": record["provenance"]}


def self_test(record: Record) -> list[Table]:
    """A row for each check."""
    words = {True: "holds", False: "does not hold", None: "does not apply"}
    rows = []
    for name, check in record["checks"].items():
        told = [f"{key} {significant(3)(value)}" for key, value in check.items() if isinstance(value, float)]
        said = [str(check[key]) for key in ("why", "error") if key in check]
        if "relative_errors" in check:
            worst = max(check["relative_errors"], key=lambda row: row["fused"])
            said.append(f"{worst['what']}: {significant(2)(worst['fused'])}, plain {significant(2)(worst['plain'])}")
        rows.append(Row([name], {"": words[check["passed"]], "detail": "; ".join(told + said).replace("_", " ")}))
    devices = ", ".join(device["kind"] for device in record["environment"]["devices"])
    return [Table("The self-test", ["check"], [Quantity(""), Quantity("detail")], rows, f"On {devices}.")]


def products(record: Record) -> list[Table]:
    """Algorithms in rows, shapes in columns."""
    taken = {name: row for name, row in record["algorithms"].items() if "refused" not in row}
    heads = ["×".join(f"{size:,}" for size in row["shape"]) for row in next(iter(taken.values()))["products"]]
    rows = [
        Row([name], {**{head: size["tflops"] for head, size in zip(heads, row["products"], strict=True)},
                     "error": row["error"]})
        for name, row in taken.items()
    ]  # fmt: skip
    refused = ", ".join(name for name in record["algorithms"] if name not in taken)
    note = "TFLOP/s by size, [m, k] × [k, n]; error: ‖C − exact‖ / ‖exact‖ against float64, the largest of the sizes."
    quantities = [*(Quantity(head, fixed(1)) for head in heads), Quantity("error", significant(2))]
    return [
        Table(
            "float32 products by algorithm", ["algorithm"], quantities, rows, note + f" Refused: {refused or 'none'}."
        )
    ]


def kept(record: Record) -> list[Table]:
    """What each algorithm moves, model by model."""
    rows = []
    for model, probed in record["models"].items():
        for way, moved in probed["ways"].items():
            if "refused" in moved:
                rows.append(Row([model, way], {"keeps": "refused"}))
                continue
            measured = {"keeps": "yes" if moved["keeps"] else "no"}
            rows.append(
                Row([model, way], measured | {name: moved[name] for name in ("changed", "count", "cosine", "speedup")})
            )
    bounds = record["bounds"]
    note = (
        "Against HIGHEST: fraction of inputs with another top-1 token, change of the top-1 token's count over the "
        "number of inputs, largest change of a layer's mean cosine; HIGHEST's time over this one's. Kept is what stays "
        f"within {percent(1)(bounds['changed'])}, {percent(1)(bounds['count'])} and {significant(1)(bounds['cosine'])}."
    )
    quantities = [
        Quantity("changed", percent(2)),
        Quantity("count", percent(2)),
        Quantity("cosine", significant(2)),
        Quantity("speedup", times(2)),
        Quantity("keeps"),
    ]
    return [Table("What algorithms keep of a probe of births", ["model", "algorithm"], quantities, rows, note)]


def life(record: Record) -> list[Table]:
    """Sinks and traces of the births, step by step."""
    trained, anatomy, sinks = record["training"], record["anatomy"], record["sinks"]
    places = {step: place for place, step in enumerate(anatomy["steps"])}
    rows = []
    for row in sinks["steps"]:
        place = places.get(row["step"])
        z = {} if place is None else {
            hybrid: _range([z_C[place] for z_C in anatomy["z"]["uniform ids"][hybrid]], 1)
            for hybrid in ("own birth", "another's embedding", "another's blocks")
        }  # fmt: skip
        rows.append(Row([row["step"]], {"sink rate": _range(row["sink_rate"], 3), **z}))
    losses = _range(trained["validation_loss"] or trained["loss"], 2)
    note = (
        f"{len(record['provenance']['seeds'])} seeds, {trained['tokens']:,} tokens each, "
        f"{trained['tokens_per_second']:,.0f} tokens/s together; loss at the end {losses} nats a token. Sinks: of "
        f"{sinks['num_sequences']} held-out sequences of {sinks['seq_len']} tokens. z of the output test of a model "
        "against its own birth, and against that birth with another's embedding or blocks. Ranges are over seeds."
    )
    quantities = [Quantity(name) for name in ("sink rate", "own birth", "another's embedding", "another's blocks")]
    return [Table("What became of the seeds", ["step"], quantities, rows, note)]


def _range(values: list[float], digits: int) -> str:
    write = fixed(digits)
    return f"{write(min(values))} … {write(max(values))}"


TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "self_test": self_test,
    "products": products,
    "kept": kept,
    "life_llama": life,
    "life_qwen": life,
}
"""Step -> its tables, where they are not those of a benchmark."""

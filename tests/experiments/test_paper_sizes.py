"""Rows at the paper's own sizes: what they ask for, and one of them from its run to the table that joins them."""

import json

import pytest

import experiments
from bornbiased_jax.config import preset
from experiments import docs, results, runner
from experiments.birth import table1, table1_rows
from experiments.lineage import figure13_tiny, table4a, table4a_sizes
from tests.experiments.smoke import record_of, show

pytestmark = pytest.mark.slow

PROVENANCE = {"wall_time_s": 90.0, "platform": {"cores": 2, "cpu": "A"}, "git": {"revision": "0123456789ab"}}


def test_every_printed_row_has_a_name_and_the_papers_size():
    assert set(experiments.SELECTIONS["table1_rows"]) == set(table1_rows.EXPERIMENTS)
    asked = {}
    for name, experiment in table1_rows.EXPERIMENTS.items():
        assert runner.load(name) is experiment
        (group,) = experiment.settings["paper"]["groups"]
        (seed,) = group["seeds"]
        assert table1.same_configuration(group, seed)
        assert group["seq_len"] <= preset(group["model"]).max_seq_len
        asked[group["model"], group["seq_len"], seed] = name
    assert set(asked) == set(table1.PRINTED)


def test_rows_are_joined_in_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert "Not measured yet" in docs.content(docs.parse("table1_rows scale=paper show=tables:1"))
    (tmp_path / "paper").mkdir()
    for name in ("table1_a_64_42", "table1_a_64_43", "table1_b_64_42"):
        record = record_of(table1_rows.EXPERIMENTS[name], tmp_path / "work") | {"provenance": PROVENANCE}
        (tmp_path / "paper" / f"{name}.json").write_text(json.dumps(record))
        tables, panels, claims = show(table1_rows.EXPERIMENTS[name], record)
        assert [len(table.rows) for table in tables] == [1, 1, 3, 1] and len(panels) == 3 and len(claims) == 1
        (row,) = tables[-1].rows
        theory = record["result"]["groups"][0]["theory"]
        tenths = [theory[f"top1_share_p{percent}"] for percent in (10, 50, 90)]
        assert list(row.theory.values()) == tenths == sorted(tenths) and row.paper == {}
        assert row.measured == {"fraction": tables[0].rows[0].measured["fraction"]}
    said = docs.content(docs.parse("table1_rows scale=paper show=tables:1"))
    assert said.count("| llama-tiny (num_layers=2, vocab_size=256) |") == 1
    assert said.count("| gpt2-tiny (num_layers=2, vocab_size=256) |") == 2 and "| 42 |" in said and "| 43 |" in said
    assert "4 min 30 s for 3 of its 18 experiments; 2 cores of A; revision 0123456789" in said


@pytest.mark.parametrize(("name", "printed"), [("table1_a_1024_42", 0.052), ("table1_b_64_43", 0.0009)])
def test_a_printed_fraction_stands_beside_the_tenths_of_seeds(name, printed):
    record = results.committed(name, "paper")
    assert record is not None
    (row,) = table1_rows.tables(record)[-1].rows
    assert row.paper == {"fraction": printed} and row.configuration == "paper"


def test_what_is_left_has_its_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    block = docs.parse("table1_rows scale=paper show=left")
    assert docs.content(block).count("| table1_") == 18 and "hours |" not in docs.content(block)
    (tmp_path / "paper").mkdir()
    name = "table1_a_64_42"
    record = {"experiment": name, "scale": "paper", "status": "complete", "result": {}, "provenance": PROVENANCE}
    (tmp_path / "paper" / f"{name}.json").write_text(json.dumps(record))
    said = docs.content(block)
    # GPT-2 nano: 12 blocks of 12·768² weights, keys and values of (T + 1)/2 positions on average, one head of 50,257.
    per_input = 64 * (2 * 12 * 12 * 768**2 + 4 * 12 * 768 * 32.5) + 2 * 768 * 50257
    rate = 2000 * per_input / 90
    assert f"{name} |" not in said and said.count("| table1_") == 17 and f"At the {rate / 1e9:.0f} GFLOP/s" in said
    # As many inputs of the same model: a seed takes as long as another.
    assert f"| table1_a_64_43 | Table 1(a) | {2000 * per_input / 1e12:.0f} | {90 / 3600:.3f} |" in said
    # A row made beside other work took ten times as long: the quickest counts.
    beside = {**record, "experiment": "table1_a_64_43", "provenance": {**PROVENANCE, "wall_time_s": 900.0}}
    (tmp_path / "paper" / "table1_a_64_43.json").write_text(json.dumps(beside))
    assert f"At the {rate / 1e9:.0f} GFLOP/s of the quickest row above, on 2 cores of A." in docs.content(block)
    for row in experiments.SELECTIONS["table1_rows"]:
        (tmp_path / "paper" / f"{row}.json").write_text(json.dumps({**record, "experiment": row}))
    assert docs.content(block) == "\nNothing is left.\n"


def test_births_of_the_papers_seeds_have_a_record_for_each_length(tmp_path):
    assert set(experiments.SELECTIONS["table4a_sizes"]) == set(table4a_sizes.EXPERIMENTS)
    compared = set()
    for name, experiment in table4a_sizes.EXPERIMENTS.items():
        assert runner.load(name) is experiment
        (group,) = experiment.settings["paper"]["groups"]
        assert table4a.is_paper({**group, "seq_len": 1_024}) and not table4a.is_paper(group)
        compared |= {(group["model"].split("-")[0], *pair) for pair in group["pairs"]}
    assert compared == set(table4a.PRINTED)
    experiment = table4a_sizes.EXPERIMENTS["table4a_qwen_64"]
    record = record_of(experiment, tmp_path / "work")
    # Tokens of four births, and vectors for either side of four pairs: kept, each once.
    kept = sorted((tmp_path / "work").glob("**/outputs_of_births-*/value.npy"))
    assert len(kept) == 4 + 8
    (pairs,), _, claims = show(experiment, record)
    assert len(pairs.rows) == 4 and len(claims) == 2
    written = [path.stat().st_mtime_ns for path in kept]
    assert record_of(experiment, tmp_path / "work")["result"] == record["result"]
    assert [path.stat().st_mtime_ns for path in kept] == written


def test_figure_13_has_the_papers_pairs():
    for group in figure13_tiny.EXPERIMENT.settings["paper"]["groups"]:
        assert group["num_births"] * (group["num_births"] - 1) // 2 == 2_556

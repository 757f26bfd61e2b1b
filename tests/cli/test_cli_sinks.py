"""``bornbiased sinks``: its JSON, its figures, and one sentence for what does not fit."""

import json
from pathlib import Path

import pytest

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.outputs import print_tables
from bornbiased_jax.config import preset
from bornbiased_jax.evaluation import sink_report
from bornbiased_jax.folders import MARKER
from bornbiased_jax.init import init_seed
from bornbiased_jax.quantization import parse_schemes
from bornbiased_jax.results import Listing
from bornbiased_jax.text import tokenizer_for
from tests.fixtures.gguf_files import convert

LLAMA = str(Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama")
UNTRAINED = "seed:1@llama-tiny"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The first token of a sequence stands alone. " * 8)
    return str(path)


@pytest.mark.slow
def test_json_figures_and_table(text, tmp_path, capsys):
    target, folder = tmp_path / "sinks.json", tmp_path / "figures"
    call = ["sinks", UNTRAINED, "--text", text, "--tokenizer", "bytes", "--lengths", "8,16", "--num-sequences", "3"]
    call += ["--epsilon", "0.1", "--position", "2", "--convention", "rows_from_k", "--normalise", "--quiet"]
    assert run([*call, "--json", str(target), "--figures", str(folder)]) == 0
    report = json.loads(target.read_text())
    assert list(report["sink_rate"]) == ["8", "16"]
    assert all(0.0 <= rate <= 1.0 for rate in report["sink_rate"].values())
    chosen = [report[name] for name in ("epsilon", "position", "convention", "normalised_rows", "num_sequences")]
    assert chosen == [0.1, 2, "rows_from_k", True, 3]
    # At initialization attention is all but uniform: position 2 of 8 receives the mean of 1/i over i = 2 … 8.
    uniform = sum(1 / i for i in range(2, 9)) / 7
    assert report["score_by_layer_head"]["8"][0][0] == pytest.approx(uniform, rel=0.1)
    stems = ("sink-map", "variance-attention_output", "variance-residual", "top-channels")
    names = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == {*names, MARKER}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    assert all(b"<svg" in path.read_bytes() for path in folder.glob("*.svg"))
    printed = capsys.readouterr().out
    assert "Sinks at position 2, epsilon 0.1" in printed and "largest |h|" in printed
    assert str(folder / "sink-map.png") in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([LLAMA, "--tokenizer", "bytes", "--lengths", "8"], "vocabulary of 53"),
        ([LLAMA, "--lengths", "8"], "has no tokenizer"),
        ([UNTRAINED, "--tokenizer", "bytes", "--lengths", "8,x"], "--lengths"),
    ],
)
def test_contradicting_sink_options_refused_in_one_sentence(arguments, words, text, capsys):
    assert run(["sinks", *arguments, "--text", text, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1, error


def test_a_title_stays_on_its_line(capsys):
    print_tables([Listing("A title far wider than its table", ["a"], [[1]])])
    assert capsys.readouterr().out.splitlines()[0].strip() == "A title far wider than its table"


def test_names_with_brackets_and_colons_are_printed_as_they_are(capsys):
    names = ["runs/[old]/a", "runs/[/old]", "hf:smile:"]
    print_tables([Listing(name, [f"a {name}"], [[name]]) for name in names])
    out = capsys.readouterr().out
    assert [out.count(name) for name in names] == [3, 3, 3]


def _short_call(text):
    """The report on three sequences of eight tokens."""
    sizes = ["--lengths", "8", "--num-sequences", "3"]
    return ["sinks", UNTRAINED, "--text", text, "--tokenizer", "bytes", *sizes, "--quiet"]


@pytest.mark.nightly
@pytest.mark.slow
def test_quantization_cost_in_sink_report(text, tmp_path, capsys):
    target = tmp_path / "sinks.json"
    call = _short_call(text)
    call += ["--no-details", "--quantise", "w8a8,kv2", "--granularity", "token", "--keep-sinks", "0,2"]
    assert run([*call, "--json", str(target)]) == 0
    cells = json.loads(target.read_text())["quantisation"]
    names = [(cell["scheme"], cell["granularity"], cell["keep_sinks"]) for cell in cells]
    assert names == [("w8a8", "token", 0), ("w8a8", "token", 2), ("kv2", "token", 0), ("kv2", "token", 2)]
    assert abs(cells[0]["delta_nats"]) < 0.01 and cells[2]["kl_median"] > cells[0]["kl_median"]
    assert "What rounding costs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--quantise", "w9x"], "w8a8, kv4"),
        (["--quantise", "a1"], "1 bits are not between 2 and 16"),
        (["--quantise", "a8", "--granularity", "row"], "tensor, token, channel"),
        (["--quantise", "a8", "--keep-sinks", "8"], "cannot be kept of 8"),
        (["--quantise", "a8", "--keep-sinks", "x"], "0,1,4"),
    ],
)
def test_a_quantization_that_is_none_is_refused(text, options, words, capsys):
    call = _short_call(text)
    assert run([*call, "--no-details", *options]) == 2
    message = capsys.readouterr().err.strip()
    assert words in message and "\n" not in message


def test_bits_for_weights_of_a_gguf_file_are_refused_or_said(text, tmp_path, monkeypatch, capsys):
    cfg = preset("llama-tiny", num_layers=1, d_model=64, d_ff=64, num_heads=2, vocab_size=256, max_seq_len=8)
    export_hugging_face(cfg, init_seed(cfg, 0), tmp_path / "model")
    model = str(convert(tmp_path / "model.gguf", tmp_path / "model", kind="Q8_0"))
    call = ["sinks", model, "--text", text, "--tokenizer", "bytes", "--lengths", "8", "--num-sequences", "3"]
    assert run([*call, "--quantise", "a8,w4"]) == 2
    assert "w4 quantizes weights alone, which a GGUF file holds quantized already" in capsys.readouterr().err
    measured = []
    monkeypatch.setattr(sink_report, "report_on_ids", lambda *values, **_: measured.append(values[3].schemes) or {})
    options = sink_report.ReportOptions(lengths=(8,), schemes=parse_schemes("w4a8kv4,kv4"))
    sink_report.sinks_report(model, text, options, tokenizer=tokenizer_for("bytes", 256))
    assert measured == [parse_schemes("a8kv4,kv4")]
    assert "bits for weights are left out of --quantise" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rolling_cache_joins_the_report(text, tmp_path, capsys):
    target = tmp_path / "sinks.json"
    call = [
        "sinks",
        UNTRAINED,
        "--text",
        text,
        "--tokenizer",
        "bytes",
        "--lengths",
        "16",
        "--num-sequences",
        "2",
        "--quiet",
    ]
    call += ["--no-details", "--keep-sinks", "0,2"]
    assert run([*call, "--streaming", "6", "--json", str(target)]) == 0
    entries = json.loads(target.read_text())["streaming"]
    assert [(entry["window"], entry["keep_sinks"]) for entry in entries] == [(6, 0), (6, 2), (None, 0)]
    # An untrained model knows nothing, with whatever cache.
    assert all(abs(entry["loss"] - entries[-1]["loss"]) < 0.1 for entry in entries)
    assert "Loss in nats a token with a rolling cache, from position 9 on" in capsys.readouterr().out
    assert run([*call, "--streaming", "14"]) == 2
    assert "fill no cache of 16" in capsys.readouterr().err

"""``bornbiased sinks``: its JSON, its figures, and one sentence for what does not fit."""

from pathlib import Path

import pytest

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.outputs import print_tables
from bornbiased_jax.config import preset
from bornbiased_jax.evaluation import sink_report
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([LLAMA, "--tokenizer", "bytes", "--lengths", "8"], "vocabulary of 53"),
        ([LLAMA, "--lengths", "8"], "has no tokenizer"),
        ([UNTRAINED, "--tokenizer", "bytes", "--lengths", "8,x"], "--lengths"),
    ],
)
def test_contradicting_sink_options_refused_in_one_sentence(arguments, words, text, refused):
    error = refused(["sinks", *arguments, "--text", text, "--quiet"])
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
    sink_report.sinks_report(open_checkpoint(model), text, options, tokenizer=tokenizer_for("bytes", 256))
    assert measured == [parse_schemes("a8kv4,kv4")]
    assert "bits for weights are left out of --quantise" in capsys.readouterr().err

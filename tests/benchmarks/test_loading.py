"""The memory of commands is measured in processes of their own; how much it is, is not tested here."""

import pytest

from benchmarks import loading, streamed
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from tests.cli.commands import commands


@pytest.mark.nightly
def test_memory_of_a_command_is_compared_with_its_weights(tmp_path):
    cfg = preset("llama-tiny", num_layers=1, d_model=16, d_ff=16, num_heads=2, vocab_size=257)
    export_hugging_face(cfg, init_seed(cfg, 0), tmp_path / "model")
    findings = loading.measure(tmp_path, str(tmp_path / "model"), "builtin:prose", ("fingerprint",))
    assert findings["weights_bytes"] == sum(4 * size for size in (257 * 16 * 2, 4 * 16 * 16, 3 * 16 * 16, 3 * 16))
    row = findings["commands"]["fingerprint"]
    assert row["over_weights"] == row["peak_bytes"] / findings["weights_bytes"]
    assert len(loading.tables(findings)[0].rows) == 1


def test_the_calls_are_of_commands_that_there_are(tmp_path):
    assert set(loading.calls("model.gguf", "book.txt", tmp_path)) <= {
        *commands(),
        *(f"{name}{loading.STREAM}" for name in loading.STREAMED),
    }


@pytest.mark.nightly
def test_a_streamed_fingerprint_is_compared_with_products(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "SIZES", dict(d_model=32, d_ff=48, num_heads=2, num_kv_heads=2, vocab_size=64))
    findings = streamed.measure(tmp_path, num_inputs=4, length=8, layers=2)
    D, F = 32, 48
    # Keys and values of all positions and one query of the last block; causal attention is half of a square.
    block = 8 * (4 * D * D + 3 * D * F) + 8 * 9 // 2 * 2 * D
    last = 2 * D * D + 3 * D * F + 8 * 2 * D * D + 8 * 2 * D
    assert findings["pass"]["needed_gflop"] == pytest.approx(4 * 2 * (block + last) / 1e9)
    assert findings["fraction_of_products"] == pytest.approx(
        findings["pass"]["gflops"] * 1e9 / (sum(findings["pass"]["product_rates"]) / 2)
    )
    assert findings["full_depth"]["seconds_extrapolated"] > findings["pass"]["seconds"] * 10
    assert [place.name for place in (tmp_path / "command").iterdir() if place.is_dir()] == []
    assert len(streamed.tables(findings)[0].rows) == 7


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path, monkeypatch):
    """Eight blocks more are 0.4 GB more of weights; what two blocks and the process take is the same."""
    sizes = dict(d_model=1024, d_ff=2816, num_heads=8, num_kv_heads=8, vocab_size=512)
    monkeypatch.setattr(streamed, "SIZES", sizes)
    records = {}
    for layers in (4, 12):
        (tmp_path / str(layers)).mkdir()
        records[layers] = streamed.measure(tmp_path / str(layers), num_inputs=4, length=16, layers=layers)
    peaks = {layers: record["command"]["peak_bytes"] for layers, record in records.items()}
    more = records[12]["weights_bytes"] - records[4]["weights_bytes"]
    assert more > 4e8 and peaks[12] - peaks[4] < 0.15 * more

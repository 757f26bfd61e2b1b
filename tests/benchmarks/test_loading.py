"""The memory of commands is measured in processes of their own; how much it is, is not tested here."""

from benchmarks import loading, tables
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.config import preset
from bornbiased_jax.models import init_seed
from tests.cli.commands import commands


def test_a_command_is_measured_beside_its_weights(tmp_path):
    cfg = preset("llama-tiny", num_layers=1, d_model=16, d_ff=16, num_heads=2, vocab_size=257)
    export_hugging_face(cfg, init_seed(cfg, 0), tmp_path / "model")
    found = loading.measure(str(tmp_path / "model"), "builtin:prose", ["fingerprint"])
    assert found["weights_bytes"] == sum(4 * size for size in (257 * 16 * 2, 4 * 16 * 16, 3 * 16 * 16, 3 * 16))
    row = found["commands"]["fingerprint"]
    assert row["over_weights"] == row["peak_bytes"] / found["weights_bytes"]
    assert found["within"] == {"fingerprint": row["peak_bytes"] <= 1.25 * found["weights_bytes"] + 0.5e9}
    assert len(tables.loading(found)[0].rows) == 1


def test_the_calls_are_of_commands_that_there_are(tmp_path):
    assert set(loading.calls("model.gguf", "book.txt", tmp_path)) <= set(commands())

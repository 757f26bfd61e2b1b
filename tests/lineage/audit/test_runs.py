"""Training runs of this package are audited as they lie."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.audit import summary
from bornbiased_jax.lineage.audit.audit import audit_folder


@pytest.mark.slow
def test_runs_are_clean_their_records_tell_and_a_damaged_checkpoint_leaves_the_others(tmp_path):
    sizes = "num_layers=1 num_heads=2 d_model=32 d_ff=32 vocab_size=256 tie_embeddings=true".split()
    call = "pretrain --model llama-tiny --data builtin:prose --steps 4 --seeds 1,2 --checkpoint-every 2 --context 16"
    call += " --batch-size 2 --tokenizer bytes --no-tensorboard --quiet " + " ".join(f"--set {size}" for size in sizes)
    assert run([*call.split(), "--out", str(tmp_path / "a")]) == 0
    report = audit_folder(tmp_path)
    assert report["clean"], report["findings"]
    assert [row["steps"] for row in report["runs"]] == [[0, 2, 4]] * 2
    first, second = (row["name"] for row in report["runs"])
    assert report["runs"][0]["shares_data_with"] == [second] and report["runs"][0]["data"]["tokens_digest"]
    directed = [edge for edge in report["graph"]["edges"] if edge["from"] is not None]
    assert directed and all("step=0" not in edge["to"] and edge["direction"] == "run record" for edge in directed)
    for path in (tmp_path / "a" / "checkpoints" / "4").rglob("*"):
        if path.is_file() and path.stat().st_size > 2000:
            path.write_bytes(path.read_bytes()[:100])
    # The run itself, where it is a folder of runs above.
    report = audit_folder(tmp_path / "a")
    assert {finding["kind"] for finding in report["findings"]} == {"unreadable"}
    assert {subject for finding in report["findings"] for subject in finding["subjects"]} == {
        "seed=1,step=4",
        "seed=2,step=4",
    }


def test_each_expert_of_a_model_beside_an_adapter_is_known_by_a_digest(monkeypatch):
    draws = np.random.default_rng(0)
    shapes = {"embed/embedding": (6, 4), "blocks/mlp_norm/scale": (2, 4), "blocks/mlp/up/kernel": (2, 3, 4, 5)}
    tensors = {path: draws.standard_normal(shape, np.float32) for path, shape in shapes.items()}
    monkeypatch.setattr(summary, "frozen_tree", lambda _run: SimpleNamespace(shapes=shapes, load=tensors.__getitem__))
    experts, scales = tensors["blocks/mlp/up/kernel"].reshape(6, 4, 5), tensors["blocks/mlp_norm/scale"]
    expected = {tensor_digest(tensor) for tensor in (*experts, *scales, tensors["embed/embedding"])}
    assert summary.frozen_digests(Path()) == expected

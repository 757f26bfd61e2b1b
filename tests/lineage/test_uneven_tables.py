"""A head may know more tokens than the embedding, or fewer: those that both have make up the token space."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.lineage.trace import trace

MODEL = "seed:{}@llama-tiny,num_layers=1,num_heads=2,d_model=16,d_ff=16,vocab_size=64"


@pytest.mark.parametrize("rows", [60, 68])
def test_models_whose_head_has_other_rows_are_compared(tmp_path, rows):
    opened = open_checkpoint(MODEL.format(1))
    export_hugging_face(opened.cfg, opened.params(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head_VD = tensors["lm_head.weight"]
    more_VD = 0.01 * np.random.default_rng(0).standard_normal((rows, head_VD.shape[1])).astype(np.float32)
    tensors["lm_head.weight"] = np.concatenate([head_VD, more_VD])[:rows]
    save_file(tensors, tmp_path / "model.safetensors")
    assert trace(str(tmp_path), MODEL.format(1)).verdict == "same-lineage"
    assert trace(str(tmp_path), MODEL.format(2)).verdict == "unrelated"

"""Sizes that do not fit together: a head with other rows than the embedding, heads that divide no matrix."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.lineage import fingerprint
from bornbiased_jax.lineage.trace import trace
from tests.fixtures.configs import edit_config
from tests.lineage.test_token_strings import tokenizer

MODEL = "seed:{}@llama-tiny,num_layers=1,num_heads=2,d_model=16,d_ff=16,vocab_size=64"


@pytest.mark.parametrize("has_tokenizer", [False, True])
@pytest.mark.parametrize("rows", [60, 68])
def test_models_whose_head_has_other_rows_are_compared(tmp_path, rows, has_tokenizer):
    opened = open_checkpoint(MODEL.format(1))
    export_hugging_face(opened.cfg, opened.params(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head_VD = tensors["lm_head.weight"]
    more_VD = 0.01 * np.random.default_rng(0).standard_normal((rows, head_VD.shape[1])).astype(np.float32)
    tensors["lm_head.weight"] = np.concatenate([head_VD, more_VD])[:rows]
    save_file(tensors, tmp_path / "model.safetensors")
    if has_tokenizer:
        tokenizer(np.arange(64), tmp_path)
    assert trace(str(tmp_path), MODEL.format(1)).verdict == "same-lineage"
    assert trace(str(tmp_path), MODEL.format(2)).verdict == "unrelated"


def test_heads_that_do_not_divide_their_matrices_are_left_out(tmp_path):
    opened = open_checkpoint(MODEL.format(1))
    export_hugging_face(opened.cfg, opened.params(), tmp_path)
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}
    edit_config(tmp_path, model_type="of another program", **heads)
    assert trace(str(tmp_path), MODEL.format(1)).verdict == "same-lineage"
    assert not fingerprint(str(tmp_path)).components["language"].heads

"""The digest of weights as a commitment: the same in every format, another for every relabelling."""

import json

import numpy as np

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run

BIRTH = "seed:3@llama-tiny,num_layers=1,num_heads=2,d_model=16,d_ff=32,vocab_size=32"


def test_the_digest_is_that_of_the_weights_and_of_nothing_else(tmp_path, capsys):
    assert run(["digest", BIRTH, "--json", str(tmp_path / "digest.json")]) == 0
    printed = capsys.readouterr().out.strip()
    opened = open_checkpoint(BIRTH)
    assert printed == opened.digest() == json.loads((tmp_path / "digest.json").read_text())["digest"]
    export_hugging_face(opened.cfg, opened.params, tmp_path / "model")
    assert run(["digest", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.strip() == printed


def test_renumbered_hidden_units_have_another_digest(tmp_path, capsys):
    opened = open_checkpoint(BIRTH)
    mlp = {name: {"kernel": np.array(leaf["kernel"])} for name, leaf in opened.params["blocks"]["mlp"].items()}
    order = np.roll(np.arange(opened.cfg.d_ff), 1)
    mlp["up"]["kernel"], mlp["gate"]["kernel"] = mlp["up"]["kernel"][..., order], mlp["gate"]["kernel"][..., order]
    mlp["down"]["kernel"] = mlp["down"]["kernel"][:, order]
    params = {**opened.params, "blocks": {**opened.params["blocks"], "mlp": mlp}}
    export_hugging_face(opened.cfg, params, tmp_path / "model")
    assert run(["digest", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.strip() != opened.digest()

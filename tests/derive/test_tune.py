"""Fine-tuning and adapters from the command line, and what can be exported of them."""

import importlib.util
import json

import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.adapters import CONFIG, WEIGHTS, read_adapter
from bornbiased_jax.cli.main import run
from bornbiased_jax.derive.peft import merge_adapter
from bornbiased_jax.parameters import flatten
from tests.tiers import nightly_except

SIZES = "num_layers=2,num_heads=4,d_model=16,d_ff=24,vocab_size=256"
LLAMA = f"seed:3@llama-tiny,{SIZES}"
GPT2 = f"seed:3@gpt2-tiny,{SIZES},positions=learned,activation=gelu_tanh"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n\n".join(f"line {number} of a text" for number in range(2000)))
    return folder


def adapt(text, checkpoint, method, out, *options):
    sizes = "--tokenizer bytes --steps 3 --context 16 --batch-size 4 --warmup 1 --learning-rate 0.01 --no-tensorboard"
    options = [*options, *sizes.split(), "--quiet", "--token-cache", str(text / "tokens")]
    return run(["adapt", checkpoint, "--method", method, "--data", str(text / "text.txt"), "--out", str(out), *options])


@pytest.mark.slow
@pytest.mark.nightly
def test_each_seed_of_a_run_is_fine_tuned_from_its_own_as_pretrain_does(text, tmp_path):
    parent, seeds = str(tmp_path / "both"), ["--seeds", "1,2"]
    assert adapt(text, LLAMA, "lora", parent, "--rank", "2", *seeds) == 0
    assert adapt(text, parent, "full", tmp_path / "full", *seeds, "--json", str(tmp_path / "full.json")) == 0
    summary = json.loads((tmp_path / "full.json").read_text())
    assert summary["method"] == "full" and summary["adapter"] is None and summary["checkpoint"] == parent
    assert summary["model"] == open_checkpoint(LLAMA).cfg.to_dict()
    sizes = "--steps 3 --context 16 --batch-size 4 --warmup 1 --learning-rate 0.01 --min-learning-rate 0"
    model = ["--model", "llama-tiny", *(word for part in SIZES.split(",") for word in ("--set", part))]
    data = ["--data", str(text / "text.txt"), "--tokenizer", "bytes", "--token-cache", str(text / "tokens")]
    plain = [*model, *data, *sizes.split(), *seeds, "--init-from", parent, "--weight-decay", "0", "--no-tensorboard"]
    assert run(["pretrain", *plain, "--quiet", "--out", str(tmp_path / "plain")]) == 0

    def digests(name, step):
        return [open_checkpoint(f"{tmp_path / name}@seed={seed},step={step}").digest() for seed in (1, 2)]

    assert digests("full", 0) == digests("both", 3) != digests("full", 3) == digests("plain", 3)
    assert run(["export", f"{tmp_path / 'full'}@seed=1", str(tmp_path / "exported")]) == 0
    assert open_checkpoint(tmp_path / "exported").digest() == digests("full", 3)[0]


def _compare_with_peft(folder):
    """Compare logits of the merged model with those of the base with the adapter, by PEFT if it is there."""
    if any(importlib.util.find_spec(name) is None for name in ("peft", "transformers", "torch")):
        return
    import peft
    import torch
    import transformers

    logits = []
    for adapted in (True, False):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / ("base" if adapted else "merged"))
        if adapted:
            model = peft.PeftModel.from_pretrained(model, folder / "adapter")
        with torch.no_grad():
            logits.append(model.eval()(torch.arange(12)[None]).logits.numpy())
    np.testing.assert_allclose(*logits, atol=1e-5 * np.abs(logits[1]).max())


# PEFT asks transformers by a name that transformers calls old.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(
    ("reference", "matrices", "rank"),
    nightly_except(
        [(LLAMA, "query,value,gate,down", 2), (GPT2, "query,value,output,up", 4), (GPT2, "down", 2)],
        (GPT2, "query,value,output,up", 4),
    ),
    ids=["llama", "gpt2-fused", "gpt2-down"],
)
def test_lora_is_exported_merged_and_as_peft_has_it(text, tmp_path, reference, matrices, rank):
    assert adapt(text, reference, "lora", tmp_path / "lora", "--rank", "2", "--matrices", matrices) == 0
    trained = open_checkpoint(tmp_path / "lora")
    assert run(["export", str(tmp_path / "lora"), str(tmp_path / "merged")]) == 0
    assert run(["export", str(tmp_path / "lora"), str(tmp_path / "adapter"), "--peft"]) == 0
    base = open_checkpoint(reference)
    adapter = read_adapter(tmp_path / "adapter")
    assert {len(update.a_rI) for update in adapter.updates.values()} == {rank}
    merged = [flatten(model) for model in (merge_adapter(base.cfg, base.params(), adapter), trained.params())]
    for path, leaf in flatten(open_checkpoint(tmp_path / "merged").params()).items():
        if path in merged[0]:
            np.testing.assert_allclose(merged[0][path], merged[1][path], atol=1e-6)
            np.testing.assert_array_equal(leaf, merged[1][path])
    changed = [path for path in merged[1] if not np.array_equal(merged[1][path], flatten(base.params())[path])]
    assert len(changed) == len(matrices.split(","))
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    assert config["base_model_name_or_path"] == reference and config["fan_in_fan_out"] == (reference == GPT2)
    assert run(["derive", reference, "--change", "noise:0", "--out", str(tmp_path / "base")]) == 0
    _compare_with_peft(tmp_path)
    # Written over what it wrote, and over nothing else.
    assert run(["export", str(tmp_path / "lora"), str(tmp_path / "adapter"), "--peft"]) == 0
    (tmp_path / "adapter" / WEIGHTS).write_bytes(b"mine")
    assert run(["export", str(tmp_path / "lora"), str(tmp_path / "adapter"), "--peft"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", nightly_except(["prefix", "prefix-plus"], "prefix-plus"))
def test_a_prefix_opens_everywhere_and_cannot_be_exported(text, tmp_path, capsys, refused, method):
    seeds = [1, 2] if method == "prefix" else [2]
    # Of prefix-plus one seed, and another order of the data: the advice in its refusal of two seeds.
    options = ["--seeds", ",".join(map(str, seeds)), "--data-seed", "5"]
    assert adapt(text, LLAMA, method, tmp_path / "run", *options) == 0
    assert f"{len(seeds)} seed" in capsys.readouterr().out
    prompt = ["--prompt-ids", "5,6,7", "--max-new-tokens", "3", "--json", "-"]
    assert run(["generate", f"{tmp_path / 'run'}@seed=2", *prompt]) == 0
    assert run(["seedprint", LLAMA, f"{tmp_path / 'run'}@seed=2", "--json", str(tmp_path / "verdict.json")]) == 0
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "same-lineage"
    capsys.readouterr()
    for options in ([], ["--peft"]):
        message = refused(["export", f"{tmp_path / 'run'}@seed=2", str(tmp_path / "exported"), *options])
        assert message.count("\n") == 1 and ("cannot be merged" in message or "no LoRA adapter" in message)
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("lora", "--rank 17", "rank=17 is above the width of query (16 by 16)"),
        ("lora", "--matrices query,wings", "unknown matrix 'wings'"),
        ("prefix", "--rank 3", "--rank goes with --method lora, not prefix"),
        ("full", "--budget 100", "--budget goes with --method lora or prefix, not full"),
        ("prefix", "--budget 3", "trains at least 64 parameters of this model, more than 3"),
        ("prefix", "--budget lots", "--budget lots is neither"),
        ("prefix", "--budget 640 --prefix-length 3", "leave those out"),
        ("full", "--seeds 1,2", "would stay copies of each other"),
        ("prefix-plus", "--seeds 1,2", "would stay copies of each other"),
    ],
)
def test_mismatched_adaptation_refused_in_one_sentence(text, tmp_path, capsys, method, options, sentence):
    assert adapt(text, LLAMA, method, tmp_path / "run", *options.split()) == 2
    message = capsys.readouterr().err
    assert sentence in message and message.count("\n") == 1 and not (tmp_path / "run").exists()

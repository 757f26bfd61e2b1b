"""Probe inputs: what they are, that they depend on (seed, n) alone, and that the digest tells them apart."""

import json

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes import inputs
from bornbiased_jax.probes.inputs import from_tokens, gaussian, kinds, parse_inputs, random_tokens, text
from bornbiased_jax.text import ByteTokenizer, corpora, train_bpe

CFG = preset("gpt2-tiny")
BYTES = ByteTokenizer()
GOLDEN_TOKENS = [[3247, 7437, 42835, 31420, 13681, 32227]]
GOLDEN_TOKENS_DIGEST = "230983a78712be494c9817952032c979649a297adcf3d0aa070113ef2bf85d0a"
GOLDEN_VECTORS_DIGEST = "507b685956b92d5bef9e841f9a78385edfd11c740829090a26b55c7e7f6d670d"
RANDOM = {
    "tokens": lambda n, seed: random_tokens(n, 12, 1000, seed),
    "gaussian": lambda n, seed: gaussian(n, 5, 16, seed),
}


def test_random_tokens_are_pinned():
    """Golden values: they change only if the map from seed to inputs does."""
    result = random_tokens(4, 6, 50_304, seed=0)
    assert result.batch(0, 1).tolist() == GOLDEN_TOKENS
    assert result.digest == GOLDEN_TOKENS_DIGEST
    assert gaussian(4, 6, 8, seed=0).digest == GOLDEN_VECTORS_DIGEST


@pytest.mark.parametrize("kind", RANDOM)
def test_a_sequence_depends_on_its_seed_and_index_alone(kind):
    result = RANDOM[kind](64, 7)
    full = result.batch(0, 64)
    assert np.array_equal(RANDOM[kind](100, 7).batch(0, 64), full)
    for start, stop in ((0, 1), (63, 64), (5, 22)):
        assert np.array_equal(result.batch(start, stop), full[start:stop])
    order = np.array([63, 0, 17, 17, 2, 40, 1])
    compiled = jax.jit(result.generate)
    nested = jax.jit(jax.vmap(lambda n: result.generate(n[None])[0]))
    for generate in (result.generate, compiled, nested):
        assert np.array_equal(generate(order), full[order])
    assert len({row.tobytes() for row in full}) == 64
    assert not np.array_equal(RANDOM[kind](64, 8).batch(0, 64), full)


def test_random_tokens_are_uniform():
    vocab_size, result = 97, random_tokens(1000, 100, 97)
    x_NT = result.batch(0, 1000)
    assert x_NT.min() == 0 and x_NT.max() == vocab_size - 1
    counts = np.bincount(x_NT.ravel(), minlength=vocab_size)
    chi2 = ((counts - x_NT.size / vocab_size) ** 2 / (x_NT.size / vocab_size)).sum()
    # Chi-squared with V − 1 degrees of freedom: five standard deviations.
    assert abs(chi2 - (vocab_size - 1)) < 5 * np.sqrt(2 * (vocab_size - 1))
    # Neighboring sequences and positions agree as often as chance: Bernoulli(1/V), five standard errors.
    for equal in (x_NT[1:] == x_NT[:-1], x_NT[:, 1:] == x_NT[:, :-1]):
        std = np.sqrt((1 / vocab_size) * (1 - 1 / vocab_size) / equal.size)
        assert abs(equal.mean() - 1 / vocab_size) < 5 * std


def test_gaussian_vectors_are_isotropic():
    x_ND = gaussian(400, 10, 32).batch(0, 400).reshape(-1, 32).astype(np.float64)
    n = len(x_ND)
    covariance = x_ND.T @ x_ND / n
    # Five standard errors: of a mean 1/√n, of a variance √(2/n), of a covariance 1/√n.
    assert np.abs(x_ND.mean(0)).max() < 5 / np.sqrt(n)
    assert np.abs(np.diag(covariance) - 1).max() < 5 * np.sqrt(2 / n)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 5 / np.sqrt(n)


@pytest.mark.parametrize(("num_inputs", "chunk"), [(10, 36), (10, 1)])
def test_last_tokens_and_digest_do_not_depend_on_the_chunk(monkeypatch, num_inputs, chunk):
    expected = random_tokens(num_inputs, 12, 1000)
    last_N, digest = expected.batch(0, num_inputs)[:, -1], expected.digest
    monkeypatch.setattr(kinds, "_CHUNK_TOKENS", chunk)
    result = random_tokens(num_inputs, 12, 1000)
    assert np.array_equal(result.last_tokens(), last_N) and result.last_tokens().dtype == np.int32
    assert result.digest == digest
    assert gaussian(3, 4, 5).last_tokens() is None


def test_digests_are_of_the_content():
    result = random_tokens(8, 12, 1000, seed=3)
    same = from_tokens(result.batch(0, 8), 5000, source="a list")
    assert same.digest == result.digest == random_tokens(8, 12, 1000, seed=3).digest
    others = [
        random_tokens(7, 12, 1000, seed=3),
        random_tokens(8, 11, 1000, seed=3),
        random_tokens(8, 12, 999, seed=3),
        random_tokens(8, 12, 1000, seed=4),
        from_tokens(result.batch(0, 8).reshape(12, 8), 1000),
        from_tokens(result.batch(0, 8)[::-1], 1000),
        gaussian(8, 12, 16, seed=3),
        gaussian(9, 12, 16, seed=3),
        gaussian(8, 12, 16, seed=4),
        gaussian(8, 6, 32, seed=3),
    ]
    assert len({result.digest, *(other.digest for other in others)}) == len(others) + 1


def test_descriptions_are_json():
    for result in (random_tokens(3, 4, 50), gaussian(3, 4, 5), from_tokens([[1, 2]], 5, source="x")):
        facts = json.loads(json.dumps(result.describe()))
        assert facts["digest"] == result.digest
        assert (facts["num_inputs"], facts["seq_len"]) == (result.num_inputs, result.seq_len)
        assert ("seed" in facts) == (result.kind != "text")


@pytest.mark.parametrize(
    "call",
    [
        lambda: random_tokens(0, 4, 50),
        lambda: random_tokens(4, 0, 50),
        lambda: random_tokens(4, 4, 0),
        lambda: random_tokens(4.5, 4, 50),
        lambda: random_tokens(float("nan"), 4, 50),
        lambda: random_tokens(float("inf"), 4, 50),
        lambda: random_tokens(True, 4, 50),
        lambda: random_tokens("4", 4, 50),
        lambda: random_tokens(4, 4, 2**40),
        lambda: gaussian(-1, 4, 5),
        lambda: gaussian(1, 4, 0),
        lambda: parse_inputs("tokens", num_inputs=0, seq_len=4, cfg=CFG),
        lambda: parse_inputs("builtin:prose", num_inputs=4, seq_len=0, cfg=CFG),
    ],
)
def test_sizes_out_of_range_are_refused(call):
    with pytest.raises(InputError, match="is not an integer from 1 to"):
        call()


def test_whole_floats_are_sizes():
    assert random_tokens(4.0, np.int64(3), 50.0).digest == random_tokens(4, 3, 50).digest


def test_ranges_and_seeds_are_checked():
    result = random_tokens(4, 4, 50)
    for start, stop in ((0, 5), (-1, 2), (2, 2), (3, 1)):
        with pytest.raises(InputError, match="not within the 4"):
            result.batch(start, stop)
    with pytest.raises(InputError, match="seed=-1"):
        random_tokens(4, 4, 50, seed=-1)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"Sentence {i} of the book. " for i in range(200)))
    return path


def test_consecutive_windows_are_the_text(book):
    result = text(book, BYTES, num_inputs=20, seq_len=50, vocab_size=256)
    assert result.kind == "text" and result.seed is None
    assert BYTES.decode(result.batch(0, 20).ravel()) == book.read_text()[:1000]
    assert np.array_equal(result.last_tokens(), result.batch(0, 20)[:, -1])
    order = np.array([3, 0, 3])
    assert np.array_equal(jax.jit(result.generate)(order), result.generate(order))
    facts = result.describe()
    assert facts["source"] == str(book) and facts["tokenizer_digest"] == BYTES.digest


def test_documents_are_set_apart_and_read_no_further_than_needed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc"}\n{"text": "defg"}\nthis line is no JSON\n')
    result = text(path, BYTES, num_inputs=2, seq_len=4, vocab_size=256)
    assert result.batch(0, 2).tolist() == [[*b"abc", 0], [*b"defg"]]
    with pytest.raises(InputError, match="line 3 is not JSON"):
        text(path, BYTES, num_inputs=3, seq_len=4, vocab_size=256)


def test_too_little_text_says_how_much_there_is(book):
    size = len(book.read_text()) + 1
    with pytest.raises(InputError, match=f"gives {size:,} tokens .* need 10,000"):
        text(book, BYTES, num_inputs=100, seq_len=100, vocab_size=256)


def test_ids_outside_the_vocabulary_are_refused(book, tmp_path):
    with pytest.raises(InputError, match="of the tokenizer bytes.* outside the model's vocabulary of 100"):
        text(book, BYTES, num_inputs=2, seq_len=50, vocab_size=100)
    # What counts are the ids that occur, not the tokenizer's size.
    assert text(book, BYTES, num_inputs=2, seq_len=50, vocab_size=128).batch(0, 2).max() < 128
    for bad in (-1, 50):
        with pytest.raises(InputError, match=f"token id {bad} is outside"):
            from_tokens([[0, bad]], 50)
    for bad in ([], [[]], [1, 2], [[1.5]]):
        with pytest.raises(InputError, match="not integers"):
            from_tokens(bad, 50)


def test_models_that_do_not_fit_are_refused():
    cfg = CFG.replace(vocab_size=300, positions="learned", max_seq_len=16)
    random_tokens(2, 16, 300).check_fits(cfg)
    gaussian(2, 16, cfg.d_model).check_fits(cfg)
    from_tokens([[299]], 400).check_fits(cfg)
    for result, message in (
        (random_tokens(2, 16, 301), "vocabulary of 300"),
        (from_tokens([[300]], 400), "token id 300"),
        (gaussian(2, 16, 64), "64 wide, the model 128"),
        (random_tokens(2, 17, 300), "16 learned positions"),
    ):
        with pytest.raises(InputError, match=message):
            result.check_fits(cfg)
    random_tokens(2, 17, 300).check_fits(CFG)


def test_the_command_lines_names(book, monkeypatch):
    tokens = parse_inputs("tokens", num_inputs=3, seq_len=8, cfg=CFG, seed=5)
    assert tokens.digest == random_tokens(3, 8, CFG.vocab_size, 5).digest
    vectors = parse_inputs("gaussian", num_inputs=3, seq_len=8, cfg=CFG, seed=5)
    assert vectors.digest == gaussian(3, 8, CFG.d_model, 5).digest
    trained = train_bpe([book.read_text()], 280)
    sizes = dict(num_inputs=3, seq_len=8, cfg=CFG)
    for tokenizer in (BYTES, "bytes", trained):
        made = parse_inputs(f"text:{book}", **sizes, tokenizer=tokenizer)
        name = "bytes" if isinstance(tokenizer, str) else tokenizer.name
        assert made.describe()["tokenizer"] == name
    for corpus in ("prose", "code"):
        document = book.read_text()
        made_corpus = corpora.Corpus(corpus, (document,), corpora.documents_digest((document,)))
        monkeypatch.setattr(corpora, "corpus", lambda name, made=made_corpus: made)
        made = parse_inputs(f"builtin:{corpus}", **sizes, tokenizer="bytes")
        assert BYTES.decode(made.batch(0, 3).ravel()) == document[:24]
        assert made.describe()["corpus_digest"] == made_corpus.digest
    for unknown in ("token", "", "text:", "builtin", str(book)):
        with pytest.raises(InputError, match="unknown inputs"):
            parse_inputs(unknown, **sizes)
    with pytest.raises(InputError, match="unknown built-in corpus 'verse'"):
        monkeypatch.undo()
        parse_inputs("builtin:verse", **sizes, tokenizer="bytes")
    with pytest.raises(InputError, match="does not exist"):
        parse_inputs(f"text:{book}.none", **sizes, tokenizer="bytes")


def test_documents_of_a_file_are_set_apart_by_a_trained_tokenizer(tmp_path):
    articles = [f" = Article {i} = \n \n Text of the article number {i} . \n\n" for i in range(30)]
    (tmp_path / "wiki.txt").write_text("".join(articles))
    tokenizer = train_bpe(articles, 300)
    result = text(tmp_path / "wiki.txt", tokenizer, num_inputs=10, seq_len=16, vocab_size=300)
    decoded = tokenizer.decode(result.batch(0, 10).ravel())
    assert decoded.count("<|endoftext|>") > 3
    assert "<|endoftext|>".join(articles).startswith(decoded)


def test_input_kind_recorded_in_entry():
    """Moments for vectors alone, and equal last tokens by chance in random tokens alone."""
    result = {kind: inputs.random_inputs(kind, 3, 4, CFG) for kind in inputs.RANDOM_KINDS}
    result["text"] = from_tokens([[1, 2]], 5)
    assert set(result) == set(inputs.KINDS)
    for kind, drawn in result.items():
        assert drawn.kind == kind
        x = drawn.batch(0, 1)
        assert drawn.vectors == (x.ndim == 3)
        assert drawn.moments(0.25, 0.5) == ((0.25, 0.5) if drawn.vectors else None)
        np.testing.assert_array_equal(drawn.scaled(x, 0.25, 0.5), x * 0.5 + 0.25 if drawn.vectors else x)
        assert drawn.scaled(x, 0.25, 0.5).dtype == x.dtype
        assert drawn.equal_last_tokens_by_chance == (kind == "tokens")


@pytest.mark.parametrize("kind", inputs.RANDOM_KINDS)
def test_random_kinds_are_drawn_for_an_architecture(kind):
    drawn = inputs.random_inputs(kind, 5, 6, CFG, seed=3)
    assert drawn.digest == parse_inputs(kind, num_inputs=5, seq_len=6, cfg=CFG, seed=3).digest
    assert (drawn.num_inputs, drawn.seq_len, drawn.seed) == (5, 6, 3)
    fewer = inputs.random_inputs(kind, 5, 6, CFG, seed=3, vocab_size=7)
    assert fewer.vectors or fewer.batch(0, 5).max() < 7
    with pytest.raises(InputError, match="unknown random inputs 'text'"):
        inputs.random_inputs("text", 5, 6, CFG)
    with pytest.raises(InputError, match="vocab_size=0 is not an integer from 1"):
        inputs.random_inputs("tokens", 5, 6, CFG, vocab_size=0)

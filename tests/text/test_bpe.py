"""BPE by the library: training, GPT-2's two files, tiktoken's ranks."""

import base64
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tokenizers

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe
from bornbiased_jax.text.tokenizers import load_tokenizer

CORPUS = [f"the quick brown fox {i} jumps over the lazy dogs and the dog jumps over foxes" for i in range(200)]


def test_training_gives_the_size_asked_for():
    trained = bpe.train_bpe(CORPUS, 300)
    assert trained.vocab_size == 300 and trained.eos_id == 0 and trained.bos_id is None
    assert trained.backend.id_to_token(0) == "<|endoftext|>"
    assert trained.encode("<|endoftext|>").tolist() == [0]
    # Frequent words are one piece.
    assert len(trained.encode(" the")) == 1


@pytest.mark.slow
def test_training_is_deterministic_across_processes():
    program = (
        "import json, sys; from bornbiased_jax.text import bpe; "
        "print(bpe.train_bpe(json.loads(sys.stdin.read()), 300).digest)"
    )
    digests = {bpe.train_bpe(CORPUS, 300).digest, bpe.train_bpe(iter(CORPUS), 300).digest}
    root = str(Path(bpe.__file__).parents[2])
    for threads, hash_seed in (("1", "1"), ("4", "2")):
        environment = {
            **os.environ,
            "RAYON_NUM_THREADS": threads,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": root,
        }
        process = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(CORPUS),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(process.stdout.strip())
    assert len(digests) == 1


def test_training_takes_as_many_pieces_as_the_text_supports():
    with pytest.raises(InputError, match="at least 257"):
        bpe.train_bpe(CORPUS, 256)
    assert 257 < bpe.train_bpe(CORPUS, 5000).vocab_size < 5000
    assert bpe.train_bpe(CORPUS, 257).vocab_size == 257


def small_vocabulary() -> tuple[dict[str, int], list[str]]:
    vocab = {character: i for i, character in enumerate(bpe.BYTE_CHARACTERS.values())}
    merges = ["Ġ t", "h e", "Ġt he"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    return vocab, merges


def test_gpt2_files_follow_their_merges():
    vocab, merges = small_vocabulary()
    result = bpe.from_gpt2(json.dumps(vocab), "#version: 0.2\n" + "\n".join(merges) + "\n", "x")
    assert result.encode(" the hen").tolist() == [vocab["Ġthe"], vocab["Ġ"], vocab["he"], vocab["n"]]
    assert result.eos_id == vocab["<|endoftext|>"] and result.vocab_size == len(vocab)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vocab, merges: (json.dumps(vocab)[:-5], merges), "not readable as JSON"),
        (lambda vocab, merges: ('{"a": "b"}', merges), "not a map from pieces to ids"),
        (lambda vocab, merges: (json.dumps({**vocab, "he": 3}), merges), "one id to two pieces"),
        (lambda vocab, merges: (json.dumps({k: v for k, v in vocab.items() if k != "q"}), merges), "for 'q'"),
        (lambda vocab, merges: (json.dumps(vocab), merges[:-1]), "1 pieces that no merge makes"),
        (lambda vocab, merges: (json.dumps(vocab), [*merges, "three of them"]), "line 5 of its merges"),
        (lambda vocab, merges: (json.dumps(vocab), [*merges, "x y"]), "not a whole byte-pair encoding"),
    ],
)
def test_damaged_gpt2_files_are_refused(change, message):
    vocab, merges = change(*small_vocabulary())
    with pytest.raises(InputError, match=message):
        bpe.from_gpt2(vocab, "\n".join(["#version: 0.2", *merges]), "x")


def test_gpt2_agrees_with_known_encodings(shared):
    gpt2 = load_tokenizer(shared / "tokenizers" / "gpt2_encoder.json")
    existing = {
        "Hello world": [15496, 995],
        "Hello, world!": [15496, 11, 995, 0],
        "The quick brown fox": [464, 2068, 7586, 21831],
        " the": [262],
        "": [],
    }
    for text, ids in existing.items():
        assert gpt2.encode(text).tolist() == ids
        assert gpt2.decode(ids) == text


def tiktoken_reference(ranks: dict[bytes, int], word: bytes) -> list[int]:
    """tiktoken's own rule on one word: join the leftmost neighbors whose sum has the lowest rank."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        sums = [(ranks[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in ranks]
        if not sums:
            return [ranks[part] for part in parts]
        _, at = min(sums)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


WORDS = sorted({f" {word}" for word in " ".join(CORPUS).split() if word.isalpha()})


@pytest.fixture
def rank_file(tmp_path, monkeypatch):
    """A rank file of the bytes and of the beginnings and ends of some words, as if a model were known by its size."""
    parts = {word[:cut] for word in WORDS for cut in range(2, len(word) + 1)}
    parts |= {word[cut:] for word in WORDS for cut in range(1, len(word) - 1)}
    pieces = [bytes([byte]) for byte in range(256)] + sorted(
        (part.encode() for part in parts), key=lambda p: (len(p), p)
    )
    count = len(pieces)
    special = {bpe.END_OF_TEXT: count, "<|im_start|>": count + 1}
    scheme = bpe.ByteLevel(patterns=[bpe.CL100K_PATTERN], special=special, eos_token=bpe.END_OF_TEXT)
    monkeypatch.setitem(bpe.TIKTOKEN_SCHEMES, count, scheme)
    path = tmp_path / "small.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(pieces)))
    return path


def assert_joined_as_tiktoken_does(path, size, text):
    """Words of letters after a space are one word to the pattern; joining them is what is tested here."""
    rows = [line.split() for line in path.read_bytes().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    loaded = load_tokenizer(path)
    assert (loaded.vocab_size, loaded.eos_id, loaded.bos_id) == (size, len(ranks), None)
    start = [len(ranks) + 1, ranks[b"1"], ranks[b"2"]]
    assert loaded.encode("<|im_start|>12").tolist() == start
    words = sorted({f" {word}" for word in text.split() if word.isalpha()})
    for word in [*words, " thefoxes", " jumpsover", " aaaaaaa", " zzzzzzzzzzz", " ÿÿøøéé"]:
        assert loaded.encode(word).tolist() == tiktoken_reference(ranks, word.encode()), word
    sample = text + "  def f(x):\r\n\treturn 'é' * 1234  # 日本 🎉\n\n"
    assert loaded.decode(loaded.encode(sample)) == sample
    # A file that lost a line is of no known vocabulary.
    lines = path.read_bytes().splitlines(keepends=True)
    with pytest.raises(InputError, match=f"{len(ranks) - 1:,} ranks"):
        bpe.from_tiktoken(b"".join(lines[:-1]), "cut")
    with pytest.raises(InputError, match="no known vocabulary"):
        bpe.from_tiktoken(b"".join([*lines[:-1], b"/////////w== 3\n"]), "twice")
    return loaded


def test_tiktoken_ranks_are_joined_as_tiktoken_does(rank_file):
    assert_joined_as_tiktoken_does(rank_file, len(rank_file.read_bytes().splitlines()) + 2, " ".join(CORPUS))


@pytest.mark.slow
def test_a_real_rank_file_is_joined_as_tiktoken_does(shared):
    text = (shared / "data" / "tinyshakespeare" / "input.txt").read_text()[:20_000]
    qwen = assert_joined_as_tiktoken_does(shared / "tokenizers" / "qwen.tiktoken", 151_851, text)
    # Known from the model's public examples.
    assert qwen.eos_id == 151_643
    assert qwen.encode("Hello world").tolist() == [9707, 1879]
    assert qwen.encode("<|im_start|>12").tolist() == [151_644, 16, 17]


def test_schemes_have_room_for_their_special_tokens():
    for count, scheme in bpe.TIKTOKEN_SCHEMES.items():
        ids = list(scheme.special.values())
        assert min(ids) >= count and len(set(ids)) == len(ids)
        assert scheme.eos_token in scheme.special
        assert scheme.bos_token is None or scheme.bos_token in scheme.special


def test_every_setting_changes_the_digest():
    """The same vocabulary and merges that cut words or normalize otherwise are another tokenizer."""
    trained = bpe.train_bpe(CORPUS, 300)
    content = json.loads(trained.json_text)
    others = [
        {**content, "normalizer": {"type": "NFC"}},
        {**content, "pre_tokenizer": content["pre_tokenizer"]["pretokenizers"][1]},
        {**content, "model": {**content["model"], "ignore_merges": True}},
        {**content, "model": {**content["model"], "merges": content["model"]["merges"][::-1]}},
    ]
    digests = {bpe.from_json(json.dumps(other), "x").digest for other in [content, *others]}
    assert len(digests) == 5
    assert bpe.from_json(trained.json_text, "another name").digest == trained.digest


def test_a_file_at_which_the_library_panics_is_refused(capfd):
    """A prefix longer than the pieces that merges join: the library's own code ends, with a trace of its calls."""
    content = json.loads(bpe.train_bpe(CORPUS, 270).json_text)
    content["model"]["continuing_subword_prefix"] = "x" * 5000
    with pytest.raises(InputError, match="a file is not a whole tokenizer.json: range end index"):
        bpe.from_json(json.dumps(content), "a file")
    assert capfd.readouterr().err == ""


def test_threads_that_open_tokenizers_leave_standard_error_where_it_was(capfd):
    """Without a turn for each, the first lets go while the second is inside, which then restores the first one's."""
    inside, left = [threading.Event(), threading.Event()], threading.Event()

    def first():
        with bpe._silent():
            inside[0].set()
            inside[1].wait(0.3)
        left.set()

    def second():
        inside[0].wait()
        with bpe._silent():
            inside[1].set()
            left.wait(0.3)

    before = os.fstat(2)
    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.path.samestat(os.fstat(2), before)


def test_a_vocabulary_without_the_letter_that_is_tried_has_its_beginning():
    """Of four letters, as of DNA, and none for what is unknown: any other letter gives no token."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "A": 1, "C": 2, "G": 3, "T": 4}, []))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = bpe.from_json(backend.to_str(), "dna")
    assert tokenizer.bos_id == 0 and tokenizer.encode("GAT").tolist() == [3, 1, 4]

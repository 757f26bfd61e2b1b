"""Reading documents: every format, whole and in order; every kind of damage, by name."""

import gzip
import json
import os
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import corpora, documents
from bornbiased_jax.text.documents import END_OF_TEXT, list_files, read_documents, read_file, read_text, source_digest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
FILLED = TEXT.filter(lambda text: text.strip())


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines(tmp_path, suffix):
    rows = [{"text": "one\ntwo", "id": 1}, {"text": ""}, {"text": None}, {"text": "drei ü 🎉"}]
    content = "\n\n".join(map(json.dumps, rows)) + "\n"
    path = write(tmp_path / f"a.jsonl{suffix}", content)
    assert list(read_documents(path)) == ["one\ntwo", "drei ü 🎉"]
    assert read_text(path) == "one\ntwo\n\ndrei ü 🎉"


@given(texts=st.lists(FILLED, min_size=1, max_size=5))
def test_json_lines_hold_any_text(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("d") / "a.jsonl"
    for ascii_only in (True, False):
        write(path, "\n".join(json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts))
        assert list(read_documents(path)) == texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": "b"', "line 2 is not JSON"),
        ('{"body": "a"}', "no field 'text', only 'body'"),
        ("[1, 2]", "line 1 is not an object"),
        ('{"text": 3}', "is not a string"),
        (r'{"text": "half \ud83c of a pair"}', "surrogate pair at character 5"),
        ('{"text": "  "}', "holds no text"),
        ("", "holds no text"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, content, message):
    path = write(tmp_path / "a.jsonl", content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_documents(path))
    assert str(path) in str(caught.value)


def test_a_row_of_many_fields_is_refused_in_one_line(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({f"name {number}\n": 0 for number in range(10_000)}))
    with pytest.raises(InputError, match="no field 'text', only 'name 0") as caught:
        list(read_documents(path))
    assert len(str(caught.value)) < len(str(path)) + 200


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", exc_type=ImportError)
    parquet = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
    path = tmp_path / "a.parquet"
    texts = [f"document {i}" for i in range(3000)]
    for table, words in (
        ({"body": texts, "n": range(3000)}, "no column 'text', only 'body', 'n'"),
        ({"text": range(3)}, "is not a string"),
    ):
        parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(InputError, match=words):
            list(read_documents(path))
    parquet.write_table(pyarrow.table({"text": [*texts, None, ""], "n": range(3002)}), path)
    assert list(read_documents(path)) == texts
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="not readable as Parquet"):
        list(read_documents(path))


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("pyarrow", lambda folder: list(read_file(write(folder / "a.parquet", "x"))), "parquet"),
        ("datasets", lambda folder: read_documents("hf:name"), "hf"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, module, call, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'bornbiased-jax\[{extra}\]'"):
        call(tmp_path)


def test_hugging_face_data_sets_stream_by_name(monkeypatch):
    calls = []

    def load_dataset(name, configuration, *, split, streaming):
        calls.append((name, configuration, split, streaming))
        if name == "none":
            raise FileNotFoundError("no such data set")
        return [{"body": "a"}] if name == "other" else [{"text": "a"}, {"text": ""}, {"text": "b"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert list(read_documents("hf:owner/name")) == ["a", "b"]
    assert list(read_documents("hf:wikitext,wikitext-2-raw-v1@test")) == ["a", "b"]
    assert calls == [("owner/name", None, "train", True), ("wikitext", "wikitext-2-raw-v1", "test", True)]
    with pytest.raises(InputError, match="no such data set"):
        read_documents("hf:none")
    with pytest.raises(InputError, match="needs the name"):
        read_documents("hf:")
    with pytest.raises(InputError, match="no field 'text', only 'body'"):
        list(read_documents("hf:other"))


def test_a_data_set_that_breaks_off_is_named(monkeypatch):
    def load_dataset(*_arguments, **_options):
        yield {"text": "a"}
        raise ConnectionError("server disconnected")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    reader = read_documents("hf:owner/name")
    assert next(reader) == "a"
    with pytest.raises(InputError, match="hf:owner/name cannot be loaded: server disconnected .check the connection"):
        next(reader)


def test_end_of_text_separates(tmp_path, monkeypatch):
    # Small blocks, so that separators and letters of several bytes lie across their borders.
    monkeypatch.setattr(documents, "_BLOCK", 7)
    parts = ["first é\n", "\nsecond 🎉🎉\n\nstill second ", "\n", "third"]
    path = write(tmp_path / "a.txt", "<|endoftext|>".join(parts) + "<|endoftext|>")
    assert list(read_documents(path)) == [parts[0], parts[1], parts[3]]
    assert read_text(path) == "<|endoftext|>".join(parts) + "<|endoftext|>"


ARTICLES = [
    " \n = One = \n \n Text of one . \n = not a heading = \n\n = = Section = = \n\n More . \n \n",
    " = Two ( the second ) = \n \n Text = of two . \n\n",
    " = 3 = \n \n Text .\n",
]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".tokens"])
def test_wikitext_is_cut_at_article_headings(tmp_path, suffix):
    path = write(tmp_path / f"wiki{suffix}", "".join(ARTICLES))
    assert list(read_documents(path)) == ARTICLES


def test_wikitext_has_its_known_number_of_articles(shared, monkeypatch):
    monkeypatch.setattr(documents, "RUNNING_TEXT", 2**30)
    folder = shared / "data" / "wikitext-2"
    for name, count in (("valid.txt", 60), ("test.txt", 60), ("train.txt.gz", 600)):
        articles = list(read_documents(folder / name))
        assert len(articles) == count
        assert "".join(articles) == read_text(folder / name)


def test_every_shared_source_is_read(shared):
    data = shared / "data"
    counts = {
        "c4-minimal": 1400,
        "c4-minimal/c4-train.jsonl": 1000,
        "openwebtext-1000": 1000,
        "tinyshakespeare": 17,
        "code-linux": 38,
    }
    pytest.importorskip("pyarrow", exc_type=ImportError)
    for name, count in counts.items():
        assert sum(1 for _ in read_documents(data / name)) == count, name
    stories = data / "tinystories" / "tinystories_10k.txt"
    assert sum(1 for _ in read_documents(stories)) == read_text(stories).count("<|endoftext|>") + 1


@given(
    text=st.text(st.sampled_from("ab \n\n\r é"), max_size=400).filter(str.strip),
    longest=st.integers(1, 30),
)
def test_plain_text_is_cut_without_loss(tmp_path_factory, text, longest):
    path = write(tmp_path_factory.mktemp("d") / "a.txt", text)
    documents = list(read_documents(path, longest=longest))
    joined = "".join(documents)
    # Blank pieces between documents are the only thing left out.
    assert joined.split() == text.split()
    assert all(len(piece) <= 9 * longest for piece in documents)
    assert list(read_documents(path)) == [text]


def test_plain_text_is_cut_at_blank_lines(tmp_path):
    paragraphs = [f"Paragraph {i} of a text.\nIt has two lines.\n\n" for i in range(100)]
    path = write(tmp_path / "a.txt", "".join(paragraphs))
    documents = list(read_documents(path, longest=200))
    assert "".join(documents) == "".join(paragraphs)
    assert all(piece.endswith("\n\n") and 200 <= len(piece) < 300 for piece in documents[:-1])
    assert len(list(read_documents(path))) == 1


def test_blank_rows_are_no_documents_and_cost_no_more_than_text(tmp_path, monkeypatch):
    # Rows were looked at again at each row after them: this many took minutes.
    path = write(tmp_path / "a.txt", "\n" * 70_000 + "text\n")
    assert list(read_file(path)) == ["\n" * 70_000 + "text\n"]
    # Nor are parts of a blank line, or more blank rows than a document may have.
    write(path, "one\n" + " " * 100 + "two")
    assert [document.strip() for document in read_file(path, longest=10)] == ["one", "two"]
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 50)
    write(path, "one\n" + " \n" * 1000 + "two\n")
    assert max(map(len, read_file(path, longest=10))) < 60
    with pytest.raises(InputError, match="holds no text"):
        list(read_documents(write(path, " " * 65_536)))


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "first"}\n' + "x" * 3 * documents._BLOCK)
    reader = read_documents(path)
    assert next(reader) == "first"
    with pytest.raises(InputError, match="line 2 is not JSON"):
        next(reader)


def test_a_line_of_any_length_is_read_as_far_as_it_is_asked_for(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "word " * 10_000_000)
    read = []
    blocks = documents._blocks
    monkeypatch.setattr(documents, "_LOOK", documents._BLOCK)
    monkeypatch.setattr(documents, "_blocks", lambda path: (read.append(1) or block for block in blocks(path)))
    reader = read_documents(path)
    assert [len(next(reader)) for _ in range(9)] == [documents.LONGEST] * 9
    assert len(read) <= 4 and len(read_text(path)) == documents.RUNNING_TEXT and len(read) <= 10


@pytest.mark.parametrize("separator", [END_OF_TEXT, "\n\n = Title = \n\n"])
def test_documents_without_end_are_cut(tmp_path, monkeypatch, separator):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(documents, "_BLOCK", 100)
    monkeypatch.setattr(documents, "_LOOK", 10_000)
    text = " = First = \n\n" + "a line of words \n" * 300 + separator + "b" * 300
    parts = list(read_documents(write(tmp_path / "a.txt", text)))
    assert len(parts) > 3 and max(map(len, parts)) < 1200
    joined = "".join(parts)
    assert joined == text.replace(END_OF_TEXT, "")


@pytest.mark.parametrize("call", [read_text, lambda path: list(read_documents(path))])
def test_pipes_and_devices_are_refused_at_once(tmp_path, call):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="a device, a pipe or a socket"):
            call(path)


def test_byte_order_marks_are_dropped(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbftext")
    assert list(read_documents(path)) == ["text"] and read_text(path) == "text"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"latin \xe9 one", "not UTF-8"),
        ("a.txt", b"cut \xc3", "not UTF-8"),
        ("a.txt", b" \n\n ", "holds no text"),
        ("a.txt.gz", b"not gzip", "corrupted"),
        ("a.txt.gz", gzip.compress(b"some text" * 100, mtime=0)[:-12], "cut short"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "b"}', mtime=0)[:-4], "cut short"),
    ],
    # By position: the names of tests are compared between processes.
    ids=range(6),
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_documents(path))
    assert str(path) in str(caught.value)
    if not name.startswith("a.jsonl"):
        with pytest.raises(InputError, match="a.txt"):
            read_text(path)


def test_folders_are_read_in_the_order_of_names(tmp_path):
    for name in ("b.txt", "a/z.jsonl", "a/c.txt.gz", "d.py", ".hidden.txt", ".git/x.py", "e.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        write(path, json.dumps({"text": name}) if ".jsonl" in name else name)
    assert list(read_documents(tmp_path)) == ["a/c.txt.gz", "a/z.jsonl", "b.txt", "e.md"]
    assert read_text(tmp_path) == "a/c.txt.gz\n\na/z.jsonl\n\nb.txt\n\ne.md"
    assert list(read_documents(tmp_path / "d.py")) == ["d.py"]
    with pytest.raises(InputError, match="no file ending in"):
        list_files(tmp_path / ".git")


def test_running_text_of_a_folder_leaves_empty_files_out(tmp_path, monkeypatch):
    for name, text in (
        ("a.md", ""),
        ("b.txt", "some words"),
        ("c.jsonl", "\n"),
        ("d.txt", " \n"),
        ("e.txt", "and more"),
    ):
        (tmp_path / name).write_text(text)
    assert read_text(tmp_path) == "some words\n\nand more"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_text("~/b.txt") == "some words" and read_text("~") == read_text(tmp_path)
    for name in ("a.md", "c.jsonl", "d.txt"):
        with pytest.raises(InputError, match=f"{name} holds no text"):
            read_text(tmp_path / name)


def test_a_missing_source_is_refused_at_the_call(tmp_path):
    for call in (read_documents, read_text, source_digest, list_files):
        with pytest.raises(InputError, match="does not exist"):
            call(tmp_path / "none.txt")
    with pytest.raises(InputError, match="unknown built-in corpus"):
        read_documents("builtin:poetry")


def test_built_in_corpora_are_sources(monkeypatch):
    result = corpora.Corpus("prose", ("one", "two"), "d" * 64)
    monkeypatch.setattr(corpora, "corpus", lambda name: result)
    assert list(read_documents("builtin:prose")) == ["one", "two"]
    assert read_text("builtin:prose") == "one\n\ntwo"
    assert source_digest("builtin:prose") == "d" * 64


def test_the_digest_follows_content_and_names(tmp_path):
    write(tmp_path / "a.txt", "one")
    write(tmp_path / "b.txt", "two")
    first = source_digest(tmp_path)
    assert first == source_digest(str(tmp_path)) != source_digest(tmp_path / "a.txt")
    write(tmp_path / "b.txt", "tow")
    second = source_digest(tmp_path)
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    assert len({first, second, source_digest(tmp_path)}) == 3
    assert source_digest("hf:a") != source_digest("hf:b")


def test_the_digest_of_a_large_source_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"x" * (3 << 19))
    plain = source_digest(tmp_path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(documents, "_LONG_READ", 3 << 20)
    assert source_digest(tmp_path) == plain
    assert "3 of 3 MiB" in capsys.readouterr().err


def test_the_digest_knows_where_a_file_ends(tmp_path):
    """Two files, and one that holds what stands between them as well, are the same bytes in the same order."""
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    write(tmp_path / "two" / "a.txt", "first ")
    write(tmp_path / "two" / "b.txt", "second")
    write(tmp_path / "one" / "a.txt", "first b.txt\0second")
    assert source_digest(tmp_path / "one") != source_digest(tmp_path / "two")
    write(tmp_path / "one" / "a.txt", "first b.txt\x006\0second")
    assert source_digest(tmp_path / "one") != source_digest(tmp_path / "two")


def test_rows_are_counted_once_each():
    """A text of many short rows takes no longer than their bytes do."""

    class Row(str):
        counted = 0

        def __len__(self):
            Row.counted += 1
            return super().__len__()

    assert documents._joined([Row("ab")] * 100, "\n") == "\n".join(["ab"] * 100)
    assert Row.counted <= 300

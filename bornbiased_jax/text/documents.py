"""Documents from wherever text lies: files, folders, the built-in corpora, Hugging Face data sets.

A *source* is what ``--data`` and ``--text`` take: a file, a folder, ``builtin:prose``,
``builtin:code`` or ``hf:NAME``. :func:`read_documents` yields its documents one by one in a stable
order, never holding more than one document of a file.

What a document is:

- JSON lines (``.jsonl``) and Parquet: the field ``text`` of one row.
- Text with ``<|endoftext|>`` in it: what stands between two of these.
- WikiText (the first line that is not blank is a heading `` = Title = ``): one article.
- Any other text: the file, cut after a blank line into pieces of about ``longest`` characters, so that
  a long file can be split into training and validation and need not fit in memory.

Files are read as far as their documents are asked for, and no further; whether a text has ``<|endoftext|>`` in it is
told from its first 64 MiB. A document of more than 16 million characters is cut there.

Nothing of a text is changed: except for ``<|endoftext|>`` and the blank rows between them, the documents of a
file joined together are the file. Every kind may be compressed with gzip (``.gz``).
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from bornbiased_jax import hub, io, progress
from bornbiased_jax.errors import InputError, cut_short
from bornbiased_jax.text import corpora, rows

END_OF_TEXT = "<|endoftext|>"
# The suffixes that are taken from a folder; a file that is named may have any.
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".raw", ".tokens")
ROW_SUFFIXES = (".jsonl", ".parquet")
LONGEST = 65_536
LONGEST_DOCUMENT = 1 << 24
"""Characters after which any document ends, so that no text needs to fit in memory."""
RUNNING_TEXT = 1 << 22
"""Characters of a source that are read as one running text."""
_BLOCK = 1 << 20
# Bytes that take seconds to read: a reader is shown how far that is.
_LONG_READ = 256 * _BLOCK
# How far into a file its separators are looked for.
_LOOK = 64 * _BLOCK
_HEADING = re.compile(r"^ ?= [^=\s](?:.*[^=\s])? = ?\r?\n?$|^ ?= [^=\s] = ?\r?\n?$")


def read_documents(source: str | Path, *, longest: int = LONGEST) -> Iterator[str]:
    """Read the documents of a source, lazily and in a stable order; empty documents are left out.

    Args:
        source: a file, a folder, ``builtin:prose``, ``builtin:code`` or ``hf:NAME`` (with an optional
            configuration and split: ``hf:NAME,CONFIG@SPLIT``; ``train`` when none is given).
        longest: about how many characters a piece of a text without separators has.

    Raises:
        InputError: at the call for a source that does not exist, while reading for one that is corrupted,
            not UTF-8 or without any text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.txt").write_text("one<|endoftext|>two")
    ...     list(read_documents(folder))
    ['one', 'two']
    """
    name = str(source)
    if name.startswith("builtin:"):
        return iter(corpora.corpus(name.removeprefix("builtin:")).documents)
    if hub.is_named(name):
        return rows.hugging_face(name.removeprefix(hub.PREFIX))
    return _checked_nonempty(name, list_files(source), longest)


def check_source(source: str | Path) -> None:
    """Refuse a source that is not there; nothing of it is read, and nothing is fetched.

    Raises:
        InputError: no such file, folder or built-in corpus, or a folder without text.
    """
    name = str(source)
    if name.startswith("builtin:"):
        corpora.check_name(name.removeprefix("builtin:"))
    elif not hub.is_named(name):
        list_files(source)


def _checked_nonempty(name: str, paths: list[Path], longest: int) -> Iterator[str]:
    empty = True
    for path in paths:
        for document in read_file(path, longest=longest):
            empty = False
            yield document
    if empty:
        raise InputError(f"{name} holds no text: name a source that does")


def list_files(source: str | Path) -> list[Path]:
    """List the files of a source: itself, or those of a folder (below it too) sorted by relative name.

    Of a folder, files that end in .txt, .text, .md, .rst, .raw, .tokens, .jsonl or .parquet, gzipped or not,
    are taken; hidden ones are not.

    Raises:
        InputError: there is none.
    """
    path = io.user_path(source)
    if path.is_file():
        return [path]
    if path.exists() and not path.is_dir():
        io.check_regular(path)
    if not path.is_dir():
        raise InputError(f"{source} does not exist: name a file, a folder, builtin:prose, builtin:code or hf:NAME")
    listing = []
    for file in io.below(path):
        relative = file.relative_to(path)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        if not is_hidden and _kind(file) in TEXT_SUFFIXES + ROW_SUFFIXES and file.is_file():
            listing.append((relative.as_posix(), file))
    if not listing:
        raise InputError(
            f"{source} holds no file ending in {', '.join(TEXT_SUFFIXES + ROW_SUFFIXES)} (or one with .gz)"
        )
    return [file for _, file in sorted(listing)]


def read_file(path: str | Path, *, longest: int = LONGEST) -> Iterator[str]:
    """Read the documents of one file, lazily; none when it is empty.

    Raises:
        InputError: while reading, when the file is missing, corrupted, not UTF-8 or lacks the field ``text``.
    """
    path = io.check_regular(path)
    kind = _kind(path)
    with _reading(path):
        if kind == ".jsonl":
            yield from rows.json_lines(path, _lines(path))
        elif kind == ".parquet":
            with _open(path) as stream:
                yield from rows.parquet(path, stream)
        elif _contains(path, END_OF_TEXT.encode()):
            yield from _separated(path)
        elif _HEADING.match(next((line for line in _lines(path, LONGEST) if line.strip()), "")):
            yield from _articles(path)
        else:
            yield from _pieces(path, longest)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into an InputError on the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}): convert it first") from error
    except EOFError as error:
        raise cut_short(str(path)) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is corrupted ({error}): compress it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error.strerror or error).split())}") from error


def read_text(path: str | Path) -> str:
    """Read the text of a source, exactly as it stands in the file; of a long one ``RUNNING_TEXT`` characters.

    Of a file: with the separators of its documents. Of a folder: its files with a blank line between them, empty ones
    left out. Of JSON lines, Parquet, ``builtin:`` and ``hf:`` names: the documents with a blank line between them.

    Raises:
        InputError: the source is missing, corrupted, not UTF-8 or without text.
    """
    # Sources without running text of their own, and folders: join their parts.
    if str(path).startswith(("builtin:", hub.PREFIX)):
        return _joined(read_documents(path), "\n\n")
    root = io.user_path(path)
    files = list_files(root) if root.is_dir() else [root]
    text = _joined(filter(str.strip, map(_running_text, files)), "\n\n")
    if not text:
        raise InputError(f"{path} holds no text: name a file that does")
    return text


def _running_text(path: Path) -> str:
    """Read the text of one file, "" of an empty one."""
    if _kind(path) in ROW_SUFFIXES:
        return _joined(read_file(path), "\n\n")
    io.check_regular(path)
    with _reading(path):
        return _joined(_blocks(path), "")


def _joined(texts: Iterable[str], separator: str) -> str:
    """Join texts, reading no more of them than ``RUNNING_TEXT`` characters need."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size >= RUNNING_TEXT:
            break
    return separator.join(parts)[:RUNNING_TEXT]


def text_digest(text: str) -> str:
    """Hash a text that was read, in UTF-8, by SHA-256: of a long source its beginning alone is known."""
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest(source: str | Path) -> str:
    """Hash a source by SHA-256: the bytes of its files with their relative names, in order.

    A built-in corpus has its own digest; a Hugging Face data set is known by its name alone. Reading much takes a
    while, which a bar shows.
    """
    name = str(source)
    if name.startswith("builtin:"):
        return corpora.corpus(name.removeprefix("builtin:")).digest
    digest = hashlib.sha256()
    if hub.is_named(name):
        digest.update(name.encode())
        return digest.hexdigest()
    root = io.user_path(source)
    paths = list_files(source)
    size, read = sum(path.stat().st_size for path in paths), 0
    with progress.bar(size // _BLOCK, "reading the text's digest", "MiB", quiet=size < _LONG_READ) as advance:
        for path in paths:
            relative = path.relative_to(root).as_posix() if path != root else path.name
            digest.update(f"{relative}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    before, read = read, read + len(block)
                    advance(read // _BLOCK - before // _BLOCK)
    return digest.hexdigest()


def _kind(path: Path) -> str:
    """Return the suffix that tells the format of a file, with any ``.gz`` taken off."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _contains(path: Path, pattern: bytes) -> bool:
    """Return whether a file contains a pattern; reads no further than the first, and ``_LOOK`` bytes at the most."""
    tail = b""
    with _open(path) as stream:
        for _ in range(0, _LOOK, _BLOCK):
            block = stream.read(_BLOCK)
            if pattern in tail + block:
                return True
            if not block:
                break
            tail = block[-len(pattern) :]
    return False


def _blocks(path: Path) -> Iterator[str]:
    """Yield a file's text in blocks of about a million characters, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with _open(path) as stream:
        while block := stream.read(_BLOCK):
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)


def _lines(path: Path, longest: int = LONGEST_DOCUMENT) -> Iterator[str]:
    r"""Yield a file's lines with their line ends, cut at "\n" only.

    A line of more than four times ``longest`` characters comes in parts of ``longest``, before its end is read.
    """
    parts: list[str] = []
    for block in _blocks(path):
        *complete, last = block.split("\n")
        for line in complete:
            yield from _parts("".join([*parts, line, "\n"]), longest)
            parts = []
        parts.append(last)
        if sum(map(len, parts)) > 4 * longest:
            *early, last = _parts("".join(parts), longest)
            yield from early
            parts = [last]
    if any(parts):
        yield from _parts("".join(parts), longest)


def _parts(line: str, longest: int) -> Iterator[str]:
    """Yield a line, or parts of ``longest`` characters until no more than four times that is left."""
    start = 0
    while len(line) - start > 4 * longest:
        yield line[start : start + longest]
        start += longest
    yield line[start:]


def _separated(path: Path) -> Iterator[str]:
    rest = ""
    for block in _blocks(path):
        documents = (rest + block).split(END_OF_TEXT)
        rest = documents.pop()
        for document in documents:
            if document.strip():
                yield document
        # The end of what is cut off may be the beginning of a separator.
        while len(rest) > LONGEST_DOCUMENT + len(END_OF_TEXT):
            yield rest[:LONGEST_DOCUMENT]
            rest = rest[LONGEST_DOCUMENT:]
    if rest.strip():
        yield rest


def _articles(path: Path) -> Iterator[str]:
    """Split WikiText: a new article at each `` = Title = `` that stands between blank lines."""
    lines: list[str] = []
    filled = size = 0
    for line in _lines(path):
        if size > LONGEST_DOCUMENT:
            yield "".join(lines)
            lines, filled, size = [], 0, 0
        # Only now that this line is known to be blank, the one before may be a heading.
        if filled > 1 and not line.strip() and _HEADING.match(lines[-1]) and not lines[-2].strip():
            yield "".join(lines[:-1])
            lines, filled, size = lines[-1:], 1, len(lines[-1])
        lines.append(line)
        size += len(line)
        filled += bool(line.strip())
    if filled:
        yield "".join(lines)


def _pieces(path: Path, longest: int) -> Iterator[str]:
    """Cut a text at the first blank line past ``longest`` characters.

    Without one it is cut at a line end past twice that, and within a line past four times that.
    """
    parts: list[str] = []
    size, has_text = 0, False
    for line in _lines(path, longest):
        blank = not line.strip()
        if parts and size >= (longest if blank else 2 * longest):
            if blank:
                parts.append(line)
                size, line = size + len(line), ""
            if has_text:
                yield "".join(parts)
            # Blank rows go before the text after them, unless they are a whole document.
            if has_text or size > LONGEST_DOCUMENT:
                parts, size, has_text = [], 0, False
        parts.append(line)
        size += len(line)
        has_text = has_text or not blank
        # A part of a long line, the rest of which follows.
        if len(line) == longest and not line.endswith("\n") and has_text:
            yield "".join(parts)
            parts, size, has_text = [], 0, False
    if has_text:
        yield "".join(parts)

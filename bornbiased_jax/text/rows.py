"""Texts that are the field ``text`` of rows: JSON lines, Parquet, Hugging Face data sets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from bornbiased_jax import hub
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import cut
from bornbiased_jax.text.protocol import checked_text

FIELD = "text"


def json_lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield the field of each row of JSON lines; rows without text are left out.

    Raises:
        InputError: while reading, a line is not an object with that field as a string.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number or a nesting beyond all sizes"
            raise InputError(f"{path}, line {number} is not JSON ({reason}): one object a line is expected") from error
        # An escape can spell half of a surrogate pair.
        text = checked_text(_text(row, f"{path}, line {number}"), f"{path}, line {number}")
        if text.strip():
            yield text


def _text(row: object, place: str) -> str:
    if not isinstance(row, dict):
        raise InputError(f"{place} is not an object with a field {FIELD!r}")
    if FIELD not in row:
        raise InputError(f"{place} has no field {FIELD!r}, only {cut(', '.join(map(repr, row))) or 'none'}")
    text = row[FIELD]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{place}: the field {FIELD!r} is not a string")
    return text


def parquet(path: Path, stream: IO[bytes]) -> Iterator[str]:
    """Yield the field of each row of an opened Parquet file, which is read in groups of a thousand rows.

    Raises:
        InputError: while reading, pyarrow is absent, the file is corrupted, or it has no such column of strings.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{path} is Parquet: pip install 'bornbiased-jax[parquet]' to read it") from error
    try:
        with pyarrow.parquet.ParquetFile(stream) as table:
            names = table.schema_arrow.names
            if FIELD not in names:
                raise InputError(f"{path} has no column {FIELD!r}, only {cut(', '.join(map(repr, names)))}")
            for batch in table.iter_batches(batch_size=1024, columns=[FIELD]):
                for text in batch.column(0).to_pylist():
                    text = _text({FIELD: text}, str(path))
                    if text.strip():
                        yield text
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} is not readable as Parquet: {str(error).splitlines()[0]}") from error


def hugging_face(name: str) -> Iterator[str]:
    """Stream the field of each row of a Hugging Face data set: ``NAME``, ``NAME,CONFIG`` or either with ``@SPLIT``.

    Raises:
        InputError: the library is absent, the data set cannot be loaded, or (while reading) it breaks off, or a row
            lacks the field.
    """
    named = f"{hub.PREFIX}{name}"
    datasets = hub.library("datasets", "hf", named, "a Hugging Face data set")
    name, _, split = name.partition("@")
    name, _, configuration = name.partition(",")
    if not name:
        raise InputError("hf: needs the name of a data set, as in hf:NAME or hf:NAME,CONFIG@SPLIT")
    with hub.asking(named):
        rows = iter(datasets.load_dataset(name, configuration or None, split=split or "train", streaming=True))
    texts = (_text(row, f"hf:{name}, row {number}") for number, row in enumerate(_asked(rows, named), start=1))
    return filter(str.strip, texts)


def _asked(rows: Iterator[object], named: str) -> Iterator[object]:
    """Yield rows, each of which may be fetched only now."""
    while True:
        with hub.asking(named):
            row = next(rows, None)
        if row is None:
            return
        yield row

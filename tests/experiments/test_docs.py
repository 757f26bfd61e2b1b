import json
import re
import types
from collections.abc import Iterator

import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import base, docs, front_figure, results
from bornbiased_jax.experiments.markdown import MOST_COLUMNS
from bornbiased_jax.report.numbers import MOST_DIGITS, percent
from bornbiased_jax.report.tables import Claim, Quantity, Row, Table

RECORD = {
    "experiment": "table1",
    "scale": "laptop",
    "settings": {},
    "data": None,
    "status": "complete",
    "result": {"rows": [{"share": 0.0205}]},
    "provenance": {
        "wall_time_s": 62.0,
        "peak_memory_bytes": 3_280_000_000,
        "platform": {"cpu": "A Processor", "cores": 2},
        "versions": {"jax": "0.10.2"},
        "git": {"revision": "abcdef0123456789", "dirty": False},
        "code": "0123456789abcdef",
        "corpora": {"builtin:prose": "fedcba9876543210"},
    },
}


@pytest.fixture
def committed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "table1.json").write_text(json.dumps(RECORD))


@pytest.mark.slow
def test_the_documents_say_what_the_records_say():
    for path in docs.documents():
        text = path.read_text()
        try:
            result = docs.render(text)
        except InputError as error:
            # A record that today's code cannot show any more is shown as older; another fault is one.
            assert "cannot be shown" in str(error), error
            continue
        assert result == text, f"{path.name} differs from its records: python -m experiments.docs"


def test_times_and_deviations_stand_in_blocks_alone():
    measured = re.compile(r"±|\d (s|min|ms|GB|GFLOP/s|tokens/s)\b")
    for path in docs.documents():
        rest = docs._BLOCK.sub("", path.read_text())
        lines = [line for line in rest.splitlines() if measured.search(line)]
        assert not lines, f"{path.name}: {lines[0]}"


def test_no_page_promises_a_figure_that_its_experiment_does_not_draw():
    for path in docs.documents():
        prose = " ".join(docs._BLOCK.sub("", path.read_text()).split())
        for sentence in re.split(r"(?<=[.:]) ", prose):
            if re.search(r"\bpage\b", sentence) and re.search(r"\bdraws\b|\bcurves?\b|\bfigures?\b", sentence):
                for name in re.findall(r"bornbiased reproduce (\w+)", sentence):
                    assert docs.runner.load(name).figures is not base._empty, f"{path.name}: {sentence}"


def test_every_block_has_a_record_or_a_command_that_makes_it(capsys):
    waiting = docs.missing()
    for command in waiting:
        assert command.startswith(("bornbiased reproduce ", "python -m benchmarks ", "python -m experiments."))
    if waiting:
        with capsys.disabled():
            print(f"\n{len(waiting)} records are not there yet: python -m experiments.docs --check lists them")


def test_a_value_stands_within_a_sentence(committed):
    options = "table1 value=result.rows.0.share format=percent:2"
    text = f"It is <!-- record: {options} -->old<!-- end -->."
    assert docs.render(text) == f"It is <!-- record: {options} -->2.05%<!-- end -->."
    assert docs.render(docs.render(text)) == docs.render(text)


def test_claims_of_a_selection_are_those_of_its_records(committed, tmp_path, monkeypatch):
    message = {name: [Claim(f"{name} says", place)] for place, name in enumerate(("table1", "table2", "figure2"))}
    monkeypatch.setattr(docs.experiments, "SELECTIONS", {"demo": tuple(message)})
    monkeypatch.setattr(
        docs.runner, "load", lambda name: types.SimpleNamespace(claims=lambda record: message[record["experiment"]])
    )
    (tmp_path / "laptop" / "table2.json").write_text(json.dumps({**RECORD, "experiment": "table2"}))
    shown = docs.content(docs.parse("demo show=claims"))
    assert [line.split("|")[1].strip() for line in shown.splitlines()[3:5]] == ["table1 says", "table2 says"]
    assert "figure2 says" not in shown and "for 2 of its 3 experiments" in shown


def test_table_states_its_record(committed, monkeypatch):
    monkeypatch.setattr(docs, "_render", lambda block, record: "BODY")
    result = docs.content(docs.parse("table1 show=tables"))
    assert result.startswith("\nBODY\n\n`bornbiased reproduce table1 --scale laptop`: ")
    for fact in ("1 min 02 s", "3.28 GB", "2 cores of A Processor", "revision abcdef0123", "code 01234567"):
        assert fact in result
    assert "`builtin:prose` fedcba98" in result


def test_a_record_is_named_once_in_a_section(committed, monkeypatch):
    monkeypatch.setattr(docs, "_render", lambda block, record: "BODY")
    block = "<!-- record: table1 show=tables -->\n<!-- end -->\n"
    result = docs.render(f"# One\n\n{block}\nWords.\n\n{block}\n## Two\n\n{block}")
    first, second = result.split("## Two")
    assert result.count("BODY") == 3 and docs.render(result) == result
    assert [part.count("reproduce table1") for part in (first.split("Words.")[0], first, second)] == [0, 1, 1]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_section_names_all_its_records_in_one_line(committed, tmp_path, monkeypatch, is_known):
    monkeypatch.setattr(docs, "_render", lambda block, record: "BODY")
    other = {**RECORD["provenance"], "wall_time_s": 30.0, "code": "fedcba9876543210", "corpora": {}}
    # Workers that need more than what starts them.
    other["children_peak_memory_bytes"] = 2 * other["peak_memory_bytes"] if is_known else None
    (tmp_path / "laptop" / "table2.json").write_text(
        json.dumps({**RECORD, "experiment": "table2", "provenance": other})
    )
    block = "<!-- record: {} show=tables -->\n<!-- end -->\n"
    # A comment in a command is no heading; figure2 has no record.
    between = "\n```\n# a comment\n```\n\n"
    text = f"# One\n\n{block.format('table1')}{between}{block.format('table2')}\n{block.format('figure2')}"
    result = docs.render(text)
    assert docs.render(result) == result
    lines = [line for line in result.splitlines() if line.startswith("`bornbiased")]
    assert lines == [
        "`bornbiased reproduce table1 --scale laptop`: 1 min 02 s; 3.28 GB at most; code 01234567; "
        "`builtin:prose` fedcba98. `bornbiased reproduce table2 --scale laptop`: 30 s; 3.28 GB at most in the "
        "main process; code fedcba98. "
        "Both: 2 cores of A Processor; jax 0.10.2; revision abcdef0123."
    ]
    assert "Not measured yet: `bornbiased reproduce figure2 --scale laptop`." in result


def test_every_section_of_the_documents_has_one_line_on_its_records():
    for path in docs.documents():
        text = path.read_text()
        lines: dict[int, int] = {}
        for match in docs._BLOCK.finditer(text):
            if docs.parse(match["options"]).show:
                section = docs._section(text, match.start())
                message = re.findall(r"^`(?:bornbiased|python -m) ", match["content"], re.MULTILINE)
                lines[section] = lines.get(section, 0) + len(message)
        assert set(lines.values()) <= {1}, path.name


def test_what_is_drawn_from_untrained_models_of_another_takes_what_they_took(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "_render", lambda block, record: "BODY")
    initializations = [
        {"wall_s": 3600.0, "peak_memory_bytes": 5_000_000_000},
        {"wall_s": 120.0, "peak_memory_bytes": 10},
    ]
    (tmp_path / "laptop" / "table1.json").write_text(json.dumps({**RECORD, "result": {"groups": initializations}}))
    result = docs.content(docs.parse("table1 show=tables"))
    assert "1 h 02 min" in result and "5.00 GB" in result


def test_a_missing_record_names_its_command(committed):
    result = docs.render("<!-- record: table2 show=tables --><!-- end -->")
    assert "Not measured yet: `bornbiased reproduce table2 --scale laptop`." in result
    assert "`python -m benchmarks products --json" in docs.content(docs.parse("benchmark/products show=tables"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("table1", "give show=… or value=…"),
        ("table1 show=tables value=x", "give show=… or value=…"),
        ("table1 show=pictures", "choose headline, claims, tables$"),
        ("table1 show=tables color=red", "is not understood"),
        ("tabel1 show=tables", "names no experiment"),
        ("benchmark/nothing show=tables", "names no experiment"),
        ("table1 value=result.rows.1.share", "has no result.rows.1.share"),
        ("table1 value=result.rows.0.share format=prose:2", "no format 'prose'"),
        ("table1 value=result.rows.0.share format=percent", "no format 'percent': choose one of .*percent:DIGITS"),
        ("table1 value=result.rows.0 format=percent:2", "result.rows.0 in the record of table1 is no number"),
        ("table1 value=data format=integer", "data in the record of table1 is no number: None"),
    ],
)
def test_a_block_that_means_nothing_is_refused(committed, options, words):
    with pytest.raises(InputError, match=words):
        docs.render(f"<!-- record: {options} --><!-- end -->")


def test_tables_and_claims_in_markdown():
    fraction = Quantity("share", percent(1))
    paper = Row(["a|b", 64], {"share": 0.02}, {"share": 0.026})
    table = Table(
        "Shares", ["model", "T"], [fraction], [paper, Row(["c", 8], {"share": (0.02, 0.001)})], note="A note."
    )
    assert docs.table_text(table).splitlines() == [
        "**Shares**",
        "",
        "| model | T | share, paper | share, measured |",
        "| --- | --- | --- | --- |",
        "| a\\|b | 64 | 2.6% | 2.0% |",
        "| c | 8 |  | 2.0% ± 0.1% |",
        "",
        "A note.",
    ]
    plain = docs.table_text(Table("Shares", ["model"], [fraction], [Row(["c"], {"share": 0.02})]))
    assert "| model | share |" in plain
    claims = [Claim("it is", 0.02, theory=0.01, format=percent(0)), Claim("it is not", "never")]
    assert docs.claims_text(claims).splitlines()[2:] == ["| it is | 2% | 1% |", "| it is not | never |  |"]


def test_records_of_benchmarks_are_shown():
    for path in sorted(docs.BENCHMARKS.glob("*.json")):
        block = docs.parse(f"benchmark/{path.stem} show=tables")
        result = docs.content(block)
        assert result.count("|") > 10 and f"`{block.command}`" in result


def test_check_tells_a_number_that_was_edited(committed, tmp_path, monkeypatch, capsys):
    path = tmp_path / "README.md"
    path.write_text("<!-- record: table1 value=result.rows.0.share format=percent:2 -->9.99%<!-- end -->")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "documents", lambda root=tmp_path: [path])
    monkeypatch.setattr(front_figure, "svg", lambda: "<svg/>")
    monkeypatch.setattr(front_figure, "PATH", "front.svg")
    (tmp_path / "front.svg").write_text("<svg/>")
    assert docs.main(["--check"]) == 1 and "README.md differs" in capsys.readouterr().out
    assert "9.99%" in path.read_text()
    assert docs.main([]) == 0 and "2.05%" in path.read_text()
    assert docs.main(["--check"]) == 0 and docs.main(["--other"]) == 2


def test_no_table_of_the_documents_is_wider_than_seven_columns_and_no_p_has_needless_digits():
    """A p below 10⁻³⁰⁰ is written as such; the errata state powers that the paper prints."""
    rule = re.compile(r"^\|(?: ?:?-+:? ?\|)+$", re.MULTILINE)
    small = re.compile(r"10⁻(?:[⁰¹²³⁴⁵⁶⁷⁸⁹]{4,}|[³⁴⁵⁶⁷⁸⁹](?!⁰⁰)[⁰¹²³⁴⁵⁶⁷⁸⁹]{2})")
    for path in [*docs.documents(), docs.ROOT / "theory" / "ERRATA.md"]:
        text = path.read_text()
        assert max((row[0].count("|") - 1 for row in rule.finditer(text)), default=0) <= MOST_COLUMNS, path.name
        assert not small.findall(text), path.name


# (title of a table, head of a column) -> why its numbers have more digits than three.
FINER = {
    ("Pre-activations with and without LayerNorm", "odd share"): "99.98% is not all: the rest is what contracts",
    ("Findings of single runs, with seeds", "verdict"): "ratios near one, whose intervals exclude one by 0.002",
}
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\d.]*\d)")
_CODE_OR_PAPER = re.compile(r"`[^`]*`|\b\d{4}\.\d{5}\b")


def _cells(text: str) -> Iterator[tuple[str, str, str]]:
    """List the title of the table, the head of the column and the text of every cell below a head."""
    title, heads = "", None
    for line in text.splitlines():
        if line.startswith("**"):
            title = line.split("**")[1]
        if not line.startswith("|"):
            heads = None
            continue
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if heads is None:
            heads = row
        elif set("".join(row)) - set("-: "):
            yield from ((title, head, cell) for head, cell in zip(heads, row, strict=True))


def _digits(number: str) -> int:
    """Count the significant digits of a number with a point."""
    return len(number.replace(",", "").replace(".", "").lstrip("0"))


def _too_fine(text: str) -> list[tuple[str, str, str]]:
    """List the cells that hold a number with a point and more than three significant digits, exceptions left out.

    Of an exception the digits of the distance from one count, of percentages that from a hundred.
    """
    cells = []
    for title, head, cell in _cells(text):
        finer = any(title == table and head.startswith(column) for table, column in FINER)
        first = 100.0 if "%" in cell else 1.0
        for number in _NUMBER.findall(_CODE_OR_PAPER.sub("", cell)):
            decimals = len(number.split(".")[1])
            counted = f"{abs(float(number.replace(',', '')) - first):.{decimals}f}" if finer else number
            if _digits(counted) > MOST_DIGITS:
                cells.append((title, head, cell))
    return cells


def test_no_cell_of_a_table_has_more_than_three_significant_digits():
    """Whole numbers are as long as they are; what a table needs beyond three digits is an exception with its reason."""
    for path in docs.documents():
        assert not _too_fine(path.read_text()), path.name


def test_every_exception_from_three_digits_is_needed():
    cells = [cell for path in docs.documents() for cell in _cells(path.read_text())]
    for table, column in FINER:
        numbers = [
            number
            for title, head, cell in cells
            if title == table and head.startswith(column)
            for number in _NUMBER.findall(cell)
        ]
        assert max(map(_digits, numbers)) > MOST_DIGITS, (table, column)


@pytest.mark.parametrize(
    ("title", "head", "cell", "is_refused"),
    [
        ("Any", "z", "201.1", True),
        ("Any", "log10 p", "−33,858.1", True),
        ("Any", "log10 p", "−33,858", False),
        ("Any", "loss", "3.462 ± 0.019", True),
        ("Any", "loss", "0.0346 ± 0.0019", False),
        ("Any", "reference", "2505.06708, `10000.0`, jax 0.10.23", False),
        ("Any", "odd share", "99.98%", True),
        ("Pre-activations with and without LayerNorm", "odd share, measured", "99.98%", False),
        ("Pre-activations with and without LayerNorm", "odd share, measured", "72.43%", True),
    ],
)
def test_a_cell_with_four_digits_is_found(title, head, cell, is_refused):
    text = f"**{title}**; T: 64\n\n| what | {head} |\n| --- | --- |\n| a | {cell} |\n"
    assert bool(_too_fine(text)) == is_refused


def test_no_p_of_a_record_is_zero_or_a_number_of_a_program():
    """A p of zero is one below the least float, and powers of ten are written as such."""
    for path in docs.documents():
        for match in docs._BLOCK.finditer(path.read_text()):
            for _, head, cell in _cells(match["content"]):
                assert not re.search(r"\de[-−+]\d", cell), (path.name, cell)
                if re.search(r"\bp\b", head) and not re.search(r"[<≤>≥]|log", head):
                    assert cell != "0", (path.name, head)


def test_the_figure_of_the_readme_is_drawn_from_its_records():
    assert (docs.ROOT / front_figure.PATH).read_text() == front_figure.svg(), "python -m experiments.docs"
    assert f'src="{front_figure.PATH.as_posix()}"' in (docs.ROOT / "README.md").read_text()


def test_a_wide_table_is_split_and_names_constant_settings_once():
    quantities = [Quantity(name) for name in "abcdef"]
    rows = [Row(["gpt2", 64, seed], dict.fromkeys("abcdef", 0.5)) for seed in (0, 1)]
    lines = docs.table_text(Table("Many", ["model", "T", "seed"], quantities, rows)).splitlines()
    assert lines[0] == "**Many**; model: gpt2; T: 64" and lines[2] == "| seed | a | b | c | d | e | f |"
    rows = [Row(["gpt2", 64 * seed, seed], dict.fromkeys("abcdef", 0.5)) for seed in (1, 2)]
    lines = docs.table_text(Table("Many", ["model", "T", "seed"], quantities, rows)).splitlines()
    heads = [line for line in lines if line.startswith("| T")]
    assert heads == ["| T | seed | a | b | c | d | e |", "| T | seed | f |"]

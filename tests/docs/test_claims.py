"""The table of claims is complete and has a size in every row."""

import re
import subprocess
from pathlib import Path

import pytest

from bornbiased_jax.experiments import docs

ROOT = Path(__file__).resolve().parent.parent.parent
STATES = {"reproduced", "reproduced at a smaller size", "corrected", "not reproduced", "not attempted"}
FINDINGS = ("1", "1 (Extended)", "1.1", "1.2", "1.3", "2", "2.1", "2.2", "3.1", "3.2", "3.2a", "4", "4.1", "5", "6")


def _rows() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "results" / "claims.md").read_text()
    table = text[text.index("| of the paper |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    assert cells[0] == ["of the paper", "claim", "state", "model", "N · T · tokens · seeds", "what came out"]
    return {row[0]: row for row in cells[2:]}


def test_every_figure_table_finding_and_proposition_has_a_row_with_state_and_size():
    rows = _rows()
    asked = [f"Figure {number}" for number in range(1, 15)]
    asked += [f"Table {number}" for number in range(1, 15) if number != 4] + ["Table 4a", "Table 4b", "Table 4c"]
    asked += [f"Finding {number}" for number in FINDINGS]
    asked += ["Finding 7 (Section 5)", "Finding 7 (Section 6.2.1)", "Algorithm 1 (Section 6.1)"]
    asked += [f"Proposition {number}" for number in (2, 4, 5)]
    assert sorted(rows) == sorted(asked)
    for name, (_, _, state, model, sizes, outcome) in rows.items():
        assert state in STATES and outcome, name
        # Architectures have no inputs; what was not attempted has its reason and cost.
        if state != "not attempted" and name != "Table 13":
            assert model and len(sizes.split(" · ")) == 4 and "–" not in sizes, (
                f"{name}: model, N, T, tokens or seeds are missing"
            )


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_pages_name_records_whose_commit_is_not_in_the_history():
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is absent")
    for page in docs.documents():
        text = page.read_text()
        provenances = [
            record["provenance"] for block in docs.blocks(text) for record in docs.records_of(block).values()
        ]
        commits = {provenance["git"]["revision"] for provenance in provenances}
        absent = {commit for commit in commits if _git("merge-base", "--is-ancestor", commit, "HEAD").returncode}
        assert bool(absent) == bool(re.search(r"no longer in\s+th(?:is|e)\s+repository's\s+history", text)), page.name

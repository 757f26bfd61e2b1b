"""What Provenance Kit and weightscope say of pairs of directories, computed in the environment that they lie in.

    peers/bin/python benchmarks/peer_scores.py PAIRS.json SCORES.json

The first file lists pairs of Hugging Face directories. Provenance Kit reads a model once, not once a pair. This file
imports nothing of this package, which is not installed there.
"""

from __future__ import annotations

import functools
import json
import sys
from importlib import metadata
from pathlib import Path

from provenancekit.core.scanner import ModelProvenanceScanner
from provenancekit.core.scoring import interpret_score
from provenancekit.services.cache import NullCache
from weightscope.diff import diff_models
from weightscope.lineage import LineageCandidate


def main(pairs: Path, target: Path) -> None:
    """Write the tools' versions, and for every pair by name of the score a number or null and the tool's decision."""
    scanner = ModelProvenanceScanner(cache=NullCache())
    scanner._extract_model = functools.cache(scanner._extract_model)
    rows = []
    for base, suspect in json.loads(pairs.read_text()):
        kit = scanner.compare(base, suspect).scores
        difference = diff_models(base, suspect)
        rows.append(
            {
                "Provenance Kit": {"score": kit.pipeline_score, "decision": kit.provenance_decision},
                "Provenance Kit, weights alone": {
                    "score": kit.identity_score,
                    "decision": interpret_score(kit.identity_score).label,
                },
                "weightscope (unchanged entries)": {
                    "score": difference.overall_sparsity if difference.total_params else None,
                    "decision": LineageCandidate.from_diff(base, difference).verdict,
                },
            }
        )
    versions = {name: metadata.version(name) for name in ("cisco-ai-provenance-kit", "weightscope")}
    target.write_text(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

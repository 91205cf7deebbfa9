# make demo: install, train, compare, report.   make test: install what tests need, run all checks.   make bench: measure.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

.PHONY: demo test check bench clean

demo: $(VENV)/.installed
	$(BIN)/siafu train community:nodes=20000 --model gcn --baseline
	$(BIN)/siafu report "$$(ls -td runs/community-gcn-full-* | head -1)" --out report.html

test: check
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

check: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.tested
	$(BIN)/python benchmarks/run.py

# torch comes first, by the pinned version: a range would pull gigabytes of GPU libraries.
$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch numpy
	touch $@

$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.torch $(SOURCES)
	$(PIP) install -c constraints.txt -e ".[test]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

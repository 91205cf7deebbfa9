# make demo: install, train, compare, report.   make test: install what tests need, run all checks.   make bench: measure.
# make sanitize: kernel tests and random calls of the core, built with sanitizers (FUZZ_SECONDS=60, FUZZ_SEED=0).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

.PHONY: demo test check bench sanitize clean

demo: $(VENV)/.installed
	$(BIN)/siafu train community:nodes=20000 --model gcn --baseline
	$(BIN)/siafu report "$$(ls -td runs/community-gcn-full-* | head -1)" --out report.html

test: check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

check: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.tested
	$(BIN)/python benchmarks/run.py

# Leaks are not looked for: Python and torch keep memory until the process ends. Threads wait without spinning. test_memory.py measures
# what the process takes, which the sanitizer's own allocator changes.
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
SANITIZED := LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:abort_on_error=0:exitcode=99 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 $(BIN)/python tests/native/sanitized.py build/sanitize/_core.so
sanitize: $(VENV)/.tested
	$(PIP) wheel --no-deps -w build/sanitize/wheel -C build-dir=build/sanitize/cmake -C cmake.define.SIAFU_SANITIZE=ON .
	cp build/sanitize/cmake/_core.*.so build/sanitize/_core.so
	$(SANITIZED) pytest -p no:cacheprovider tests/native --ignore tests/native/test_memory.py
	$(SANITIZED) tests/native/fuzz.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

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

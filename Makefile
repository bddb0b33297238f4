# `make grade` and `make test` set everything up by themselves: a .venv, built with uv, which pip installs into it.
# Needs Python >= 3.11, make and git. Another interpreter: `make PYTHON=python3.12 …`. It installs the versions that were
# tested (constraints.txt); the newest there are: `make NEWEST=1 …`.

PYTHON ?= python3
SUBMISSION ?= labs
LAB ?=
DEVICE ?= auto
REPORT ?= grade-report
SEED ?=
HINTS ?=
ARGS ?=
MINUTES ?= 12
OUT ?=
FROM ?=
QUEUE ?=
# Side by side; most tests wait for processes of theirs now and then, so three more than there are cores.
TEST_JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 3)

BIN := .venv/bin
NEWEST ?=
READY := .venv/.ready$(if $(NEWEST),-newest)
TESTS_READY := .venv/.tests-ready$(if $(NEWEST),-newest)
INSTALL = NEWEST=$(NEWEST) sh install.sh $(BIN)/uv $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help doctor next grade watch test test-all lint generated notebooks docs pictures acceptance bench rehearse on-a-gpu gpu-results foreign pytorch-cases matrix mutants pythons constraints wheels release clean lint-types lint-style lint-imports lint-generated test-bytecode

help: ## show what can be made
	@echo "make grade [SUBMISSION=labs] [LAB=1,3|container|kernels|sharding] [DEVICE=auto|cuda|vgpu|vgpu:MODEL] [SEED=n] [REPORT=grade-report]"
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-11s %s\n", $$1, $$2 }'

$(READY): pyproject.toml constraints.txt install.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpu-computing-labs needs Python 3.11 or newer; name one with PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "installing the course into .venv (PyTorch is large; once only) ..."
	@$(INSTALL) dev
	@rm -f .venv/.ready* .venv/.tests-ready*
	@touch $@

# Needs nothing installed: it says what to install.
doctor: ## what is here, what is wrong, and the command that fixes it
	@$$(test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON)) -m grader.doctor

next: $(READY) ## which task to do next, and why (HINTS=1 to 3, LAB=1|container|kernels|sharding)
	@$(BIN)/gpulabs next "$(SUBMISSION)" --report "$(REPORT)" $(if $(LAB),--lab "$(LAB)") $(if $(HINTS),--hints "$(HINTS)")

# Missing points are no error of make's; the exit code of `gpulabs grade` shows them.
grade: $(READY) ## grade a folder (default: labs)
	@$(BIN)/gpulabs grade "$(SUBMISSION)" --device "$(DEVICE)" --report "$(REPORT)" $(if $(LAB),--lab "$(LAB)") $(if $(SEED),--seed "$(SEED)") || case $$? in 1|3) ;; *) exit 2;; esac

watch: $(READY) ## grade again whenever a file is saved: what that can have changed, in a second
	@$(BIN)/gpulabs watch "$(SUBMISSION)" --device "$(DEVICE)" $(if $(LAB),--lab "$(LAB)") $(if $(SEED),--seed "$(SEED)")

# Only for testing deploy/, the notebooks and the site: without it those tests are skipped.
$(TESTS_READY): $(READY)
	@$(INSTALL) dev,deploy,docs,notebooks,browser-tests && touch $@ || \
		echo "note: what tests/deploy, tests/docs and tests/notebooks need cannot be installed: those tests are skipped" >&2
	@$(INSTALL) ray || echo "note: Ray cannot be installed: its test is skipped" >&2

# The same in every run: everything that is not marked `night`, with one seed. Replies of the sandbox to scenarios are kept
# in build/replies, so that what no change can have touched is not run again.
# Bytecode is written even where PYTHONDONTWRITEBYTECODE is set: hundreds of processes would compile the same again.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(READY) $(TESTS_READY) ## run the project's own tests, in about ten minutes on two cores
	@$(MAKE) --no-print-directory --jobs 2 lint-types lint-style lint-imports lint-generated test-bytecode
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -rs --tb=short --durations=30

# For a night, or a release: hours. Another seed, which is printed, and no reply kept. Hidden: the tests pass on a machine
# that has only Python, make and git, and skip the rest.
test-all: $(READY) $(TESTS_READY) lint ## those marked `night` as well, with a new seed; all Pythons; once more with the machine's programs hidden
	@rm -rf build/replies-all
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -rs --seed random --night --replies build/replies-all
	@$(BIN)/python -m tests.bare -m pytest -n $(TEST_JOBS) --dist worksteal --night --ignore=tests/scenarios -rs
	@$(PYTHON) .ci/pythons.py --all
	@$(PYTHON) .ci/pythons.py --all --tested

pythons: ## grade the reference and the stubs on the oldest and the newest Python here (ARGS="--all --tested")
	@$(PYTHON) .ci/pythons.py $(ARGS)

constraints: $(READY) ## constraints.txt again: the newest of everything, once the tests have passed with it
	@.ci/constraints

wheels: $(READY) ## three distributions, into dist/: vgpu, gradebox, and this course
	@rm -rf dist
	@for name in vgpu gradebox gpu-computing-labs; do \
		$(BIN)/uv build --quiet --wheel --build-constraints constraints.txt --out-dir dist packaging/$$name || exit 1; done
	@ls dist/*.whl

release: $(READY) ## a version of this project: changelog, wheels, site, commit and tag; pushes nothing (VERSION=1.0.0)
	@test -n "$(VERSION)" || { echo "say which version: make release VERSION=1.0.0" >&2; exit 2; }
	@$(BIN)/python packaging/release.py "$(VERSION)"

lint: $(READY) ## ruff, mypy, imports, and what `make generated` writes
	@$(MAKE) --no-print-directory --jobs 2 lint-types lint-style lint-imports lint-generated

lint-types: ; @$(BIN)/mypy

lint-style: ; @$(BIN)/ruff check . && $(BIN)/ruff format --check .

lint-imports: ; @said=$$($(BIN)/lint-imports) || { echo "$$said"; exit 1; }

lint-generated: ; @$(BIN)/python -m grader.generated --check

# In a fresh clone each worker of the tests would rewrite the same 600 files for pytest's assertions.
test-bytecode: ; @test -d tests/vgpu/__pycache__ || $(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true

matrix: $(READY) ## what every planted bug costs in every criterion (LAB=2; OWN=1: its own lab only; NEW=1: bugs that the table lacks; WHOLE=1: nothing reused, hours)
	@$(BIN)/python -m tests.scenarios.matrix $(if $(LAB),--labs "$(LAB)") $(if $(OWN),--own-lab) $(if $(NEW),--new) $(if $(WHOLE),--whole)

mutants: $(READY) ## the reference changed once, in every way there is, and graded (LAB=2)
	@$(BIN)/python -m tests.mutants $(if $(LAB),--lab "lab$(LAB)") $(ARGS)

generated: $(READY) ## write what follows from other files: labs/, tables in pages, requirements, schemas, drawings
	@$(BIN)/python -m grader.generated

notebooks: $(READY) ## notebooks/*.ipynb, from notebooks/src
	@$(INSTALL) dev,notebooks
	@$(BIN)/python -m notebooks.build

docs: $(READY) ## the site, into build/docs; GPULABS_REPOSITORY_URL says where links into the repository lead
	@$(INSTALL) dev,docs,notebooks
	@$(BIN)/python -m notebooks.build --pages build/notebooks
	@$(BIN)/python -m grader.generated
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

pictures: $(READY) ## renew the pictures of the pages, by real runs (NAME=grade)
	@$(INSTALL) dev,grading-ui,browser-tests
	@$(BIN)/python docs/images/renew.py $(NAME)

acceptance: $(READY) ## is this machine fit for distributed training? (DEVICE=auto|cpu|cuda|vgpu|vgpu:MODEL; ARGS="--epochs 2")
	@$(BIN)/python -m cluster.acceptance --device "$(DEVICE)" $(ARGS)

bench: $(READY) ## measure; writes JSON under benchmarks/results/
	@$(INSTALL) dev,benchmarks
	@$(BIN)/python -m benchmarks

rehearse: $(READY) ## grade the reference as on a real GPU, on a virtual one that passes for it (ARGS="--lab 1"; QUEUE=1: the jobs of on-a-gpu)
	@$(if $(QUEUE),$(BIN)/python -m benchmarks.on_a_gpu.rehearsal build/rehearsal --minutes "$(MINUTES)" $(ARGS),$(BIN)/python -m grader.rehearsal $(ARGS))

on-a-gpu: $(READY) ## what only a real GPU can show, in MINUTES=12; OUT=DIR writes the results there as well
	@$(BIN)/python -m benchmarks.on_a_gpu --minutes "$(MINUTES)" $(if $(OUT),--out "$(OUT)") $(ARGS)

gpu-results: $(READY) ## take over what on-a-gpu wrote on another machine (FROM=DIR), and write the table of docs/on-a-gpu.md
	@test -n "$(FROM)" || { echo "say where the results are: make gpu-results FROM=DIR" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.on_a_gpu --take "$(FROM)"

foreign: $(READY) ## programs of public repositories on the virtual GPU, from the mirror that FOREIGN_MIRROR names
	@$(BIN)/python -m tests.foreign.harness $(ARGS)

pytorch-cases: $(READY) ## PyTorch's own databases of test cases on the virtual GPU (ARGS="'nn.functional.*' --samples 10")
	@$(BIN)/python -m tests.foreign.pytorch.run $(ARGS)

clean: ## remove the environment and caches, never your work
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build/replies build/replies-all
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

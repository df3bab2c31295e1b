# Everything runs in .venv; the first target that needs it creates it. `make help` lists the targets.

VENV      := .venv
BIN       := $(VENV)/bin
PROGRAM   := $(VENV)/.program
INSTALLED := $(VENV)/.installed
RELEASE   := $(VENV)/release
PIP       := $(BIN)/python -m pip -qq --disable-pip-version-check
ARGS      ?=
FLOOR     ?= 95

export PYTHON
# A container may set this variable; it would make each of the thousands of test processes compile crmctl anew.
unexport PYTHONDONTWRITEBYTECODE
# Most modules of the packages are never imported; Python compiles the others when it first imports them.
export PIP_COMPILE := 0

.PHONY: help install demo test campaigns coverage lint types contracts check generated requirements bench screenshots dist lint-release release sbom site clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: $(PROGRAM) ## Watch crmctl work on a throw-away service
	@$(BIN)/crmctl demo $(ARGS)

test: install ## Run the tests except campaigns (ARGS='tests/cli -k help' runs some of them)
	$(BIN)/python -m pytest -m "not campaign" --numprocesses=auto --dist=worksteal $(ARGS)

campaigns: install ## Run the tests that `make test` leaves out: random plays, kills, large files, browser tours
	$(BIN)/python -m pytest -m campaign --numprocesses=auto --dist=worksteal $(ARGS)

coverage: install ## Run `make test` and print uncovered lines; fails below FLOOR percent
	$(BIN)/python -m coverage erase
	@# coverage itself imports what the tests of the start-up forbid; other tests run copies of the source, which are gone
	$(BIN)/python -m coverage run -m pytest -m "not campaign" --ignore=tests/rules/test_start_up.py --numprocesses=auto --dist=worksteal $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --ignore-errors --include='$(CURDIR)/src/crmctl/*' --fail-under=$(FLOOR)

lint: install ## Style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: install ## Static types
	$(BIN)/mypy

contracts: install ## Which package may import which
	$(BIN)/lint-imports

check: lint types contracts ## lint, types and contracts

generated: install ## Regenerate the completion table and docs/reference/
	$(BIN)/python completions/generate.py
	$(BIN)/python docs/generate_reference.py

requirements: $(RELEASE)/.installed ## Regenerate the pins in requirements/ (ARGS=--upgrade takes the newest versions)
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(BIN)/python requirements/compile.py $(ARGS)

bench: install ## Measure start-up and import throughput
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/import_throughput.py

screenshots: install ## Take 60 pictures of the console into build/screenshots: light and dark, wide and narrow
	$(BIN)/python benchmarks/console_pages.py --screenshots build/screenshots

install: $(INSTALLED) ## Create .venv with the pinned requirements of everything, and crmctl itself

# The requirements of crmctl and its service; tests and checks add the rest to the same .venv.
$(PROGRAM): requirements/program.txt pyproject.toml
	@python=$$(.ci/python) && echo "creating $(VENV) with $$($$python --version)" && $$python -m venv --clear $(VENV)
	@$(PIP) install --require-hashes --requirement requirements/program.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED): requirements/locked.txt $(PROGRAM)
	@$(PIP) install --require-hashes --requirement requirements/locked.txt
	@touch $@

# The tools of a release have their own environment: the tests must not depend on them.
$(RELEASE)/.installed: requirements/release.txt $(PROGRAM)
	@$(BIN)/python -m venv --clear --without-pip $(RELEASE)
	@$(PIP) --python $(RELEASE)/bin/python install --require-hashes --requirement requirements/release.txt
	@touch $@

dist: $(RELEASE)/.installed ## Build wheel and sdist into dist/, and try the wheel in empty environments
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	.ci/try-wheel dist/*.whl

site: $(RELEASE)/.installed ## Build the documentation site into build/site, with checked links
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(BIN)/python docs/generate_site.py

sbom: $(RELEASE)/.installed ## List every package of crmctl and its service in build/sbom.json
	mkdir -p build
	$(RELEASE)/bin/cyclonedx-py requirements requirements/program.txt --pyproject pyproject.toml --output-reproducible -o build/sbom.json

lint-release: $(RELEASE)/.installed ## Lint the Containerfile and the workflow of releases
	$(RELEASE)/bin/hadolint Containerfile
	$(RELEASE)/bin/zizmor --offline --persona pedantic --quiet .github

release: install ## Version, changelog, tag, wheel and sdist (VERSION=1.2.3); nothing leaves the machine
	$(BIN)/python .ci/release.py $(VERSION)

clean: ## Remove .venv, the caches and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*

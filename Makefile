# Two commands matter: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
PORT ?= 8000
WORKERS ?= 4
BROWSERS ?= 3
SLOW_WORKERS ?= 2
ARGS ?=
BIN := .venv/bin
MONEY_TESTS := tests/billing tests/copilot/agent/test_usage.py tests/races/test_payment_races.py tests/races/test_plan_races.py
# A wait that did not come true on a busy machine gets one more try, and the closing line counts it; a wrong answer gets none.
PATIENT := --reruns 1 --only-rerun "Timeout|did not come true|Locator expected"
LOCK := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11

export PORT
unexport PYTHONDONTWRITEBYTECODE  # compiled files halve every start

.DEFAULT_GOAL := help
.PHONY: help run test looks slow attack coverage check front docs secrets audit bench faults lock clean venv debian

help: ## show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

run: venv ## start everything on http://127.0.0.1:8000 (PORT=…)
	@exec $(BIN)/python -m config.dev.run

test: venv debian ## run the whole suite in parallel (ARGS="-k …", WORKERS=4, BROWSERS=3)
	@# The browser's driver keeps an event loop in its process, so its tests have processes of their own. Both parts are always run.
	@failed=0; \
	  $(BIN)/pytest -n $(WORKERS) $(PATIENT) -m "not slow and not browser" $(ARGS) || [ $$? = 5 ] || failed=1; \
	  $(BIN)/pytest -n $(BROWSERS) --dist worksteal $(PATIENT) -m "browser and not slow and not looks" $(ARGS) || [ $$? = 5 ] || failed=1; \
	  exit $$failed

looks: venv debian ## every page in every width and theme: axe, nothing sideways, pictures (ARGS="-k …")
	@$(BIN)/pytest tests/browser -n $(BROWSERS) --dist worksteal $(PATIENT) -m looks $(ARGS)

slow: venv ## what takes too long for every change: races, searches and loads in full number (ARGS="-k …")
	@$(BIN)/pytest -n $(SLOW_WORKERS) --timeout 3600 -m slow $(ARGS)

attack: venv debian ## everything hostile: sandbox escapes, hostile text, stuck sockets, slow bodies, overspending, rights (ARGS="-k …")
	@$(BIN)/pytest -n $(WORKERS) --timeout 600 $(PATIENT) -m "attack and not browser" $(ARGS)

coverage: venv ## how much of the money's modules their tests reach, lines and branches; fails where it is under 95 %
	@rm -rf test-artifacts/coverage && mkdir -p test-artifacts/coverage
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) -m "not slow and not browser" $(MONEY_TESTS)
	@$(BIN)/coverage combine --quiet
	@few=0; for part in ledger.py plans.py pricing.py "top_ups/*" "subscriptions/*" "usage/*"; do \
	  echo "billing/$$part"; $(BIN)/coverage report --include="billing/$$part" --fail-under=95 || few=1; done; exit $$few

check: venv ## format, lint, types, import contracts, scripts and styles, documentation, credentials in files, known vulnerabilities
	@$(BIN)/ruff format --check --quiet . || { echo "format: run .venv/bin/ruff format ."; exit 1; }
	@echo "format   ok"
	@$(BIN)/ruff check --quiet . && echo "lint     ok"
	@PILOTHOUSE_ENVIRONMENT=test $(BIN)/mypy --no-error-summary . && echo "types    ok"
	@told=$$($(BIN)/lint-imports --no-logo 2>&1) && echo "imports  ok" || { echo "$$told"; exit 1; }
	@$(MAKE) --no-print-directory front docs secrets audit

front: venv ## format, lint and types of scripts and styles (ARGS=--write formats them)
	@$(BIN)/python config/dev/front_end_check.py $(ARGS)

docs: venv ## build the documentation into var/docs; broken links fail
	@told=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) && echo "docs     ok" || { echo "$$told"; exit 1; }

secrets: venv ## credentials in tracked files
	@$(BIN)/python config/dev/security_audit.py secrets

audit: venv ## known vulnerabilities of the locked packages, by OSV; says so where it could not ask
	@$(BIN)/python config/dev/security_audit.py packages

bench: venv ## measure P1–P19 against a fake provider; prints one table
	@$(BIN)/python -m bench $(ARGS)

faults: venv ## kill workers, web, Redis and Postgres under load, then look for losses (ARGS="--minutes 10")
	@$(BIN)/python -m tests.faults $(ARGS)

lock: venv ## write requirements/*.txt from pyproject.toml
	@$(LOCK) pyproject.toml -o requirements/base.txt
	@$(LOCK) --extra dev --extra embedded --extra tracing pyproject.toml -o requirements/dev.txt
	@sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements/uv.txt | $(LOCK) --no-header --no-annotate - -o requirements/uv.txt

clean: ## remove the venv, caches and the data of `make run`
	@rm -rf .venv var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache test-artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@$(PYTHON) config/dev/venv.py

debian: # what tests drive and PyPI does not have: a browser, and the sandbox of the tools
	@missing=""; command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="chromium"; \
	  command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	  [ -z "$$missing" ] || { \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	      echo "Installing $$missing for the tests …"; \
	      { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 \
	        || echo "$$missing could not be installed; the tests that need it are skipped."; \
	    else \
	      echo "Missing, and its tests are skipped: sudo apt-get install $$missing"; \
	    fi; }

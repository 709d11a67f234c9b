# Two commands matter: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
PORT ?= 8000
WORKERS ?= 4
BROWSERS ?= 3
SLOW_WORKERS ?= 2
MINUTES ?= 2
ARGS ?=
BIN := .venv/bin
MONEY_TESTS := tests/billing tests/copilot/agent/test_usage.py tests/races/test_payment_races.py tests/races/test_plan_races.py
# Retry waits that timed out on a busy machine once; the summary counts them. Wrong results are not retried.
RETRY_TIMEOUTS := --reruns 1 --only-rerun "Timeout|did not come true|Locator expected"
LOCK := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11

export PORT
unexport PYTHONDONTWRITEBYTECODE  # compiled files halve start-up time

.DEFAULT_GOAL := help
.PHONY: help run test looks slow attack coverage check prose front docs secrets audit bench bench-large faults scale lock clean venv debian

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: venv ## start everything on http://127.0.0.1:8000 (PORT=…)
	@exec $(BIN)/python -m config.dev.run

test: venv debian ## run the whole suite in parallel (ARGS="-k …", WORKERS=4, BROWSERS=3)
	@# The browser driver keeps an event loop in its process, so browser tests run in separate processes. Both parts always run.
	@failed=0; \
	  $(BIN)/pytest -n $(WORKERS) $(RETRY_TIMEOUTS) -m "not slow and not browser" $(ARGS) || [ $$? = 5 ] || failed=1; \
	  $(BIN)/pytest -n $(BROWSERS) --dist worksteal $(RETRY_TIMEOUTS) -m "browser and not slow and not looks" $(ARGS) || [ $$? = 5 ] || failed=1; \
	  exit $$failed

looks: venv debian ## accessibility, overflow and screenshots of every page, width and theme (ARGS="-k …")
	@$(BIN)/pytest tests/browser -n $(BROWSERS) --dist worksteal $(RETRY_TIMEOUTS) -m looks $(ARGS)

slow: venv ## run the full number of races, searches and loads (ARGS="-k …")
	@$(BIN)/pytest -n $(SLOW_WORKERS) --timeout 3600 -m slow $(ARGS)

attack: venv debian ## run hostile input: sandbox escapes, stuck sockets, slow bodies, overspending, permissions (ARGS="-k …")
	@$(BIN)/pytest -n $(WORKERS) --timeout 600 $(RETRY_TIMEOUTS) -m "attack and not browser" $(ARGS)

coverage: venv ## line and branch coverage of billing; fails under 95 %
	@rm -rf test-artifacts/coverage && mkdir -p test-artifacts/coverage
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) -m "not slow and not browser" $(MONEY_TESTS)
	@$(BIN)/coverage combine --quiet
	@few=0; for part in ledger.py plans.py pricing.py "top_ups/*" "subscriptions/*" "usage/*"; do \
	  echo "billing/$$part"; $(BIN)/coverage report --include="billing/$$part" --fail-under=95 || few=1; done; exit $$few

check: venv ## format, lint, types, imports, prose, scripts and styles, documentation, secrets, vulnerable packages
	@$(BIN)/ruff format --check --quiet . || { echo "format: run .venv/bin/ruff format ."; exit 1; }
	@echo "format   ok"
	@$(BIN)/ruff check --quiet . && echo "lint     ok"
	@PILOTHOUSE_ENVIRONMENT=test $(BIN)/mypy --no-error-summary . && echo "types    ok"
	@output=$$($(BIN)/lint-imports --no-logo 2>&1) && echo "imports  ok" || { echo "$$output"; exit 1; }
	@$(MAKE) --no-print-directory prose front docs secrets audit

prose: venv ## look for words that docs/glossary.md advises against
	@$(BIN)/python config/dev/prose_check.py

front: venv ## format, lint and types of scripts and styles (ARGS=--write formats them)
	@$(BIN)/python config/dev/front_end_check.py $(ARGS)

docs: venv ## build the documentation into var/docs; broken links fail
	@output=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) && echo "docs     ok" || { echo "$$output"; exit 1; }

secrets: venv ## look for credentials in tracked files
	@$(BIN)/python config/dev/security_audit.py secrets

audit: venv ## look up known vulnerabilities of locked packages in OSV
	@$(BIN)/python config/dev/security_audit.py packages

bench: venv ## measure performance against a fake provider and print a table
	@$(BIN)/python -m bench $(ARGS)

bench-large: venv ## measure before and after filling the database with 1,000,000 sessions (ARGS="--sessions 100000 --messages 3000000")
	@$(BIN)/python -m bench.large $(ARGS)

faults: venv ## kill workers, web, Redis and Postgres under load, then check for lost data (ARGS="--minutes 10")
	@$(BIN)/python -m tests.faults $(ARGS)

scale: venv debian ## faults on PgBouncer in transaction mode and on RabbitMQ (MINUTES=2)
	@command -v rabbitmq-server >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends rabbitmq-server; } >/dev/null 2>&1 || true
	@failed=0; for engine in pgbouncer rabbitmq; do \
	  $(BIN)/python -m tests.faults --minutes $(MINUTES) --engine $$engine || failed=1; done; exit $$failed

lock: venv ## write requirements/*.txt from pyproject.toml
	@$(LOCK) pyproject.toml -o requirements/base.txt
	@$(LOCK) --extra dev --extra embedded --extra tracing pyproject.toml -o requirements/dev.txt
	@sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements/uv.txt | $(LOCK) --no-header --no-annotate - -o requirements/uv.txt

clean: ## remove the venv, caches and the data of `make run`
	@rm -rf .venv var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache test-artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@$(PYTHON) config/dev/venv.py

debian: # install what tests need and PyPI does not have: a browser, bubblewrap and PgBouncer
	@missing=""; command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="chromium"; \
	  command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	  PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	  [ -z "$$missing" ] || { \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	      echo "Installing $$missing for the tests …"; \
	      { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 \
	        || echo "$$missing could not be installed; the tests that need it are skipped."; \
	    else \
	      echo "Missing, and its tests are skipped: sudo apt-get install $$missing"; \
	    fi; }

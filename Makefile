# Every target does its own set-up: a virtual environment in .venv, made again when pyproject.toml
# changes. `make` alone lists what there is.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: help run demo check test test-all lint format bench bench-page conformance storms localstack-start localstack-stop minio minio-start minio-stop clean
.PHONY: check-format check-code check-types check-layers bytecode

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# The broker alone needs a tenth of what development needs (Spark is large), so there are two stamps.
BROKER_INSTALLED := $(VENV)/.installed-broker
DEV_INSTALLED := $(VENV)/.installed-dev
LOCALSTACK_INSTALLED := .venv-localstack/.installed

DATA ?= build/run
LISTEN ?= 127.0.0.1:9092
STORE ?= directory
BENCH ?= all
PYTEST_ARGS ?=
WORKERS ?= $(if $(PYTEST_ARGS),0,4)
LIBRDKAFKA ?=
KAFKA_PYTHON ?=
SUITES ?=
ONLY ?=
SECURITY ?=
BROKER_WORKERS ?= 1
PATIENCE ?= 1
STORM_SECONDS ?= 120
PACKAGES := diskless tiering metadata wal demo $(if $(wildcard bench/__main__.py),bench)

# What tests/support/worker_groups.py puts together stays in one worker, the longest first. Bytecode
# is written even where Python is told to write none: collecting takes a third of the time with it,
# and the tests start hundreds of brokers.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# Compiles the test files beside the lint, which leaves a core to it: else every worker does, at once.
COMPILE := $(if $(PYTEST_ARGS),true,$(PYTEST) -n 0 --collect-only -qq > /dev/null 2>&1 || true)

help:
	@echo 'Diskless: Kafka-compatible logs whose only durable store is an S3-compatible bucket.'
	@echo
	@echo '  make demo             the whole story on real data: produce, crash, roll to Parquet, compare (2 min)'
	@echo '                        STORE=minio: on a bucket of MinIO, with two brokers, one of which dies (make minio first)'
	@echo '  make run              a broker in the foreground on $(LISTEN), data in $(DATA)'
	@echo '  make check            while you work: format, lint, types, layers, unit tests (2 min)'
	@echo '  make test             before you push: the same checks, every kind of test (12 min)'
	@echo '  make test-all         before a release: every combination, long random searches (hours)'
	@echo '                        PART=2/4: the second of four parts, by files'
	@echo '  make bench            measure; writes build/bench.json. BENCH=produce runs one group'
	@echo '                        BENCH=peers compares with Kafka (from Maven Central) and klite (with Go,'
	@echo '                        or KLITE=/path/of/its/binary), which no other group needs'
	@echo '                        BENCH=s3 measures on MinIO (make minio) made as slow as S3'
	@echo '  make bench-page       write the last figures into docs/performance.md, and draw them'
	@echo '  make conformance      clients'"'"' own test suites on a broker; writes docs/reports/conformance.md.'
	@echo '                        LIBRDKAFKA=… KAFKA_PYTHON=… are paths of their sources, which you bring;'
	@echo '                        SECURITY=sasl_ssl: over SASL_SSL, with an authorizer; BROKER_WORKERS=3: of several processes'
	@echo
	@echo '  make storms           50 consumers join and leave for STORM_SECONDS=$(STORM_SECONDS), eight times: with each'
	@echo '                        kind of group, the broker alive or killed every 15 s (20 min)'
	@echo
	@echo '  make lint             the checks of make check without the tests'
	@echo '  make format           format the code and apply the safe lint fixes'
	@echo '  make localstack-start a real S3 server on loopback, no container; localstack-stop ends it'
	@echo '  make minio            build MinIO, once for all checkouts (4 min; needs Go, or MINIO=/path of its binary):'
	@echo '                        its tests are skipped without. minio-start and minio-stop as above; it keeps its data'
	@echo '  make clean            remove .venv, .venv-localstack, caches and build/ (with its data)'
	@echo
	@echo 'Variables: DATA=$(DATA) LISTEN=$(LISTEN) BENCH=$(BENCH) PYTEST_ARGS="tests/wal -k chunk"'
	@echo '           WORKERS=4 (processes that share the tests; none where PYTEST_ARGS is given)'
	@echo '           PYTHON=/path/to/python (3.11 or newer; looked for on the PATH by default)'
	@echo 'Needed: Python >= 3.11; for demo, test and bench also Java >= 17 (Spark).'

run: $(BROKER_INSTALLED)
	@exec $(BIN)/diskless serve --data $(DATA) --listen $(LISTEN)

# What `pip install` does for the packages it copies, and nobody for those it links to: a quarter of
# the time of a broker's start where Python is told to write no bytecode.
bytecode: $(DEV_INSTALLED)
	@$(BIN)/python -m compileall -q $(PACKAGES)

demo: $(DEV_INSTALLED) bytecode
	@scripts/need-java
	@$(BIN)/python -m demo --store $(STORE)

# The tests run even when a check before them failed: one run tells all there is to mend. Without
# Java the tests that need Spark are skipped, and say so.
check: $(DEV_INSTALLED)
	@status=0; \
	{ $(COMPILE); } & \
	$(MAKE) lint || status=$$?; \
	wait; \
	echo '== unit tests'; \
	$(PYTEST) -m unit $(PYTEST_ARGS) || status=$$?; \
	exit $$status

test: $(DEV_INSTALLED) $(LOCALSTACK_INSTALLED)
	@status=0; \
	{ $(COMPILE); } & \
	$(MAKE) lint || status=$$?; \
	wait; \
	scripts/need-java || echo 'going on: the tests that need Spark will be skipped'; \
	echo '== tests'; \
	$(PYTEST) $(PYTEST_ARGS) || status=$$?; \
	exit $$status

test-all: export TEST_PROFILE := exhaustive
test-all: test

lint: $(DEV_INSTALLED)
	@$(MAKE) --keep-going check-format check-code check-types check-layers

check-format:
	@echo '== format'
	@$(BIN)/ruff format --check .

check-code:
	@echo '== code'
	@$(BIN)/ruff check .

check-types:
	@echo '== types'
	@$(BIN)/mypy $(addprefix -p ,$(PACKAGES) localstack tests.conformance)

check-layers:
	@echo '== layers'
	@$(BIN)/lint-imports

format: $(DEV_INSTALLED)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(DEV_INSTALLED) bytecode
	@scripts/need-java
	@$(BIN)/python -m bench $(BENCH)

bench-page: $(DEV_INSTALLED)
	@$(BIN)/python -m bench.page

# Theirs is not kept here: each suite comes from a checkout or an unpacked release of its project.
conformance: $(DEV_INSTALLED) bytecode
	@$(BIN)/python -m tests.conformance --librdkafka '$(LIBRDKAFKA)' --kafka-python '$(KAFKA_PYTHON)' \
		--suites '$(SUITES)' --only '$(ONLY)' --patience '$(PATIENCE)' --security '$(SECURITY)' \
		--workers '$(BROKER_WORKERS)'

storms: $(DEV_INSTALLED) bytecode
	@STORM_SECONDS=$(STORM_SECONDS) $(BIN)/pytest --capture=no tests/storms $(PYTEST_ARGS)

localstack-start:
	@localstack/start

localstack-stop:
	@localstack/stop

minio: $(BIN)/python
	@$(BIN)/python -m localstack.minio install

minio-start:
	@localstack/start-minio

minio-stop:
	@localstack/stop-minio

clean:
	rm -rf $(VENV) .venv-localstack build *.egg-info spark-warehouse
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python=$$(scripts/find-python); echo "== virtual environment in $(VENV) ($$("$$python" --version))"; \
	"$$python" -m venv $(VENV)

$(BROKER_INSTALLED): pyproject.toml | $(BIN)/python
	@echo '== installing the broker (about a minute on a first run)'
	@$(PIP) --editable .
	@touch $@

$(DEV_INSTALLED): pyproject.toml | $(BIN)/python
	@echo '== installing everything for development, Spark included (a few minutes on a first run)'
	@$(PIP) --editable '.[dev]'
	@touch $(BROKER_INSTALLED) $@

$(LOCALSTACK_INSTALLED): localstack/requirements.txt | $(BIN)/python
	@$(BIN)/python -m localstack.local_s3 install

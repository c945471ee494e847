# `make demo` and `make test` set up everything they need in .venv; nothing else of this machine is touched but
# Debian packages, which are installed where root or sudo allows and named otherwise.
VENV := .venv
BIN := $(VENV)/bin
SYSTEM_PACKAGES := prometheus prometheus-alertmanager mosquitto chromium victoria-metrics \
	openmpi-bin slurm-wlm munge g++

VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' lockstep/contracts/version.py)
CHART_VERSION := $(shell sed -n 's/^version: //p' helm/lockstep/Chart.yaml)
SETUPTOOLS := $(shell sed -n 's/^requires = \["\(setuptools==[^"]*\)"\].*/\1/p' pyproject.toml)
REGISTRY ?= localhost:5000/lockstep
IMAGES := agent exporter coordinator

.PHONY: demo test test-all check format generate bench bench-agent bench-detect bench-simulator accuracy accuracy-simulator clean
.PHONY: bench-trace bench-localisation bench-intracard bench-memory-growth

HOOKS := $(CURDIR)/build/native_hooks
HOOKS_SOURCES := lockstep/agent/hooks/_collectives.cpp lockstep/agent/_channel.h lockstep/agent/hooks/collectives.py

demo: $(VENV)/.demo build/native_hooks/.built
	LOCKSTEP_HOOKS_DIR=$(HOOKS) $(BIN)/lockstep demo

# The kernels in front of collectives, in C++ where there is a compiler: 20 s, once. Without one they run in Python.
build/native_hooks/.built: $(HOOKS_SOURCES) $(VENV)/.demo
	@mkdir -p $(@D)
	@if command -v $${CXX:-c++} >/dev/null; then $(BIN)/lockstep build-hooks --output $(HOOKS) || true; fi
	@touch $@

# Everything that needs no server and no rank, and one smoke test of each real thing.
test: system-packages $(VENV)/.dev
	$(BIN)/python -m tests.run quick

test-all: system-packages $(VENV)/.dev
	$(BIN)/python -m tests.run all

# How runs end, where they hang, captures and pages, with real ranks and servers, then the tables of endings and alerts: half
# an hour. The tests are part of `make test-all`. On VictoriaMetrics as well where its Debian package is installed.
.PHONY: test-live
test-live: system-packages $(VENV)/.dev
	$(BIN)/python -m tests.run live

# A real Prometheus scrapes pages of other exporters' metric names with one planted cause each, on the suspect, on its
# peers or on all; then what a Prometheus may answer instead, and labels that lie. Lines of the NCCL Inspector, a job whose
# memory grows, pairs of runs with one regression and without, runs against earlier ones, 30 runs of a fleet, MLflow,
# TensorBoard and W&B offline, and one slowdown on every panel that shows it. Part of `make test-all`;
# `python -m benchmarks.page_pictures` takes screenshots.
# The limit of a test is for one that hangs: on a machine with twenty others at work, an import takes minutes.
.PHONY: test-evidence
PATIENTLY := --timeout=900
test-evidence: system-packages $(VENV)/.trackers
	$(BIN)/pytest $(PATIENTLY) tests/coordinator/evidence tests/coordinator/fleet \
	    tests/coordinator/record/test_run_comparison.py \
	    tests/coordinator/record/test_run_summary.py tests/coordinator/record/test_earlier_attempts.py \
	    tests/coordinator/record/test_earlier_runs.py tests/cli/test_report_and_compare_commands.py \
	    tests/exporter/inspector tests/exporter/neighbours tests/trackers tests/end_to_end/test_memory_growth.py
	$(BIN)/pytest $(PATIENTLY) tests/dashboards/test_live.py -k slowdown_reads_the_same

# Trains with DeepSpeed, megatron-core, torchtitan, Ray, Lightning, TRL and others over several ranks: five to fifteen
# minutes, and 1.5 GB of packages. It is no part of `make test-all`; docs/frameworks.md lists what ran.
.PHONY: test-frameworks
test-frameworks: system-packages $(VENV)/.frameworks
	$(BIN)/python -m tests.run frameworks

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m lockstep.cli.generate --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What is published, into dist/: wheels that install everywhere, and source distributions.
.PHONY: dist
dist: $(VENV)/.dev
	$(BIN)/python setup/distributions.py --pure --output dist

# Wheels with the agent's extension, in an image of manylinux (PYTHON=/opt/python/cp311-cp311/bin/python), which has auditwheel.
.PHONY: dist-platform
PYTHON ?= python3
dist-platform:
	$(PYTHON) -m pip install --quiet $(SETUPTOOLS)
	$(PYTHON) setup/distributions.py --output build/dist
	auditwheel repair --wheel-dir dist build/dist/*-linux_*.whl

# The tag, the package, the chart and the changelog name one version.
.PHONY: release-check registry-login
release-check:
	@[ "$(TAG)" = "v$(VERSION)" ] || { echo "tag: got '$(TAG)', expected v$(VERSION), of lockstep/contracts/version.py" >&2; exit 1; }
	@grep -q '^appVersion: "\?$(VERSION)"\?$$' helm/lockstep/Chart.yaml || { echo "helm/lockstep/Chart.yaml: expected appVersion $(VERSION)" >&2; exit 1; }
	@grep -q '^## $(VERSION) - 20' CHANGELOG.md || { echo "CHANGELOG.md: expected the section '## $(VERSION) - DATE'" >&2; exit 1; }

registry-login:
	@printf %s "$$REGISTRY_PASSWORD" | docker login $(firstword $(subst /, ,$(REGISTRY))) --username "$$REGISTRY_USER" --password-stdin
	@printf %s "$$REGISTRY_PASSWORD" | helm registry login $(firstword $(subst /, ,$(REGISTRY))) --username "$$REGISTRY_USER" --password-stdin

# Images and chart of this version, to REGISTRY, signed without a key by the identity that runs this (Sigstore).
.PHONY: images publish-images chart publish-chart publish-wheels
images:
	for image in $(IMAGES); do docker build -f docker/$$image.Dockerfile -t $(REGISTRY)/$$image:$(VERSION) . || exit 1; done

publish-images: images
	for image in $(IMAGES); do docker push $(REGISTRY)/$$image:$(VERSION) && cosign sign --yes \
	    "$$(docker inspect --format '{{index .RepoDigests 0}}' $(REGISTRY)/$$image:$(VERSION))" || exit 1; done

chart:
	helm package helm/lockstep --destination dist

publish-chart: chart
	helm push dist/lockstep-$(CHART_VERSION).tgz oci://$(REGISTRY)/charts
	cosign sign --yes $(REGISTRY)/charts/lockstep:$(CHART_VERSION)

# With the identity of the release's workflow (trusted publishing), or with the token in TWINE_PASSWORD.
publish-wheels: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet twine==7.0.0
	$(BIN)/python -m twine upload --non-interactive dist/*.whl dist/*.tar.gz

# The documentation's site, into build/site: fails on a broken link, a missing anchor, or a page that the menu lacks.
.PHONY: docs
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

generate: $(VENV)/.dev
	$(BIN)/python -m lockstep.cli.generate

bench: bench-agent bench-detect bench-trace bench-localisation
	$(BIN)/python -m benchmarks.exporter_cost
	$(BIN)/python -m benchmarks.page_latency
	$(BIN)/python -m benchmarks.broker_cost

# Eight minutes at most, on a busy machine as well; `python -m benchmarks.agent_cost --quick` takes one or two. Fails where a
# budget is missed.
bench-agent: system-packages $(VENV)/.dev
	$(BIN)/lockstep build-hooks --output $(HOOKS)
	$(BIN)/python -m benchmarks.loader_cost
	$(BIN)/python -m benchmarks.ring_cost --quick
	LOCKSTEP_HOOKS_DIR=$(HOOKS) $(BIN)/python -m benchmarks.agent_cost

# Two minutes. Fails where a budget is missed; on a shared machine read the column `x add`.
bench-detect: $(VENV)/.dev
	$(BIN)/python -m benchmarks.detect_cost
	$(BIN)/python -m benchmarks.announce_cost

# Compares with HolisticTraceAnalysis, installed into build/hta; with what loading, storing and localising cost. Three
# minutes; `python -m benchmarks.trace_bench --large` reads 1 GB too: up to ten minutes of CPU for the peer (`--peer-limit`),
# and 6 GB of memory.
bench-trace: $(VENV)/.dev
	$(BIN)/python -m benchmarks.trace_bench

# Two minutes, and 1.5 GB of memory: the pages of both services, then all panels over 10,240 ranks in a Prometheus.
.PHONY: bench-metrics
bench-metrics: system-packages $(VENV)/.dev
	$(BIN)/python -m benchmarks.metrics_cost

# Fails where findings on labelled traces are less than 0.9 right or found; docs/precision.md explains what that means.
.PHONY: precision
precision: $(VENV)/.dev
	$(BIN)/python -m benchmarks.precision

# Screenshots of the report at the widths of a desktop and a phone, in build/report; half a minute.
.PHONY: report-pictures
report-pictures: $(VENV)/.dev
	$(BIN)/python -m benchmarks.report_pictures

# The table of docs/detection.md: fails where a leak needs more than 200 steps, or a healthy job is named.
bench-memory-growth: $(VENV)/.dev
	$(BIN)/python -m benchmarks.memory_growth --check

# Fails where a budget is missed at a million workers.
bench-localisation: $(VENV)/.dev
	$(BIN)/python -m benchmarks.localisation_cost

# CSC, ring and gloo between processes of this node; five minutes where two cores are shared with others.
bench-intracard: $(VENV)/.dev
	$(BIN)/python -m benchmarks.intracard

# Broker, coordinators and exporters killed 100 times under an open incident: every record is evaluated once. Fifteen
# minutes; `python -m benchmarks.chaos --kills 10 --seed 3` for a look, the same seed for the same order of faults.
.PHONY: chaos
chaos: system-packages $(VENV)/.dev
	$(BIN)/python -m benchmarks.chaos

# 1,250 nodes of 8 ranks at one step a second for half an hour, then more nodes until the coordinator falls behind: 45
# minutes, and 4 GB of memory for 12,500 nodes. `python -m benchmarks.soak --minutes 10` leaves the larger ones out.
.PHONY: soak
soak: system-packages $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --ladder

# A million hostile inputs against the entry points of both services; fails on an unexpected exception, a hang or a
# growth of memory. Ten minutes on two cores; `python -m benchmarks.fuzz --help` for fewer, other areas, and one case again.
.PHONY: fuzz
fuzz: $(VENV)/.dev
	$(BIN)/python -m benchmarks.fuzz --cases 1000000 --seed $(shell date +%Y%m%d)

# What strangers, other nodes and other tenants try at the broker, and other users at a node: half a minute each, the
# second as root. Fails where an attempt succeeds or is not counted.
.PHONY: security
security: system-packages $(VENV)/.dev
	$(BIN)/python -m benchmarks.security.broker
	$(BIN)/python -m benchmarks.security.node_users

bench-simulator: $(VENV)/.dev
	$(BIN)/python -m benchmarks.simulator_cost

accuracy-simulator: $(VENV)/.dev
	$(BIN)/python -m benchmarks.simulator_untuned
	$(BIN)/python -m benchmarks.simulator_accuracy

# The tables of docs/accuracy.md with the acceptance, an hour or more: with `--ranks 8` only its section is replaced.
# `python -m benchmarks.holdout` for runs of another author.
accuracy: $(VENV)/.dev
	$(BIN)/python -m benchmarks.accuracy --processes 2 --check --write docs/accuracy.md

# False alarms over 500,000 healthy steps at 8 to 10,240 ranks: an hour or more of one core, and it goes on where it was
# stopped. Writes its figures into docs/accuracy.md.
.PHONY: marathon
marathon: $(VENV)/.dev
	$(BIN)/python -m benchmarks.marathon

# The README's pictures, from a real run of eight ranks: a quarter of an hour at steps of 84 ms.
.PHONY: preview
preview: system-packages $(VENV)/.dev build/native_hooks/.built
	LOCKSTEP_HOOKS_DIR=$(HOOKS) $(BIN)/python -m benchmarks.pictures

.PHONY: system-packages
system-packages:
	@sh setup/system_packages.sh $(SYSTEM_PACKAGES)

$(BIN)/python:
	@sh setup/virtual_environment.sh $(VENV)

# pip makes bytecode on one core, of the packages' own tests as well: that is half of an installation's time.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --editable
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true

EXTENSION_SOURCES := $(foreach folder,agent trace trace/kineto,$(wildcard lockstep/$(folder)/*.[ch]))

$(VENV)/.demo: pyproject.toml setup.py $(EXTENSION_SOURCES) | $(BIN)/python
	$(INSTALL) '.[demo]'
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml setup.py $(EXTENSION_SOURCES) | $(BIN)/python
	$(INSTALL) '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(INSTALL) '.[docs]'
	@$(COMPILE)
	@touch $@

$(VENV)/.trackers: pyproject.toml | $(BIN)/python
	$(INSTALL) '.[trackers]'
	@$(COMPILE)
	@touch $@ $(VENV)/.dev $(VENV)/.demo

$(VENV)/.frameworks: pyproject.toml | $(BIN)/python
	DS_BUILD_OPS=0 $(INSTALL) '.[frameworks]'
	@$(COMPILE)
	@touch $@ $(VENV)/.trackers $(VENV)/.dev $(VENV)/.demo

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

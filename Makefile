# The list of everything a maintainer runs. Every target sets up what it needs: python3.11 with venv and pip
# (and, for `peers` only, Go) is all a machine must have.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What Python compiled is kept whatever the environment says: the tests start hundreds of processes of gpuops.
export PYTHONDONTWRITEBYTECODE :=

# Processes that pytest runs tests in: four at most. Tests wait for processes and clocks, of which the long ones start
# the most: two workers more than there are cores keep these busy.
AND_TWO := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

# Each worker would rewrite the assertions of all test modules in a new clone. Two processes do so once, before the tests.
REWRITE := test -d tests/wire/__pycache__ || ls -d tests/*/ | xargs -n 16 -P 2 $(BIN)/python -m pytest -q --collect-only

.DEFAULT_GOAL := help
.PHONY: help setup hooks demo test lint format generate bench model bench-results pictures site peers collection collections long core soak soak-services fleet clusters job-nights site-worlds mutants results sbom release man lock clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with the locked packages and gpuops itself

$(STAMP): requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

hooks: setup  ## check the style and types of what a commit changes, before each commit of this clone
	install -m 755 .ci/pre-commit "$$(git rev-parse --git-path hooks)/pre-commit"

demo: setup  ## a GPU into a VM, a night and a morning, on a simulated vCenter
	@$(BIN)/gpuops demo

test: setup  ## the unit and wire tests, the same cases each time, by up to four workers (PART=K/N: some of them)
	-@$(REWRITE) >/dev/null
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -n $(or $(WORKERS),$(AND_TWO)) --maxprocesses 4 --dist worksteal --durations 10 \
	  --hypothesis-profile quick -m "not peer and not long" $(if $(PART),--part $(PART))

lint: setup  ## style, types and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck gpuops/guest_scripts/*.sh

format: setup  ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: setup  ## write the options and argument specs of Ansible's modules anew, from the fields of requests
	$(BIN)/python -m tests.ansible.generate

peers: setup  ## govc, pyVmomi, clients from PyPI and Ansible modules against our simulator, gpuops against vcsim (needs Go)
	$(MAKE) -C tests/peers --no-print-directory
	$(BIN)/python -m pytest -n $(or $(WORKERS),$(AND_TWO)) --maxprocesses 4 --dist worksteal --durations 10 -m peer tests/peers

collections: setup  ## gpuops's Ansible modules beside community.vmware: what works, seconds per VM (700 MB of packages)
	$(MAKE) -C tests/peers --no-print-directory ansible
	$(BIN)/python -m tests.peers.side_by_side

collection: setup  ## the tarball of the Ansible collection, with its playbooks, roles and templates, in dist/
	rm -rf dist/wheel && $(BIN)/python -m hatchling build -t wheel -d dist/wheel
	$(BIN)/python -m zipfile -e dist/wheel/*.whl dist/wheel
	$(BIN)/ansible-galaxy collection build dist/wheel/ansible_collections/gpuops/vsphere --output-path dist --force
	rm -rf dist/wheel

bench: setup  ## speed, memory and placement beside the peers (needs Go; OPENB=DIR: the GPU trace, BASELINES=DIR: known figures, GAVEL=DIR: pairs of jobs)
	$(MAKE) -C tests/peers --no-print-directory
	$(BIN)/python -m tests.bench

model: setup  ## the model that comes with gpuops, of made-up cases (a minute of CPU)
	$(BIN)/python -m tests.make_model

bench-results: setup  ## bench, and the figures into tests/bench/RESULTS.md (what lacks its input keeps its last figures)
	$(MAKE) -C tests/peers --no-print-directory
	$(BIN)/python -m tests.bench results

long: setup  ## the long suites, with drawn surroundings, cases and examples (ALL=1: all cases; SURROUNDINGS_SEED=N draws those of an earlier run)
	SURROUNDINGS_SEED=$${SURROUNDINGS_SEED:-$$(date +%s)} $(BIN)/python -m pytest -n $(or $(WORKERS),$(AND_TWO)) --maxprocesses 4 --dist worksteal --timeout 600 --durations 20 \
	  -m long $(if $(ALL),--all-cases)
	$(MAKE) --no-print-directory core

core: setup  ## the core's tests of `make test`, in a copy of the sources without gpuops/extras
	PYTHONHASHSEED=0 $(BIN)/python -m tests.without_extras -n $(or $(WORKERS),$(AND_TWO)) --maxprocesses 4 --dist worksteal \
	  --hypothesis-profile quick -m "not peer and not long"

soak: setup  ## a million simulated nights, 20,000 behind a gate, and what they come to (NIGHTS=N, GATED=N: fewer)
	$(BIN)/python -m tests.nights play --nights $(or $(NIGHTS),1000000) --jobs $$(nproc)
	$(BIN)/python -m tests.nights gates --nights $(or $(GATED),20000) --jobs $$(nproc)

soak-services: setup  ## the memory of all services for half an hour, while VMs come and go (MINUTES=N, needs PostgreSQL)
	$(BIN)/python -m tests.soak_services --minutes $(or $(MINUTES),30)

job-nights: setup  ## 2,000 simulated nights with jobs in containers, whose runs are killed (NIGHTS=N: fewer)
	$(BIN)/python -m tests.nights jobs --nights $(or $(NIGHTS),2000) --jobs $$(nproc)

fleet: setup  ## a night of 4 vCenters by three runners, of which one is killed, then 200 small ones (HOSTS=N, DESKTOPS=N of each, NIGHT_S=S, SEEDS=A:B)
	$(BIN)/python -m tests.fleet night --hosts $(or $(HOSTS),250) --desktops $(or $(DESKTOPS),2500) --night-s $(or $(NIGHT_S),1500)
	$(BIN)/python -m tests.fleet runs --seeds $(or $(SEEDS),0:200) --jobs $$(nproc)

site-worlds: setup  ## 1,000 random clusters and site files, and applies of 20 killed at each line of their journals (SEEDS=A:B)
	$(BIN)/python -m tests.declare worlds --seeds $(or $(SEEDS),0:1000) --jobs $$(nproc)
	$(BIN)/python -m tests.declare kills --seeds $(or $(SEEDS),0:20) --jobs $$(nproc)

clusters: setup  ## all clusters that are cut off or killed while they are made, used or removed (20 minutes of CPU)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --timeout 900 \
	  tests/wire/workloads/test_cluster_cut_off.py tests/wire/workloads/test_cluster_run_killed.py tests/kills/test_cluster_kills.py

mutants: setup  ## draw mutants of the engine, and see how many the nights alone kill (SECONDS=S of a core each: fewer)
	$(BIN)/python -m tests.mutants.drawn judge --seconds $(or $(SECONDS),120) --jobs $$(nproc)

results: setup  ## what the nights reach, and which mutants they kill, into tests/nights/RESULTS.md
	-$(BIN)/python -m tests.nights results --jobs $$(nproc)
	-$(BIN)/python -m tests.nights gates --nights $(or $(GATED),4000) --jobs $$(nproc) --keep
	$(MAKE) --no-print-directory mutants

sbom: setup  ## what an installation brings: a CycloneDX bill of materials and a list of licences, extras too, in dist/
	@mkdir -p dist
	$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/gpuops.cdx.json requirements.lock
	$(BIN)/python -m tests.rules.licences > dist/licences.txt

# What a release holds has the time of its commit: two machines build the same bytes.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: export LC_ALL = C.UTF-8
release: setup  ## wheel, sdist, collection, bill of materials and licences of a tag, with their hashes, in dist/ (uploads nothing)
	@test -z "$$(git status --porcelain)" || { echo "release: commit or stash what git status lists" >&2; exit 2; }
	@git describe --exact-match --tags >/dev/null || { echo "release: git tag vVERSION first" >&2; exit 2; }
	rm -rf dist
	$(MAKE) --no-print-directory -o setup collection sbom
	$(BIN)/python -m hatchling build -d dist
	set -e; cd dist; for archive in gpuops-vsphere-*.tar.gz; do mkdir parts; tar -xzf $$archive -C parts; \
	  tar -C parts --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner -cf - $$(ls -A parts) \
	  | gzip -n >$$archive; rm -r parts; done
	cd dist && sha256sum -- *.* >SHA256SUMS && cat SHA256SUMS

man: setup  ## man pages of every command and every page of the manual, in dist/man (man -M dist/man gpuops-attach)
	$(BIN)/python -m gpuops.cli.manpages dist/man

pictures: setup  ## the README's pictures of the page that `gpuops report` makes (needs chromium)
	$(BIN)/python -m tests.report.page.pictures

site: setup  ## the manual as a static site with search, in dist/site, for any web server (40 MB of packages)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-site.lock
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m tests.make_site dist/site

lock: setup  ## make the lock files anew: pins and hashes, no index lines
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header -p 3.11 \
	  pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header -p 3.11 \
	  --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/python -c "import tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
	  print(*extras['fleet'], sep='\n')" | $(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header \
	  -p 3.11 -c requirements-dev.lock - -o requirements-fleet.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header -p 3.11 \
	  --group site -c requirements-dev.lock -o requirements-site.lock

clean:  ## drop what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/peers/bin

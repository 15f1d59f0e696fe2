# `make` prints what there is. GNU make 4.3, POSIX sh. A target that visits several modules or examples
# visits all of them, and fails at the end if one did.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

# A workspace file above this folder would change what is built, and forbids -modfile.
export GOWORK := off

# Every folder with a go.mod, the root as "."; a new module is found without a line here.
MODULES := $(patsubst ./%,%,$(shell find . -name go.mod -not -path './.*' -not -path '*/testdata/*' -exec dirname {} \; | sort))
# Modules whose tests want servers, time or quiet: they have targets of their own. tools/ has no packages.
APART := integration benchmarks tools tools/%

# What go test is given. PKG and RUN narrow it: make race PKG=. RUN=TestRenew
PKG ?= ./...
RUN ?=
TIMEOUT ?= 15m
RACE_TIMEOUT ?= 15m
FUZZTIME ?= 10s
FLAKY_RUNS ?= 10
TESTFLAGS ?=
run_flag := $(if $(RUN),-run '$(RUN)')
# A package named with PKG is one of the root module.
TEST_MODULES := $(if $(filter ./...,$(PKG)),$(filter-out $(APART),$(MODULES)),.)

# Linters at the versions that tools/go.mod and tools/lint/go.mod pin.
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
LINT := go tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint

# Coverage profiles and built examples; ignored by git.
OUT := $(CURDIR)/.out
# An example that hangs is a failure; without coreutils there is no limit.
LIMIT := $(if $(shell command -v timeout),timeout 120)

.DEFAULT_GOAL := help
.PHONY: help demo test integration race sim sim-short sim-mutants examples lint fmt cover tidy-check flaky fuzz mutants model api importer bench bench-short chaos chaos-control clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## Run the demo; ARGS="..." is passed on
	@go run -C examples ./demo $(ARGS)

test: ## Vet and test every module that needs no service, in shuffled order (PKG, RUN, TIMEOUT, TESTFLAGS)
	@st=0; for m in $(TEST_MODULES); do \
		echo "== go vet, go test: $$m"; \
		(cd "$$m" && go vet $(PKG)) || st=1; \
		(cd "$$m" && go test -shuffle=on -timeout=$(TIMEOUT) $(TESTFLAGS) $(run_flag) $(PKG)) || st=1; \
	done; exit $$st

race: ## The root module's tests under the race detector; needs a C compiler (PKG, RUN)
	@CGO_ENABLED=1 go test -race -shuffle=on -timeout=$(RACE_TIMEOUT) $(TESTFLAGS) $(run_flag) $(PKG)

flaky: ## Ten shuffled runs under the race detector, one after the other (FLAKY_RUNS, PKG, RUN)
	@set -e; i=0; while [ $$i -lt $(FLAKY_RUNS) ]; do \
		i=$$((i + 1)); echo "== run $$i of $(FLAKY_RUNS)"; \
		CGO_ENABLED=1 go test -race -count=1 -shuffle=on -timeout=$(RACE_TIMEOUT) $(TESTFLAGS) $(run_flag) $(PKG); \
	done

fuzz: ## Run each Fuzz function of the root module for FUZZTIME (10s)
	@set -e; n=0; for p in $$(go list ./...); do \
		names=$$(go test -timeout=$(TIMEOUT) -list '^Fuzz' "$$p") || { echo "$$names"; exit 1; }; \
		for f in $$(echo "$$names" | grep '^Fuzz' || true); do \
			n=$$((n + 1)); echo "== $$p $$f"; \
			go test -timeout=$(TIMEOUT) -run '^$$' -fuzz "^$$f\$$" -fuzztime=$(FUZZTIME) "$$p"; \
		done; \
	done; echo "fuzz functions: $$n"

mutants: ## Break the library on purpose, line by line, and check that a test notices (ARGS="word ..." picks some)
	@go run -C tools/mutants . $(ARGS)

model: ## Check the formal model of lease and fence with Spin, which is installed from Debian's packages, or skipped
	@missing() { \
		command -v spin >/dev/null || echo spin; \
		command -v gcc >/dev/null || echo gcc libc6-dev; \
	}; \
	if [ -n "$$(missing)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== installing" $$(missing); export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -q && apt-get install -q -y --no-install-recommends $$(missing); } >/dev/null; \
	fi; \
	if [ -n "$$(missing)" ]; then echo "SKIPPED, because they cannot be had:" $$(missing); exit 0; fi; \
	sh docs/model/check.sh

sim: ## Simulate elections in virtual time, on new seeds for FOR (5m), or on SEEDS of them (ARGS="...")
	@go run -C tools/sim . -for $(or $(FOR),5m) $(if $(SEEDS),-seeds $(SEEDS)) $(ARGS)

sim-short: ## The same on 80 seeds that never change
	@go run -C tools/sim . -from 7000 -seeds 80

sim-mutants: ## Count the seeds until the simulation finds each safety mutant (ARGS="word ..." picks some)
	@go run -C tools/sim . -mutants $(ARGS)

api: ## Compare the API with that of the last tag, or of BASE=commit, and fail if a change is incompatible
	@base="$(or $(BASE),$$(git describe --tags --abbrev=0 2>/dev/null))"; \
	[ -n "$$base" ] || { echo "SKIPPED: there is no tag yet to compare with; BASE=commit names another base"; exit 0; }; \
	dir=$$(mktemp -d) && trap 'git worktree remove --force "$$dir/base"; rm -rf "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/base" "$$base" && \
	(cd "$$dir/base" && $(TOOL) apidiff -m -w "$$dir/base.export" github.com/tenure-go/tenure) && \
	$(TOOL) apidiff -m "$$dir/base.export" github.com/tenure-go/tenure >"$$dir/all" && \
	echo "== changes of the API since $$base" && cat "$$dir/all" && \
	$(TOOL) apidiff -m -incompatible "$$dir/base.export" github.com/tenure-go/tenure >"$$dir/bad" && \
	if [ -s "$$dir/bad" ]; then echo "not compatible:"; cat "$$dir/bad"; exit 1; fi

integration: ## The fences against real databases, the promises against etcd 3.4 to 3.7, the status page in a browser; what is missing is installed, built, or skipped
	@mkdir -p "$(OUT)/etcd"; export TENURE_ETCD="$(OUT)/etcd"; \
	echo "== etcd 3.4 from Debian's packages, 3.5 to 3.7 from their modules"; \
	if [ ! -x "$$TENURE_ETCD/etcd3.4" ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
		d=$$(mktemp -d) && (cd "$$d" && { [ "$$(id -u)" != 0 ] || apt-get update; } && apt-get download etcd-server && dpkg -x etcd-server_*.deb x && \
			x/usr/bin/etcd --version | grep 'etcd Version: 3[.]4[.]' && mv x/usr/bin/etcd "$$TENURE_ETCD/etcd3.4") >"$$d.log" 2>&1 || cat "$$d.log"; \
		rm -rf "$$d" "$$d.log"; \
	fi; \
	for v in 3.5 3.6 3.7; do go build -C integration/internal/servers/testdata/etcd$$v -o "$$TENURE_ETCD/etcd$$v" tool || rm -f "$$TENURE_ETCD/etcd$$v"; done; \
	missing() { \
		for v in 3.4 3.5 3.6 3.7; do [ -x "$$TENURE_ETCD/etcd$$v" ] || echo etcd-$$v; done; \
		packages; \
	}; \
	packages() { \
		[ -n "$$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || echo postgresql; \
		PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null || echo mariadb-server; \
		command -v redis-server >/dev/null || echo redis-server; \
		command -v chromium >/dev/null || echo chromium; \
	}; \
	if [ -n "$$(packages)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== installing" $$(packages); export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -q && apt-get install -q -y --no-install-recommends $$(packages); } >/dev/null; \
	fi; \
	if [ -z "$$(missing)" ]; then export TENURE_REQUIRE_SERVERS=1; else echo "SKIPPED, because they cannot be had:" $$(missing); fi; \
	echo "== go vet, go test: integration"; cd integration && go vet ./... && \
	go test -shuffle=on -parallel=6 -timeout=15m $(TESTFLAGS) $(run_flag) ./...

bench: ## Measure against the peers on a real cluster; ARGS="-out folder" keeps tables and charts (half an hour)
	@go run -C benchmarks . $(ARGS)

bench-short: ## The promises of speed and scale that do not depend on the machine (three minutes)
	@go run -C benchmarks . -short $(ARGS)

# The program starts itself again, as members of etcd and as candidates.
CHAOS := go build -C integration -o "$(OUT)/chaos/chaos" ./chaos && "$(OUT)/chaos/chaos" -out "$(OUT)/chaos"

chaos: ## Real processes under real faults, for FOR (3m); ARGS="-seed 7" draws the same faults again
	@$(CHAOS) -for $(or $(FOR),3m) $(ARGS)

chaos-control: ## The same for etcd's own election package, for FOR (2m): fails if it finds nothing (ARGS="-compare")
	@$(CHAOS) -for $(or $(FOR),2m) -library concurrency \
		-only "candidate stopped and continued;partition, bytes come late;half-open, bytes are lost" $(ARGS)

importer: ## Measure what a program pays for importing the library
	@go run -C tools/importer .

examples: ## Build and run every example but the demo (EXAMPLE=name runs one)
	@mkdir -p "$(OUT)/examples"; cd examples || exit 1; st=0 n=0; \
	for p in $$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' ./...); do \
		name=$${p#*/examples/}; bin="$(OUT)/examples/$$(echo "$$name" | tr / -)"; \
		case "$$name" in $(or $(EXAMPLE),*)) ;; *) continue ;; esac; \
		n=$$((n + 1)); go build -o "$$bin" "$$p" || { st=1; continue; }; \
		[ "$$name" = demo ] && continue; \
		echo "== examples/$$name"; \
		$(LIMIT) "$$bin" || { echo "examples/$$name: FAILED, exit status $$?"; st=1; }; \
	done; [ $$n -gt 0 ] || { echo "no such example"; st=1; }; exit $$st

lint: ## gofumpt, go vet, staticcheck and golangci-lint over every module; the mutants still apply
	@st=0; files=$$($(TOOL) gofumpt -l .) || st=1; \
	[ -z "$$files" ] || { echo "not gofumpt-ed (make fmt):"; echo "$$files"; st=1; }; \
	go run -C tools/mutants . -check || st=1; \
	for m in $(MODULES); do \
		pkgs=$$(cd "$$m" && go list ./... 2>/dev/null) || { (cd "$$m" && go list ./...); st=1; continue; }; \
		[ -n "$$pkgs" ] || continue; \
		echo "== go vet, staticcheck, golangci-lint: $$m"; \
		(cd "$$m" && go vet ./...) || st=1; \
		(cd "$$m" && $(TOOL) staticcheck ./...) || st=1; \
		(cd "$$m" && $(LINT) run --allow-parallel-runners ./...) || st=1; \
	done; exit $$st

fmt: ## Format every Go file with gofumpt
	@$(TOOL) gofumpt -l -w .

cover: ## Coverage of the root package by its own tests, by function and in all
	@mkdir -p "$(OUT)"
	@go test -timeout=$(TIMEOUT) -covermode=atomic -coverpkg=. -coverprofile="$(OUT)/cover.out" .
	@go tool cover -func="$(OUT)/cover.out"

tidy-check: ## Fail when go mod tidy would change a module
	@st=0; for m in $(MODULES); do \
		echo "== go mod tidy -diff: $$m"; (cd "$$m" && go mod tidy -diff) || st=1; \
	done; exit $$st

clean: ## Remove what these targets left behind
	@rm -rf "$(OUT)"

# The chores of this repository. `make` alone lists them.
#
# Tools are pinned here and run with `go run`, never named in go.mod: go.mod says what the product
# links, and modules that import a package of this one must not inherit its linters.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
BUF := github.com/bufbuild/buf/cmd/buf@v1.69.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# What may be set from outside: make test TESTFLAGS=-count=1, make fuzz FUZZTIME=5m, …
TESTFLAGS ?=
FUZZTIME ?= 30s
HOURS ?= 10
SEED ?=
MINUTES ?= 120
VULNDB ?= https://vuln.go.dev
MODULE ?=
ROUNDS ?= 20
MUTANT ?= .
SINCE ?=

# One way to build for all targets, so that each finds what another has compiled: without the tables
# for a debugger, a sixth of what compiling and linking take. Only the race detector needs a C
# compiler.
GOFLAGS ?=
export GOFLAGS := $(GOFLAGS) -gcflags=all=-dwarf=0 -ldflags=-w
export CGO_ENABLED := 0

# The pure core: values in, values out.
CORE := $(patsubst %,./%/...,$(wildcard clock session fsm))

# Most tests wait for something most of the time. Those that take longest begin first.
AT_ONCE := -p $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 2)))
LONGEST := ./jepsen/sim ./raftnode ./cmd/zamok ./api ./raftnode/store ./client ./fsm

.PHONY: help
help: ## list the targets
	@echo 'make <target>:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))
	@echo
	@.ci/lines

.PHONY: demo
demo: ## three nodes, two cash machines, one account: what the lock is for
	@mkdir -p bin; go build -o bin/ ./cmd/zamok ./cmd/demo
	@bin/demo bin/zamok

.PHONY: check
check: ## format, vet, the import policy, links of the docs, go.mod up to date, staticcheck
	@echo '· gofmt'; diff="$$(gofmt -d . || true)"; \
		[[ -z "$$diff" ]] || { echo "$$diff"; echo 'gofmt -w . would fix this'; exit 1; }
	@echo '· go vet'; go vet ./...
	@echo '· policy'; go run ./cmd/policy
	@echo '· links'; docs/links
	@echo '· go.mod'; go mod tidy -diff; go mod verify
	@echo '· staticcheck'; go run $(STATICCHECK) ./...

.PHONY: test
test: ## every test that needs no compiler, browser or root; ZAMOK_TEST_ALL=1 and ZAMOK_SIM_HOURS=n: for longer
	go test -timeout 20m $(AT_ONCE) $(TESTFLAGS) $(LONGEST) ./...

.PHONY: sim
sim: ## the whole stack in virtual time under random faults, half of the time of nodes only: HOURS (10); SEED=n repeats choices
	ZAMOK_SIM_HOURS=$(HOURS) ZAMOK_SEED=$(SEED) \
		go test -timeout 300m -count=1 -v $(TESTFLAGS) ./jepsen/sim | \
		grep -Ev '^=== (RUN|PAUSE|CONT|NAME)'

.PHONY: durable
durable: ## kill -9 of all nodes, of the leader, of a follower: ROUNDS times (20) instead of 3
	ZAMOK_DURABILITY_ROUNDS=$(ROUNDS) go test -timeout 9m -count=1 -v \
		-run 'TestNothingAcknowledgedIsLost' ./raftnode | \
		grep -E '^(=== RUN|---|ok|FAIL|    [a-z_]*_test.go)' | tail -40

.PHONY: switches
switches: ## how often threads of the nodes go to sleep, for a commit and at rest: no more than a ceiling (Linux)
	ZAMOK_SWITCHES=1 go test -timeout 4m -count=1 -v -run 'TestContextSwitches' ./cmd/zamok | \
		grep -E '^(---|ok|FAIL|    [a-z_]*_test.go)'

.PHONY: jepsen
jepsen: jepsen-build ## real processes under real faults for MINUTES (120), run after run; SEED=n repeats choices; root adds disks
	bin/jepsen-real -zamok bin/zamok -seed '$(or $(SEED),0)' -disks \
		-minutes '$(MINUTES)' -for 5m -min-ok 20000 -min-faults 40

.PHONY: jepsen-short
jepsen-short: jepsen-build ## the same in two minutes or more, until every kind of fault has happened; then five nodes, two killed and one paused in turn; then one that loses its data
	bin/jepsen-real -zamok bin/zamok -seed '$(or $(SEED),0)' -disks \
		-for 120s -at-most 7m -tries 2 -every-kind -min-ok 100000 -min-faults 60
	bin/jepsen-real -zamok bin/zamok -seed '$(or $(SEED),0)' -nodes 5 -programs 2 \
		-for 20s -at-most 2m -tries 2 -only 'two killed'
	bin/jepsen-real -zamok bin/zamok -seed '$(or $(SEED),0)' -programs 2 \
		-for 45s -at-most 3m -tries 2 -only 'wipe node' -min-faults 1

.PHONY: jepsen-build
jepsen-build:
	@mkdir -p bin; go build -o bin/ ./cmd/zamok; go build -o bin/jepsen-real ./jepsen/real

.PHONY: race
race: ## the tests in their short form under the race detector (needs a C compiler)
	@# Not the core, which may not use goroutines (make check sees to that), nor tools that use
	@# none. Not the simulation: it is tens of times slower there, and its time is spent in what is
	@# tested below it.
	CGO_ENABLED=1 go test -race -short -shuffle=on -timeout 15m $(AT_ONCE) $(TESTFLAGS) \
		$(filter-out ./jepsen/sim ./fsm,$(LONGEST)) \
		$$(go list ./... | \
			grep -vE '^[^/]*/((clock|fsm|session)(/.*)?|jepsen/(sim|check)|cmd/(policy|mutants))$$')

.PHONY: mutants
mutants: ## insert each known bug; a test must catch it (MUTANT=regexp picks some; SINCE=.ci/passed those that are due)
	go run ./cmd/mutants -run '$(MUTANT)' $(if $(SINCE),-since '$(SINCE)')

.PHONY: fuzz
fuzz: ## every fuzz target, one after the other, for FUZZTIME (30s) each
	.ci/fuzz $(FUZZTIME)

.PHONY: vuln
vuln: ## known vulnerabilities in what is linked (queries VULNDB, by default vuln.go.dev)
	.ci/vuln $(GOVULNCHECK) $(VULNDB)

.PHONY: generate
generate: ## make the Go code of the wire from api/zamokpb/zamok.proto, and the description of HTTP
	cd api/zamokpb && go run $(BUF) generate
	go test -run TestOpenAPIIsWhatTheRoutesSay ./api/web -update-openapi

.PHONY: generated
generated: ## is every element of the .proto documented, and the generated code what it says?
	.ci/generated $(BUF)

.PHONY: bench-core
bench-core: ## benchmarks of the pure core
	go test -run '^$$' -bench . -benchmem $(TESTFLAGS) $(CORE)

.PHONY: bench
bench: ## beside etcd, ZooKeeper, Redis, PostgreSQL: docs/benchmarks.md (25 min; see bench/run for BENCH_…)
	bench/run

.PHONY: bench-quick
bench-quick: ## this tree against the commit that it grew from, by benchstat (2 min; BENCH_BASE=commit)
	bench/quick

.PHONY: bench-overload
bench-overload: ## measure overload: 1, 3 and 10 times the capacity, 20 s each
	@mkdir -p bin; go build -o bin/ ./cmd/zamok; go build -C bench -o ../bin/bench .
	bin/bench overload -zamok bin/zamok -window 20s

.PHONY: rename
rename: ## change the module path everywhere: make rename MODULE=host/you/zamok
	.ci/rename '$(MODULE)'

# Everything here also works by hand; the targets only remember the commands. The
# lab installs what it needs by itself.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.DEFAULT_GOAL := help

GO     ?= go
MODE   ?= iptables
FAMILY ?= ipv4
NODES  ?= 2

# The modules of go.work. Those outside it (tools/lint, lab/build/…) only pin
# versions.
MODULES := $(shell sed -n 's,^\t*\(use \)\{0\,1\}\./,,p' go.work)

# Packages whose tests program the kernel, in network namespaces of their own.
KERNEL := modules/dataplane/dataplanetest modules/netfilter modules/iptables modules/userspace

# Packages some of whose tests need a kernel with IPVS, and those tests of the mode
# itself: its others have a kernel in memory.
IPVS := modules/ipvs
ON_IPVS := ^(TestLaws|TestScale|TestScenarios|TestConnectionsOutliveTheMode)$$

# Packages whose laws and scenarios are tried on a second kernel too, an older one
# with the older iptables.
TWICE := modules/iptables modules/userspace

# What of them: programs start slowly there, so each law has one generated case of
# one family, another in each module (the same code writes the rules of both), and
# the scenarios are those that meet most of a kernel.
AGAIN := TestLaws|TestScenarios/legacy/^(affinity|external-local)$$

# Tests of whole agents that need a kernel with IPVS; the others are tested on this
# kernel.
AGENTS := TestSwitches/ipvs|TestRights/ipvs

# Where goroutines share state, tests run under the race detector, but for some of
# whole agents that take long; GitHub runs those so, too.
LONG := ^(TestSwitches|TestModesAgree)$$
RACE := modules/servicecache modules/relay modules/healthcheck modules/conntrack services/agent

patterns = $(patsubst %,./%/...,$(1))

LINT := build/tools/golangci-lint

# Runs tests on a kernel with IPVS.
SECOND_KERNEL := build/tools/secondkernel
ON_SECOND = $(GO) test -count=1 -timeout 29m -exec '$(abspath $(SECOND_KERNEL)) -timeout 30m'

##@ Build

.PHONY: build
build: ## compile the programs into bin/
	@mkdir -p bin
	$(GO) build -trimpath -o bin/ $(addprefix ./,$(wildcard services/*/cmd/* lab/cmd/lab))

.PHONY: help
help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables: MODE=%s FAMILY=%s (ipv4, ipv6, dual) NODES=%s\n' $(MODE) $(FAMILY) $(NODES)

##@ Test

# What tests need. `make test` sees to it once, before its lanes.
ifndef SIDE_BY_SIDE
BEFORE := deps go $(SECOND_KERNEL)
endif

# Two at a time: a kernel that is a program has one processor. The longest first.
.PHONY: test
test: $(BEFORE) lint ## lint, then every test of every module; needs root
	@$(MAKE) --no-print-directory -kO -j2 SIDE_BY_SIDE=1 \
	  test-ipvs test-unit test-agents test-kernel $(TWICE:%=test-again-%)

.PHONY: test-unit
test-unit: $(BEFORE)
	$(GO) test -race -skip '$(LONG)' ./modules/dataplane $(call patterns,$(RACE))
	$(GO) test -run '$(LONG)' ./services/agent/cmd/portway
	$(GO) test $(call patterns,$(filter-out modules/dataplane e2e $(RACE) $(KERNEL) $(IPVS),$(MODULES)) e2e/cluster)
	$(GO) test -skip '$(ON_IPVS)' $(addprefix ./,$(IPVS))

# One package at a time: they wait for packets with limits, and should not wait
# for each other. What they need is compiled before, side by side.
.PHONY: test-kernel
test-kernel: $(BEFORE) ## only the tests that send packets through this kernel; needs root
	$(GO) vet $(call patterns,$(KERNEL))
	$(GO) test -count=1 -p 1 -parallel 4 $(call patterns,$(KERNEL))

.PHONY: test-ipvs
test-ipvs: $(BEFORE) ## only the tests of ipvs that need a kernel with it, this one or another
	$(GO) vet $(call patterns,$(IPVS))
	PORTWAY_TEST_EXPLAINS=1 PORTWAY_TEST_SERVICES=10000 $(ON_SECOND) -run '$(ON_IPVS)' $(addprefix ./,$(IPVS))
	$(ON_SECOND) $(addsuffix /kernel/...,$(addprefix ./,$(IPVS)))

.PHONY: test-agents
test-agents: $(BEFORE)
	$(ON_SECOND) -run '$(AGENTS)' ./services/agent/cmd/portway

.PHONY: test-agree
test-agree: $(BEFORE) ## one walk of all three modes, side by side on a kernel with IPVS
	$(ON_SECOND) -run TestModesAgree ./services/agent/cmd/portway -budget 1ms

test-again-modules/iptables: AGAIN_FAMILY := IPv4
test-again-modules/userspace: AGAIN_FAMILY := IPv6

.PHONY: $(TWICE:%=test-again-%)
$(TWICE:%=test-again-%): test-again-%: $(BEFORE)
	PORTWAY_TEST_IPTABLES=legacy PORTWAY_TEST_FAMILIES=$(AGAIN_FAMILY) PORTWAY_TEST_EXPLAINS=1 \
	  $(ON_SECOND) -run '$(AGAIN)' ./$* -budget 1ms

.PHONY: golden
golden: go ## write the expected outputs of tests anew, to be read in the diff
	$(GO) test $$(git grep -l 'flag.Bool("update"' -- '*_test.go' | xargs -rn1 dirname | sort -u | sed 's,^,./,') -update

.PHONY: bench
bench: go ## run the benchmarks (BENCH=regexp)
	$(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem $(call patterns,$(filter modules/%,$(MODULES)))

# What it measures is compiled as the lab compiles it, to share what is compiled.
BENCH_BIN := build/bench

.PHONY: bench-scale
bench-scale: deps $(SECOND_KERNEL) ## Portway and kube-proxy side by side, with 10,000 Services (BENCH_FLAGS); needs root
	$(GO) run ./lab/cmd/lab programs $(BENCH_BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BENCH_BIN)/ ./services/agent/cmd/portway ./bench/cmd/bench
	ln -sf ../../$(SECOND_KERNEL) $(BENCH_BIN)/secondkernel
	$(BENCH_BIN)/bench scale --programs $(BENCH_BIN) $(BENCH_FLAGS)

.PHONY: bench-small
bench-small: BENCH_FLAGS = --shapes=1000x5 --modes=iptables-nft --parts=changes,restart,audit --samples=10 --out=build/bench/small
bench-small: bench-scale ## the same with 1,000 Services in two minutes, to see at once whether a ratio has fallen

.PHONY: fuzz
fuzz: go ## run each fuzz target for FUZZTIME (30s)
	@git grep -n '^func Fuzz' -- '*_test.go' | sed 's/:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\).*/ \1/' | while read -r file target; do \
	  $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),30s) "./$$(dirname "$$file")"; \
	done

##@ Check

.PHONY: lint
lint: $(LINT) ## golangci-lint on every module
	$(LINT) run $(call patterns,$(MODULES))

.PHONY: fix
fix: $(LINT) ## format, and mend what the linter can mend
	$(LINT) fmt $(MODULES)
	$(LINT) run --fix $(call patterns,$(MODULES))

.PHONY: tidy
tidy: go ## write replace lines, go.work, go.sum files and the proofs in docs anew
	$(GO) run ./tools/modsync
	$(GO) run ./tools/proofs
	$(GO) work sync
	@for module in $(MODULES); do (set -x; cd $$module && GOWORK=off $(GO) mod tidy); done

.PHONY: verify
verify: go $(LINT) ## modsync, layers, conventions, proofs, format, workflows, each module alone
	$(GO) run ./tools/modsync -check
	$(GO) test -count=1 ./tools/...
	$(LINT) config verify
	$(LINT) fmt --diff $(MODULES)
	$(GO) tool actionlint
	@printf '%s\n' $(MODULES) | GOWORK=off xargs -P2 -I{} sh -xc 'cd {} && $(GO) vet ./... && $(GO) mod tidy -diff'

##@ Lab

.PHONY: lab-up
lab-up: go ## create a kind cluster whose Services are made by Portway
	$(GO) run ./lab/cmd/lab up --mode $(MODE) --family $(FAMILY) --nodes $(NODES)

.PHONY: lab-status
lab-status: go ## what the lab runs
	$(GO) run ./lab/cmd/lab status

.PHONY: lab-load
lab-load: go ## rebuild the agent and roll it out
	$(GO) run ./lab/cmd/lab load

.PHONY: lab-down
lab-down: go ## remove the lab, and all that it left on the machine
	$(GO) run ./lab/cmd/lab down

# In ipvs mode clients and some servers may be on a kernel that is a program.
.PHONY: e2e
e2e: PROCS = $(if $(filter ipvs,$(MODE)),2,4)
e2e: go ## run the end-to-end tests in the lab (MODE, FAMILY, LABELS)
	$(GO) run ./lab/cmd/lab test-image
	$(GO) tool ginkgo run --procs=$(PROCS) --label-filter '$(or $(LABELS),$(MODE) && $(FAMILY))' ./e2e

# Upstream's own specs. Some need two workers in each of three zones; with a label,
# as LABELS=Conformance, none does.
.PHONY: conformance
conformance: NODES := $(if $(LABELS),2,6)
conformance: lab-up ## run upstream's specs about Services in the lab (MODE, LABELS, FROZEN=1)
	$(GO) run ./lab/cmd/lab conformance --label '$(LABELS)' $(if $(FROZEN),--frozen)

##@ Tools

.PHONY: deps
deps: ## install the Debian packages that tests need
	@tools/install-deps

.PHONY: $(SECOND_KERNEL)
.PHONY: modules
modules:
	@printf '%s\n' $(MODULES)

.PHONY: go
go:
	@command -v $(GO) >/dev/null || { echo "Go is not installed; go.work names the version" >&2; exit 1; }

# Static, since it is also the init of a kernel.
$(SECOND_KERNEL): go
	@CGO_ENABLED=0 $(GO) build -o $@ ./tools/secondkernel

# Compiled once: from an empty build cache it takes two minutes.
$(LINT): tools/lint/go.mod tools/lint/go.sum | go
	@echo "compiling golangci-lint"
	@cd tools/lint && GOWORK=off $(GO) build -o $(CURDIR)/$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# `make help` lists the targets. The logic lives in scripts/ and in Go; a
# target here is a name for a command.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Where Go's own instructions install it, and where sudo does not look.
export PATH := $(PATH):/usr/local/go/bin
NODES ?= 3
BANDWIDTH ?=
# JSON Lines of real image manifests; empty: a generator.
export LAYER_DATA
# What lab/eval/eval.sh reads.
export LAYER_HISTORY LAYER_MOVES SIZE SEEDS EXPERIMENTS

##@ Use
demo: ## A real cluster on this machine shows what all this does, and is removed (D=stock|agent|image-locality|scheduler-tour, RELEASE=folder or address of a release, none to compile; root)
	@scripts/demo.sh $(D)

cluster-up: build ## Start a cluster and leave it running (NODES=3, BANDWIDTH=100mbit)
	@lab/run localcluster up --nodes $(NODES) $(if $(BANDWIDTH),--bandwidth $(BANDWIDTH))

cluster-down: ## Remove that cluster and all it made
	@lab/run localcluster down

kind-up: deps ## A kind cluster with all but layer-resolver, on docker or podman (docs/install-kind.md)
	@scripts/install-deps.sh kind-image
	@kind/up.sh

##@ Build
deps: ## Install missing system packages (apt or dnf, root)
	@scripts/install-deps.sh dev

FLAVOUR = tools patched
build: deps ## Build the patched CRI-O and Kubernetes and the tools of the local cluster (FLAVOUR=stock: unmodified; LINE=1.35: of that minor, here and in other targets)
	@scripts/build.sh $(FLAVOUR)

resolver-image: ## layer-resolver and its image without a container tool, no root, in _out/resolver-image (REPOSITORY=registry/path pushes it, PLATFORM=linux/amd64,linux/arm64)
	@scripts/resolver-image.sh $(if $(REPOSITORY),--push $(REPOSITORY)) $(if $(PLATFORM),--platform $(PLATFORM))

rpms: ## RPMs, source RPMs and a dnf repository of them, in _out/rpms (LINE=1.35: in _out/1.35/rpms)
	@scripts/install-deps.sh rpm
	@rpm/rpms.sh

release: deps ## Archives, RPMs, images, source, notes and checksums of the commit, in _out/release (PLATFORM=linux/amd64)
	@scripts/install-deps.sh rpm $(if $(filter linux/$(shell go env GOHOSTARCH),$(PLATFORM)),,cross)
	@scripts/release.sh $(if $(PLATFORM),--platform $(PLATFORM))

clean: ## Remove _build and _out (cached binaries stay in ~/.cache/layer-locality)
	rm -rf _build _out

##@ Test
test: ## What a stranger runs: unit tests, patched trees, a real cluster (root; STEP=lint or others: single steps, FULL=1: with their long parts)
	@scripts/test.sh $(or $(STEP),test)

test-clusters: ## Besides, all that needs no packages of another kind: every test on clusters, upstream's own tests, lint (root)
	@scripts/test.sh clusters

test-all: ## Everything, as before a release: also packages, and what takes long and rarely breaks (root)
	@scripts/test.sh all

conformance: ## Kubernetes' conformance tests, on a stock cluster and on a patched one, for hours (root; FOCUS=expression: some of them; SCHEDULER=layers: with LayerLocality in the default profile, second: all stock, with a second scheduler)
	@scripts/test.sh conformance; status=$$?; tail -n 1 _out/test/conformance.txt; exit $$status

chaos: ## Components killed at random while pods come and go, for an hour (root; CHAOS_SEED, CHAOS_SECONDS, CHAOS_PODS, CHAOS_BOUND)
	@scripts/test.sh chaos; status=$$?; tail -n 1 _out/test/chaos.txt; exit $$status

lint: deps ## golangci-lint, govulncheck, shellcheck, shfmt, actionlint, go.mod, patches
	@scripts/lint.sh

##@ Measure
bench: ## A benchmark, side by side in one run: make bench lists them (B=NAME, LAYER_DATA=file)
	@lab/bench/bench.sh $(B)

eval: ## What layer-aware placement saves, in simulations: a page in _out/eval (SIZE=small, SEEDS=5, EXPERIMENTS=a,b, LAYER_DATA, LAYER_HISTORY, LAYER_MOVES=file)
	@lab/eval/eval.sh

##@ Patches
patches: ## P=trees assembles _build/cri-o, _build/kubernetes and _build/workspace; refresh, lint, generate, rebase COMPONENT=kubernetes VERSION=v1.37.0
	@for p in $(or $(P),none); do case $$p in \
	trees) scripts/tree.sh patched cri-o && scripts/tree.sh workspace ;; \
	refresh | lint | lines) scripts/patches.sh $$p ;; \
	generate) scripts/install-deps.sh dev && scripts/generate.sh ;; \
	rebase) scripts/patches.sh rebase "$(COMPONENT)" "$(VERSION)" ;; \
	*) echo "error: want make patches P=trees, refresh, lint, generate or rebase: docs/patches.md" >&2; false ;; \
	esac || exit 1; done

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Names up to v1.36.5+layerlocality.1: for one release they say what they are called now.
define renamed
	@echo "note: 'make $@' is now 'make $(1)'" >&2
	@$(MAKE) --no-print-directory $(1)
endef
demo-%: ; $(call renamed,demo D=$*)
bench-%: ; $(call renamed,bench B=$*)
test-unit test-nix test-rpm test-okd test-kind test-release test-arch test-vm: ; $(call renamed,test STEP=$(@:test-%=%)$(if $(@:test-unit=), FULL=1))
build-stock: ; $(call renamed,build FLAVOUR=stock)
trees generate: ; $(call renamed,patches P=$@)
rebase: ; $(call renamed,patches P=rebase COMPONENT=$(COMPONENT) VERSION=$(VERSION))
patches-refresh patches-lint: ; $(call renamed,patches P=$(@:patches-%=%))

.PHONY: demo cluster-up cluster-down kind-up deps build resolver-image rpms release clean test test-clusters test-all conformance chaos lint bench eval patches help \
	test-unit test-nix test-rpm test-okd test-kind test-release test-arch test-vm build-stock trees generate rebase patches-refresh patches-lint

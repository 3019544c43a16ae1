# `make help` lists the targets. The logic lives in scripts/ and in Go; a
# target here is a name for a command.
SHELL := /bin/bash
.DEFAULT_GOAL := help

NODES ?= 3
BANDWIDTH ?=
# JSON Lines of real image manifests; empty: a generator.
export LAYER_DATA
# What internal/eval/eval.sh reads.
export LAYER_HISTORY LAYER_MOVES SIZE SEEDS EXPERIMENTS

##@ Use
demo: build ## Build everything, show layers on three nodes and what the scheduler makes of them, clean up
	@echo "==> compiling the demo" && go run ./cmd/demo

demo-stock: build build-stock ## The same with nothing replaced: stock nodes and control plane, our scheduler and resolver
	@echo "==> compiling the demo" && go run ./cmd/demo --stock --log-dir _out/demo-stock/log

demo-agent: build build-stock ## Nothing replaced, on nodes with containerd and CRI-O: layer-agent says what they hold, our scheduler is a Deployment
	@scripts/build.sh tools containerd containerd-shim-runc-v2
	@echo "==> compiling the demo" && go run ./cmd/demo --agent --log-dir _out/demo-agent/log

# The texts of demos/, on a cluster of their own: every command in them, with its output.
demo-image-locality demo-scheduler-tour: build ## Follow a text of demos/: why ImageLocality says 0, or a tour of the scheduler
	@demos/run.sh $(@:demo-%=%)

cluster-up: build ## Start a cluster and leave it running (NODES=3, BANDWIDTH=100mbit)
	@go run ./cmd/localcluster up --nodes $(NODES) $(if $(BANDWIDTH),--bandwidth $(BANDWIDTH))

cluster-down: ## Remove that cluster and all it made
	@go run ./cmd/localcluster down

##@ Build
deps: ## Install missing system packages (apt or dnf, root)
	@scripts/install-deps.sh

build: deps ## Build the patched CRI-O and Kubernetes and the tools of the local cluster
	@scripts/build.sh tools
	@scripts/build.sh patched

build-stock: deps ## Build the same from unmodified upstream source (tests and benchmarks compare)
	@scripts/build.sh stock

# With the flags of the binary, so that what both are built on is compiled once.
resolver-image: ## layer-resolver and its image with Go alone, no root, in _out/resolver-image (REPOSITORY=registry/path pushes it, PLATFORM=linux/amd64,linux/arm64)
	@GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 go run ./cmd/resolver-image $(if $(REPOSITORY),--push $(REPOSITORY)) $(if $(PLATFORM),--platform $(PLATFORM))

rpms: ## RPMs, source RPMs and a dnf repository of them, in _out/rpms
	@scripts/install-deps.sh rpm
	@rpm/rpms.sh

kind-up: deps ## A kind cluster with all but layer-resolver, on docker or podman (docs/install-kind.md)
	@scripts/install-deps.sh kind-image
	@kind/up.sh

release: deps ## Archives, RPMs, images, source, notes and checksums of the commit, in _out/release (PLATFORM=linux/amd64)
	@scripts/install-deps.sh rpm $(if $(filter linux/$(shell go env GOHOSTARCH),$(PLATFORM)),,cross)
	@scripts/release.sh $(if $(PLATFORM),--platform $(PLATFORM))

clean: ## Remove _build and _out (cached binaries stay in ~/.cache/layer-locality)
	rm -rf _build _out

##@ Test
test: deps ## What every change has to pass; closes with "N passed, N failed" (root)
	@scripts/test.sh test

test-all: deps ## Everything, as before a release: also what takes long and rarely breaks (root)
	@scripts/test.sh all

test-unit: ## The quick part: no root, no patched tree
	@scripts/test.sh unit

test-nix test-rpm test-okd test-kind test-release test-arch test-vm: deps ## One kind of package, all of its tests (root)
	@FULL=1 scripts/test.sh $(@:test-%=%)

mutants: ## Changes of code that no unit test notices (SAMPLE=60 of each folder, 0: all; FOLDERS)
	@go run ./cmd/mutants --sample $(or $(SAMPLE),60) $(FOLDERS)

lint: deps ## golangci-lint, shellcheck, shfmt, go.mod, patches-lint
	@scripts/lint.sh

##@ Benchmarks
bench-crio: build build-stock ## Stock and patched CRI-O side by side on one store of 1,000 images
	@go run ./cmd/bench crio

bench-node: build build-stock ## What layers add to a Node, and to the writes of its status (LAYER_DATA=file)
	@go run ./cmd/bench node

# NODES is the size of a cluster above; =200 is a quick look.
bench-scheduler bench-extender: NODES = 5000
bench-throughput: NODES = 500,1000,2000,5000
bench-scheduler: deps ## LayerLocality beside ImageLocality and the prototype: time, memory (NODES=5000, LAYER_DATA=file)
	@go run ./cmd/bench scheduler --nodes $(NODES)

bench-extender: deps ## layer-extender asked by Kubernetes' own client: time, memory, and the plugin's choices (NODES=5000)
	@go run ./cmd/bench extender --nodes $(NODES)

bench-throughput: PROFILES = layerlocality
bench-throughput: deps ## Pods a second with the default profile and with ours as it is installed (NODES=500,1000,2000,5000, PROFILES=layerlocality,extender)
	@scripts/build.sh tools etcd
	@$(if $(findstring extender,$(PROFILES)),scripts/build.sh patched layer-extender)
	@go run ./cmd/bench throughput --nodes $(NODES) --profiles $(PROFILES)

bench-resolver: deps ## layer-resolver on 5,000 images: images a second, requests, memory, restart, confirmation of tags, a flood of names
	@scripts/build.sh tools etcd
	@scripts/build.sh patched kube-apiserver layer-resolver
	@go run ./cmd/bench resolver

bench-nodelayers: deps ## NodeLayers of 5,000 nodes: size, apiserver, etcd, the scheduler's start and index (LAYER_DATA=file)
	@scripts/build.sh tools etcd
	@scripts/build.sh stock kube-apiserver
	@go run ./cmd/bench nodelayers

bench-agent: build build-stock ## layer-agent on stock nodes with 1,000 images: reading, memory, pulls beside it, how soon the scheduler knows; root
	@scripts/build.sh tools containerd containerd-shim-runc-v2
	@go run ./cmd/bench agent

bench-kubectl-layers: NODES = 5000
bench-kubectl-layers: deps ## kubectl layers on 5,000 NodeLayers, 2,000 ImageManifests, 50,000 pods: seconds, memory (NODES=5000)
	@scripts/build.sh tools etcd
	@scripts/build.sh patched kube-apiserver kube-scheduler kubectl-layers
	@go run ./cmd/bench kubectl --nodes $(NODES)

bench-startup: build ## Start-up of pods, bytes and balance on four slow nodes, beside the default profile and the simulator (LAYER_DATA=file)
	@go run ./cmd/bench startup

bench-qos: deps ## What workloads get of what they were promised, with priorities and with QosAware; 45 minutes, root (SCALE=6, MINUTES=5)
	@scripts/build.sh tools etcd registry kwok
	@scripts/build.sh patched kube-apiserver kube-controller-manager kube-scheduler
	@go run ./cmd/bench qos $(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES))

eval: ## What layer-aware placement saves, in simulations: a page in _out/eval (SIZE=small, SEEDS=5, EXPERIMENTS=a,b, LAYER_DATA, LAYER_HISTORY, LAYER_MOVES=file)
	@internal/eval/eval.sh

##@ Patches
trees: ## Assemble _build/cri-o, _build/kubernetes (upstream, overlay, patches) and _build/scheduler
	@scripts/tree.sh patched cri-o
	@scripts/tree.sh patched kubernetes
	@scripts/tree.sh scheduler

patches-refresh: ## Turn the commits in _build/cri-o and _build/kubernetes back into patches/
	@scripts/patches.sh refresh

patches-lint: ## Check the series: headers, order, applies without fuzz, size
	@scripts/patches.sh lint

rebase: ## Try a series on another version: make rebase COMPONENT=kubernetes VERSION=v1.37.0
	@scripts/patches.sh rebase "$(COMPONENT)" "$(VERSION)"

generate: deps ## Regenerate the generated code of the Kubernetes series
	@scripts/generate.sh

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z -]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo demo-stock demo-agent demo-image-locality demo-scheduler-tour mutants cluster-up cluster-down deps build build-stock resolver-image rpms kind-up release clean \
	test test-all test-unit test-nix test-rpm test-okd test-kind test-release test-arch test-vm lint \
	bench-crio bench-node bench-scheduler bench-extender bench-throughput bench-resolver bench-kubectl-layers bench-startup bench-qos bench-nodelayers bench-agent eval trees patches-refresh patches-lint rebase generate help

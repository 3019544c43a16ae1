# `make help` lists the targets. Logic lives in scripts/ and in Go; a target
# here is a name for a command.
SHELL := /bin/bash
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: help

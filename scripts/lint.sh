#!/usr/bin/env bash
# Lints Go, shell, workflows and the patch series, and looks for known weaknesses in what the programs of cmd/ link.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

golangci=$(go_tool github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$GOLANGCI_LINT_VERSION")
shfmt=$(go_tool mvdan.cc/sh/v3/cmd/shfmt "$SHFMT_VERSION")
mapfile -t shell < <(
  git ls-files -co --exclude-standard | while read -r file; do
    if [[ $file == *.sh ]] || { [ -f "$file" ] && head -c 64 "$file" | head -n 1 | tr -d '\0' | grep -q '^#!.*\bbash'; }; then echo "$file"; fi
  done
)
actionlint=$(go_tool github.com/rhysd/actionlint/cmd/actionlint "$ACTIONLINT_VERSION")
failed=0
check() {
  local name=$1
  shift
  if "$@"; then say "$name: clean"; else
    failed=1
    say "$name: see above"
  fi
}
# As scripts/build.sh compiles, whose compiled packages are used again.
export GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0
check golangci-lint "$golangci" run --allow-parallel-runners ./...
check "golangci-lint, lab" env -C lab "$golangci" run --allow-parallel-runners ./...
# Again where the build tag and the patched types make a difference.
scheduler=$(scripts/tree.sh workspace)
mapfile -t patched < <(git grep -l --untracked "^//go:build .*\b$SCHEDULER_TAGS\b" -- '*.go' | xargs -n 1 dirname | sort -u)
check "golangci-lint, patched" env -C "$scheduler" \
  "$golangci" run --allow-parallel-runners --config "$ROOT/.golangci.yml" --build-tags "$SCHEDULER_TAGS,integration" "${patched[@]/#/./}"
check shellcheck shellcheck -x "${shell[@]}"
check shfmt "$shfmt" -i 2 -d "${shell[@]}"
check workflows "$actionlint"
# The database is a module, too: where vuln.go.dev cannot be reached, the module proxy can.
check "known weaknesses" scripts/weaknesses.sh
check go.mod go mod tidy -diff
check lab/go.mod go -C lab mod tidy -diff
check "generated code" "$ROOT/scripts/generate.sh" own --check
check patches "$ROOT/scripts/patches.sh" lint
exit "$failed"

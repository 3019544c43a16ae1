# Sourced by scripts/test.sh: upstream's integration tests of preemption, with QosAware where
# upstream has PrioritySort and DefaultPreemption, under their names. No pod there states an
# SLO, so all has to be as upstream expects.
# shellcheck shell=bash

# upstream_overlay KUBERNETES DIR: writes DIR/overlay.json, for go test -overlay.
upstream_overlay() {
  local plugins=$1/pkg/scheduler/framework/plugins dir=$2
  sed -e 's/queuesort.Name: .*/queuesort.Name: promises.sort,/' \
    -e 's/defaultpreemption.Name: .*/defaultpreemption.Name: promises.preempt,/' \
    -e 's/^\tregistry := runtime.Registry{/\tpromises := newPromises()\n&/' "$plugins/registry.go" >"$dir/registry.go"
  [ "$(grep -c 'promises' "$dir/registry.go")" = 3 ] || die "upstream's registry.go has another form: see test/integration/upstream.sh"
  jq -n --arg plugins "$plugins" --arg dir "$dir" --arg promises "$ROOT/test/integration/inplace/promises.go" \
    '{Replace: {($plugins + "/registry.go"): ($dir + "/registry.go"), ($plugins + "/promises.go"): $promises}}' >"$dir/overlay.json"
}

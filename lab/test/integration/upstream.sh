# Sourced by scripts/test.sh: upstream's integration tests of preemption, with QosAware where
# upstream has PrioritySort and DefaultPreemption, under their names. No pod there states an
# SLO, so all has to be as upstream expects.
# shellcheck shell=bash

# upstream_overlay KUBERNETES DIR: writes DIR/overlay.json, for go test -overlay.
upstream_overlay() {
  local plugins=$1/pkg/scheduler/framework/plugins dir=$2 test=$1/test/integration/scheduler/preemption/preemption_test.go
  sed -e 's/queuesort.Name: .*/queuesort.Name: promises.sort,/' \
    -e 's/defaultpreemption.Name: .*/defaultpreemption.Name: promises.preempt,/' \
    -e 's/^\tregistry := runtime.Registry{/\tpromises := newPromises()\n&/' "$plugins/registry.go" >"$dir/registry.go"
  [ "$(grep -c 'promises' "$dir/registry.go")" = 3 ] || die "upstream's registry.go has another form: see lab/test/integration/upstream.sh"
  # TestAsyncPreemption makes the plugin itself, to hold up what it does.
  sed -e 's,plfeature "\(k8s.io/kubernetes/pkg/scheduler/framework/plugins\)/feature",promises "\1",' \
    -e 's/frameworkruntime.FactoryAdapter(plfeature[^)]*defaultpreemption.New)(/promises.NewPreemption(/' "$test" >"$dir/preemption_test.go"
  [ "$(grep -c 'promises' "$dir/preemption_test.go")" = 2 ] || die "upstream's preemption_test.go has another form: see lab/test/integration/upstream.sh"
  jq -n --arg plugins "$plugins" --arg test "$test" --arg dir "$dir" --arg promises "$ROOT/lab/test/integration/inplace/promises.go" \
    '{Replace: {($plugins + "/registry.go"): ($dir + "/registry.go"), ($plugins + "/promises.go"): $promises, ($test): ($dir + "/preemption_test.go")}}' >"$dir/overlay.json"
}

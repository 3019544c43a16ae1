#!/usr/bin/env bash
# Turns the feature gate NodeStatusImageLayers on or off in the kube-apiservers of an OKD cluster,
# and says what is set. The operator rolls the change out, one apiserver after the other.
#
#   gate.sh on|off|status
#
# OKD has no field for gates that it does not know but the one of its FeatureGate object that
# cannot be taken back. This uses spec.unsupportedConfigOverrides of the kube-apiserver's
# operator, which can. As long as it is set, the cluster does not upgrade to another minor
# release: off first. It holds all gates of the apiserver, so that those of the release have to
# be copied into it: `on` again after an update of OKD; `status` says when that is needed.
. "$(dirname "$0")/../scripts/lib.sh"

GATE=NodeStatusImageLayers

case ${1:-} in on | off | status) ;; *) die "usage: gate.sh on|off|status" ;; esac
for program in oc jq; do
  command -v "$program" >/dev/null || die "$program is not installed: oc is among the client tools of the release"
done
operator=$(oc get kubeapiserver cluster -o json) || die "oc cannot read the kube-apiserver's operator: is KUBECONFIG that of an administrator of an OKD cluster?"

observed() { jq -c --arg gate "$GATE=" '[.spec.observedConfig.apiServerArguments["feature-gates"][]? | select(startswith($gate) | not)]' <<<"$operator"; }
overridden() { jq -c '.spec.unsupportedConfigOverrides.apiServerArguments["feature-gates"] // []' <<<"$operator"; }

# set_overrides JSON: null removes; a merge patch takes what is not named as it is.
set_overrides() {
  oc patch kubeapiserver cluster --type merge --patch "{\"spec\":{\"unsupportedConfigOverrides\":$1}}" >&2
}

wanted=$(jq -c --arg gate "$GATE=true" '. + [$gate]' <<<"$(observed)")
case $1 in
on)
  server=$(oc version -o json | jq -r '.serverVersion.gitVersion // empty')
  [[ $server == *layerlocality* ]] ||
    die "the apiserver is ${server:-of unknown version}, not ours: install the release of okd-machine-os/release.sh first"
  [ "$(observed)" != '[]' ] || die "the operator has not observed any gates: has it become ready (oc get clusteroperator kube-apiserver)?"
  others=$(overridden | jq -c --argjson observed "$(observed)" --arg gate "$GATE=" 'map(select(startswith($gate) | not)) - $observed')
  [ "$(overridden)" = '[]' ] || [ "$others" = '[]' ] ||
    say "replacing gates that somebody has set by hand: $others"
  set_overrides "{\"apiServerArguments\":{\"feature-gates\":$wanted}}"
  say "on; wait for it: oc wait --for=condition=Progressing=false clusteroperator/kube-apiserver --timeout=30m"
  ;;
off)
  rest=$(jq -c '.spec.unsupportedConfigOverrides // {} | del(.apiServerArguments["feature-gates"]) | if .apiServerArguments == {} then del(.apiServerArguments) else . end' <<<"$operator")
  if [ "$rest" = '{}' ]; then set_overrides null; else set_overrides '{"apiServerArguments":{"feature-gates":null}}'; fi
  say "off; wait for it: oc wait --for=condition=Progressing=false clusteroperator/kube-apiserver --timeout=30m"
  ;;
status)
  if ! overridden | jq -e --arg gate "$GATE=true" 'any(. == $gate)' >/dev/null; then
    echo off
  elif [ "$(overridden | jq -c sort)" = "$(jq -c sort <<<"$wanted")" ]; then
    echo on
  else
    echo "on, but other gates than the release's: gate.sh on"
    exit 1
  fi
  ;;
esac

#!/usr/bin/env bash
# Turns the feature gate NodeStatusImageLayers on or off in the kube-apiservers of an OKD
# cluster, or prints what is set. The operator rolls the change out, one apiserver after
# the other.
#
#   gate.sh on|off|status
#
# OKD's only field for unknown gates is in its FeatureGate object, and cannot be undone.
# This script uses spec.unsupportedConfigOverrides of the kube-apiserver's operator, which
# can. As long as it is set, the cluster does not upgrade to another minor release: turn
# it off first. The override has to contain all gates of the apiserver, so those of the
# release are copied into it: run `on` again after an update of OKD; `status` says when
# that is needed. Gates that were set there by hand stay. To recognize them, an annotation
# lists the copied gates.
# shellcheck disable=SC2016 # jq's variables
. "$(dirname "$0")/../scripts/lib.sh"

GATE=NodeStatusImageLayers
ANNOTATION=layerlocality.io/gates-of-the-release

case ${1:-} in on | off | status) ;; *) die "usage: gate.sh on|off|status" ;; esac
for program in oc jq; do
  command -v "$program" >/dev/null || die "$program is not installed: oc is among the client tools of the release"
done
operator=$(oc get kubeapiserver cluster -o json) || die "oc cannot read the kube-apiserver's operator: is KUBECONFIG that of an administrator of an OKD cluster?"

# of_operator FILTER: applies it to what is set, to an earlier `on` and to the release,
# with
#   $set      all gates of the override: $copied, $by_hand and ours
#   $release  the release's that nobody has set by hand
#   $wanted   what the override has to be
of_operator() {
  jq -c -r --arg gate "$GATE" --arg annotation "$ANNOTATION" '
    def ours: startswith($gate + "=");
    def name: split("=")[0];
    [.spec.observedConfig.apiServerArguments["feature-gates"][]? | select(ours | not)] as $observed
    | [.spec.unsupportedConfigOverrides.apiServerArguments["feature-gates"][]?] as $set
    | (.metadata.annotations[$annotation] // "[]" | fromjson) as $copied
    | [($set - $copied)[] | select(ours | not)] as $by_hand
    | [$observed[] | select(name as $name | all($by_hand[]; name != $name))] as $release
    | ($release + $by_hand + [$gate + "=true"]) as $wanted
    | '"$1" <<<"$operator"
}
# is FILTER: whether it is true.
is() { [ "$(of_operator "$1")" = true ]; }
# patch FILTER: applies a merge patch: null removes, and what is not named stays.
patch() { oc patch kubeapiserver cluster --type merge --patch "$(of_operator "$1")" >&2; }

case $1 in
on)
  server=$(oc version -o json | jq -r '.serverVersion.gitVersion // empty')
  [[ $server == *layerlocality* ]] ||
    die "the apiserver is ${server:-of unknown version}, not ours: install the release of okd-machine-os/release.sh first"
  is '$observed != []' || die "the operator has not observed any gates: has it become ready (oc get clusteroperator kube-apiserver)?"
  ! is '$by_hand != []' || say "keeping the gates that somebody has set by hand: $(of_operator '$by_hand')"
  patch '{metadata: {annotations: {($annotation): ($release | tojson)}},
    spec: {unsupportedConfigOverrides: {apiServerArguments: {"feature-gates": $wanted}}}}'
  say "on; wait for it: oc adm wait-for-stable-cluster"
  ;;
off)
  if is 'all($set[]; ours | not)'; then
    say "off already"
    exit
  fi
  patch '{metadata: {annotations: {($annotation): null}}, spec: {unsupportedConfigOverrides: (
    if $by_hand != [] then {apiServerArguments: {"feature-gates": $by_hand}}
    elif (.spec.unsupportedConfigOverrides | del(.apiServerArguments["feature-gates"]) | . == {apiServerArguments: {}}) then null
    else {apiServerArguments: {"feature-gates": null}} end)}}'
  say "off; wait for it: oc adm wait-for-stable-cluster"
  ;;
status)
  if is 'all($set[]; . != $gate + "=true")'; then
    echo off
  elif is '($set | sort) == ($wanted | sort)'; then
    echo on
  else
    echo "on, but other gates than the release's: gate.sh on"
    exit 1
  fi
  ;;
esac

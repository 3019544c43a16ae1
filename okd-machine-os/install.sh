#!/bin/sh
# Installs the packages beside it into the operating system image that it runs in: as
# replacement in OKD's image, as new packages on Fedora CoreOS. Says what is wrong with
# the image before it changes anything. Runs in container builds, by build.sh and on the
# cluster.
#
#   install.sh [--check]   with --check: only says whether the image is right
set -eu

here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "error: $*" >&2
  exit 1
}

# in_base FORMAT NAME: queries a package of the image; prints nothing if it is not there.
in_base() { if rpm -q "$2" >/dev/null 2>&1; then rpm -q --queryformat "$1" "$2"; fi; }
# of_ours FORMAT FILE: queries one of our packages.
of_ours() { rpm -qp --nosignature --queryformat "$1" "$2"; }
# newer A B: whether version A is newer than B, compared as rpm does.
newer() { [ "$(rpm --eval "%{lua:print(rpm.vercmp('$1', '$2'))}")" = 1 ]; }
# minor 1.36.5: 1.36
minor() { echo "$1" | cut -d. -f1,2; }
# one GLOB...: the one file that a pattern stands for.
one() {
  [ $# = 1 ] || fail "$# packages where one is needed: $*"
  [ -f "$1" ] || fail "no package $(basename "$1") among ours: build it with rpm/rpms.sh"
  echo "$1"
}

. /etc/os-release
{ command -v rpm-ostree && command -v ostree; } >/dev/null ||
  fail "${PRETTY_NAME:-$NAME} has no rpm-ostree: take stream-coreos of an OKD release (oc adm release info --image-for=stream-coreos RELEASE) or Fedora CoreOS (quay.io/fedora/fedora-coreos:stable)"

crio=$(one "$here"/cri-o-[0-9]*.rpm)
base_crio=$(in_base '%{EVR}' cri-o)
base_kubelet=$(in_base '%{EVR}' openshift-kubelet)
case $base_crio,$base_kubelet in
,)
  [ "${ID:-}-${VARIANT_ID:-}" = fedora-coreos ] ||
    fail "${PRETTY_NAME:-$NAME} has no package cri-o and no openshift-kubelet, and is not Fedora CoreOS: is it stream-coreos of an OKD release?"
  [ -z "$(in_base '%{EVR}' kubelet)" ] ||
    fail "the image has a package kubelet $(in_base '%{EVR}' kubelet) already: take a Fedora CoreOS without it"
  platform=fcos
  kubelet=$(one "$here"/kubelet-[0-9]*.rpm)
  ;;
,*) fail "the image has openshift-kubelet $base_kubelet but no package cri-o, which ours would replace: take stream-coreos of an OKD release as it is" ;;
*,)
  [ "${ID:-}-${VARIANT_ID:-}" != fedora-coreos ] || fail "the image has cri-o $base_crio already: take a Fedora CoreOS without it"
  fail "the image has cri-o $base_crio but no package openshift-kubelet, which ours would replace: take stream-coreos of an OKD release as it is"
  ;;
*)
  platform=okd
  kubelet=$(one "$here"/openshift-kubelet-[0-9]*.rpm)
  ;;
esac

our_crio=$(of_ours '%{EVR}' "$crio")
our_kubernetes=$(of_ours '%{VERSION}' "$kubelet")
if [ "$platform" = okd ]; then
  # openshift-kubelet has OKD's version, so ask the binary for that of Kubernetes.
  base_kubernetes=$(kubelet --version | sed -n 's/^Kubernetes v\([0-9][0-9.]*\).*/\1/p')
  [ -n "$base_kubernetes" ] || fail "the kubelet of the image does not say its version: $(kubelet --version)"
  [ "$(minor "$base_kubernetes")" = "$(minor "$our_kubernetes")" ] ||
    fail "the image has Kubernetes $base_kubernetes, ours is $our_kubernetes: a kubelet of another minor does not belong on this release. Take stream-coreos of an OKD release with Kubernetes $(minor "$our_kubernetes")"
  if newer "$base_kubernetes" "$our_kubernetes"; then
    fail "the image has Kubernetes $base_kubernetes, newer than ours, $our_kubernetes: take an older image of the same release, or move KUBERNETES_VERSION in versions.env and build again"
  fi
  if newer "$base_crio" "$our_crio" || [ "$base_crio" = "$our_crio" ]; then
    fail "the image has cri-o $base_crio, not older than ours, $our_crio: take an older image of the same release, or move CRIO_VERSION in versions.env and build again"
  fi
fi
[ "${1:-}" != --check ] || exit 0

if [ "$platform" = okd ]; then
  rpm-ostree override replace "$crio" "$kubelet"
  # OKD gives its kubelet gates that Kubernetes does not know, and labels of roles. A
  # kubelet of plain Kubernetes refuses both, on every node. This one has to get as far as
  # its configuration, which is wrong on purpose, so that it does not start.
  said=$(printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'kind: KubeletConfiguration' \
    'featureGates: {UnknownToKubernetes: true}' 'maxOpenFiles: -1' |
    kubelet --config=/dev/stdin --node-labels=node-role.kubernetes.io/worker 2>&1 || true)
  case $said in
  *maxOpenFiles*) ;;
  *) fail "our openshift-kubelet would not start on OKD, it is built as for plain Kubernetes: $(echo "$said" | grep -m1 -e unrecognized -e node-labels | cut -c1-200). Build it anew with rpm/rpms.sh openshift-kubelet" ;;
  esac
else
  rpm-ostree install "$crio" "$kubelet"
fi
# Checks that they run, and are ours.
crio --version | grep -q "^crio version $(of_ours '%{VERSION}' "$crio")" || fail "crio does not run in the image"
kubelet --version | grep -q "^Kubernetes v$our_kubernetes+layerlocality" || fail "the kubelet does not run in the image: $(kubelet --version 2>&1)"

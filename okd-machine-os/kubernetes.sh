#!/usr/bin/env bash
# Builds the control plane of OKD from OKD's own Kubernetes with our overlay and patches, and
# prints the folder of the binaries: _build/bin/openshift.
#
#   kubernetes.sh CHECKOUT [NAME...]
#
# CHECKOUT: a git clone of github.com/openshift/kubernetes at the commit of the release; its
#   branch and commit says `oc adm release info --commits RELEASE`. It stays as it is.
# NAME: kube-apiserver kube-controller-manager kube-scheduler kubelet; without one, all.
#
# Plain Kubernetes does not work: OKD's operators start the control plane with
# --openshift-config and gates that only openshift/kubernetes knows. kube-scheduler is
# OKD's, patched, without the plugin LayerLocality: that runs beside it
# (deploy/scheduler).
. "$(dirname "$0")/../scripts/lib.sh"

BINARIES=(kube-apiserver kube-controller-manager kube-scheduler kubelet)

[ $# -gt 0 ] || die "usage: kubernetes.sh CHECKOUT [${BINARIES[*]}]"
checkout=$1
shift
[ $# -gt 0 ] || set -- "${BINARIES[@]}"
for name in "$@"; do
  [[ " ${BINARIES[*]} " == *" $name "* ]] || die "unknown binary '$name': ${BINARIES[*]}"
done
commit=$(git -C "$checkout" rev-parse --verify HEAD 2>/dev/null) || die "$checkout is not a git clone"
label=$checkout/openshift-hack/images/hyperkube/Dockerfile.rhel
[ -f "$label" ] || die "$checkout is not openshift/kubernetes: it has no openshift-hack. Clone https://github.com/openshift/kubernetes and check out the commit of your release"
version=$(sed -n 's/.*io.openshift.build.versions="kubernetes=\([0-9.]*\)".*/v\1/p' "$label")
[ -n "$version" ] || die "$label does not say its version of Kubernetes"
minor=${version%.*} hint="see docs/patches.md for another version"
! lines | grep -qxF "${minor#v}" || hint="set LINE=${minor#v} in the environment, here and for the other scripts"
[ "$minor" = "${KUBERNETES_VERSION%.*}" ] ||
  die "$checkout is Kubernetes $version, our patches are for ${KUBERNETES_VERSION%.*}: check out a branch of OKD with ${KUBERNETES_VERSION%.*} (release-5.0), or $hint"

patched_version=$version+layerlocality.$LAYERLOCALITY_REVISION
tree=$BUILD/openshift-kubernetes
out=$BUILD/bin/openshift

# Everything that the tree is made from.
state="$commit $(tree_hash kubernetes)"
make_tree() {
  if [ -f "$tree/.git/layer-locality" ] && [ "$(cat "$tree/.git/layer-locality")" = "$state" ]; then return; fi
  say "openshift/kubernetes $version at ${commit:0:12}: copying, overlay, patches"
  rm -rf "$tree"
  # With its objects: patches that do not apply are merged, so that OKD's changes nearby
  # stay.
  git clone --quiet --shared --no-checkout "$checkout" "$tree"
  git_in "$tree" checkout --quiet --detach "$commit"
  copy_overlay kubernetes "$tree"
  git_in "$tree" add --all
  git_in "$tree" commit --quiet --message overlay
  while read -r patch; do
    git_in "$tree" am --quiet --3way "$patch" >"$BUILD/log/openshift-kubernetes.log" 2>&1 || {
      cat "$BUILD/log/openshift-kubernetes.log" >&2
      die "$(basename "$patch") does not apply to openshift/kubernetes $version; $tree is left as it is: look there (git am --show-current-patch), or take a commit closer to $KUBERNETES_VERSION"
    }
  done < <(series kubernetes)
  echo "$state" >"$tree/.git/layer-locality"
}

compile() {
  local module ldflags=(-s -w)
  for module in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=(-X "$module.gitVersion=$patched_version" -X "$module.gitMajor=1" -X "$module.gitMinor=$(echo "$version" | cut -d. -f2)")
    ldflags+=(-X "$module.gitTreeState=clean" -X "$module.gitCommit=$commit")
  done
  say "$1 $patched_version: compiling"
  (cd "$tree" && unset GOWORK && GOFLAGS="-trimpath -buildvcs=false -mod=vendor" GOPROXY=off CGO_ENABLED=0 \
    go build -ldflags "${ldflags[*]}" -o "$2" "./cmd/$1") >"$BUILD/log/openshift-$1.log" 2>&1 || {
    tail -n 20 "$BUILD/log/openshift-$1.log" >&2
    die "$1: build failed; the whole log is $BUILD/log/openshift-$1.log"
  }
}

# Each is built once for its inputs, as in scripts/build.sh, which drops unused ones.
build_all() {
  local name cached
  mkdir -p "$BUILD/log" "$out" "$CACHE/bin"
  for name in "$@"; do
    cached=$CACHE/bin/$name-openshift-$({
      echo "$state $patched_version $(uname -m)"
      toolchain
      declare -f compile
    } | sha256sum | cut -c1-16)
    if [ ! -x "$cached" ]; then
      make_tree
      compile "$name" "$cached.tmp.$$"
      mv "$cached.tmp.$$" "$cached"
    fi
    touch "$cached"
    ln -sfn "$cached" "$out/$name"
  done
}

with_lock openshift-kubernetes build_all "$@"
echo "$out"

# Tests OKD's control plane, releases and the apiserver's gate; sourced by run.sh after
# cluster.sh.
# shellcheck shell=bash disable=SC2154

raw_digest() { echo "sha256:$(skopeo inspect --tls-verify=false --raw "docker://$1" | sha256sum | cut -d' ' -f1)"; }

# The stand-in for openshift/kubernetes: upstream's tree, the file with its version, and
# the flag that plain Kubernetes does not have.
make_fork() {
  local tree file
  tree=$(scripts/tree.sh vendored kubernetes)
  cp -r --reflink=auto "$tree" "$work/fork"
  mkdir -p "$work/fork/openshift-hack/images/hyperkube"
  echo "LABEL io.openshift.build.versions=\"kubernetes=${KUBERNETES_VERSION#v}\"" >"$work/fork/openshift-hack/images/hyperkube/Dockerfile.rhel"
  for file in kube-apiserver/app/server.go kube-controller-manager/app/controllermanager.go; do
    sed -i "s,^\t\(verflag.AddFlags(namedFlagSets\),\tnamedFlagSets.FlagSet(\"openshift\").String(\"openshift-config\"\, \"\"\, \"what OKD's operators configure\")\n\t\1," "$work/fork/cmd/$file"
    grep -q openshift-config "$work/fork/cmd/$file" || die "$file has changed: make_fork"
  done
  git_in "$work/fork" init --quiet
  git_in "$work/fork" add --all --force
  # The same commit every time, because binaries are cached by it.
  GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z git_in "$work/fork" commit --quiet --message fork
}
kubernetes() { okd-machine-os/kubernetes.sh "$@"; }
control_plane() { okd-machine-os/control-plane/build.sh "$@"; }

refuses "openshift/kubernetes: not a clone" 'is not a git clone' kubernetes "$work/registry" kubelet
refuses "openshift/kubernetes: another repository" 'is not openshift/kubernetes' kubernetes "$ROOT" kubelet
refuses "openshift/kubernetes: an unknown binary" "unknown binary 'etcd'" kubernetes "$ROOT" etcd
mkdir -p "$work/old/openshift-hack/images/hyperkube"
echo 'LABEL io.openshift.build.versions="kubernetes=1.35.5"' >"$work/old/openshift-hack/images/hyperkube/Dockerfile.rhel"
git_in "$work/old" init --quiet
git_in "$work/old" add --all
git_in "$work/old" commit --quiet --message old
refuses "openshift/kubernetes: another minor" "is Kubernetes v1\.35\.5, our patches are for v$MINOR" kubernetes "$work/old" kubelet

# Built once for the same inputs, and only with FULL=1.
state=$({
  declare -f make_fork
  cat okd-machine-os/kubernetes.sh
  tree_hash kubernetes
  pinned_version kubernetes
  toolchain
} | sha256sum | cut -c1-16)
openshift=$CACHE/okd-kubernetes/$state
build_fork() {
  make_fork && kubernetes "$work/fork" kube-apiserver kube-controller-manager || return 1
  # A commit of OKD that removes everything that one of our patches changes.
  git clone --quiet --shared "$work/fork" "$work/conflict" || return 1
  echo 'package node' >"$work/conflict/pkg/registry/core/node/strategy.go"
  git_in "$work/conflict" commit --quiet --all --message conflict || return 1
  if kubernetes "$work/conflict" kubelet 2>"$work/conflict.log"; then return 1; fi
  cat "$work/conflict.log"
  grep -q '^error: 0.*\.patch does not apply to openshift/kubernetes' "$work/conflict.log" || return 1
  rm -rf "$BUILD/openshift-kubernetes"
  mkdir -p "$openshift"
  cp --dereference "$BUILD/bin/openshift/kube-apiserver" "$BUILD/bin/openshift/kube-controller-manager" "$openshift/"
}
# program FILE VERSION: writes a stand-in for a binary of openshift/kubernetes.
program() {
  # shellcheck disable=SC2016 # for the script that is written
  printf '#!/bin/sh\ncase "$*" in\n*--version) echo Kubernetes v%s ;;\n*) echo "      --feature-gates mapStringBool"; echo "      --openshift-config string" ;;\nesac\n' "$2" >"$1"
  chmod +x "$1"
}
if [ -x "$openshift/kube-apiserver" ]; then
  skipped "openshift/kubernetes: patched and built, a patch that does not apply is named" "checked earlier with the same inputs"
  touch "$openshift"
elif [ -n "${FULL:-}" ]; then
  check "openshift/kubernetes: patched and built, a patch that does not apply is named" build_fork
else
  skipped "openshift/kubernetes: patched and built" "takes many minutes: make test-all. Scripts stand in for its binaries"
  openshift=$work/openshift
  mkdir "$openshift"
  for name in kube-apiserver kube-controller-manager; do
    program "$openshift/$name" "${KUBERNETES_VERSION#v}+layerlocality.$LAYERLOCALITY_REVISION"
  done
fi
find "$CACHE/okd-kubernetes" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} + 2>/dev/null || true
[ "$openshift" = "$work/openshift" ] ||
  check "openshift/kubernetes: its apiserver is patched" grep -q -a NodeStatusImageLayers "$openshift/kube-apiserver"

# hyperkube NAME VERSION: makes the stand-in for the image of a release.
hyperkube() {
  local name
  rm -rf "$work/hyperkube"
  mkdir -p "$work/hyperkube/bin" "$work/hyperkube/usr/bin"
  cp "$(type -P busybox)" "$work/hyperkube/bin/"
  ln -s busybox "$work/hyperkube/bin/sh"
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
    program "$work/hyperkube/usr/bin/$name" "$2"
  done
  tar -C "$work/hyperkube" -c . | podman import --quiet - "localhost/base/$1" >/dev/null
}
hyperkube hyperkube:ok 1.36.3
hyperkube hyperkube:old 1.35.5
hyperkube hyperkube:newer 1.36.9
refuses "control plane: an image of another minor" "is Kubernetes 1\.35\.5, ours is ${KUBERNETES_VERSION#v}" control_plane --base localhost/base/hyperkube:old --binaries "$openshift"
refuses "control plane: a newer image" 'newer than ours' control_plane --base localhost/base/hyperkube:newer --binaries "$openshift"
refuses "control plane: an image without it" 'has no kube-apiserver' control_plane --base localhost/base/fcos:5.0 --binaries "$openshift"
refuses "control plane: binaries of plain Kubernetes" 'kube-apiserver does not know --openshift-config' \
  control_plane --base localhost/base/hyperkube:ok --binaries "$BUILD/bin/patched"
refuses "control plane: no binaries" 'run okd-machine-os/kubernetes.sh' control_plane --base localhost/base/hyperkube:ok --binaries "$work/empty"
# The release's image is only in its registry.
hyperkube hyperkube:release 1.36.3
podman push --quiet --tls-verify=false localhost/base/hyperkube:release "$registry/base/hyperkube:5.0"
podman rmi localhost/base/hyperkube:release >/dev/null
base_digest=$(raw_digest "$registry/base/hyperkube:5.0")
check "control plane: the image is built and pushed" \
  control_plane --base "$registry/base/hyperkube:5.0" --binaries "$openshift" --image "$registry/own/hyperkube:5.0" --push
hyperkube_image=$(grep "^$registry/own/hyperkube@" "$WORK/log" || echo none)
podman push --quiet --tls-verify=false localhost/base/hyperkube:newer "$registry/base/hyperkube:5.0"
for tool in podman buildah; do
  podman tag localhost/base/hyperkube:ok "$registry/base/hyperkube:5.0"
  refuses "$tool: a base by a tag that has moved is not the copy that is here" 'newer than ours' \
    control_plane --tool "$tool" --base "$registry/base/hyperkube:5.0" --binaries "$openshift"
done
check "control plane: what is printed is the digest in the registry" is_there "$hyperkube_image"
check "control plane: kube-apiserver of the image is ours" prints "^Kubernetes $KUBERNETES_VERSION+layerlocality" in_result "$hyperkube_image" kube-apiserver --version
check "control plane: kube-scheduler is the release's" prints '^Kubernetes v1\.36\.3$' in_result "$hyperkube_image" kube-scheduler --version
check "control plane: oc shows our version" \
  [ "$(podman image inspect --format '{{index .Labels "io.openshift.build.versions"}}' "$hyperkube_image")" = "kubernetes=${KUBERNETES_VERSION#v}" ]
check "control plane: its label names the base by digest" \
  [ "$(podman image inspect --format '{{index .Labels "io.layerlocality.base"}}' "$hyperkube_image")" = "$registry/base/hyperkube@$base_digest" ]

# Releases.

# release_info KUBERNETES: prints what `oc adm release info -o json` prints of one.
release_info() {
  jq -n --arg image "$registry/upstream/content@$digest" --arg kubernetes "$1" '{
    metadata: {kind: "cincinnati-metadata-v0", version: "5.0.0-okd-scos.ec.8"}, displayVersions: {kubernetes: {Version: $kubernetes}},
    references: {kind: "ImageStream", spec: {tags: ["hyperkube", "stream-coreos", "cli"] | map({name: ., from: {kind: "DockerImage", name: $image}})}}}'
}
from=$registry/upstream/release@sha256:$(printf 'd%.0s' {1..64})
old=$registry/upstream/release@$digest
release_info 1.36.3 >"$FAKE/releases/${from##*/}"
release_info 1.35.5 >"$FAKE/releases/${old##*/}"
release() { okd-machine-os/release.sh --hyperkube "$hyperkube_image" --to "$registry/own/release:5.0" "$@"; }
refuses "release: of another minor" 'is Kubernetes 1\.35\.5, ours is' release --from "$old"
refuses "release: by tag" 'a tag can move' release --from "$registry/upstream/release:5.0"
refuses "release: that is not there" 'oc cannot read the release' release --from "$registry/upstream/release@sha256:$(printf 'b%.0s' {1..64})"
check "release: without --run it prints the command" release --from "$from"
check "release: the command" grep -q -F "oc adm release new --from-release $from --name 5.0.0-okd-scos.ec.8.layerlocality.$LAYERLOCALITY_REVISION --to-image $registry/own/release:5.0 hyperkube=$hyperkube_image" "$WORK/log"
check "release: and changes nothing" [ ! -e "$FAKE/calls" ]
check "release: made, with the operating system too" release --from "$from" --os "$os_image" --run
check "release: prints what the installer takes, by digest" grep -q "^export OPENSHIFT_INSTALL_RELEASE_IMAGE_OVERRIDE=$registry/own/release@sha256:e\{64\}$" "$WORK/log"
# shellcheck disable=SC2016 # jq's variables
check "release: has our images, and the others as they were" \
  jq -e --arg hyperkube "$hyperkube_image" --arg os "$os_image" --arg old "$registry/upstream/content@$digest" \
  '[.references.spec.tags[].from.name] == [$hyperkube, $os, $old]' "$FAKE/releases/release:5.0"
export FAKE_FORGETFUL=1
refuses "release: that has not become ours" 'has another image hyperkube' release --from "$from" --run
unset FAKE_FORGETFUL

echo '{"auths": {}}' >"$work/auth.json"
export FAKE_LOGIN=$work/auth.json
check "release: oc gets the logins" release --from "$from" --authfile "$FAKE_LOGIN"
refuses "release: without them, oc cannot read it" 'oc cannot read the release' release --from "$from"
unset FAKE_LOGIN

# The gate, in the object of the apiserver's operator.
gate() { okd-machine-os/gate.sh "$@"; }
# operator [ARGS...]: asks jq about it.
operator() { kubectl get kubeapiserver cluster -o json | jq "$@"; }
# operator_is FILTER: replaces it.
operator_is() { operator "$1" | kubectl replace -f -; }
revision() { operator -r .metadata.resourceVersion; }
# shellcheck disable=SC2016 # jq's variable
overridden() { operator -e "$@" '.spec.unsupportedConfigOverrides == $want'; }
check "gate: an operator's object" kubectl create -f - <<END
{"apiVersion": "operator.openshift.io/v1", "kind": "KubeAPIServer", "metadata": {"name": "cluster"}, "spec": {"managementState": "Managed",
  "observedConfig": {"apiServerArguments": {"feature-gates": ["Known=true", "Other=false"], "v": ["2"]}}}}
END
stock_gate() {
  kubectl get crd kubeapiservers.operator.openshift.io -o json | jq 'del(.status, .metadata.managedFields, .metadata.resourceVersion, .metadata.uid)' >"$work/crd.json"
  operator 'del(.metadata.resourceVersion, .metadata.uid)' >"$work/operator.json"
  export KUBECONFIG=$work/stock
  kubectl create -f "$work/crd.json" && kubectl wait --for=condition=Established --timeout=60s crd --all && kubectl create -f "$work/operator.json"
  gate on
}
start_cluster "$work/stock" -stock
refuses "gate: an apiserver that is not ours" "the apiserver is $KUBERNETES_VERSION, not ours" stock_gate
check "gate: on" gate on
check "gate: with all that the release has" overridden --argjson want '{"apiServerArguments": {"feature-gates": ["Known=true", "Other=false", "NodeStatusImageLayers=true"]}}'
check "gate: status says on" prints '^on$' gate status
before=$(revision)
check "gate: on again changes nothing" gate on
check "gate: the same" [ "$(revision)" = "$before" ]
operator_is '.spec.observedConfig.apiServerArguments["feature-gates"] += ["New=true"]' >/dev/null
refuses "gate: status after an update of OKD with other gates" 'other gates than the release' gate status
check "gate: on takes them" gate on
check "gate: status says on" prints '^on$' gate status
check "gate: off" gate off
check "gate: nothing is left of it" operator -e '(.spec | has("unsupportedConfigOverrides") | not) and .metadata.annotations // {} == {}'
check "gate: status says off" prints '^off$' gate status
operator_is '.spec.unsupportedConfigOverrides = {servicesSubnet: "x", apiServerArguments: {"feature-gates": ["NodeStatusImageLayers=true"], "other": ["y"]}}' >/dev/null
check "gate: off leaves what else is overridden" gate off
check "gate: it is there" overridden --argjson want '{"servicesSubnet": "x", "apiServerArguments": {"other": ["y"]}}'

# Gates that were set by hand.
# shellcheck disable=SC2016 # jq's variable
gates_are() { operator -e --argjson gates "$1" '.spec.unsupportedConfigOverrides.apiServerArguments["feature-gates"] == $gates'; }
operator_is '.spec.unsupportedConfigOverrides = {apiServerArguments: {"feature-gates": ["Hand=true", "Known=false"]}}
  | .spec.observedConfig.apiServerArguments["feature-gates"] = ["Known=true", "Other=false"]' >/dev/null
before=$(revision)
check "gate: off when it is not on" gate off
check "gate: touches nothing" [ "$(revision)" = "$before" ]
check "gate: on, over gates set by hand" gate on
check "gate: keeps them, before the release's of that name" gates_are '["Other=false", "Hand=true", "Known=false", "NodeStatusImageLayers=true"]'
check "gate: status says on" prints '^on$' gate status
operator_is '.spec.unsupportedConfigOverrides.apiServerArguments["feature-gates"] += ["Later=true"]
  | .spec.observedConfig.apiServerArguments["feature-gates"] = ["New=true"]' >/dev/null
check "gate: on after an update, and one more set by hand" gate on
check "gate: has the release's new ones and those set by hand" gates_are '["New=true", "Hand=true", "Known=false", "Later=true", "NodeStatusImageLayers=true"]'
check "gate: off again" gate off
check "gate: leaves those set by hand" gates_are '["Hand=true", "Known=false", "Later=true"]'
check "gate: and no annotation" operator -e '.metadata.annotations // {} == {}'
refuses "gate: neither on nor off" 'usage: gate.sh' gate maybe

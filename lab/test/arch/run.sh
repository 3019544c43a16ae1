#!/usr/bin/env bash
# Compiles every binary of a release for the other architecture (arm64 on amd64, and the
# other way round) and runs each with QEMU's user mode emulation.
#
#   run.sh   as root (pinns pins a namespace)
#
# Prints one line per check and ends with "N passed, N failed". Kernel and C library of a
# machine of that architecture are not tested: QEMU translates system calls to those of
# this kernel, and the binaries are static.
. "$(dirname "$0")/../../../scripts/lib.sh"
cd "$ROOT"

[ $# = 0 ] || die "usage: run.sh"
[ "$(id -u)" = 0 ] || die "pinns pins a namespace: run it as root"
. "$ROOT/lab/test/checks.sh"
. "$ROOT/lab/test/registry.sh"
clean_up() { stop_registry; }

case $(go env GOHOSTARCH) in
amd64) ARCH=arm64 MACHINE=AArch64 ;;
arm64) ARCH=amd64 MACHINE=X86-64 ;;
*) die "neither amd64 nor arm64" ;;
esac
EMULATOR=$(emulator "$ARCH")
if [ -z "$(type -P "$EMULATOR")" ]; then
  skipped "binaries for $ARCH run" "$EMULATOR is not installed"
  finish
  exit
fi

VERSION=$(our_version kubernetes)
BIN=$BUILD/bin/patched-$ARCH
BINARIES=(crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent kubectl-layers)
emulated() { "$EMULATOR" "$BIN/$1" "${@:2}"; }

check "binaries for $ARCH" env ARCH="$ARCH" scripts/build.sh patched "${BINARIES[@]}"
for binary in "${BINARIES[@]}"; do
  check "$binary is $MACHINE" says "$MACHINE" readelf --file-header "$BIN/$binary"
  check "$binary is static" static "$BIN/$binary"
done

check "crio says $CRIO_VERSION" says "crio version ${CRIO_VERSION#v}" emulated crio --version
check "crio is for linux/$ARCH" says "linux/$ARCH" emulated crio version
# QEMU hides the kernel's seccomp, so that crio says SeccompEnabled: false.
check "crio has libseccomp linked in" grep -qa _Cfunc_seccomp_arch_native "$BIN/crio"
cat >"$WORK/crio.conf" <<END
[crio.image]
pause_image = "registry.example.com/pause:1"
END
check "crio reads its configuration" says 'pause_image = "registry.example.com/pause:1"' \
  emulated crio --config "$WORK/crio.conf" --config-dir '' config

# pinned: in a mount namespace of its own, which takes the pinned one with it.
pinned() {
  # shellcheck disable=SC2016 # variables of that shell
  unshare --mount sh -c '"$@" && stat --file-system --format %T "$0/utsns/name"' "$WORK/pins" \
    "$EMULATOR" "$BIN/pinns" --dir "$WORK/pins" --filename name --uts
}
mkdir "$WORK/pins"
check "pinns pins a namespace" says nsfs pinned

for binary in kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent kubectl-layers; do
  check "$binary says $VERSION" says "$VERSION" emulated "$binary" --version
done
for binary in kubelet kube-apiserver kube-controller-manager kube-scheduler; do
  check "$binary knows the gate" says NodeStatusImageLayers=true emulated "$binary" --help
done

cat >"$WORK/scheduler.conf" <<END
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none}}]
current-context: none
END
# configured: prints the configuration that the scheduler has made of the static pod's.
configured() {
  sed "s,kubeconfig: .*,kubeconfig: $WORK/scheduler.conf," deploy/scheduler/static-pod/config.yaml >"$WORK/config.yaml"
  emulated kube-scheduler --config "$WORK/config.yaml" --write-config-to "$WORK/written.yaml"
  cat "$WORK/written.yaml"
}
check "kube-scheduler reads its configuration, with the plugin's" says "kind: LayerLocalityArgs" configured

# inspected: what layer-resolver says of an image in a registry, in inspected.json.
inspected() {
  local container
  container=$(buildah from scratch)
  buildah copy --quiet "$container" versions.env
  buildah commit --quiet --tls-verify=false "$container" "docker://$registry/app:1"
  emulated layer-resolver inspect --registries-conf "$WORK/registries.conf" \
    --platform "linux/$(go env GOHOSTARCH)" --output json "$registry/app:1" >"$WORK/inspected.json"
}
private_store "$WORK"
scripts/build.sh tools registry
start_registry
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$registry" >"$WORK/registries.conf"
check "layer-resolver inspects an image" inspected
check "it names the image's layer" diff \
  <(skopeo inspect --tls-verify=false "docker://$registry/app:1" | jq -r '.Layers[]') \
  <(jq -r '.images[].layers[].digest' "$WORK/inspected.json")
finish

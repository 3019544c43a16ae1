#!/usr/bin/env bash
# Gets what a demo runs, and runs it on a cluster of its own, as root:
#
#   demo.sh                  everything patched, with the programs of a release: RELEASE in the environment is its folder
#                            or address, as scripts/from-release.sh has it. Without that, a release of the commit that is
#                            checked out: in _out/release, or on the releases page. If there is none, or with
#                            RELEASE=none, they are compiled, as for the others
#   demo.sh stock            nothing replaced: stock nodes and control plane, our scheduler and resolver
#   demo.sh agent            nothing replaced, on nodes with containerd and CRI-O: layer-agent reports what they
#                            hold, our scheduler is a Deployment
#   demo.sh image-locality | scheduler-tour
#                            follows a text of lab/demos/: every command in it, with its output
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "the demo makes network namespaces and mounts: run it as root (sudo make demo)"

# release_here ARCH: prints a release of the commit that is checked out unchanged; nothing if there is none.
release_here() {
  local git=(git -c "safe.directory=$ROOT") commit tag url
  commit=$("${git[@]}" rev-parse HEAD 2>/dev/null) && [ -z "$("${git[@]}" status --porcelain)" ] || return 0
  if grep -qsF ", commit $commit." "$OUTPUT/release/RELEASE_NOTES.md" && compgen -G "$OUTPUT/release/layer-locality-*-demo-$1.tar.gz" >/dev/null; then
    echo "$OUTPUT/release"
    return
  fi
  tag=$(our_version kubernetes)
  tag=${tag/+/-}
  url=$(repository_url)/releases/download/$tag
  if [ "$("${git[@]}" rev-parse --quiet --verify "refs/tags/$tag^{commit}")" = "$commit" ] &&
    curl --silent --fail --location --head --max-time 10 --output /dev/null "$url/SHA256SUMS"; then echo "$url"; fi
}

# unpack RELEASE ARCH: makes $BUILD/release, whose folders are those of $BUILD/bin.
unpack() {
  local folder=$BUILD/release runc
  scripts/install-deps.sh --run
  runc=$(command -v runc)
  "$runc" features >/dev/null 2>&1 || die "$runc is older than 1.1: install a newer one, or compile with RELEASE=none"
  rm -rf "$folder"
  said=$(scripts/from-release.sh "$1" "$folder" "linux-$2" "demo-$2") || exit 1
  ln -s bin "$folder/patched"
  ln -s "$runc" "$folder/lab/runc"
  ln -s ../bin/layer-resolver "$folder/lab/layer-resolver"
  say "programs: $said"
}

case $(uname -m) in
aarch64) arch=arm64 ;;
*) arch=amd64 ;;
esac
release=${RELEASE:-}
if [ $# -gt 0 ]; then
  [ "${release:-none}" = none ] || die "a release has the programs of the demo without a name: leave out '$1', or RELEASE"
elif [ -z "$release" ]; then
  release=$(release_here "$arch")
fi
if [ "${release:-none}" != none ]; then
  unpack "$release" "$arch"
  exec "$BUILD/release/lab/demo" --bin-dir "$BUILD/release"
fi
say "programs: compiled from this clone${RELEASE:+ (RELEASE=$RELEASE)}"
nodes=(crio pinns kubelet kube-apiserver kube-controller-manager)
case ${1:-} in
'') binaries=(lab tools etcd crictl patched kube-scheduler "${nodes[@]}") ;;
stock) binaries=(lab tools etcd crictl patched kube-scheduler stock "${nodes[@]}") ;;
agent) binaries=(lab demo tools etcd registry runc crictl containerd containerd-shim-runc-v2 patched kube-scheduler layer-resolver layer-agent kubectl-layers stock "${nodes[@]}" kube-scheduler) ;;
image-locality | scheduler-tour) binaries=(tools patched) ;;
*) die "usage: demo.sh [stock | agent | image-locality | scheduler-tour]" ;;
esac
scripts/install-deps.sh
scripts/build.sh "${binaries[@]}"
case ${1:-} in
image-locality | scheduler-tour)
  text=lab/demos/$1/README.md
  export DEMOS_NAME=${DEMOS_NAME:-demos}
  settings=$(lab/demos/cluster.sh up) # which leaves nothing behind when it fails
  trap 'lab/demos/cluster.sh down' EXIT
  eval "$settings"
  lab/run test/demos/run "$text"
  trap - EXIT
  lab/demos/cluster.sh down
  echo "demo: ok: every command of $text did what the text says"
  exit
  ;;
esac
exec "$BUILD/bin/lab/demo" --bin-dir "$BUILD/bin" ${1:+"--$1" --log-dir "${OUTPUT#"$ROOT"/}/demo-$1/log"}

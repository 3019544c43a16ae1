#!/usr/bin/env bash
# Builds the control-plane image of an OKD release (hyperkube) with our binaries in it.
# Checks the release's image first and refuses a wrong one. Prints IMAGE@DIGEST.
#
#   build.sh --base IMAGE [OPTIONS]
#
#   --base IMAGE        oc adm release info --image-for=hyperkube RELEASE
#   --binaries FOLDER   kube-apiserver, kube-controller-manager and what else is to be replaced
#                       (kube-scheduler, kubelet); default _build/bin/openshift, where
#                       okd-machine-os/kubernetes.sh puts them
#   --image NAME[:TAG]  default localhost/layer-locality/hyperkube
#   --tool TOOL         podman or buildah; default: the first that is installed
#   --push              pushes; the digest is then that of the registry
. "$(dirname "$0")/../../scripts/lib.sh"
. "$ROOT/okd-machine-os/lib.sh"

base='' binaries=$BUILD/bin/openshift image=localhost/layer-locality/hyperkube wanted='' finish=keep
while [ $# -gt 0 ]; do
  case $1 in
  --base | --binaries | --image | --tool)
    [ $# -gt 1 ] || usage
    if [ "$1" = --tool ]; then wanted=$2; else declare "${1#--}=$2"; fi
    shift
    ;;
  --push) finish=push ;;
  *) usage ;;
  esac
  shift
done
[ -n "$base" ] || usage
choose_tool "$wanted"

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/bin"
for name in kube-apiserver kube-controller-manager; do
  [ -x "$binaries/$name" ] || die "$binaries/$name is missing: run okd-machine-os/kubernetes.sh, or name the folder with --binaries"
done
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  [ ! -x "$binaries/$name" ] || cp --dereference --reflink=auto "$binaries/$name" "$context/bin/"
done

# version COMMAND...: 1.36.5 of "Kubernetes v1.36.5+...".
version() { "$@" --version 2>&1 | sed -n 's/^Kubernetes v\([0-9][0-9.]*\).*/\1/p'; }
# flags COMMAND...: all flags that it knows.
flags() { "$@" --help 2>&1 | grep -o '^ *\(-[a-z], \)\?--[a-z0-9-]*' | grep -o -- '--.*' | sort -u; }

have_image "$base"
say "looking at $base"
theirs=$(version in_image "$base" "$context/bin" kube-apiserver) || true
[ -n "$theirs" ] || die "$base has no kube-apiserver that says its version: is it the image hyperkube of a release (oc adm release info --image-for=hyperkube RELEASE)?"
ours=$(version "$context/bin/kube-apiserver")
[ "${theirs%.*}" = "${ours%.*}" ] ||
  die "$base is Kubernetes $theirs, ours is $ours: take the image of a release with ${ours%.*}"
[ "$(printf '%s\n' "$theirs" "$ours" | sort -V | tail -n 1)" = "$ours" ] ||
  die "$base is Kubernetes $theirs, newer than ours, $ours: build from the commit of that release (oc adm release info --commits)"
for name in "$context"/bin/*; do
  name=$(basename "$name")
  [ "$(version "$context/bin/$name")" = "$ours" ] || die "$name is Kubernetes $(version "$context/bin/$name"), kube-apiserver $ours: build them from one tree"
  # OKD's operators start it with this flag, and with others that the release's binary
  # accepts.
  case $name in
  kube-apiserver | kube-controller-manager)
    "$context/bin/$name" --openshift-config=/nonexistent --version >/dev/null 2>&1 ||
      die "our $name does not know --openshift-config, with which OKD starts it: it is of plain Kubernetes. okd-machine-os/kubernetes.sh builds it from OKD's"
    ;;
  esac
  missing=$(comm -23 <(flags in_image "$base" "$context/bin" "$name") <(flags "$context/bin/$name") | paste -s -d ' ')
  [ -z "$missing" ] || die "our $name does not know flags of the release's: $missing. Build it from the commit of that release: okd-machine-os/kubernetes.sh"
done

say "building $image"
"$tool" build --file "$ROOT/okd-machine-os/control-plane/Containerfile" --pull-never \
  --build-arg "BASE=$base" --build-arg "VERSION=$ours" \
  --label "io.layerlocality.base=$(with_digest "$base")" --label "org.opencontainers.image.revision=$(git -C "$ROOT" rev-parse HEAD)" \
  --iidfile "$context/id" "$context/bin" >"$context/log" 2>&1 || {
  cat "$context/log" >&2
  die "$tool cannot build on $base"
}
[ "$(version in_image "$(cat "$context/id")" "$context/bin" kube-apiserver)" = "$ours" ] || die "kube-apiserver does not run in the image: is it for another architecture?"
publish "$(cat "$context/id")" "$image" "$finish" "$context/digest"

#!/usr/bin/env bash
# Builds the operating system image of nodes: OKD's or Fedora CoreOS with our RPMs of
# CRI-O and kubelet, for the architecture of this machine. Checks the base first and
# refuses a wrong one. Prints IMAGE@DIGEST.
#
#   build.sh --base IMAGE [OPTIONS]
#
#   --base IMAGE        stream-coreos of the release that the cluster runs
#                       (oc adm release info --image-for=stream-coreos RELEASE), or
#                       quay.io/fedora/fedora-coreos:stable
#   --rpms FOLDER       our packages; default _out/rpms, where rpm/rpms.sh puts them. With its
#                       RPM-GPG-KEY-layer-locality there, all have to be signed with that key
#   --image NAME[:TAG]  default localhost/layer-locality/os
#   --rpms-image NAME[:TAG]  makes the image with nothing but the packages too, which layering
#                       on the cluster takes (manifests.sh --on-cluster)
#   --tool TOOL         podman or buildah; default: the first that is installed
#   --push              pushes; the digests are then those of the registry
. "$(dirname "$0")/../scripts/lib.sh"
. "$ROOT/okd-machine-os/lib.sh"

base='' rpms=$OUTPUT/rpms arch=$(uname -m) image=localhost/layer-locality/os rpms_image='' wanted='' finish=keep
while [ $# -gt 0 ]; do
  case $1 in
  --base | --rpms | --image | --rpms-image | --tool)
    [ $# -gt 1 ] || usage
    case $1 in
    --rpms-image) rpms_image=$2 ;;
    --tool) wanted=$2 ;;
    *) declare "${1#--}=$2" ;;
    esac
    shift
    ;;
  --push) finish=push ;;
  *) usage ;;
  esac
  shift
done
[ -n "$base" ] || usage
choose_tool "$wanted"
[ -d "$rpms/$arch" ] || die "$rpms/$arch is missing: run rpm/rpms.sh, or name the folder of a repository with --rpms"

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/rpms"
find "$rpms/$arch" -maxdepth 1 \( -name 'cri-o-[0-9]*.rpm' -o -name 'kubelet-[0-9]*.rpm' -o -name 'openshift-kubelet-[0-9]*.rpm' \) \
  -exec cp -t "$context/rpms" {} +
# The image has none of our keys, so signatures can only be checked here.
key=$rpms/RPM-GPG-KEY-layer-locality
if [ -f "$key" ]; then
  command -v rpmkeys >/dev/null || die "rpmkeys, of rpm, is not installed, and checks the packages against $key: install it"
  rpmkeys --dbpath "$context/keys" --import "$key" || die "$key is not a key"
  rpmkeys --dbpath "$context/keys" --define '_pkgverify_level all' --checksig "$context"/rpms/*.rpm >"$context/log" 2>&1 || {
    cat "$context/log" >&2
    die "not all packages of $rpms/$arch are signed with $key: sign them with rpm/rpms.sh --sign KEY"
  }
fi
cp "$ROOT/okd-machine-os/install.sh" "$context/rpms/"

have_image "$base"
say "looking at $base"
in_image "$base" "$context/rpms" sh /mnt/host/install.sh --check || die "$base was not touched"

# build TARGET: prints the image's ID.
build() {
  "$tool" build --file "$ROOT/okd-machine-os/Containerfile" --build-arg "BASE=$base" --pull-never \
    --label "io.layerlocality.base=$(with_digest "$base")" --label "org.opencontainers.image.revision=$(git -C "$ROOT" rev-parse HEAD)" \
    --target "$1" --iidfile "$context/id" "$context/rpms" >"$context/log" 2>&1 || {
    cat "$context/log" >&2
    die "$tool cannot build on $base"
  }
  cat "$context/id"
}
say "building $image"
id=$(build os)
publish "$id" "$image" "$finish" "$context/digest"
if [ -n "$rpms_image" ]; then
  id=$(build rpms)
  publish "$id" "$rpms_image" "$finish" "$context/digest"
fi

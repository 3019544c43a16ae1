#!/usr/bin/env bash
# Makes an OKD release with our control plane (and operating system) from one of OKD's,
# with `oc adm release new`, after checking both. Prints how to install or upgrade with
# it.
#
#   release.sh --from RELEASE@DIGEST --hyperkube IMAGE@DIGEST --to NAME:TAG [OPTIONS]
#
#   --from RELEASE@DIGEST    OKD's release, or a mirror of it
#   --hyperkube IMAGE@DIGEST what control-plane/build.sh --push has printed
#   --os IMAGE@DIGEST        what build.sh --push has printed: all nodes boot it from the start;
#                            without it, nodes keep OKD's until manifests.sh' objects are applied
#   --to NAME:TAG            where the new release goes
#   --authfile FILE          logins of all registries, as `oc` and podman take them
#   --run                    does it; without it, prints the command and changes nothing
. "$(dirname "$0")/../scripts/lib.sh"
. "$ROOT/okd-machine-os/lib.sh"

from='' hyperkube='' os='' to='' authfile='' run=''
while [ $# -gt 0 ]; do
  case $1 in
  --from | --hyperkube | --os | --to | --authfile)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --run) run=1 ;;
  *) usage ;;
  esac
  shift
done
if [ -z "$from" ] || [ -z "$hyperkube" ] || [ -z "$to" ]; then usage; fi
by_digest --from "$from"
by_digest --hyperkube "$hyperkube"
[ -z "$os" ] || by_digest --os "$os"
[[ $to =~ ^[a-zA-Z0-9][-a-zA-Z0-9._:]*(/[-a-z0-9._]+)+:[-a-zA-Z0-9._]+$ ]] || die "--to must be REGISTRY/NAME:TAG, not '$to'"
for program in oc jq; do
  command -v "$program" >/dev/null || die "$program is not installed: oc is among the client tools of the release"
done
login=()
[ -z "$authfile" ] || login=(--registry-config "$authfile")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# info RELEASE: prints what oc knows about it, as JSON.
info() { oc adm release info "${login[@]}" -o json "$1" >"$work/info.json" || die "oc cannot read the release $1"; }
# of_info FILTER
of_info() { jq -r "$1 // empty" "$work/info.json"; }
# image_of NAME: prints the image in the release.
image_of() { of_info "first(.references.spec.tags[] | select(.name == \"$1\") | .from.name)"; }

info "$from"
version=$(of_info .metadata.version)
kubernetes=$(of_info '.displayVersions.kubernetes.Version')
ours=${KUBERNETES_VERSION#v}
if [ -z "$version" ] || [ -z "$(image_of hyperkube)" ]; then
  die "$from is not an OKD release: it has no version or no image hyperkube"
fi
[ "${kubernetes%.*}" = "${ours%.*}" ] ||
  die "$from ($version) is Kubernetes ${kubernetes:-of unknown version}, ours is ${ours%.*}: take a release with ${ours%.*}"
[ -z "$os" ] || [ -n "$(image_of stream-coreos)" ] || die "$from ($version) has no image stream-coreos that --os could replace"

# Sorted after the release it is made from, before the next.
case $version in
*-*) name=$version.layerlocality.$LAYERLOCALITY_REVISION ;;
*) name=$version-layerlocality.$LAYERLOCALITY_REVISION ;;
esac
command=(oc adm release new "${login[@]}" --from-release "$from" --name "$name" --to-image "$to" "hyperkube=$hyperkube")
[ -z "$os" ] || command+=("stream-coreos=$os")
if [ -z "$run" ]; then
  say "with --run, this makes the release $name:"
  printf '%q ' "${command[@]}"
  echo
  exit
fi
"${command[@]}" >&2 || die "oc could not make the release; nothing but $to can have changed"
info "$to"
[ "$(image_of hyperkube)" = "$hyperkube" ] || die "$to has another image hyperkube: $(image_of hyperkube)"
[ -z "$os" ] || [ "$(image_of stream-coreos)" = "$os" ] || die "$to has another image stream-coreos: $(image_of stream-coreos)"
release=${to%:*}@$(of_info .digest)
by_digest "the new release" "$release"
cat <<END
# A new cluster: the installer of $version, with
export OPENSHIFT_INSTALL_RELEASE_IMAGE_OVERRIDE=$release
# A cluster of $version (the release is not signed, hence --force):
oc adm upgrade --allow-explicit-upgrade --force --to-image $release
# Back:
oc adm upgrade --allow-explicit-upgrade --force --to-image $from
END

#!/usr/bin/env bash
# Builds the images of kube-apiserver, kube-controller-manager, kube-scheduler and
# layer-resolver from the binaries in _build/bin/patched, and prints the digest of
# each.
#
#   build.sh [OPTIONS] [COMPONENT...]
#
#   --tool TOOL          buildah, podman or docker; default: the first that is installed
#   --repository PREFIX  what stands before the component's name, with the registry;
#                        default localhost/layer-locality
#   --tag TAG            default: the version of the binaries, v<x.y.z>_layerlocality.<n>
#   --base IMAGE         what to build on, default scratch
#   --push               push them too; the digests are then those of the registry
. "$(dirname "$0")/../../scripts/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

tool='' repository=localhost/layer-locality base=scratch finish=digest components=()
version=$KUBERNETES_VERSION+layerlocality.$LAYERLOCALITY_REVISION
tag=${version/+/_}
while [ $# -gt 0 ]; do
  case $1 in
  --tool | --repository | --tag | --base)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --push) finish=push ;;
  kube-apiserver | kube-controller-manager | kube-scheduler | layer-resolver) components+=("$1") ;;
  *) usage ;;
  esac
  shift
done
[ ${#components[@]} -gt 0 ] || components=(kube-apiserver kube-controller-manager kube-scheduler layer-resolver)
for candidate in buildah podman docker; do
  if [ -z "$tool" ] && command -v "$candidate" >/dev/null; then tool=$candidate; fi
done
case $tool in
buildah | podman | docker) command -v "$tool" >/dev/null || die "$tool is not installed: install it, or name another with --tool" ;;
'') die "none of buildah, podman and docker is installed: install one of them" ;;
*) die "unknown tool '$tool': buildah, podman or docker" ;;
esac

# The build context: real files, as no tool follows links out of it.
context=$(mktemp -d "$BUILD/images.XXXXXX")
trap 'rm -rf "$context"' EXIT
for component in "${components[@]}"; do
  [ -x "$BUILD/bin/patched/$component" ] || die "$BUILD/bin/patched/$component is missing: run 'scripts/build.sh patched $component'"
  cp --dereference --reflink=auto "$BUILD/bin/patched/$component" "$context/"
done
for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt ''; do
  [ ! -f "$certificates" ] || break
done
[ -n "$certificates" ] || die "no CA certificates found: install ca-certificates"
cp --dereference "$certificates" "$context/ca-certificates.crt"
# What is in a layer, and with which date, depends on its source alone.
chmod 0755 "${components[@]/#/$context/}"
chmod 0644 "$context/ca-certificates.crt"
epoch=$(git -C "$ROOT" log -1 --format=%ct)
find "$context" -exec touch --date "@$epoch" {} +

# digest IMAGE: of the local image; docker knows only its ID.
digest() {
  case $tool in
  buildah) buildah inspect --type image --format '{{.FromImageDigest}}' "$1" ;;
  podman) podman image inspect --format '{{.Digest}}' "$1" ;;
  docker) docker image inspect --format '{{.Id}}' "$1" ;;
  esac
}

# push IMAGE: pushes it, and prints the registry's digest.
push() {
  if [ "$tool" = docker ]; then
    docker push --quiet "$1" >&2
    docker image inspect --format '{{join .RepoDigests "\n"}}' "$1" | sed -n "s,^${1%:*}@,,p"
  else
    "$tool" push --quiet --digestfile "$context/digest" "$1" >&2
    cat "$context/digest"
  fi
}

build=("$tool" build --file "$ROOT/deploy/images/Dockerfile" --build-arg "BASE=$base" --build-arg "VERSION=$version"
  --build-arg "REVISION=$(git -C "$ROOT" rev-parse HEAD)")
case $tool in
docker) export SOURCE_DATE_EPOCH=$epoch ;;
*) build+=(--timestamp "$epoch" --format oci) ;;
esac
for component in "${components[@]}"; do
  image=$repository/$component:$tag
  say "$image"
  "${build[@]}" --target "$component" --tag "$image" "$context" >"$context/log" 2>&1 || {
    cat "$context/log" >&2
    die "$tool cannot build $image"
  }
  found=$("$finish" "$image") # so that its failure ends the script
  echo "$image@$found"
done

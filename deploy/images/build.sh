#!/usr/bin/env bash
# Builds the images of kube-apiserver, kube-controller-manager, kube-scheduler,
# layer-extender, layer-resolver, layer-agent and layer-prefetcher from the binaries in _build/bin/patched (of
# another architecture: _build/bin/patched-<arch>), and prints the digest of each.
#
#   build.sh [OPTIONS] [COMPONENT...]
#
#   --tool TOOL          buildah, podman or docker; default: the first that is installed
#   --repository PREFIX  what stands before the component's name, with the registry;
#                        default localhost/layer-locality
#   --tag TAG            default: the version of the binaries, v<x.y.z>_layerlocality.<n>
#   --base IMAGE         what to build on, default scratch
#   --platform P[,P]     linux/amd64, linux/arm64; default: the machine's own. Several make
#                        an index, for which it takes buildah or podman
#   --oci FOLDER         write each as an OCI image layout, FOLDER/<component>
#   --push               push them too; the digests are then those of the registry
. "$(dirname "$0")/../../scripts/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

tool='' repository=localhost/layer-locality base=scratch platform='' oci='' push='' components=()
version=$(our_version kubernetes)
tag=${version/+/_}
while [ $# -gt 0 ]; do
  case $1 in
  --tool | --repository | --tag | --base | --platform | --oci)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --push) push=1 ;;
  kube-apiserver | kube-controller-manager | kube-scheduler | layer-extender | layer-resolver | layer-agent | layer-prefetcher) components+=("$1") ;;
  *) usage ;;
  esac
  shift
done
[ ${#components[@]} -gt 0 ] || components=(kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher)
for candidate in buildah podman docker; do
  if [ -z "$tool" ] && command -v "$candidate" >/dev/null; then tool=$candidate; fi
done
case $tool in
buildah | podman | docker) command -v "$tool" >/dev/null || die "$tool is not installed: install it, or name another with --tool" ;;
'') die "none of buildah, podman and docker is installed: install one of them" ;;
*) die "unknown tool '$tool': buildah, podman or docker" ;;
esac
command -v jq >/dev/null || die "jq is not installed: install it"
use_arch
IFS=, read -r -a platforms <<<"${platform:-linux/$GOARCH}"
[ "$tool" != docker ] || [ "${#platforms[@]}$oci" = 1 ] ||
  die "docker makes no index and no OCI layout here: use --tool buildah or podman, or docker buildx with deploy/images/Dockerfile"

# The build context: real files, as no tool follows links out of it.
mkdir -p "$BUILD"
context=$(mktemp -d "$BUILD/images.XXXXXX")
trap 'rm -rf "$context"' EXIT
for platform in "${platforms[@]}"; do
  arch=${platform#linux/}
  use_arch "$arch"
  from=$BUILD/bin/patched${CROSS:+-$arch}
  mkdir -p "$context/$arch"
  for component in "${components[@]}"; do
    [ -x "$from/$component" ] || die "$from/$component is missing: run 'ARCH=$arch scripts/build.sh patched $component'"
    cp --dereference --reflink=auto "$from/$component" "$context/$arch/"
    "$ROOT/scripts/sbom.sh" "$from/$component" "$context/$arch/$component.licenses" >"$context/$arch/$component.cdx.json"
  done
done
certificates=$(ca_certificates)
cp --dereference "$certificates" "$context/ca-certificates.crt"
# The content of a folder is copied as it is, links too.
mkdir -p "$context/links/kube-scheduler"
ln -s ../usr/local/bin/kube-scheduler "$context/links/kube-scheduler/kube-scheduler"
# What is in a layer, and with which date, depends on its source alone.
epoch=$(git -C "$ROOT" log -1 --format=%ct)
find "$context" -type f -exec chmod 0644 {} + -o -type d -exec chmod 0755 {} +
for component in "${components[@]}"; do chmod 0755 "$context"/*/"$component"; done
find "$context" -exec touch --no-dereference --date "@$epoch" {} +

# run COMMAND...: quiet, unless it fails.
run() {
  "$@" >"$context/log" 2>&1 || {
    cat "$context/log" >&2
    die "$tool cannot make $image"
  }
}

# build_platform PLATFORM COMPONENT NAME: one image, of one platform.
build_platform() {
  local licenses
  licenses=$(jq -r '.metadata.component.licenses[].expression' "$context/${1#linux/}/$2.cdx.json")
  local build=("$tool" build --file "$ROOT/deploy/images/Dockerfile" --platform "$1" --target "$2" --tag "$3"
    --build-arg "TARGETARCH=${1#linux/}" --build-arg "BASE=$base" --build-arg "VERSION=$version" --build-arg "LICENSES=$licenses"
    --build-arg "REVISION=$(git -C "$ROOT" rev-parse HEAD)" --build-arg "SOURCE=$(repository_url)")
  case $tool in
  docker) export SOURCE_DATE_EPOCH=$epoch ;;
  *) build+=(--timestamp "$epoch" --format oci) ;;
  esac
  run "${build[@]}" "$context"
}

# build COMPONENT NAME: an image, or an index of images if there are several platforms.
build() {
  local platform
  if [ ${#platforms[@]} = 1 ]; then
    build_platform "${platforms[0]}" "$1" "$2"
    return
  fi
  # An earlier index or image of that name.
  "$tool" manifest rm "$2" >/dev/null 2>&1 || "$tool" rmi "$2" >/dev/null 2>&1 || true
  run "$tool" manifest create "$2"
  for platform in "${platforms[@]}"; do
    build_platform "$platform" "$1" "$2-${platform#linux/}"
    run "$tool" manifest add "$2" "$2-${platform#linux/}"
  done
}

# send NAME DESTINATION...: copies an image or index, and prints its digest there.
send() {
  if [ "$tool" = docker ]; then
    docker push --quiet "$1" >&2
    docker image inspect --format '{{join .RepoDigests "\n"}}' "$1" | sed -n "s,^${1%:*}@,,p"
  elif [ ${#platforms[@]} = 1 ]; then
    "$tool" push --quiet --digestfile "$context/digest" "$@" >&2
    cat "$context/digest"
  else
    "$tool" manifest push --quiet --all --digestfile "$context/digest" "$@" >&2
    cat "$context/digest"
  fi
}

# digest NAME: of the local image; docker has only its ID.
digest() {
  case $tool in
  docker) docker image inspect --format '{{.Id}}' "$1" ;;
  # As it is when it is sent: an index lists its images as a push makes them.
  *) send "$1" "oci:$context/digest-of-${1##*/}" ;;
  esac
}

for component in "${components[@]}"; do
  image=$repository/$component:$tag
  say "$image ${platforms[*]}"
  build "$component" "$image"
  if [ -n "$oci" ]; then
    mkdir -p "$oci"
    rm -rf "${oci:?}/$component"
    found=$(send "$image" "oci:$oci/$component:$tag")
  fi
  # Assigned, so that a failure ends the script.
  if [ -n "$push" ]; then found=$(send "$image" "docker://$image"); elif [ -z "$oci" ]; then found=$(digest "$image"); fi
  echo "$image@$found"
done

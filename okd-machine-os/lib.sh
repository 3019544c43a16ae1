# Functions for images and releases, shared by the scripts of this folder, which source it
# after scripts/lib.sh.
# shellcheck shell=bash

# usage: prints the comment at the top of the script.
usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

# choose_tool [TOOL]: sets tool.
choose_tool() {
  local candidate
  tool=${1:-}
  for candidate in podman buildah; do
    [ -n "$tool" ] || [ -z "$(type -P "$candidate")" ] || tool=$candidate
  done
  case $tool in
  podman | buildah) [ -n "$(type -P "$tool")" ] || die "$tool is not installed: install it, or name the other with --tool" ;;
  '') die "neither podman nor buildah is installed: install one of them" ;;
  *) die "unknown tool '$tool': podman or buildah" ;;
  esac
}

# in_image IMAGE FOLDER COMMAND...: runs it in a container, with FOLDER as /mnt/host and
# without network.
in_image() {
  local image=$1 folder=$2 container status=0
  shift 2
  if [ "$tool" = podman ]; then
    podman run --rm --network none --security-opt label=disable --volume "$folder:/mnt/host:ro" --entrypoint '' "$image" "$@"
  else
    container=$(buildah from --pull-never "$image")
    buildah run --network none --volume "$folder:/mnt/host:ro" "$container" -- "$@" || status=$?
    buildah rm "$container" >/dev/null
    return "$status"
  fi
}

# have_image IMAGE: pulls it, unless it is there and cannot have changed: by digest, or
# made here.
have_image() {
  local always=()
  case $1 in
  *@sha256:* | localhost/*) if "$tool" inspect --type image "$1" >/dev/null 2>&1; then return; fi ;;
  esac
  [ "$tool" = podman ] || always=(--policy always) # podman's only way
  "$tool" pull --quiet "${always[@]}" "$1" >/dev/null ||
    die "cannot pull $1: does it exist, and are you logged in to its registry ($tool login)?"
}

# digest_of IMAGE: prints the digest of a local image.
digest_of() {
  if [ "$tool" = podman ]; then
    podman image inspect --format '{{.Digest}}' "$1"
  else
    buildah inspect --type image --format '{{.FromImageDigest}}' "$1"
  fi
}

# with_digest IMAGE [DIGEST]: prints NAME@DIGEST, without the tag; by default with the
# local digest.
with_digest() {
  local name=${1%@*}
  [[ ${name##*/} != *:* ]] || name=${name%:*}
  case $#,$1 in
  1,*@*) echo "$1" ;;
  *) echo "$name@${2:-$(digest_of "$1")}" ;;
  esac
}

# publish IMAGE-ID NAME push|keep FILE: names the image, pushes it if told to, and prints
# NAME@DIGEST without the tag. FILE is temporary. The registry's digest counts.
publish() {
  local id=$1 name=$2 file=$4
  "$tool" tag "$id" "$name"
  if [ "$3" = push ]; then
    "$tool" push --quiet --digestfile "$file" "$name" >&2 || die "cannot push $name: are you logged in to its registry ($tool login)?"
    with_digest "$name" "$(cat "$file")"
  else
    with_digest "$name" "$(digest_of "$id")"
  fi
}

# by_digest WHAT IMAGE: refuses an image that is not named by digest.
by_digest() {
  [[ $2 =~ ^[a-z0-9][-a-z0-9._:]*(/[-a-z0-9._]+)+@sha256:[0-9a-f]{64}$ ]] ||
    die "$1 must be REGISTRY/NAME@sha256:DIGEST, not '$2': a tag can move, and nodes would differ"
}

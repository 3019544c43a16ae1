#!/usr/bin/env bash
# Reads every byte of a mirrored OKD release back from your registry and compares it with
# its digest: `oc adm release mirror` writes, and does not read.
#
#   verify-mirror.sh RELEASE REGISTRY/REPOSITORY [--authfile FILE] [--insecure]
#
#   RELEASE          what was mirrored, as `oc adm release info` takes it
#   --authfile FILE  logins of both registries, as `podman login --authfile` writes them
#   --insecure       your registry has no certificate that this machine trusts
#
# Names what cannot be read back in full, and fails then. It reads one image at a time, so
# it needs space for one in ${TMPDIR:-/tmp}, and transfers the whole release.
. "$(dirname "$0")/../scripts/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

places=() read=() login=()
while [ $# -gt 0 ]; do
  case $1 in
  --authfile)
    [ -r "${2:-}" ] || die "--authfile: '${2:-}' is not readable"
    read+=(--authfile "$2") login=(--registry-config "$2")
    shift
    ;;
  --insecure) read+=(--src-tls-verify=false) ;;
  -*) usage ;;
  *) places+=("$1") ;;
  esac
  shift
done
[ ${#places[@]} = 2 ] || usage
release=${places[0]} mirror=${places[1]}
for program in oc skopeo jq; do
  command -v "$program" >/dev/null || die "$program is not installed: install it"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
oc adm release info "${login[@]}" -o json "$release" >"$work/info" || die "oc cannot read the release $release"
# NAME DIGEST, the release itself first.
jq -e -r '("release " + .digest), (.references.spec.tags[] | .name + " " + (.from.name | split("@")[1]))' "$work/info" >"$work/images" ||
  die "oc says of $release what is no release"

# read_back DIGEST: skopeo checks every digest while it reads, and stores manifests as they
# are.
read_back() {
  local status=0
  skopeo copy --quiet --all --preserve-digests "${read[@]}" "docker://$mirror@$1" "dir:$work/image" >"$work/log" 2>&1 || status=$?
  rm -rf "$work/image"
  return "$status"
}
total=$(wc -l <"$work/images") i=0 failed=0
while read -r name digest; do
  i=$((i + 1))
  say "$i of $total: $name"
  if ! read_back "$digest" </dev/null; then
    [ "$name" != release ] || die "$mirror@$digest: cannot read the release itself there: $(tail -n 1 "$work/log")"
    echo "FAILED $name: $mirror@$digest: $(tail -n 1 "$work/log")" >&2
    failed=$((failed + 1))
  fi
done <"$work/images"
[ "$failed" = 0 ] || die "$failed of $total images could not be read back in full, see above. Mirror again what is missing; remove what is damaged first"
say "all $total images of $release are in $mirror, byte for byte"

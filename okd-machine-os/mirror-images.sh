#!/usr/bin/env bash
# Copies the images of an OKD release, or any list of images, into your own registry, by digest
# and for all architectures, and prints what install-config.yaml needs to pull from there.
#
#   mirror-images.sh SOURCE --to REGISTRY/REPOSITORY [OPTIONS]
#
# SOURCE, one of
#   --release IMAGE      asks `oc adm release info` for the images of this release
#   --release-info FILE  what `oc adm release info -o json IMAGE` printed
#   --list FILE          one REGISTRY/NAME@sha256:DIGEST a line, and maybe a name after it; # comments
#
#   --dry-run            says what would be copied; asks your registry, changes nothing
#   --verify             also reads back every byte of what is there, against its digest
#   --jobs N             images at a time, default 4
#   --authfile FILE      logins of both registries, as `podman login --authfile` writes them
#   --insecure           your registry has no certificate that this machine trusts
#
# An image is tagged VERSION-NAME, or sha256-DIGEST if it has no name; the release itself
# VERSION. Images that are already there are not copied again, so run it again after an
# interruption. If an image could not be copied, it fails and names the image.
. "$(dirname "$0")/../scripts/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

source='' from='' to='' dry='' deep='' jobs=4 copy=() inspect=() login=()
while [ $# -gt 0 ]; do
  case $1 in
  --release | --release-info | --list | --to | --jobs | --authfile)
    [ $# -gt 1 ] || usage
    case $1 in
    --to) to=$2 ;;
    --jobs) jobs=$2 ;;
    --authfile)
      [ -r "$2" ] || die "$2 is not readable"
      copy+=(--authfile "$2") inspect+=(--authfile "$2") login=(--registry-config "$2")
      ;;
    *)
      [ -z "$from" ] || usage
      source=${1#--} from=$2
      ;;
    esac
    shift
    ;;
  --dry-run) dry=1 ;;
  --verify) deep=1 ;;
  --insecure) copy+=(--dest-tls-verify=false) inspect+=(--tls-verify=false) ;;
  *) usage ;;
  esac
  shift
done
if [ -z "$from" ] || [ -z "$to" ]; then usage; fi
[[ $to =~ ^[a-zA-Z0-9][-a-zA-Z0-9._]*(:[0-9]+)?(/[a-z0-9][-a-z0-9._]*)+$ ]] || die "--to must be REGISTRY/REPOSITORY without tag, not '$to'"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs must be a number, not '$jobs'"
for program in skopeo jq; do
  command -v "$program" >/dev/null || die "$program is not installed: install it"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Each copy is a separate process group, so that an interrupt ends everything it started.
set -m
end_copies() {
  local pid
  trap - INT TERM HUP
  for pid in $(jobs -p); do kill -- "-$pid" 2>/dev/null || true; done
  wait
  exit 130
}
trap end_copies INT TERM HUP

# images: prints "IMAGE@DIGEST TAG" per line, from the source.
images() {
  local info=$from
  case $source in
  list)
    [ -r "$from" ] || die "$from is not readable"
    sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$from" | awk '{ print $1, $2 }'
    return
    ;;
  release)
    command -v oc >/dev/null || die "oc is not installed: get the client tools of the release, or use --release-info or --list"
    info=$work/info.json
    oc adm release info "${login[@]}" -o json "$from" >"$info" || die "oc cannot read the release $from"
    ;;
  release-info) [ -r "$from" ] || die "$from is not readable" ;;
  esac
  jq -e -r '.metadata.version as $version
    | ((.image | sub("(:[^/@]*)?(@.*)?$"; "")) + "@" + .digest + " " + $version),
      (.references.spec.tags[] | .from.name + " " + $version + "-" + .name)' "$info" 2>/dev/null ||
    die "$info is not what 'oc adm release info -o json' prints"
}
images >"$work/found"
while read -r image tag; do
  [[ $image =~ ^[^/@[:space:]]+/[^@[:space:]]+@sha256:[0-9a-f]{64}$ ]] || die "'$image' is not REGISTRY/NAME@sha256:DIGEST"
  # What a tag may contain: not the '+' of versions.
  tag=${tag//+/_}
  [ -n "$tag" ] || tag=sha256-${image##*:}
  [[ $tag =~ ^[a-zA-Z0-9_][-a-zA-Z0-9._]{0,127}$ ]] || die "'$tag' cannot be a tag, of $image"
  echo "$image $tag"
done <"$work/found" | sort -u >"$work/images"
[ -s "$work/images" ] || die "$from names no image"
twice=$(awk '{ print $2 }' "$work/images" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || die "two images would be tagged $twice: give them other names"

# digest_there TAG: prints the digest in your registry; nothing if it has none. Fails if
# the registry does not answer.
digest_there() {
  local error=$work/error-$BASHPID
  if skopeo inspect --raw "${inspect[@]}" "docker://$to:$1" >"$error.raw" 2>"$error"; then
    echo "sha256:$(sha256sum <"$error.raw" | cut -d' ' -f1)"
  else
    # What registries say about a missing tag or repository.
    grep -q -i -E 'manifest unknown|name unknown|(status code|statuscode:|http status:|http code:|parsing http) 404\b' "$error" || {
      tail -n 1 "$error" >&2
      return 1
    }
  fi
}

# mirror IMAGE TAG: copies it and prints what it did.
mirror() {
  local image=$1 tag=$2 digest=${1##*@} there log=$work/log-$BASHPID did=copied
  there=$(digest_there "$tag") || {
    echo "FAILED $image: $to does not answer"
    return
  }
  if [ "$there" = "$digest" ]; then
    did=there
  elif [ -n "$there" ]; then
    echo "FAILED $image: $to:$tag is another image, $there: remove that tag, or mirror to another repository"
    return
  elif [ -n "$dry" ]; then
    echo "would copy $image to $to:$tag"
    return
  # All architectures, and every manifest byte by byte: the digest stays.
  elif ! skopeo copy --quiet --all --preserve-digests --retry-times 3 "${copy[@]}" "docker://$image" "docker://$to:$tag" >"$log" 2>&1; then
    echo "FAILED $image: $(tail -n 1 "$log")"
    return
  fi
  if [ "$did" = copied ] && { ! there=$(digest_there "$tag") || [ "$there" != "$digest" ]; }; then
    echo "FAILED $image: $to:$tag has the digest ${there:-none} after copying"
    return
  fi
  if [ -n "$deep" ] && [ -z "$dry" ]; then
    mkdir "$log.content"
    # Reading checks every digest.
    skopeo copy --quiet --all --preserve-digests "${copy[@]/#--dest-tls/--src-tls}" "docker://$to@$digest" "dir:$log.content" >"$log" 2>&1 ||
      did="FAILED $image: $to:$tag is damaged: $(tail -n 1 "$log")"
    rm -rf "$log.content"
  fi
  if [[ $did == FAILED* ]]; then echo "$did"; else echo "$did $image"; fi
}

total=$(wc -l <"$work/images")
say "$total images to $to"
mkdir "$work/result"
running=0
while read -r image tag; do
  mirror "$image" "$tag" >"$work/result/$tag" &
  running=$((running + 1))
  if [ "$running" -ge "$jobs" ]; then
    wait -n || true
    running=$((running - 1))
  fi
done <"$work/images"
wait
# A copy that was killed could not report it.
while read -r image tag; do
  if [ -s "$work/result/$tag" ]; then cat "$work/result/$tag"; else echo "FAILED $image: its copy was killed (memory? space in ${TMPDIR:-/tmp}?)"; fi
done <"$work/images" >"$work/results"

grep -e '^FAILED' -e '^would copy' "$work/results" >&2 || true
count() { grep -c "^$1 " "$work/results" || true; }
copied=$(count copied) there=$(count there) left=$(count 'would copy')
say "$copied copied, $there there already, $left to copy, $(count FAILED) failed"
[ $((copied + there + left)) -eq "$total" ] || die "not everything is in $to: see above, and run it again"

# For install-config.yaml, and for the field of the same name in an ImageDigestMirrorSet.
echo "imageDigestSources:"
sed 's/@.*//' "$work/images" | sort -u | while read -r repository; do
  printf -- '- source: %s\n  mirrors:\n  - %s\n' "$repository" "$to"
done

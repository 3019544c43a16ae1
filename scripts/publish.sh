#!/usr/bin/env bash
# Pushes the images and the chart of a release that release.sh made to its registry, and signs them.
#
#   publish.sh [OPTION...] [FOLDER]
#
#   FOLDER           default _out/release
#   --registry R     push there instead of where chart and manifests expect the images
#   --key FILE       sign with this private key of cosign, and no service: COSIGN_PASSWORD has its password
#   --keyless        sign as the workflow that runs this, or as you, with Sigstore's public services
#   --subjects FILE  list there what was published and its SHA-256, for a statement of provenance
#   --page           put the other files on the releases page of the tag, with GitHub's gh
#   --insecure       the registry has plain HTTP
#
# Credentials are those of docker or podman; or REGISTRY_USER and REGISTRY_PASSWORD. What is there
# already is not pushed again, and a tag is never moved. Without --key and --keyless nothing is signed.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

folder=$OUTPUT/release registry='' key='' keyless='' subjects='' page='' insecure=''
while [ $# -gt 0 ]; do
  case $1 in
  --registry | --key | --subjects)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --keyless | --page | --insecure) declare "${1#--}=1" ;;
  -*) usage ;;
  *) folder=$1 ;;
  esac
  shift
done
[ -z "$key" ] || [ -z "$keyless" ] || die "--key and --keyless: one of them signs"
[ -z "$key" ] || [ -n "${COSIGN_PASSWORD+set}" ] || die "COSIGN_PASSWORD is not set: the password of $key, or empty"
[ -z "$key" ] || [ -f "$key" ] || die "no key $key: cosign generate-key-pair makes one"
[ -f "$folder/images.txt" ] || die "$folder is no release with images: scripts/release.sh makes one"
charts=("$folder"/layer-locality-[0-9]*.tgz)
[ "${#charts[@]}$(test -f "${charts[0]}" && echo " found")" = "1 found" ] || die "$folder does not have one chart, but: ${charts[*]}"
command -v skopeo >/dev/null || die "skopeo is not installed: 'make deps' installs it"
say "checksums of $folder"
(cd "$folder" && sha256sum --quiet --check SHA256SUMS) || die "$folder is not what release.sh made"

# In which Helm writes the time of a chart.
export TZ=UTC
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What skopeo, Helm and cosign call plain HTTP.
tls=() dest_tls=() plain=() sign=()
if [ -n "$insecure" ]; then
  tls=(--tls-verify=false) dest_tls=(--dest-tls-verify=false) plain=(--plain-http) sign=(--allow-http-registry --allow-insecure-registry)
fi
line=$(head -n 1 "$folder/images.txt")
from=${line%/*}
registry=${registry:-$from}
registry=${registry%/}
if [ -n "${REGISTRY_PASSWORD:-}" ]; then
  skopeo login "${tls[@]}" --authfile "$work/config.json" --username "${REGISTRY_USER:?is not set, but REGISTRY_PASSWORD is}" \
    --password-stdin "${registry%%/*}" <<<"$REGISTRY_PASSWORD" >&2
  export REGISTRY_AUTH_FILE=$work/config.json HELM_REGISTRY_CONFIG=$work/config.json DOCKER_CONFIG=$work
fi

# manifest REFERENCE: prints the manifest that is in the registry; nothing if there is none.
manifest() {
  skopeo inspect --raw "${tls[@]}" "docker://$1" 2>"$work/error" && return
  grep -qiE 'manifest unknown|name unknown|not found|404' "$work/error" || die "$1: $(tail -n 1 "$work/error")"
}
digest_of() { echo "sha256:$(sha256sum <"$1" | cut -d' ' -f1)"; }

: >"$work/published"
while IFS= read -r line; do
  [[ $line =~ ^([^@]+)/([a-z-]+):([^@/:]+)@(sha256:[0-9a-f]{64})$ ]] || die "$folder/images.txt: '$line' is no image"
  component=${BASH_REMATCH[2]} tag=${BASH_REMATCH[3]} digest=${BASH_REMATCH[4]}
  manifest "$registry/$component:$tag" >"$work/manifest"
  if [ ! -s "$work/manifest" ]; then
    say "$registry/$component:$tag"
    skopeo copy --quiet --all --preserve-digests "${dest_tls[@]}" "oci-archive:$folder/images/$component.oci.tar" "docker://$registry/$component:$tag"
    manifest "$registry/$component:$tag" >"$work/manifest"
  fi
  [ "$(digest_of "$work/manifest")" = "$digest" ] ||
    die "$registry/$component:$tag is $(digest_of "$work/manifest") there and $digest here: a published tag is not moved, raise LAYERLOCALITY_REVISION"
  echo "$registry/$component@$digest" >>"$work/published"
done <"$folder/images.txt"

chart=$(basename "${charts[0]}" .tgz)
reference=$registry/charts/layer-locality:${chart#layer-locality-}
manifest "$reference" >"$work/manifest"
if [ ! -s "$work/manifest" ]; then
  say "$reference"
  scripts/build.sh tools helm
  # Helm writes the time of the file into the manifest: that of what is in it, so that all pushes give one digest.
  cp "${charts[0]}" "$work/"
  touch --date "$(tar --full-time -tvf "${charts[0]}" | awk 'NR == 1 { print $4, $5 }')" "$work/$chart.tgz"
  "$BUILD/bin/tools/helm" push "${plain[@]}" "$work/$chart.tgz" "oci://$registry/charts" >&2
  manifest "$reference" >"$work/manifest"
fi
[ "$(jq -r '.layers[0].digest' "$work/manifest")" = "$(digest_of "${charts[0]}")" ] ||
  die "$reference is another chart than ${charts[0]}: a published version is not changed, raise version in deploy/helm/Chart.yaml"
echo "$registry/charts/layer-locality@$(digest_of "$work/manifest")" >>"$work/published"

# platforms IMAGE: prints "ARCH DIGEST" of each image behind a reference by digest.
platforms() {
  manifest "$1" >"$work/manifest"
  if jq -e .manifests "$work/manifest" >/dev/null; then
    jq -r '.manifests[] | "\(.platform.architecture) \(.digest)"' "$work/manifest"
  else
    echo "$(skopeo inspect --config "${tls[@]}" "docker://$1" | jq -r .architecture) ${1#*@}"
  fi
}
if [ -n "$key$keyless" ]; then
  cosign=$(go_tool github.com/sigstore/cosign/v3/cmd/cosign "$COSIGN_VERSION")
  how=(--yes)
  if [ -n "$key" ]; then
    "$cosign" signing-config create --out "$work/no-services.json" >&2
    how=(--key "$key" --signing-config "$work/no-services.json")
  fi
  while IFS= read -r image; do
    say "signing $image"
    "$cosign" sign "${how[@]}" "${sign[@]}" --recursive "$image" </dev/null 2>"$work/log" || { cat "$work/log" >&2 && die "cosign does not sign $image"; }
    [[ $image != */charts/* ]] || continue
    component=$(basename "${image%@*}")
    platforms "$image" >"$work/platforms"
    while read -r arch digest; do
      tar -xzOf "$folder"/layer-locality-*-linux-"$arch".tar.gz --wildcards "*/sbom/$component.cdx.json" >"$work/sbom.json"
      "$cosign" attest "${how[@]}" "${sign[@]}" --type cyclonedx --predicate "$work/sbom.json" "${image%@*}@$digest" </dev/null 2>"$work/log" ||
        { cat "$work/log" >&2 && die "cosign does not attest the bill of materials of $image for $arch"; }
    done <"$work/platforms"
  done <"$work/published"
  "$cosign" sign-blob "${how[@]}" --bundle "$folder/SHA256SUMS.sigstore.json" "$folder/SHA256SUMS" </dev/null >"$work/log" 2>&1 ||
    { cat "$work/log" >&2 && die "cosign does not sign SHA256SUMS"; }
fi
[ -z "$subjects" ] || {
  cat "$folder/SHA256SUMS"
  sed 's/\(.*\)@sha256:\(.*\)/\2  \1/' "$work/published"
} >"$subjects"
if [ -n "$page" ]; then
  command -v gh >/dev/null || die "gh is not installed: https://cli.github.com"
  # The images are in the registry.
  mapfile -t files < <(find "$folder" -maxdepth 1 -type f | sort)
  gh release create "${tag/_/-}" --verify-tag --title "${tag/_/+}" --notes-file "$folder/RELEASE_NOTES.md" "${files[@]}"
fi
cat "$work/published"

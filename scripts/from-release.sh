#!/usr/bin/env bash
# Unpacks archives of a release whose checksums hold, and prints which release it is and what was checked.
#
#   from-release.sh RELEASE FOLDER SUFFIX...
#
# RELEASE is a folder that release.sh made, or the address of a releases page's files. FOLDER gets the content of the
# archives whose names end in -SUFFIX.tar.gz. RELEASE_KEY in the environment is the public key with which
# SHA256SUMS has to be signed. Without it, cosign checks that the release workflow signed, if cosign is installed.
. "$(dirname "$0")/lib.sh"

[ $# -ge 3 ] || die "usage: from-release.sh RELEASE FOLDER SUFFIX..."
release=${1%/} folder=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# fetch NAME: copies a file of the release to $work; fails if it has no such file.
fetch() {
  case $release in
  http://* | https://*) curl --silent --show-error --fail --location --retry 2 --output "$work/$1" "$release/$1" ;;
  *) [ -f "$release/$1" ] && cp --reflink=auto "$release/$1" "$work/$1" ;;
  esac
}
fetch SHA256SUMS || die "$release has no SHA256SUMS: want the folder of a release, or the address of its files"
signature="its signature was not checked:"
if ! fetch SHA256SUMS.sigstore.json 2>/dev/null; then
  [ -z "${RELEASE_KEY:-}" ] || die "$release has no SHA256SUMS.sigstore.json, which $RELEASE_KEY is to check"
  signature+=" it has none"
elif [ -n "${RELEASE_KEY:-}" ]; then
  jq -r '.messageSignature.signature' "$work/SHA256SUMS.sigstore.json" | base64 -d >"$work/signature" 2>/dev/null || true
  openssl dgst -sha256 -verify "$RELEASE_KEY" -signature "$work/signature" "$work/SHA256SUMS" >/dev/null 2>&1 ||
    die "$release/SHA256SUMS is not signed with the key of $RELEASE_KEY"
  signature="signed with $RELEASE_KEY"
elif command -v cosign >/dev/null; then
  cosign verify-blob --bundle "$work/SHA256SUMS.sigstore.json" --certificate-oidc-issuer https://token.actions.githubusercontent.com \
    --certificate-identity-regexp "^$(repository_url)/\.github/workflows/release\.yml@refs/tags/" "$work/SHA256SUMS" >&2 ||
    die "$release/SHA256SUMS is not signed by the release workflow of $(repository_url): RELEASE_KEY names the key of another signer"
  signature="signed by the release workflow"
else
  signature+=" RELEASE_KEY names no key, and cosign is not installed"
fi
mkdir -p "$folder"
for suffix in "$@"; do
  name=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(layer-locality-[a-zA-Z0-9._-]*-$suffix\.tar\.gz\)$/\1/p" "$work/SHA256SUMS")
  [ "$(grep -c . <<<"$name")" = 1 ] || die "$release does not have one archive *-$suffix.tar.gz${name:+, but: $name}"
  fetch "$name" || die "$release has no $name, which its SHA256SUMS lists"
  (cd "$work" && grep -E " [ *]$name\$" SHA256SUMS | sha256sum --quiet --check --strict >&2) || die "$release/$name is not what its SHA256SUMS says"
  tar -xzf "$work/$name" -C "$folder" --strip-components 1 --no-same-owner
done
version=${name#layer-locality-}
echo "release ${version%%-*} of $release; checksums hold, $signature"

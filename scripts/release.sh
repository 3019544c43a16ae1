#!/usr/bin/env bash
# Assembles a release of the committed state: archives of binaries, the RPM repository,
# images as OCI archives, the source, notes and checksums. The same commit gives the
# same bytes.
#
#   release.sh [OPTIONS]
#
#   --platform P[,P]  linux/amd64, linux/arm64; default both. RPMs are of the machine's own
#   --out FOLDER      default _out/release; replaced
#   --sign KEY        sign checksums and RPMs with this GPG key
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

platform=linux/amd64,linux/arm64 out=$ROOT/_out/release sign=''
while [ $# -gt 0 ]; do
  case $1 in
  --platform | --out | --sign)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  *) usage ;;
  esac
  shift
done
changed=$(git status --porcelain | head -n 5)
[ -z "$changed" ] || die "a release is made of what is committed; commit or drop first:
$changed"
version=$(our_version kubernetes)
# Tags of images and names of files take no plus sign.
name=layer-locality-${version/+/_}
epoch=$(git log -1 --format=%ct)
IFS=, read -r -a platforms <<<"$platform"

# archive FILE FOLDER MEMBER...: an uncompressed tar whose bytes depend on content alone.
archive() {
  local file=$1 folder=$2
  shift 2
  tar --create --file "$file" --directory "$folder" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner \
    --mode=u+rwX,go+rX,go-w --mtime "@$epoch" "$@"
}
compress() { gzip --no-name "$1"; }

mkdir -p "$(dirname "$out")" "$BUILD"
staging=$(mktemp -d "$BUILD/release.XXXXXX")
trap 'rm -rf "$staging"' EXIT
result=$staging/result
mkdir -p "$result/images"

for platform in "${platforms[@]}"; do
  arch=${platform#linux/}
  say "binaries for $arch"
  ARCH=$arch scripts/build.sh patched
  use_arch "$arch"
  from=$BUILD/bin/patched${CROSS:+-$arch}
  unset GOARCH
  folder=$staging/$name-linux-$arch
  mkdir -p "$folder/bin" "$folder/sbom"
  for binary in "$from"/*; do
    install -m 0755 "$binary" "$folder/bin/"
    # pinns is C, and links glibc alone.
    [ "$(basename "$binary")" = pinns ] || scripts/sbom.sh "$binary" >"$folder/sbom/$(basename "$binary").cdx.json"
  done
  cp LICENSE versions.env "$folder/"
  git archive HEAD deploy docs README.md | tar -x -C "$folder"
  archive "$result/$name-linux-$arch.tar" "$staging" "$name-linux-$arch"
  compress "$result/$name-linux-$arch.tar"
done

say "images"
# A store of its own: nothing of the user's is touched, nothing stays.
cat >"$staging/storage.conf" <<EOF
[storage]
driver = "vfs"
graphroot = "$staging/storage"
runroot = "$staging/run"
EOF
CONTAINERS_STORAGE_CONF=$staging/storage.conf deploy/images/build.sh --tool buildah \
  --platform "$(IFS=, && echo "${platforms[*]}")" --oci "$staging/oci" >"$staging/digests"
for layout in "$staging"/oci/*; do
  archive "$result/images/$(basename "$layout").oci.tar" "$layout" .
done

say "RPMs"
scripts/rpms.sh ${sign:+--sign "$sign"} >&2
cp -rL _out/rpms "$staging/$name-rpms"
archive "$result/$name-rpms.tar" "$staging" "$name-rpms"
compress "$result/$name-rpms.tar"

say "source, notes and checksums"
git archive --prefix "$name/" HEAD >"$result/$name-source.tar"
compress "$result/$name-source.tar"
# changes VERSION: its section of the change log.
changes() { awk -v version="## $1" '/^## / { inside = $0 == version; next } inside' CHANGELOG.md; }
[ -n "$(changes "$version")" ] || die "CHANGELOG.md has no section '## $version': write what users should know"
images=$(sed 's,^localhost/layer-locality/\([^:]*\):.*@\(.*\),| \1 | \2 |,' "$staging/digests")
files=$(cd "$result" && find . -type f -printf '| %P | %s |\n' | sort)
cat >"$result/RELEASE_NOTES.md" <<EOF
# Layer Locality $version

Patched CRI-O $CRIO_VERSION and Kubernetes $KUBERNETES_VERSION, commit $(git rev-parse HEAD).
$(changes "$version")

## Images

| image | digest |
| --- | --- |
$images

To load one: \`skopeo copy --all oci-archive:images/kube-scheduler.oci.tar docker://REGISTRY/kube-scheduler:TAG\`.

## Files

| file | bytes |
| --- | ---: |
$files

To check them: \`sha256sum -c SHA256SUMS\`. How to install: \`docs/install-*.md\`.
EOF
sums=$(cd "$result" && find . -type f -printf '%P\n' | sort | xargs sha256sum)
echo "$sums" >"$result/SHA256SUMS"
[ -z "$sign" ] || gpg --batch --yes --local-user "$sign" --armor --detach-sign "$result/SHA256SUMS"

rm -rf "$out"
mv "$result" "$out"
say "$out"
cat "$out/SHA256SUMS"

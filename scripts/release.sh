#!/usr/bin/env bash
# Assembles a release of the committed state: archives of binaries, the RPM repository,
# images as OCI archives, the Helm chart, the source, notes and checksums. The same commit gives the
# same bytes, except for source RPMs: docs/release.md.
#
#   release.sh [OPTIONS]
#
#   --platform P[,P]  linux/amd64, linux/arm64; default both
# LINE=1.35 in the environment releases that line; its notes are those of the default one, and the version of its chart
# ends with -kubernetes1.35.
#
#   --out FOLDER      default _out/release (_out/LINE/release); an earlier release there is replaced
#   --registry R      where the images will be, such as registry.example.com/layer-locality: chart and
#                     manifests name them there; default ghcr.io/<owner of the repository>
#   --sign KEY        sign checksums and RPMs with this GPG key
#   --only-binaries   only the archives with what nodes and control plane run, for tests
. "$(dirname "$0")/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

platform=linux/amd64,linux/arm64 out=$OUTPUT/release registry='' sign='' only=''
while [ $# -gt 0 ]; do
  case $1 in
  --platform | --out | --registry | --sign)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --only-binaries) only=1 ;;
  *) usage ;;
  esac
  shift
done
out=$(realpath -m -- "$out")
cd "$ROOT"
[ ! -e "$out" ] || [ -e "$out/SHA256SUMS" ] || [ -z "$(ls -A -- "$out")" ] ||
  die "$out is not empty and no release: name another folder, or remove it"
commit=$(git rev-parse HEAD)
epoch=$(git log -1 --format=%ct "$commit")
# unchanged: checks that the commit is what is built.
unchanged() {
  local changed
  changed=$(git status --porcelain | head -n 5)
  [ -z "$changed" ] || die "a release is made of what is committed; commit or drop first:
$changed"
  [ "$(git rev-parse HEAD)" = "$commit" ] || die "another commit than $commit was checked out meanwhile: run it again"
}
unchanged
version=$(our_version kubernetes)
# Image tags and file names must not contain a plus sign.
name=layer-locality-${version/+/_}
IFS=, read -r -a platforms <<<"$platform"
# The default line's, which the change log and what is applied to clusters name.
default=$(sed -n 's/^KUBERNETES_VERSION=//p' versions.env)
# changes VERSION: prints its section of the change log.
changes() { awk -v version="## $1" '/^## / { inside = $0 == version; next } inside' CHANGELOG.md; }
[ -n "$(changes "$default${version#"$KUBERNETES_VERSION"}")" ] ||
  die "CHANGELOG.md has no section '## $default${version#"$KUBERNETES_VERSION"}': write what users should know"

# archive FILE FOLDER MEMBER...: makes an uncompressed tar whose bytes depend only on
# the content.
archive() {
  local file=$1 folder=$2
  shift 2
  tar --create --file "$file" --directory "$folder" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner \
    --mode=u+rwX,go+rX,go-w --mtime "@$epoch" "$@"
}
# manifests FOLDER: copies what is applied to a cluster.
manifests() {
  git archive "$commit" LICENSE | tar -x -C "$1"
  (cd "$staging/source" && cp -r --parents deploy/{agent,extender,images/{kustomization.yaml,pin.sh},kubectl-layers,monitoring,prefetcher,resolver,scheduler} "$1")
}
compress() { gzip --no-name "$1"; }
# finish: adds checksums and puts the release where it belongs.
finish() {
  local sums
  sums=$(cd "$result" && find . -type f -printf '%P\n' | sort | xargs sha256sum)
  echo "$sums" >"$result/SHA256SUMS"
  [ -z "$sign" ] || gpg --batch --yes --local-user "$sign" --armor --detach-sign "$result/SHA256SUMS"
  unchanged
  rm -rf "$out"
  mv "$result" "$out"
  say "$out"
  cat "$out/SHA256SUMS"
}

registry=${registry:-$(image_registry)}
registry=${registry%/}
if [ -z "$only" ]; then
  say "modules are those of go.sum"
  for module in . lab; do (cd "$module" && go mod verify >&2) || die "a module is not what $module/go.sum says: go clean -modcache, and again"; done
fi
mkdir -p "$(dirname "$out")" "$BUILD"
staging=$(mktemp -d "$BUILD/release.XXXXXX")
trap 'rm -rf "$staging"' EXIT
result=$staging/result
mkdir -p "$result/images" "$staging/source"
git archive "$commit" deploy | tar -x -C "$staging/source"
if [ "$LINE" != "$DEFAULT_LINE" ]; then
  grep -rlF "$default" "$staging/source" | xargs sed -i "s/${default//./\\.}/$KUBERNETES_VERSION/g"
  sed -i "s/^version: .*/&-kubernetes$LINE/" "$staging/source/deploy/helm/Chart.yaml"
fi

for platform in "${platforms[@]}"; do
  arch=${platform#linux/}
  say "binaries for $arch"
  ARCH=$arch scripts/build.sh patched
  use_arch "$arch"
  from=$BUILD/bin/patched${CROSS:+-$arch}
  unset GOARCH
  folder=$staging/$name-linux-$arch
  mkdir -p "$folder/bin" "$folder/sbom"
  for binary in crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher; do
    install -m 0755 "$from/$binary" "$folder/bin/"
    # pinns is written in C, and links only glibc.
    [ "$binary" = pinns ] || scripts/sbom.sh "$from/$binary" "$folder/licenses" >"$folder/sbom/$binary.cdx.json"
  done
done
# What else "make demo" runs: not for nodes of others.
demo() {
  local folder binary
  say "the demo for $1"
  ARCH=$1 scripts/build.sh lab demo registry tools etcd crictl
  use_arch "$1"
  folder=$staging/$name-demo-$1
  mkdir -p "$folder/sbom"
  for binary in lab/{demo,registry} tools/{etcd,crictl}; do
    install -D -m 0755 "$BUILD/bin/${binary%/*}${CROSS:+-$1}/${binary#*/}" "$folder/$binary"
    scripts/sbom.sh "$folder/$binary" "$folder/licenses" >"$folder/sbom/${binary#*/}.cdx.json"
  done
  unset GOARCH
  archive "$result/$name-demo-$1.tar" "$staging" "$name-demo-$1"
  compress "$result/$name-demo-$1.tar"
}
if [ -z "$only" ]; then
  for platform in "${platforms[@]}"; do demo "${platform#linux/}"; done
  say "images"
  private_store "$staging"
  deploy/images/build.sh --tool buildah \
    --platform "$(IFS=, && echo "${platforms[*]}")" --oci "$staging/oci" >"$staging/digests"
  for layout in "$staging"/oci/*; do
    archive "$result/images/$(basename "$layout").oci.tar" "$layout" .
  done
  # The chart and the manifests name them by digest.
  sed "s,^localhost/layer-locality/,$registry/," "$staging/digests" >"$result/images.txt"
  deploy/images/pin.sh "$staging/source/deploy" <"$result/images.txt"
  # For kubectl alone.
  mkdir "$staging/$name-manifests"
  manifests "$staging/$name-manifests"
  archive "$result/$name-manifests.tar" "$staging" "$name-manifests"
  compress "$result/$name-manifests.tar"
fi
for platform in "${platforms[@]}"; do
  arch=${platform#linux/}
  folder=$staging/$name-linux-$arch
  # The manifests for a cluster, and the parts of kind/copy.sh.
  git archive "$commit" LICENSE README.md CHANGELOG.md docs kind scripts/lib.sh | tar -x -C "$folder"
  line_versions >"$folder/versions.env"
  manifests "$folder"
  archive "$result/$name-linux-$arch.tar" "$staging" "$name-linux-$arch"
  compress "$result/$name-linux-$arch.tar"
done
if [ -n "$only" ]; then
  rmdir "$result/images"
  finish
  exit
fi

# The kubectl plugin, for machines of users: all systems if both architectures are released.
systems=(linux)
[ "${#platforms[@]}" -lt 2 ] || systems+=(darwin windows)
for system in "${systems[@]}"; do
  for platform in "${platforms[@]}"; do
    arch=${platform#linux/}
    say "kubectl-layers for $system/$arch"
    OS=$system ARCH=$arch scripts/build.sh patched kubectl-layers
    use_arch "$arch"
    from=$BUILD/bin/patched${CROSS:+-$arch} suffix=''
    unset GOARCH
    [ "$system" = linux ] || from=$BUILD/bin/patched-$system-$arch
    [ "$system" != windows ] || suffix=.exe
    folder=$staging/kubectl-layers_${version/+/_}_${system}_$arch
    install -D -m 0755 "$from/kubectl-layers" "$folder/kubectl-layers$suffix"
    scripts/sbom.sh "$from/kubectl-layers" "$folder/licenses" >"$folder/kubectl-layers.cdx.json"
    git show "$commit:LICENSE" >"$folder/LICENSE"
    # krew wants the files at the top of the archive.
    archive "$result/$(basename "$folder").tar" "$folder" --transform 's,^\./,,' .
    compress "$result/$(basename "$folder").tar"
  done
done
scripts/krew.sh "$result" >"$result/layers.yaml"

say "the Helm chart"
scripts/build.sh tools helm
printf 'home: %s\nsources: [%s]\n' "$(repository_url)" "$(repository_url)" >>"$staging/source/deploy/helm/Chart.yaml"
mkdir "$staging/helm" "$staging/chart"
env HOME="$staging/helm" HELM_CACHE_HOME="$staging/helm" HELM_CONFIG_HOME="$staging/helm" HELM_DATA_HOME="$staging/helm" \
  "$BUILD/bin/tools/helm" package "$staging/source/deploy/helm" --destination "$staging/helm" >&2
# Packed again, so that the bytes depend only on the content.
chart=$(basename "$staging"/helm/*.tgz .tgz)
tar -xzf "$staging/helm/$chart.tgz" -C "$staging/chart"
archive "$staging/$chart.tar" "$staging/chart" layer-locality
gzip --no-name --stdout "$staging/$chart.tar" >"$result/$chart.tgz" # as Helm names charts

for platform in "${platforms[@]}"; do
  case $platform in
  linux/amd64) arch=x86_64 ;;
  linux/arm64) arch=aarch64 ;;
  esac
  say "RPMs for $arch"
  env -u RPM_SIGN_KEY rpm/rpms.sh --arch "$arch" --output "$staging/$name-rpms-$arch" ${sign:+--sign "$sign"} >&2
  archive "$result/$name-rpms-$arch.tar" "$staging" "$name-rpms-$arch"
  compress "$result/$name-rpms-$arch.tar"
done

say "source, notes and checksums"
git -c tar.umask=0022 archive --prefix "$name/" "$commit" >"$result/$name-source.tar"
compress "$result/$name-source.tar"
images=$(sed 's,^.*/\([^:]*\):.*@\(.*\),| \1 | \2 |,' "$result/images.txt")
files=$(cd "$result" && find . -type f -printf '| %P | %s |\n' | sort)
cat >"$result/RELEASE_NOTES.md" <<EOF
# Layer Locality $version

Patched CRI-O $CRIO_VERSION and Kubernetes $KUBERNETES_VERSION, commit $commit.
$(changes "$default${version#"$KUBERNETES_VERSION"}")

## Images

| image | digest |
| --- | --- |
$images

They are in $registry, where the chart and the manifests name them by these digests:

    helm install layer-locality oci://$registry/charts/layer-locality --version ${chart#layer-locality-} --namespace kube-system

To copy one to a registry of yours: \`skopeo copy --all --preserve-digests oci-archive:images/kube-scheduler.oci.tar
docker://REGISTRY/kube-scheduler:TAG\`; the chart has the value \`registry\`, the manifests \`deploy/images/pin.sh\`.

## Files

| file | bytes |
| --- | ---: |
$files

To check them: \`sha256sum -c SHA256SUMS\`. How to install: \`docs/install-*.md\`.
EOF
finish

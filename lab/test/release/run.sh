#!/usr/bin/env bash
# Tests scripts/release.sh: a release from a clean clone, its contents, and with FULL=1 a
# second release from another clone without built files, which has to give the same bytes.
#
#   run.sh [PLATFORM[,PLATFORM]]
#
# PLATFORM: for everything in the release; default that of the machine, with FULL=1 both, as
# releases have them. One image is always made for two platforms.
. "$(dirname "$0")/../../../scripts/lib.sh"
. "$ROOT/lab/test/checks.sh"

HOST=$(go env GOHOSTARCH)
# The current commit, because there may be new ones meanwhile.
COMMIT=$(git -C "$ROOT" rev-parse HEAD)
PLATFORMS=${1:-${FULL:+linux/amd64,linux/arm64}}
PLATFORMS=${PLATFORMS:-linux/$HOST}
VERSION=$(our_version kubernetes)
NAME=layer-locality-${VERSION/+/_}
RELEASE=$WORK/release

# A clone of the commit. Modules and compiled packages are shared, so that a second build
# is mostly linking.
clone() {
  git clone -q --no-hardlinks "$ROOT" "$1"
  git -C "$1" checkout -q -B release "$COMMIT"
}

sums_hold() (cd "$1" && sha256sum --quiet --check SHA256SUMS)
lists_all() (cd "$1" && diff <(find . -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort) <(sed 's/^[^ ]* [ *]//' SHA256SUMS | sort))

# image NAME: prints its configuration, as skopeo reads it from the archive.
image() { skopeo inspect --config "oci-archive:$RELEASE/images/$1.oci.tar"; }
# files NAME FOLDER: unpacks the files of an image for one platform.
files() {
  skopeo copy -q --override-arch "$HOST" "oci-archive:$RELEASE/images/$1.oci.tar" "dir:$WORK/dir-$1"
  mkdir -p "$2"
  jq -r '.layers[].digest[7:]' "$WORK/dir-$1/manifest.json" | while read -r blob; do
    tar -xzf "$WORK/dir-$1/$blob" -C "$2"
  done
}
# licenses BILL: prints the expression for the whole binary.
licenses() { jq -r '.metadata.component.licenses[].expression' "$1"; }
# texts BILL FOLDER: checks that there are texts of everything in the binary.
texts() {
  local module
  jq -r '.components[] | "\(.name)@\(.version)"' "$1" >"$WORK/modules"
  test -s "$WORK/modules"
  while read -r module; do
    find "$2/$module" -type f -size +0 | grep -q . || { echo "no text of $module" && return 1; }
  done <"$WORK/modules"
}
described() {
  image "$1" | jq -e --arg name "$1" --arg version "$VERSION" --arg revision "$COMMIT" \
    --arg source "$(repository_url)" --arg licenses "$(licenses "$BIN/../sbom/$1.cdx.json")" '.config
    | .User == "65532:65532" and .Entrypoint == ["/usr/local/bin/" + $name]
    and .Labels["org.opencontainers.image.title"] == $name
    and .Labels["org.opencontainers.image.version"] == $version
    and .Labels["org.opencontainers.image.revision"] == $revision
    and .Labels["org.opencontainers.image.source"] == $source
    and .Labels["org.opencontainers.image.licenses"] == $licenses'
}
# runs NAME FOLDER: runs it as the image's user, with only the image's files.
runs() {
  files "$1" "$2"
  static "$2/usr/local/bin/$1"
  says "$VERSION" chroot --userspec 65532:65532 "$2" "/usr/local/bin/$1" --version
  test -s "$2/etc/ssl/certs/ca-certificates.crt"
  [ "$1" != kube-scheduler ] || says "$VERSION" chroot --userspec 65532:65532 "$2" /bin/kube-scheduler --version
}
# bill FILE BINARY: checks that it belongs to that binary and names its modules.
bill() {
  jq -e --arg sum "$(sha256sum <"$2" | cut -d' ' -f1)" '.bomFormat == "CycloneDX"
    and .metadata.component.hashes[0].content == $sum
    and ([.components[].purl | select(startswith("pkg:golang/"))] | length) > 30
    and all(.components[]; .version != null and .version != "(devel)")' "$1"
}

check "a release is assembled from a clean clone" clone "$WORK/one"
check "release.sh for $PLATFORMS" env -C "$WORK/one" scripts/release.sh --platform "$PLATFORMS" --out "$RELEASE"
check "its checksums hold" sums_hold "$RELEASE"
check "every file has a checksum" lists_all "$RELEASE"
check "the notes name every file and image" bash -c "
  cd '$RELEASE' && find . -type f ! -name 'SHA256SUMS*' ! -name RELEASE_NOTES.md -printf '%P\n' | while read -r file; do
    grep -qF \"| \$file |\" RELEASE_NOTES.md || { echo \"no \$file\"; exit 1; }
  done && grep -c '| sha256:' RELEASE_NOTES.md | grep -qx 7"

mkdir "$WORK/archive"
check "the archive of binaries unpacks" tar -xzf "$RELEASE/$NAME-linux-$HOST.tar.gz" -C "$WORK/archive"
BIN=$WORK/archive/$NAME-linux-$HOST/bin
check "it has ten binaries" diff <(ls "$BIN") <(printf '%s\n' crio kube-apiserver kube-controller-manager kube-scheduler kubelet layer-agent layer-extender layer-prefetcher layer-resolver pinns)
check "all of them static" static "$BIN"/*
check "crio has seccomp" says "SeccompEnabled:   true" "$BIN/crio" version
for binary in kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher; do
  check "$binary says $VERSION" says "$VERSION" "$BIN/$binary" --version
done
for binary in crio kubelet kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher; do
  check "the bill of materials of $binary" bill "$BIN/../sbom/$binary.cdx.json" "$BIN/$binary"
done
for binary in crio kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher; do
  check "license texts of everything in $binary" texts "$BIN/../sbom/$binary.cdx.json" "$BIN/../licenses"
done
check "what the LGPL asks for is there" grep -F "for at least three years" "$BIN/../licenses/LGPL.md"
check "that of crio names what is linked in" jq -e '[.components[].name] | contains(["glibc", "libseccomp"])' "$BIN/../sbom/crio.cdx.json"

for component in kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher; do
  check "image $component: user, labels, entry point" described "$component"
  check "image $component runs, as its user and alone" runs "$component" "$WORK/files-$component"
  check "image $component holds its bill of materials" bill "$WORK/files-$component/usr/share/sbom/$component.cdx.json" \
    "$WORK/files-$component/usr/local/bin/$component"
  check "image $component holds its license texts" texts "$WORK/files-$component/usr/share/sbom/$component.cdx.json" \
    "$WORK/files-$component/usr/share/licenses/$component"
done

# compressed MIB NAME: checks what a pull of an image transfers, for every platform of the release.
compressed() {
  local platform bytes
  for platform in ${PLATFORMS//,/ }; do
    rm -rf "$WORK/compressed"
    skopeo copy -q --override-arch "${platform#*/}" "oci-archive:$RELEASE/images/$2.oci.tar" "dir:$WORK/compressed"
    bytes=$(jq '[.layers[].size] | add' "$WORK/compressed/manifest.json")
    echo "$2 for $platform: $bytes bytes"
    [ "$bytes" -gt 0 ] && [ "$bytes" -le $(($1 << 20)) ] || return 1
  done
}
check "image layer-agent has at most 15 MiB, compressed" compressed 15 layer-agent

KUBECTL_LAYERS=("$RELEASE"/kubectl-layers_*_linux_"$HOST".tar.gz)
check "the archive of kubectl-layers unpacks" bash -c "mkdir '$WORK/plugin' && tar -xzf '${KUBECTL_LAYERS[0]}' -C '$WORK/plugin'"
check "kubectl-layers is static" static "$WORK/plugin/kubectl-layers"
check "kubectl-layers says $VERSION" says "$VERSION" "$WORK/plugin/kubectl-layers" --version
check "the bill of materials of kubectl-layers" bill "$WORK/plugin/kubectl-layers.cdx.json" "$WORK/plugin/kubectl-layers"
check "license texts of everything in kubectl-layers" texts "$WORK/plugin/kubectl-layers.cdx.json" "$WORK/plugin/licenses"
# at_most MIB FILE...: checks the sizes of binaries.
at_most() {
  local file most=$1
  shift
  for file in "$@"; do
    [ "$(stat -c %s "$file")" -le $((most << 20)) ] || { ls -l "$file" && return 1; }
  done
}
# Most of it are methods that templates (-o go-template) may call.
check "kubectl-layers has at most 60 MiB" at_most 60 "$WORK/plugin/kubectl-layers"
# is_for SYSTEM ARCH FILE
is_for() { says "GOOS=$1" go version -m "$3" && says "GOARCH=$2" go version -m "$3"; }
# lab/test/kubectl and lab/test/kubectl/live run the program of this clone.
if [ -z "$(git -C "$ROOT" status --porcelain)" ]; then
  check "kubectl-layers of this clone" "$ROOT/scripts/build.sh" patched kubectl-layers
  check "the one in the release is the same" cmp "$WORK/plugin/kubectl-layers" "$BUILD/bin/patched/kubectl-layers"
else
  skipped "the kubectl-layers that tests run is that of the release" "there are changes that are not committed"
fi
foreign=()
case $PLATFORMS in
*,*) foreign=({linux,darwin,windows}/{amd64,arm64}) ;;
*) skipped "kubectl-layers for all systems and architectures" "takes minutes: make test-all" ;;
esac
for platform in "${foreign[@]}"; do
  system=${platform%/*} arch=${platform#*/} folder=$WORK/plugin-${platform/\//-} program=kubectl-layers
  [ "$system" != windows ] || program+=.exe
  mkdir "$folder"
  check "kubectl-layers for $platform is in the release" tar -xzf "$RELEASE/kubectl-layers_${VERSION/+/_}_${system}_$arch.tar.gz" -C "$folder"
  check "that is a program for $platform" is_for "$system" "$arch" "$folder/$program"
  check "it has at most 60 MiB" at_most 60 "$folder/$program"
  check "its bill of materials" bill "$folder/kubectl-layers.cdx.json" "$folder/$program"
  check "krew finds it" grep -F "kubectl-layers_${VERSION/+/_}_${system}_$arch.tar.gz" "$RELEASE/layers.yaml"
done
check "krew for what follows" "$ROOT/scripts/build.sh" tools krew validate-krew-manifest
check "krew's index takes its manifest" "$BUILD/bin/tools/validate-krew-manifest" -manifest "$RELEASE/layers.yaml" -skip-install
check "krew installs its archive" env HOME="$WORK" KREW_ROOT="$WORK/krew" KREW_NO_UPGRADE_CHECK=1 \
  "$BUILD/bin/tools/krew" install --manifest="$RELEASE/layers.yaml" --archive="${KUBECTL_LAYERS[0]}"
check "kubectl for what follows" "$ROOT/scripts/build.sh" stock kubectl
plugin() { env PATH="$WORK/krew/bin:$PATH" "$BUILD/bin/stock/kubectl" "$@"; }
check "kubectl finds the plugin" says "$WORK/krew/bin/kubectl-layers" plugin plugin list
check "kubectl layers runs" says "$VERSION" plugin layers --version

CHART=("$RELEASE"/layer-locality-*.tgz)
check "Helm for what follows" "$ROOT/scripts/build.sh" tools helm
# rendered CHART FILE: writes what a chart renders to.
rendered() {
  env HOME="$WORK/helm" HELM_CACHE_HOME="$WORK/helm" HELM_CONFIG_HOME="$WORK/helm" HELM_DATA_HOME="$WORK/helm" \
    "$BUILD/bin/tools/helm" template layer-locality "$1" --namespace kube-system --kube-version "$KUBERNETES_VERSION" \
    --set agent.enabled=true --set agent.runtime=cri-o --set extender.enabled=true >"$2"
}
check "the chart renders" rendered "${CHART[0]}" "$WORK/chart"
check "so does its folder" rendered "$WORK/one/deploy/helm" "$WORK/folder"
# digests: prints "COMPONENT DIGEST" from the notes.
digests() { sed -n 's/^| \([a-z-]*\) | \(sha256:[0-9a-f]*\) |$/\1 \2/p' "$RELEASE/RELEASE_NOTES.md"; }
# by_digest FOLDER: checks that files name our images by the digests of the notes, and not otherwise.
by_digest() {
  local component digest
  digests | while read -r component digest; do
    case $component in kube-apiserver | kube-controller-manager) continue ;; esac
    grep -rqF -e "/$component@$digest" "$1" || grep -rqFx -e "  digest: $digest" "$1" || { echo "no $component@$digest" && exit 1; }
  done || return 1
  ! grep -rnE "(image|newTag): .*_layerlocality[.]" "$1"
}
check "to the same, but for the digests" diff <(sed "s,$(image_registry)/,registry.example.com/layer-locality/,; s,@sha256:[0-9a-f]\{64\},:${VERSION/+/_}," "$WORK/chart") "$WORK/folder"
check "the chart names images by digest" by_digest "$WORK/chart"
check "the manifests do, too" by_digest "$BIN/../deploy"
# overlays FOLDER: renders what is for "kubectl apply -k" there, and checks that it names each of our images by the digest of
# images.txt, and no other. A base is for overlays, and upstream's image is not ours.
overlays() {
  local file
  find "$1" -name kustomization.yaml ! -path '*/base/*' -exec grep -L '^kind: Component' {} + >"$WORK/overlays"
  while read -r file; do
    "$BUILD/bin/stock/kubectl" kustomize "${file%/*}" | sed -n 's/^ *\(- \)\{0,1\}image: //p'
  done <"$WORK/overlays" >"$WORK/named"
  diff <(grep -v '^registry\.k8s\.io/' "$WORK/named" | sort -u) <(sed -n '/\/kube-apiserver:/d; /\/kube-controller-manager:/d; s/:[^:@]*@/@/p' "$RELEASE/images.txt" | sort)
}
check "kustomize renders every overlay with these digests" overlays "$BIN/../deploy"
check "no overlay is missing" diff <(git -C "$WORK/one" ls-files 'deploy/*kustomization.yaml') <(cd "$BIN/.." && find deploy -name kustomization.yaml | sort)
check "those for kubectl alone are the same" bash -c "
  mkdir '$WORK/manifests' && tar -xzf '$RELEASE/$NAME-manifests.tar.gz' -C '$WORK/manifests' --strip-components 1 && diff -r '$WORK/manifests/deploy' '$BIN/../deploy'"

DEMO=$WORK/demo
check "the archive of the demo unpacks" bash -c "mkdir '$DEMO' && tar -xzf '$RELEASE/$NAME-demo-$HOST.tar.gz' -C '$DEMO' --strip-components 1"
check "its programs are static" static "$DEMO"/lab/* "$DEMO"/tools/*
for binary in lab/{demo,registry} tools/{etcd,crictl}; do
  check "the bill of materials of $binary" bill "$DEMO/sbom/${binary#*/}.cdx.json" "$DEMO/$binary"
  check "license texts of everything in $binary" texts "$DEMO/sbom/${binary#*/}.cdx.json" "$DEMO/licenses"
done
check "the RPM repository is in it" bash -c "tar -tzf '$RELEASE/$NAME-rpms-$(uname -m).tar.gz' >'$WORK/rpms' && grep repodata/repomd.xml '$WORK/rpms'"
check "the site of the RPM repository" "$ROOT/scripts/pages.sh" "$RELEASE" "$WORK/pages"
check "dnf is told of it" test -s "$WORK/pages/rpms/layer-locality.repo" -a -s "$WORK/pages/rpms/$(uname -m)/repodata/repomd.xml"
check "kind/copy.sh runs from the archive" bash -c "'$BIN/../kind/copy.sh' 2>&1 | grep -F 'kind/copy.sh FOLDER'"
refuses "a folder with something else in it" "is not empty and no release" \
  bash -c "mkdir '$WORK/mine' && touch '$WORK/mine/file' && cd '$WORK/one' && scripts/release.sh --out '$WORK/mine'"
# one_time FILE...: checks that each archive says one owner and one time for all in it.
one_time() {
  local file
  for file in "$@"; do
    tar --numeric-owner --full-time -tvf "$file" | awk '{ print $2, $4, $5 }' | sort -u >"$WORK/times"
    test "$(wc -l <"$WORK/times")" = 1 || { head "$WORK/times" && echo "in $file" && return 1; }
  done
}
check "the archives do not say when or by whom they were made" one_time "$RELEASE"/*.tar.gz "$RELEASE"/*.tgz "$RELEASE"/images/*.tar
check "the source is that of the commit" bash -c "
  tar -xzf '$RELEASE/$NAME-source.tar.gz' -C '$WORK' && cd '$WORK/$NAME' && git init -q . && git add -A -f &&
  [ \"\$(git write-tree)\" = \"\$(git -C '$ROOT' rev-parse '$COMMIT^{tree}')\" ]"

# Two architectures, one of them not the machine's.
private_store "$WORK"
for arch in amd64 arm64; do
  check "layer-resolver for $arch" env ARCH="$arch" "$ROOT/scripts/build.sh" patched layer-resolver
done
index() {
  "$ROOT/deploy/images/build.sh" --tool buildah --platform linux/amd64,linux/arm64 \
    --oci "$1" layer-resolver
}
# machine ARCH: checks that the image for that architecture has a binary for it.
machine() {
  local folder=$WORK/machine-$1 blob
  skopeo copy -q --override-arch "$1" "oci:$WORK/index/layer-resolver" "dir:$folder"
  jq -r '.layers[].digest[7:]' "$folder/manifest.json" | while read -r blob; do tar -xzf "$folder/$blob" -C "$folder"; done
  readelf --file-header "$folder/usr/local/bin/layer-resolver" | grep -E "Machine: .*$2"
}
check "an image for two architectures" index "$WORK/index"
check "its amd64 is x86-64" machine amd64 X86-64
check "its arm64 is AArch64" machine arm64 AArch64
for arch in amd64 arm64; do
  emulator=$(emulator "$arch")
  if [ -z "$emulator" ] || command -v "$emulator" >/dev/null; then
    check "its $arch runs" says "$VERSION" on "$arch" "$WORK/machine-$arch/usr/local/bin/layer-resolver" --version
  else
    skipped "its $arch runs" "$emulator is not installed"
  fi
done

# Go's validated cryptographic module, in a binary that is also in the cache without it.
check "layer-resolver for FIPS mode" env -C "$WORK/one" GOFIPS140=v1.0.0 scripts/build.sh patched layer-resolver
check "it has the module" says GOFIPS140=v1.0.0 go version -m "$WORK/one/_build/bin/patched/layer-resolver"
check "it turns FIPS mode on" says fips140=on go version -m "$WORK/one/_build/bin/patched/layer-resolver"
check "it runs" says "$VERSION" "$WORK/one/_build/bin/patched/layer-resolver" --version

refuses "changes that are not committed" "a release is made of what is committed" \
  bash -c "touch '$WORK/one/new' && cd '$WORK/one' && scripts/release.sh --out '$WORK/no'"
refuses "a version without a section in the change log" "CHANGELOG.md has no section" bash -c "
  cd '$WORK/one' && rm new && sed -i 's/^## v.*/## v0/' CHANGELOG.md && git -c user.name=t -c user.email=t@example.com commit -qam t &&
  scripts/release.sh --platform '$PLATFORMS' --out '$WORK/no'"
check "a file that was changed is found" bash -c "
  cp -r '$RELEASE/images' '$RELEASE/SHA256SUMS' '$WORK/archive/' && cd '$WORK/archive' && echo >>images/kube-scheduler.oci.tar &&
  ! sha256sum --ignore-missing --quiet --check SHA256SUMS"

# Published, installed, upgraded and removed.
# shellcheck source=rehearsal.sh
. "$ROOT/lab/test/release/rehearsal.sh"

# The same commit elsewhere, with an empty cache of binaries and packages. This is proven
# once for the same inputs and tools. Go's build cache is shared, which saves a quarter
# of an hour; REPRODUCE=full compiles everything again.
inputs=$({
  git -C "$ROOT" ls-tree -r "$COMMIT" | grep -vE '\s(docs|test)/|\.md$'
  echo "$PLATFORMS ${REPRODUCE:-}"
  toolchain
  cc --version
  buildah --version
  tar --version
  gzip --version
  cat /etc/ssl/certs/ca-certificates.crt
} | sha256sum | cut -c1-16)
proven=$CACHE/reproduced/$inputs
again() {
  clone "$WORK/elsewhere/two"
  [ "${REPRODUCE:-}" != full ] || export GOCACHE=$WORK/elsewhere/go
  (cd "$WORK/elsewhere/two" && LAYERLOCALITY_CACHE=$WORK/elsewhere/cache scripts/release.sh --platform "$PLATFORMS" --out "$WORK/again")
  # rpm writes the build folder into a source package, and so into the repository's
  # metadata. Therefore only binary packages are compared.
  local release
  for release in "$RELEASE" "$WORK/again"; do
    grep -v -e ' RELEASE_NOTES.md$' -e "$NAME-rpms-" "$release/SHA256SUMS" >"$release.sums"
    grep -v "$NAME-rpms-" "$release/RELEASE_NOTES.md" >"$release.notes"
    mkdir "$release.rpms"
    cat "$release/$NAME-rpms-"*.tar.gz | tar -xz --ignore-zeros --exclude SRPMS --exclude repodata -C "$release.rpms"
  done
  diff "$RELEASE.sums" "$WORK/again.sums"
  diff "$RELEASE.notes" "$WORK/again.notes"
  diff -r "$RELEASE.rpms" "$WORK/again.rpms"
}
if [ -z "${FULL:-}" ]; then
  skipped "the same release from another clone" "takes many minutes: make test-all"
elif [ -e "$proven" ]; then
  touch "$proven"
  skipped "the same release from another clone" "done before for the same inputs ($proven)"
else
  check "the same release from another clone, linked and packaged anew, byte for byte" again
  if [ "$CHECKS_FAILED" = 0 ]; then mkdir -p "${proven%/*}" && touch "$proven"; fi
fi
finish

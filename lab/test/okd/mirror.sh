# Tests okd-machine-os/verify-mirror.sh with a real registry; sourced by run.sh. skopeo
# copies what `oc adm release mirror` would copy.
# shellcheck shell=bash disable=SC2154

raw_digest() { echo "sha256:$(skopeo inspect --tls-verify=false --raw "docker://$1" | sha256sum | cut -d' ' -f1)"; }

# upstream NAME: makes an image for two architectures, as in releases.
upstream() {
  local arch
  buildah manifest create "localhost/upstream/$1" >/dev/null
  printf 'FROM scratch\nCOPY blob /blob\n' >"$work/Containerfile"
  for arch in amd64 arm64; do
    head -c 300000 /dev/urandom >"$work/context/blob"
    buildah build --quiet --platform "linux/$arch" --manifest "localhost/upstream/$1" --file "$work/Containerfile" "$work/context" >/dev/null
  done
  buildah manifest push --quiet --all --tls-verify=false "localhost/upstream/$1" "docker://$registry/upstream/content:$1" >/dev/null
}
# copied NAME...: copies images of the release into the mirror.
copied() {
  local name
  for name in "$@"; do
    skopeo copy --quiet --all --preserve-digests --src-tls-verify=false --dest-tls-verify=false "docker://$registry/upstream/$name" "docker://$registry/mirror/okd:${name#*:}"
  done
}
mkdir "$work/context"
names=(hyperkube stream-coreos cli)
for name in "${names[@]}"; do upstream "$name"; done
skopeo copy --quiet --src-tls-verify=false --dest-tls-verify=false "docker://$registry/upstream/content:cli" "docker://$registry/upstream/release:5.0"
# release_info FILE KUBERNETES: writes what `oc adm release info -o json` prints
# about a release with these images.
release_info() {
  local name tags=()
  for name in "${names[@]}"; do
    tags+=("$(jq -nc --arg name "$name" --arg image "$registry/upstream/content@$(raw_digest "$registry/upstream/content:$name")" \
      '{name: $name, from: {kind: "DockerImage", name: $image}}')")
  done
  printf '%s\n' "${tags[@]}" | jq -s --arg image "$registry/upstream/release:5.0" --arg digest "$(raw_digest "$registry/upstream/release:5.0")" --arg kubernetes "$2" \
    '{image: $image, digest: $digest, metadata: {kind: "cincinnati-metadata-v0", version: "5.0.0-okd-scos.ec.8"},
      references: {kind: "ImageStream", spec: {tags: .}}, displayVersions: {kubernetes: {Version: $kubernetes}}}' >"$1"
}
release_info "$work/release.json" 1.36.3
export FAKE=$work/fake
mkdir -p "$FAKE/releases"
PATH=$ROOT/lab/test/okd/fake:$PATH
from=$registry/upstream/release@$(jq -r .digest "$work/release.json")
cp "$work/release.json" "$FAKE/releases/${from##*/}"

verify() { okd-machine-os/verify-mirror.sh "$@" "$registry/mirror/okd" --insecure; }
copied content:hyperkube content:cli release:5.0
refuses "mirror: an image that is missing is named" "FAILED stream-coreos: $registry/mirror/okd@sha256:" verify "$from"
check "mirror: and counted" grep -q '1 of 4 images could not be read' "$WORK/log"
copied content:stream-coreos
check "mirror: everything is there, for all architectures" verify "$from"
check "mirror: it says so" grep -q 'all 4 images of .* byte for byte' "$WORK/log"
# What the engine's configuration says about the registry does not count here.
trusted() { env -u CONTAINERS_REGISTRIES_CONF PATH="$ROOT/lab/test/okd/fake:${PATH#*"$work/engine/bin:"}" okd-machine-os/verify-mirror.sh "$from" "$registry/mirror/okd" "$@"; }
refuses "mirror: a registry without TLS" 'cannot read the release itself there: .*HTTP' trusted
check "mirror: the same with --insecure" trusted --insecure
# Damage a layer for the other architecture in the registry.
layer=$(skopeo inspect --tls-verify=false --raw "docker://$registry/mirror/okd@$(skopeo inspect --tls-verify=false --raw "docker://$registry/mirror/okd:hyperkube" |
  jq -r '.manifests[] | select(.platform.architecture == "arm64").digest')" | jq -r '.layers[0].digest')
blob=$work/registry/docker/registry/v2/blobs/sha256/${layer:7:2}/${layer:7}/data
cp "$blob" "$work/blob.good"
printf DAMAGED! | dd of="$blob" bs=1 seek=1000 conv=notrunc status=none
refuses "mirror: a damaged image is named" 'FAILED hyperkube: ' verify "$from"
cp "$work/blob.good" "$blob"

refuses "mirror: a release that is not there" 'oc cannot read the release' verify "$registry/upstream/release@sha256:$(printf 'c%.0s' {1..64})"
echo '{}' >"$FAKE/releases/none"
refuses "mirror: what is no release" 'is no release' verify "$registry/none"
refuses "mirror: a registry that does not answer, after the first image" 'cannot read the release itself there: .*refused' okd-machine-os/verify-mirror.sh "$from" 127.0.0.1:1/okd --insecure
echo '{"auths": {}}' >"$work/auth.json"
export FAKE_LOGIN=$work/auth.json
check "mirror: oc gets the logins" verify "$from" --authfile "$FAKE_LOGIN"
refuses "mirror: without them, oc cannot" 'oc cannot read the release' verify "$from"
unset FAKE_LOGIN

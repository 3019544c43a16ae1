# Tests okd-machine-os/mirror-images.sh with a real registry; sourced by run.sh.
# shellcheck shell=bash disable=SC2154

mirror() { okd-machine-os/mirror-images.sh "$@" --to "$registry/mirror/okd" --insecure; }
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

stored() { find "$work/registry/docker/registry/v2/repositories/mirror" -path '*/_manifests/tags/*' -name link -path '*/current/*' 2>/dev/null | wc -l; }
check "mirror: --dry-run says what it would copy" mirror --release-info "$work/release.json" --dry-run
check "mirror: --dry-run named all" [ "$(grep -c '^would copy' "$WORK/log")" = 4 ]
check "mirror: --dry-run copied nothing" [ "$(stored)" = 0 ]

# Interrupted after the first of four, each of which takes a second.
mkdir "$work/slow"
# shellcheck disable=SC2016 # for the script that is written
printf '#!/bin/sh\n[ "$1" != copy ] || sleep 1\nexec %s "$@"\n' "$(type -P skopeo)" >"$work/slow/skopeo"
chmod +x "$work/slow/skopeo"
# interrupted SIGNAL COUNT: interrupts it when so many images are there.
interrupted() {
  local pid status=0
  PATH=$work/slow:$PATH env "--default-signal=$1" okd-machine-os/mirror-images.sh --release-info "$work/release.json" --to "$registry/mirror/okd" --insecure --jobs 1 &
  pid=$!
  until [ "$(stored)" -ge "$2" ]; do kill -0 "$pid" && sleep 0.1; done
  kill -s "$1" "$pid"
  wait "$pid" || status=$?
  [ "$status" = 130 ] && [ "$(stored)" -lt 4 ] && ! pgrep -f "skopeo copy .*$registry/mirror"
}
check "mirror: an interrupt ends it and what it started" interrupted TERM 1
check "mirror: a terminal that closes does, too" interrupted HUP 2
check "mirror: run again, it copies the rest" mirror --release-info "$work/release.json"
check "mirror: and only the rest" grep -q -E '[123] copied, [123] there already, 0 to copy, 0 failed' "$WORK/log"
same() {
  local name
  for name in "${names[@]}"; do
    [ "$(raw_digest "$registry/mirror/okd:5.0.0-okd-scos.ec.8-$name")" = "$(raw_digest "$registry/upstream/content:$name")" ] || return 1
  done
}
check "mirror: digests are those of the origin, of the list of architectures" same
arm64() { skopeo inspect --tls-verify=false --override-arch arm64 "docker://$registry/mirror/okd:5.0.0-okd-scos.ec.8-hyperkube" | jq -e '.Architecture == "arm64"'; }
check "mirror: the other architecture is there" arm64
check "mirror: again, nothing to do" mirror --release-info "$work/release.json"
check "mirror: and nothing was copied" grep -q '0 copied, 4 there already' "$WORK/log"
okd-machine-os/mirror-images.sh --release-info "$work/release.json" --to "$registry/mirror/okd" --insecure 2>/dev/null >"$work/sources.yaml" || true
check "mirror: the sources of install-config.yaml are YAML and name both repositories" /usr/bin/python3 -c '
import sys, yaml
found = {s["source"]: s["mirrors"] for s in yaml.safe_load(open(sys.argv[1]))["imageDigestSources"]}
assert found == {sys.argv[2] + "/upstream/content": [sys.argv[2] + "/mirror/okd"], sys.argv[2] + "/upstream/release": [sys.argv[2] + "/mirror/okd"]}, found
' "$work/sources.yaml" "$registry"

check "mirror: --verify reads everything back" mirror --release-info "$work/release.json" --verify
# Flip a byte of a layer in the registry.
layer=$(skopeo inspect --tls-verify=false --raw --override-arch amd64 "docker://$registry/mirror/okd@$(skopeo inspect --tls-verify=false --raw "docker://$registry/mirror/okd:5.0.0-okd-scos.ec.8-hyperkube" | jq -r '.manifests[0].digest')" | jq -r '.layers[0].digest')
blob=$work/registry/docker/registry/v2/blobs/sha256/${layer:7:2}/${layer:7}/data
cp "$blob" "$work/blob.good"
printf 'X' | dd of="$blob" bs=1 seek=1000 conv=notrunc status=none
refuses "mirror: --verify finds a damaged copy and names it" "FAILED .*$(raw_digest "$registry/upstream/content:hyperkube").*damaged" mirror --release-info "$work/release.json" --verify
cp "$work/blob.good" "$blob"
skopeo copy --quiet --src-tls-verify=false --dest-tls-verify=false --all "docker://$registry/upstream/content:cli" "docker://$registry/mirror/okd:5.0.0-okd-scos.ec.8-hyperkube"
refuses "mirror: a tag that holds another image is left alone" 'is another image' mirror --release-info "$work/release.json"

# Killed by the system without a message, as when memory runs out.
mkdir "$work/killing"
# shellcheck disable=SC2016 # for the script that is written
printf '#!/bin/sh\n[ "$1" != copy ] || kill -9 $PPID\nexec %s "$@"\n' "$(type -P skopeo)" >"$work/killing/skopeo"
chmod +x "$work/killing/skopeo"
killed() { PATH=$work/killing:$PATH okd-machine-os/mirror-images.sh --release-info "$work/release.json" --to "$registry/mirror/killed" --insecure; }
refuses "mirror: copies that are killed" "not everything is in $registry/mirror/killed" killed
check "mirror: and all are named" [ "$(grep -c '^FAILED .*: its copy was killed' "$WORK/log")" = 4 ]
check "mirror: no sources of a mirror that is not whole" [ "$(grep -c imageDigestSources "$WORK/log")" = 0 ]
refuses "mirror: an image that is gone" "FAILED $registry/upstream/content@sha256:0{64}" \
  mirror --list <(echo "$registry/upstream/content@sha256:$(printf '0%.0s' {1..64})")
refuses "mirror: an image by tag" 'is not REGISTRY/NAME@sha256' mirror --list <(echo "$registry/upstream/content:cli")
refuses "mirror: an empty list" 'names no image' mirror --list <(echo '# nothing')
refuses "mirror: not a release" "is not what 'oc adm release info -o json' prints" mirror --release-info "$work/registries.conf"
refuses "mirror: a registry that does not answer" 'does not answer' \
  okd-machine-os/mirror-images.sh --release-info "$work/release.json" --to 127.0.0.1:1/mirror/404-not-found --insecure
refuses "mirror: --to with a tag" 'without tag' okd-machine-os/mirror-images.sh --release-info "$work/release.json" --to registry.example.com/okd:latest

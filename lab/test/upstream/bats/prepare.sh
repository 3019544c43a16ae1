#!/usr/bin/env bash
# Prepares CRI-O's own tests for bats in a folder.
#
#   prepare.sh FOLDER HOST:PORT
#
# FOLDER gets test (CRI-O's folder, with the digests of images as they are here), images (what the
# tests have in each store), bin (podman, and the runtime where it needs help), registries.conf.
# The registry at HOST:PORT gets stand-ins of the images that the tests pull, below the names that they have
# upstream. Prints the command that runs bats.
. "$(dirname "$0")/../../../../scripts/lib.sh"
. "$ROOT/lab/test/engine/lib.sh"

[ $# -eq 2 ] || die "usage: prepare.sh FOLDER HOST:PORT"
FOLDER=$1 REGISTRY=$2
export NO_PROXY=${NO_PROXY:+$NO_PROXY,}${REGISTRY%:*} no_proxy=${no_proxy:+$no_proxy,}${REGISTRY%:*}
mkdir -p "$FOLDER/images"
bats=$("$ROOT/scripts/npm.sh" "$ROOT/lab/test/upstream/bats" bats "bats, which runs CRI-O's own tests")
oras=$(go_tool oras.land/oras/cmd/oras "$ORAS_VERSION")
tree=$("$ROOT/scripts/tree.sh" upstream cri-o)
cp -r "$tree/test" "$FOLDER/"
(cd "$tree" && CGO_ENABLED=1 GOFLAGS="-trimpath -buildvcs=false -mod=mod" go build -tags "$CRIO_TAGS" -o "$FOLDER/test/copyimg/copyimg" ./test/copyimg)

# The sandbox's cgroup, as without systemd.
sandbox=$FOLDER/test/testdata/sandbox_config.json
jq '.linux.cgroup_parent |= rtrimstr(".slice")' "$sandbox" >"$sandbox.new"
mv "$sandbox.new" "$sandbox"

private_engine "$FOLDER"
if lacks_sys_resource; then
  printf '#!/bin/sh\nOCI_RUNTIME=%q exec %q "$@"\n' "$BUILD/bin/tools/runc" "$ROOT/lab/test/engine/oci-runtime" >"$FOLDER/bin/runc"
  chmod +x "$FOLDER/bin/runc"
fi
PATH=$FOLDER/bin:$PATH

# root FOLDER: a small system: busybox, and what the tests expect of GNU's ls.
root() {
  local name
  mkdir -p "$1"/{bin,etc,root,tmp,usr/share/zoneinfo/Asia}
  install -m 0755 "$(type -P busybox)" "$1/bin/busybox"
  for name in $(busybox --list | grep -vx busybox); do ln -s busybox "$1/bin/$name"; done
  rm "$1/bin/ls"
  { type -P ls && ldd "$(type -P ls)" | grep -o '/[^ ]*'; } | xargs cp -L --parents -t "$1"
  [ -e "$1/bin/ls" ] || ln -s "$(type -P ls)" "$1/bin/ls"
  cp /usr/share/zoneinfo/Asia/Singapore "$1/usr/share/zoneinfo/Asia/"
  echo root:x:0:0:root:/root:/bin/sh >"$1/etc/passwd"
  echo root:x:0: >"$1/etc/group"
  touch "$1/root/original-ks.cfg"
}

# stand_in NAME FOLDER [CONFIG...]: pushes an image with the folder's files and with these
# arguments of "buildah config". Prints its digest.
stand_in() {
  local container
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$2" / >/dev/null
  buildah config "${@:3}" "$container"
  buildah commit --quiet --rm "$container" "$REGISTRY/$1" >/dev/null
  buildah push --quiet --tls-verify=false --digestfile "$FOLDER/digest" "$REGISTRY/$1" "docker://$REGISTRY/$1"
  cat "$FOLDER/digest"
}

# to DIGEST OTHER: the tests ask for the second instead of the first.
to() {
  grep -rq "$1" "$FOLDER"/test/*.bats || die "no test of CRI-O has $1 any more: see lab/test/upstream/bats/prepare.sh"
  sed -i "s/$1/$2/g" "$FOLDER"/test/*.bats
}

files=$FOLDER/files
root "$files/system"
stand_in quay.io/crio/fedora-crio-ci:latest "$files/system" --cmd 'sleep 3600' --volume /imagevolume --volume /data >/dev/null
mkdir "$files/wasm" "$files/small" "$files/large"
head -c 1000 /dev/urandom >"$files/wasm/hello.wasm"
stand_in quay.io/crio/hello-wasm:latest "$files/wasm" --os wasi --arch wasm32 --cmd /hello.wasm >/dev/null
head -c 100000 /dev/urandom >"$files/small/file"
for name in quay.io/crio/pause:latest quay.io/crio/pause:go quay.io/fedora/fedora:latest docker.io/library/nginx:latest; do
  stand_in "$name" "$files/small" --label "stands-in-for=$name" >/dev/null
done
to 960355a671fb88ef18a85f92ccf2ccf8e12186216c86337ad808c204d69d512d \
  "$(stand_in quay.io/crio/nginx:latest "$files/small" --label stands-in-for=nginx | sed 's/^sha256://')"
skopeo copy --quiet --src-tls-verify=false --dest-tls-verify=false "docker://$REGISTRY/pause:1" "docker://$REGISTRY/registry.k8s.io/pause:3.10.1"

# index REPOSITORY ATTEMPT: prints an index of its tags amd64 and arm64. Each ATTEMPT has another digest.
index() {
  local arch
  for arch in amd64 arm64; do
    "$oras" manifest fetch --plain-http --descriptor "$1:$arch" | jq --arg arch "$arch" '. + {platform: {os: "linux", architecture: $arch}}'
  done | jq -s --arg attempt "$2" '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: ., annotations: {attempt: $attempt}}'
}

# An index, whose member for this machine can be run, and takes longer than a millisecond. As
# upstream's, its digest is the first of the two in order: a test expects CRI-O to name that one.
cp -a "$files/system/." "$files/large/"
head -c 20000000 /dev/urandom >"$files/large/file"
alpine=$REGISTRY/quay.io/crio/alpine
for arch in amd64 arm64; do
  digest=$(stand_in "quay.io/crio/alpine:$arch" "$files/large" --arch "$arch")
  [ "$arch" != "$(go env GOARCH)" ] || member=${digest#sha256:}
done
for ((attempt = 0; ; attempt++)); do
  index "$alpine" "$attempt" >"$files/index.json"
  list=$(sha256sum <"$files/index.json" | cut -d' ' -f1)
  if [[ $list < $member ]]; then break; fi
done
"$oras" manifest push --plain-http "$alpine:3.9" "$files/index.json" >/dev/null
to 65b3a80ebe7471beecbc090c5b2cdd0aafeaefa0715f8f12e40dc918a3a70e32 "$member"
to 414e0518bb9228d35e4cd5165567fb91d26c6a214e9c95899e1e056fcd349011 "$list"

# Artifacts, by CRI-O's own script.
script=test/testdata/artifacts/push-oci-artifacts
sed -i "s,^REPOSITORY=,&$REGISTRY/,; s/^oras push/& --plain-http/" "$FOLDER/$script"
(cd "$FOLDER" && PATH=$(dirname "$oras"):$PATH bash "$script" >/dev/null)
bundle=$REGISTRY/ghcr.io/cri-o/bundle
for arch in amd64:ae5d192303e5f9a357c6ea39308338956b62b8830fd05f0460796db2215c2b35 arm64:f18a492aeef00b307d6962c876de4839148c34e73035ba619e848298dc849d3a; do
  mkdir -p "$files/bundle-${arch%:*}/cri-o/bin"
  echo "CRI-O for ${arch%:*}" >"$files/bundle-${arch%:*}/cri-o/bin/crio"
  to "${arch#*:}" "$(sha256sum <"$files/bundle-${arch%:*}/cri-o/bin/crio" | cut -d' ' -f1)"
  (cd "$files/bundle-${arch%:*}" && "$oras" push --plain-http --artifact-type application/vnd.crio.bundle "$bundle:${arch%:*}" cri-o/bin/crio >/dev/null)
done
index "$bundle" 0 >"$files/index.json"
"$oras" manifest push --plain-http "$bundle:v1.32.4" "$files/index.json" >/dev/null

# What each test has in its store.
export INTEGRATION_ROOT=$FOLDER/test ARTIFACTS_PATH=$FOLDER/images CONTAINER_DEFAULT_RUNTIME=runc PATH=$PATH:$BUILD/bin/tools
# shellcheck disable=SC2016 # expanded by that shell, which has read CRI-O's functions
bash -c 'set -e; . "$INTEGRATION_ROOT/common.sh"; for image in "${IMAGES[@]}"; do
  skopeo copy --quiet --src-tls-verify=false "docker://$1/$image" "dir:$(img2dir "$image")"
done' - "$REGISTRY"

cat >"$FOLDER/registries.conf" <<EOF
unqualified-search-registries = ["quay.io", "registry.access.redhat.com", "docker.io"]
$(for name in quay.io registry.k8s.io docker.io ghcr.io; do
  printf '[[registry]]\nprefix = "%s"\nlocation = "%s/%s"\ninsecure = true\n' "$name" "$REGISTRY" "$name"
done)
EOF
rm -rf "$FOLDER"/{root,run} "$files"
echo "$bats/node_modules/bats/bin/bats"

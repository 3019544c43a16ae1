# Shared by the scripts of this folder, sourced after lib.sh: the cluster, its nodes,
# images from binaries.
# shellcheck shell=bash

# use_cluster: sets the cluster's name and ENGINE as kind's own variables say, and KIND.
use_cluster() {
  command -v jq >/dev/null || die "jq is not installed: install it"
  export KIND_CLUSTER_NAME=${KIND_CLUSTER_NAME:-layer-locality}
  use_engine
  if [ -n "$(type -P go)" ]; then
    KIND=$(go_tool sigs.k8s.io/kind "$KIND_VERSION")
  else
    KIND=$(type -P kind) || die "neither go nor kind is installed: install one of them"
  fi
}

# use_engine: sets ENGINE, the container engine that kind uses.
use_engine() {
  local reason
  ENGINE=${KIND_EXPERIMENTAL_PROVIDER:-docker}
  command -v "$ENGINE" >/dev/null || die "$ENGINE is not installed: install it. For podman: export KIND_EXPERIMENTAL_PROVIDER=podman"
  reason=$("$ENGINE" ps -q 2>&1 >/dev/null) || die "$ENGINE does not answer: ${reason##*$'\n'}
Start it. For podman: export KIND_EXPERIMENTAL_PROVIDER=podman"
  export KIND_EXPERIMENTAL_PROVIDER=$ENGINE
}

# find_nodes: sets nodes, the names of the cluster's nodes.
find_nodes() {
  local others
  # Several control planes have a load balancer, which is none.
  mapfile -t nodes < <("$KIND" get nodes 2>/dev/null | sed '/-external-load-balancer$/d' | sort)
  others=$("$KIND" get clusters 2>/dev/null | paste -sd' ')
  [ ${#nodes[@]} -gt 0 ] || die "$ENGINE has no kind cluster '$KIND_CLUSTER_NAME'; it has: ${others:-none}
Create it with 'make kind-up', or name yours: export KIND_CLUSTER_NAME=..."
}

# within SECONDS COMMAND...: repeats it until it succeeds; fails after that time.
within() {
  local end=$((SECONDS + $1))
  until "${@:2}"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 1
  done
}

# check_layers NODE: prints for how many images CRI-O lists layers; fails if for none.
check_layers() {
  local counts
  counts=$("$ENGINE" exec "$1" crictl images -o json | jq -r '[.images[] | (.spec.annotations // {})
    | any(keys[]; startswith("imageLayer."))] | "\(map(select(.)) | length) of \(length)"') || die "node $1: crictl fails"
  [[ $counts != "0 of"* ]] || die "node $1: crictl lists $counts images with layers: its CRI-O is not a patched one"
  echo "ok: $1: crictl lists layers of $counts images"
}

# image_archive FILE NAME LAYER CONFIG: writes an image in docker's archive format, with
# one layer (an archive, which is moved into it) and a configuration such as
# {"Entrypoint": [...]}.
image_archive() {
  local work layer config
  work=$(mktemp -d "$1.XXXXXX")
  mv "$3" "$work/layer.tar"
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  jq -n --arg arch "$(go env GOARCH)" --argjson config "$4" --arg layer "sha256:$layer" '{
    architecture: $arch, os: "linux", created: "1970-01-01T00:00:00Z", config: $config,
    rootfs: {type: "layers", diff_ids: [$layer]}}' >"$work/config"
  config=$(sha256sum "$work/config" | cut -d' ' -f1).json
  mv "$work/config" "$work/$config"
  jq -n --arg name "$2" --arg config "$config" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf "$1.tmp" .
  mv "$1.tmp" "$1"
  rm -rf "$work"
}

# program_image FILE NAME FOLDER PROGRAM: writes such an image of the folder's files, which
# runs that one of them. The same files give the same bytes.
program_image() {
  find "$3" -type d -exec chmod 0755 {} +
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$3" -cf "$1.layer" .
  image_archive "$1" "$2" "$1.layer" "{\"Entrypoint\": [\"$4\"], \"Env\": [\"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/bin\"]}"
}

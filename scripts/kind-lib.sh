# Shared by kind-up.sh, kind-install.sh and deploy/kind/build-node-image.sh, sourced after
# lib.sh: the container engine, a kind cluster's nodes, images from binaries.
# shellcheck shell=bash

# use_engine [NAME]: sets ENGINE to docker or podman: the one asked for, else kind's own
# variable, else the first that answers. kind is told the same one.
use_engine() {
  local name reason
  ENGINE=${1:-${KIND_EXPERIMENTAL_PROVIDER:-}}
  case $ENGINE in
  docker | podman)
    command -v "$ENGINE" >/dev/null || die "$ENGINE is not installed: install it, or name the other engine with --engine"
    reason=$("$ENGINE" info 2>&1 >/dev/null) ||
      die "$ENGINE does not answer: ${reason##*$'\n'}
Start it, or name the other engine with --engine."
    ;;
  '')
    for name in docker podman; do
      if command -v "$name" >/dev/null && "$name" info >/dev/null 2>&1; then
        ENGINE=$name
        break
      fi
    done
    [ -n "$ENGINE" ] || die "neither docker nor podman answers ('docker info', 'podman info'): install or start one of them"
    ;;
  *) die "unknown engine '$ENGINE': docker or podman" ;;
  esac
  export KIND_EXPERIMENTAL_PROVIDER=$ENGINE
}

# kind's labels on the containers that are nodes.
CLUSTER_LABEL=io.x-k8s.kind.cluster
ROLE_LABEL=io.x-k8s.kind.role

# kind_clusters: the names of the engine's kind clusters.
kind_clusters() {
  "$ENGINE" ps -a --filter "label=$ROLE_LABEL=control-plane" --format '{{.Names}}' | sed 's/-control-plane[0-9]*$//' | sort -u
}

# kind_nodes CLUSTER ROLE: its nodes of one role (control-plane, worker), by name.
kind_nodes() {
  "$ENGINE" ps -a --filter "label=$CLUSTER_LABEL=$1" --filter "label=$ROLE_LABEL=$2" --format '{{.Names}}' | sort -V
}

# machine_arch: this machine's architecture as Go and images name it.
machine_arch() {
  case $(uname -m) in
  x86_64) echo amd64 ;;
  aarch64) echo arm64 ;;
  *) uname -m ;;
  esac
}

# image_archive FILE NAME PROGRAM [FOLDER]: an image in docker's archive format that holds
# one static program, in FOLDER (/usr/local/bin), and runs it. Same program, same bytes.
image_archive() {
  local file=$1 name=$2 program=$3 folder=${4:-/usr/local/bin} work layer config
  work=$(mktemp -d)
  mkdir -p "$work/root$folder" "$work/image"
  install -m 0755 "$program" "$work/root$folder/"
  find "$work/root" -exec chmod u=rwX,go=rX {} + -exec touch --date @0 {} +
  (cd "$work/root" && tar --sort=name --owner=0 --group=0 --numeric-owner -cf "$work/image/layer.tar" -- *)
  layer=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
  jq -n --arg arch "$(machine_arch)" --arg entry "$folder/$(basename "$program")" --arg layer "sha256:$layer" '{
    architecture: $arch, os: "linux", created: "1970-01-01T00:00:00Z",
    config: {Entrypoint: [$entry], Env: ["PATH=/usr/local/bin:/usr/bin:/bin"]},
    rootfs: {type: "layers", diff_ids: [$layer]}}' >"$work/image/config.json"
  config=$(sha256sum "$work/image/config.json" | cut -d' ' -f1)
  mv "$work/image/config.json" "$work/image/$config.json"
  jq -n --arg name "$name" --arg config "$config.json" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/image/manifest.json"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/image" -cf "$file" .
  rm -rf "$work"
}

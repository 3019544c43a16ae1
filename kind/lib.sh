# Shared by kind/up.sh, kind/install.sh and kind/build-node-image.sh, sourced after
# lib.sh: the container engine, a kind cluster's nodes, images from binaries.
# shellcheck shell=bash

# use_engine [NAME]: sets ENGINE to docker or podman: the given one, else that in kind's
# own variable, else the first that answers. kind uses the same one.
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

# image_archive FILE NAME LAYER CONFIG: writes an image in docker's archive format, with
# one layer (an archive, which is moved into it) and a configuration such as
# {"Entrypoint": [...]}.
image_archive() {
  local work layer config
  work=$(mktemp -d "$1.XXXXXX")
  mv "$3" "$work/layer.tar"
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  jq -n --arg arch "$(machine_arch)" --argjson config "$4" --arg layer "sha256:$layer" '{
    architecture: $arch, os: "linux", created: "1970-01-01T00:00:00Z", config: $config,
    rootfs: {type: "layers", diff_ids: [$layer]}}' >"$work/config"
  config=$(sha256sum "$work/config" | cut -d' ' -f1).json
  mv "$work/config" "$work/$config"
  jq -n --arg name "$2" --arg config "$config" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf "$1.tmp" .
  mv "$1.tmp" "$1"
  rm -rf "$work"
}

# program_image FILE NAME PROGRAM [FOLDER]: writes such an image that contains one static
# program, in FOLDER (/usr/local/bin), and runs it. The same program gives the same bytes.
program_image() {
  local root folder=${4:-/usr/local/bin} program
  program=$(basename "$3")
  root=$(mktemp -d "$1.XXXXXX")
  install -D -m 0755 "$3" "$root$folder/$program"
  find "$root" -mindepth 1 -type d -exec chmod 0755 {} +
  (cd "$root" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$1.layer" -- *)
  rm -rf "$root"
  image_archive "$1" "$2" "$1.layer" "{\"Entrypoint\": [\"${folder%/}/$program\"], \"Env\": [\"PATH=/usr/local/bin:/usr/bin:/bin\"]}"
}

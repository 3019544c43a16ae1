# A container engine in namespaces of its own, for tests with kind; sourced after lib.sh.
# Networks, firewall rules, mounts and processes of the engine and of the test end with
# the namespaces; only cgroups and a folder are left to remove.
# shellcheck shell=bash

# in_namespaces SCRIPT ARGS...: runs it there, as root of process, network and mount
# namespaces of their own.
in_namespaces() {
  unshare --net --mount --pid --ipc --fork --kill-child --mount-proc --propagation private -- "$@"
}

# engine_cgroup: name of the cgroup that all of an engine's containers are in.
engine_cgroup() { echo "layer-locality-test-$1"; }

# cgroups_gone NAME: removes what is left of it in all hierarchies.
cgroups_gone() {
  local folder
  for folder in /sys/fs/cgroup/"$1" /sys/fs/cgroup/*/"$1"; do
    [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

# start_dockerd FOLDER CGROUP: Debian's dockerd with everything below FOLDER; sets
# DOCKER_HOST. To be called in_namespaces.
start_dockerd() {
  local folder=$1 aided='{}'
  mkdir -p "$folder"
  ip link set lo up
  if lacks_sys_resource; then
    aided=$(jq -n --arg path "$ROOT/test/engine/oci-runtime" '{"runtimes": {aided: {path: $path}}, "default-runtime": "aided"}')
  fi
  jq --arg folder "$folder" --arg cgroup "/$2" '. + {
    "data-root": "\($folder)/data", "exec-root": "\($folder)/exec", pidfile: "\($folder)/pid",
    hosts: ["unix://\($folder)/socket"], "cgroup-parent": $cgroup, "storage-driver": "overlay2",
    "exec-opts": ["native.cgroupdriver=cgroupfs"]}' <<<"$aided" >"$folder/daemon.json"
  export DOCKER_HOST=unix://$folder/socket
  dockerd --config-file "$folder/daemon.json" >"$folder/log" 2>&1 &
  for _ in $(seq 60); do
    ! docker info >/dev/null 2>&1 || return 0
    kill -0 $! 2>/dev/null || break
    sleep 0.5
  done
  die "dockerd does not start: $(tail -n 5 "$folder/log")"
}

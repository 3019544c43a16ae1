# A container engine in its own namespaces, for tests with kind; sourced after lib.sh.
# Networks, firewall rules, mounts and processes of the engine and of the test end with
# the namespaces; only cgroups and a folder have to be removed.
# shellcheck shell=bash

# in_namespaces SCRIPT ARGS...: replaces this (sub)shell with the script in the
# namespaces. It and everything it started end with that process.
in_namespaces() {
  exec unshare --net --mount --pid --ipc --fork --kill-child --mount-proc --propagation private -- "$@"
}

# engine_cgroup: prints the name of the cgroup with all of an engine's containers.
engine_cgroup() { echo "layer-locality-test-$1"; }

# cgroups_gone NAME: removes what is left of it in all hierarchies, once the last killed
# process in it is gone.
cgroups_gone() {
  local _ folders
  for _ in $(seq 60); do
    mapfile -t folders < <(find /sys/fs/cgroup -maxdepth 2 -type d -name "$1")
    [ ${#folders[@]} -gt 0 ] || return 0
    find "${folders[@]}" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.5
  done
}

# own_network: common setup of both engines: loopback, and a private /run.
own_network() {
  ip link set lo up
  mount -t tmpfs tmpfs /run
  mkdir -p /run/netns /run/lock
}

# start_dockerd FOLDER CGROUP: Debian's dockerd with everything below FOLDER; sets
# DOCKER_HOST. To be called in_namespaces.
start_dockerd() {
  local folder=$1 aided='{}'
  mkdir -p "$folder"
  own_network
  if lacks_sys_resource; then
    aided=$(jq -n --arg path "$ROOT/lab/test/engine/oci-runtime" '{"runtimes": {aided: {path: $path}}, "default-runtime": "aided"}')
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

# start_podman FOLDER: makes podman keep everything below FOLDER, and network names like
# docker. To be called in_namespaces.
start_podman() {
  local folder=$1
  mkdir -p "$folder"
  own_network
  {
    echo '[engine]'
    echo 'cgroup_manager = "cgroupfs"'
    echo 'events_logger = "file"'
    echo "tmp_dir = \"/run/libpod\""
    echo "volume_path = \"$folder/volumes\""
    if lacks_sys_resource; then
      echo 'runtime = "aided"'
      echo '[engine.runtimes]'
      echo "aided = [\"$ROOT/lab/test/engine/oci-runtime\"]"
    fi
    echo '[network]'
    echo 'network_backend = "netavark"'
    echo "network_config_dir = \"$folder/networks\""
  } >"$folder/containers.conf"
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/root"\nrunroot = "/run/containers/storage"\n' "$folder" >"$folder/storage.conf"
  export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
  podman info >"$folder/info" 2>&1 || die "podman does not work: $(tail -n 3 "$folder/info")"
}

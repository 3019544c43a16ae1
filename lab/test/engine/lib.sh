# Container engines in tests, sourced after scripts/lib.sh. Users do not get this;
# README.md says why it is needed.
# shellcheck shell=bash

# lacks_sys_resource: whether this process may not give containers what engines
# request by default. Bit 24 is CAP_SYS_RESOURCE.
lacks_sys_resource() {
  ! ((0x$(awk '/^CapEff:/ { print $2 }' /proc/self/status) & 1 << 24))
}

# private_engine FOLDER: puts podman and buildah into FOLDER/bin, which keep
# everything below FOLDER and nothing in the system's storage. Put FOLDER/bin at the
# front of PATH.
private_engine() {
  local folder=$1 tool
  mkdir -p "$folder/bin"
  {
    echo '[containers]'
    echo 'netns = "host"' # no link, no rule, no namespace to clean up
    echo '[engine]'
    echo 'events_logger = "none"'
    [ -d /run/systemd/system ] || echo 'cgroup_manager = "cgroupfs"'
    if lacks_sys_resource; then
      echo 'runtime = "aided"'
      echo '[engine.runtimes]'
      echo "aided = [\"$ROOT/lab/test/engine/oci-runtime\"]"
    elif [ -n "$(type -P runc)" ]; then
      # crun does not support a mixture of cgroup v1 and v2.
      echo 'runtime = "runc"'
    fi
  } >"$folder/containers.conf"
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/root"\nrunroot = "%s/run"\n' \
    "$folder" "$folder" >"$folder/storage.conf"
  for tool in podman buildah; do
    [ -n "$(type -P "$tool")" ] || continue
    {
      echo '#!/bin/sh'
      echo "export CONTAINERS_CONF='$folder/containers.conf' CONTAINERS_STORAGE_CONF='$folder/storage.conf'"
      case $tool in
      podman) echo "exec $(type -P podman) --tmpdir '$folder/tmp' \"\$@\"" ;;
      buildah) echo "exec $(type -P buildah) \"\$@\"" ;;
      esac
    } >"$folder/bin/$tool"
    chmod +x "$folder/bin/$tool"
  done
}

# private_engine_gone FOLDER: ends its containers and removes all of it.
private_engine_gone() {
  local folder=$1
  [ ! -x "$folder/bin/podman" ] || "$folder/bin/podman" rm --all --force >/dev/null 2>&1 || true
  [ ! -x "$folder/bin/buildah" ] || "$folder/bin/buildah" rm --all >/dev/null 2>&1 || true
  awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r |
    while read -r mount; do umount "$mount" || umount --lazy "$mount"; done
  rm -rf "$folder"
}

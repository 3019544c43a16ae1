#!/bin/bash
# The part of scripts/kind-install.sh that runs in a node: it is copied there and called
# with one command. See the functions command_* for what each does.
#
# $state keeps, for every file that was changed, stock/<path> as it was and ours/<path>
# as we left it. Both are written before the file, and files are replaced by renaming,
# so that an interruption at any point can be continued or undone. What others change
# meanwhile in text files is kept: it is merged with diff3.
set -euo pipefail
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export KUBECONFIG=/etc/kubernetes/admin.conf
state=/var/lib/layer-locality
work=/run/layer-locality # what only lasts as long as a command
gate=NodeStatusImageLayers
kubelet_config=/var/lib/kubelet/config.yaml
repository=localhost/layer-locality

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

manifest() { echo "/etc/kubernetes/manifests/$1.yaml"; }
program() { readlink -f "$(command -v "$1")"; }
sha() { sha256sum "$1" | cut -d' ' -f1; }

# pristine FILE: FILE as it would be without us.
pristine() {
  local stock=$state/stock$1 ours=$state/ours$1
  if [ ! -e "$stock" ]; then
    cat "$1"
  elif cmp -s "$1" "$ours" || cmp -s "$1" "$stock"; then
    cat "$stock"
  else
    diff3 -m "$1" "$ours" "$stock" ||
      die "$1 was changed by others where we had changed it: make it right by hand, from $stock and $ours"
  fi
}

# replace FILE NEW: puts NEW in FILE's place with FILE's owner and mode. Its name
# begins with a dot until then: the kubelet leaves such manifests alone.
replace() {
  local tmp
  tmp=$(dirname "$1")/.$(basename "$1").layer-locality
  cp -p "$2" "$tmp"
  if [ "$2" != "$state/stock$1" ] && [ -e "$1" ]; then
    chown --reference="$1" "$tmp"
    chmod --reference="$1" "$tmp"
    touch "$tmp"
  fi
  mv "$tmp" "$1"
}

# put FILE NEW STOCK: NEW becomes FILE, which without us would be as STOCK. Fails when
# there is nothing to do.
put() {
  local stock=$state/stock$1 ours=$state/ours$1
  if cmp -s "$1" "$2" && [ -e "$stock" ]; then return 1; fi
  mkdir -p "$(dirname "$stock")" "$(dirname "$ours")"
  if ! cmp -s "$stock" "$3"; then
    if cmp -s "$1" "$3"; then cp -p "$1" "$stock.tmp"; else cp "$3" "$stock.tmp" && chmod --reference="$1" "$stock.tmp"; fi
    mv "$stock.tmp" "$stock"
  fi
  cp "$2" "$ours.tmp"
  mv "$ours.tmp" "$ours"
  replace "$1" "$2"
}

# undo FILE: the stock file again. Fails when there is nothing to undo.
undo() {
  local stock=$state/stock$1 ours=$state/ours$1
  [ -e "$stock" ] || return 1
  pristine "$1" >"$work/pristine"
  if cmp -s "$work/pristine" "$stock"; then
    replace "$1" "$stock"
  else
    replace "$1" "$work/pristine"
  fi
  rm -f "$ours" "$stock"
}

# with_gate: a KubeletConfiguration as kubeadm writes it, with the gate on.
with_gate() {
  awk -v line="  $gate: true" -v gate="$gate" '
    /^featureGates: *(\{\} *)?$/ { print "featureGates:"; print line; done = 1; next }
    /^featureGates:/ { bad = 1 }
    $1 == gate ":" { next }
    { print }
    END {
      if (bad) exit 1
      if (!done) { print "featureGates:"; print line }
    }' || die "featureGates in a kubelet configuration is not one gate a line: write it so"
}

# mark UNIT: it has to be restarted. Survives an interruption.
mark() { mkdir -p "$state/restart" && touch "$state/restart/$1"; }

# What this node is: one "key value" a line.
command_facts() {
  local version
  version=$(crictl version 2>/dev/null) || version=
  echo "runtime $(sed -n 's/^RuntimeName: *//p' <<<"$version")"
  echo "crio $(sed -n 's/^RuntimeVersion: *v*//p' <<<"$version")"
  echo "kubelet $(kubelet --version 2>/dev/null | cut -d' ' -f2)"
  echo "machine $(uname -m)"
  for version in crio pinns kubelet kubectl jq diff3 skopeo curl; do
    command -v "$version" >/dev/null || echo "missing $version"
  done
  [ ! -e "$(manifest kube-scheduler)" ] || [ -e "$state/stock$(manifest kube-scheduler)" ] ||
    ! grep -q layer-locality "$(manifest kube-scheduler)" || echo "foreign kube-scheduler"
  ! [ -d "$state/stock" ] || echo "installed yes"
}

# staged NAME SHA: whether that very binary is installed or waits to be.
command_staged() {
  [ "$(sha "$(program "$1")")" = "$2" ] ||
    { [ -e "$state/stage/$1" ] && [ "$(sha "$state/stage/$1")" = "$2" ]; }
}

# stage NAME <BINARY: it must run here.
command_stage() {
  local output
  mkdir -p "$state/stage"
  cat >"$state/stage/$1"
  chmod 0755 "$state/stage/$1"
  if [ "$1" = pinns ]; then return; fi # has no --version
  output=$("$state/stage/$1" --version 2>&1) || {
    rm "$state/stage/$1"
    die "$1 does not run: ${output%%$'\n'*}"
  }
}

# swap: the staged binaries in the place of the stock ones, the gate on, services restarted.
command_swap() {
  local name file stock
  for name in crio pinns kubelet; do
    [ -e "$state/stage/$name" ] || continue
    file=$(program "$name")
    # A binary that is not as we left it is somebody's update: stock from now on.
    if [ -e "$state/stock$file" ] && ! cmp -s "$file" "$state/ours$file" && ! cmp -s "$file" "$state/stock$file"; then
      rm "$state/stock$file"
    fi
    if [ -e "$state/stock$file" ]; then stock=$state/stock$file; else stock=$file; fi
    mark "$([ "$name" = kubelet ] && echo kubelet || echo crio)"
    put "$file" "$state/stage/$name" "$stock" || true
    rm -f "$state/stage/$name"
  done
  pristine "$kubelet_config" >"$work/pristine"
  with_gate <"$work/pristine" >"$work/new"
  if ! cmp -s "$work/new" "$kubelet_config"; then mark kubelet; fi
  put "$kubelet_config" "$work/new" "$work/pristine" || true
  rm -rf "$state/stage"
  command_restart
}

# restore: the stock binaries and configuration, services restarted.
command_restore() {
  local name file
  for name in crio pinns kubelet; do
    file=$(program "$name")
    [ -e "$state/stock$file" ] || continue
    mark "$([ "$name" = kubelet ] && echo kubelet || echo crio)"
    # Not merged as text is: somebody's update stays.
    if cmp -s "$file" "$state/ours$file"; then replace "$file" "$state/stock$file"; fi
    rm -f "$state/ours$file" "$state/stock$file"
  done
  if [ -e "$state/stock$kubelet_config" ]; then mark kubelet && undo "$kubelet_config"; fi
  command_restart
}

# restart: what is marked, the runtime first. Prints what was restarted.
command_restart() {
  local unit
  for unit in crio kubelet; do
    [ -e "$state/restart/$unit" ] || continue
    systemctl restart "$unit.service" || die "$unit does not start: journalctl -u $unit -n 20"
    rm "$state/restart/$unit"
    echo "$unit"
  done
}

# alive: the services answer.
command_alive() {
  systemctl is-active --quiet crio.service || die "crio.service is $(systemctl is-active crio.service || true)"
  crictl info >/dev/null 2>&1 || die "crio does not answer"
  curl -sf -o /dev/null http://127.0.0.1:10248/healthz || die "the kubelet is not healthy"
}

command_has-image() { [ -n "$(crictl images -q "$1" 2>/dev/null)" ]; }

# load NAME <ARCHIVE: an image into CRI-O's storage.
command_load() {
  local output
  mkdir -p "$state/stage"
  cat >"$state/stage/image.tar"
  output=$(skopeo copy --quiet "docker-archive:$state/stage/image.tar" "containers-storage:$1" 2>&1) ||
    die "skopeo cannot load $1: $output"
  rm "$state/stage/image.tar"
}

# static-pod COMPONENT IMAGE: its manifest with our image. The apiserver gets the gate,
# the scheduler the configuration and what goes with it from $work/scheduler.
# Prints "changed" when it was another.
command_static-pod() {
  local file ours='{}' digest=''
  file=$(manifest "$1")
  [ -e "$file" ] || die "no static pod $file"
  if [ "$1" = kube-scheduler ]; then
    mkdir -p /etc/kubernetes/layer-locality
    cmp -s "$work/scheduler/config.yaml" /etc/kubernetes/layer-locality/config.yaml ||
      cp "$work/scheduler/config.yaml" /etc/kubernetes/layer-locality/config.yaml
    ours=$(json <"$work/scheduler/kube-scheduler.yaml")
    digest=$(sha /etc/kubernetes/layer-locality/config.yaml)
  fi
  pristine "$file" >"$work/pristine"
  json <"$work/pristine" | jq --arg component "$1" --arg image "$2" --arg gate "$gate" --arg digest "$digest" --argjson ours "$ours" '
    def with_gate:
      if any(startswith("--feature-gates=")) then map(if startswith("--feature-gates=") then . + ",\($gate)=true" else . end)
      else . + ["--feature-gates=\($gate)=true"] end;
    def layer_locality: map(select(.name == "layer-locality"));
    .spec.containers[0].image = $image
    | if $component == "kube-apiserver" then .spec.containers[0].command |= with_gate
      elif $component == "kube-scheduler" then
        ($ours.spec.containers[0]) as $from
        | .spec.containers[0] |= (
            .command += [$from.command[] | select(startswith("--config="))]
            | .volumeMounts += ($from.volumeMounts | layer_locality)
            | .securityContext = $from.securityContext)
        | .spec.volumes += ($ours.spec.volumes | layer_locality)
        # So that another configuration is another pod.
        | .metadata.annotations["layerlocality.io/config"] = $digest
      else . end' | yaml >"$work/new"
  if put "$file" "$work/new" "$work/pristine"; then echo changed; fi
}

json() { kubectl patch --local -f - --type merge -p '{}' -o json; }
yaml() { kubectl patch --local -f - --type merge -p '{}' -o yaml; }

# scheduler-files <TAR
command_scheduler-files() { mkdir -p "$work/scheduler" && tar -x -C "$work/scheduler"; }

# undo-static-pod COMPONENT: prints "changed" when there was something to undo.
command_undo-static-pod() {
  if undo "$(manifest "$1")"; then echo changed; fi
}

# pod COMPONENT: its image in the manifest must be the one that runs, and be ready.
command_pod() {
  local want
  want=$(json <"$(manifest "$1")" | jq -r '.spec.containers[0] | .image')
  kubectl -n kube-system get pod "$1-$(hostname)" --request-timeout 5s -o json | jq -e --arg want "$want" --arg name "$1" '
    .metadata.deletionTimestamp == null and .spec.containers[0].image == $want
    and any(.status.containerStatuses[]?; .ready and .image == $want)' >/dev/null ||
    die "$1 does not run ${want##*/} yet, or is not ready"
}

# configmap [undo]: the gate in the kubelet configuration for nodes to come, on or back.
# Prints "changed" when it was another.
command_configmap() {
  local file=$work/kubelet-config stock=$state/stock$work/kubelet-config
  kubectl -n kube-system get configmap kubelet-config -o json | jq -j .data.kubelet >"$file"
  pristine "$file" >"$work/pristine"
  if [ "${1:-}" = undo ]; then
    [ -e "$stock" ] || return 0
    cp "$work/pristine" "$file"
  else
    with_gate <"$work/pristine" >"$work/new"
    put "$file" "$work/new" "$work/pristine" || return 0
  fi
  jq -Rs '{data: {kubelet: .}}' "$file" >"$work/patch.json"
  kubectl -n kube-system patch configmap kubelet-config --type merge --patch-file "$work/patch.json" >/dev/null
  # Only now: an interruption must not lose it.
  [ "${1:-}" != undo ] || rm -f "$stock" "$state/ours$file"
  echo changed
}

# prune [KEEP...]: removes our images but these.
command_prune() {
  local image
  crictl images -o json | jq -r --arg ours "$repository/" '.images[].repoTags[]? | select(startswith($ours))' |
    while read -r image; do
      [[ " $* " == *" $image "* ]] || crictl rmi "$image" >/dev/null 2>&1 || die "$image is still used"
    done
}

# forget: what only we put here.
command_forget() {
  local left
  left=$(find "$state/stock" -type f 2>/dev/null || true)
  [ -z "$left" ] || die "not undone yet: $left"
  # Without a state, that folder is somebody else's.
  [ ! -d "$state/stock" ] || rm -rf /etc/kubernetes/layer-locality
  rm -rf "$state"
}

# layers: how many images the runtime lists, and how many with layers.
command_layers() {
  crictl images -o json | jq -r '[.images[] | (.spec.annotations // {}) | any(keys[]; startswith("imageLayer."))] | "\(length) \(map(select(.)) | length)"'
}

command=$1
shift
mkdir -p "$work"
trap 'rm -rf "$work/"{new,pristine,patch.json}' EXIT
"command_$command" "$@"

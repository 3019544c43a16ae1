#!/bin/bash
# The part of kind/install.sh that runs in a node: it is copied there and called
# with one command. See the functions command_* for what each does.
#
# For every changed file, $state has stock/<path> as it would be without us and
# ours/<path> as we left it. Everything is written by renaming, stock first, so that an
# interruption at any point, even by a full disk, can be continued or undone. Changes by
# others in text files are kept: they are merged with diff3.
#
# errexit guards every step: functions that change files are never called in a condition,
# where the shell would continue after a failure.
set -euo pipefail
shopt -s inherit_errexit
root=${LAYERLOCALITY_ROOT:-} # of a test
export LC_ALL=C PATH=${root:+$root/usr/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export KUBECONFIG=/etc/kubernetes/admin.conf
state=$root/var/lib/layer-locality
work=$root/run/layer-locality # temporary files of one command
gate=NodeStatusImageLayers
kubelet_config=$root/var/lib/kubelet/config.yaml
configmap=$work/kubelet-config # a copy of what the API has
repository=localhost/layer-locality-kind/
changed=''

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

manifest() { echo "$root/etc/kubernetes/manifests/$1.yaml"; }
program() { readlink -f "$(command -v "$1")"; }
sha() { sha256sum "$1" | cut -d' ' -f1; }

# partial FILE: its name while it is written. It begins with a dot, because the kubelet
# ignores such manifests.
partial() { echo "${1%/*}/.${1##*/}.layer-locality"; }

# tidy: cleans up after a killed command, and at the end of each command. next/<path> is
# what was about to become ours: it has become ours if it got there.
tidy() {
  local stock file
  rm -rf "$state/partial" "$work/"{new,pristine,patch.json}
  [ -d "$state/stock" ] || return 0
  find "$state/stock" -type f | while read -r stock; do
    file=${stock#"$state/stock"}
    if cmp -s "$file" "$state/next$file"; then arrived "$file"; fi
    rm -f "$state/next$file" "$(partial "$file")"
  done
}

# keep KIND FILE CONTENT: stores CONTENT, with mode and date, as $state/KIND/FILE.
keep() {
  mkdir -p "$(dirname "$state/$1$2")"
  cp -p "$3" "$state/partial"
  mv "$state/partial" "$state/$1$2"
}

# arrived FILE: whether it equals $state/next.
arrived() {
  mkdir -p "$(dirname "$state/ours$1")"
  mv "$state/next$1" "$state/ours$1"
}

# pristine FILE [NAME]: prints FILE as it would be without us. Messages call it NAME.
pristine() {
  local stock=$state/stock$1 ours=$state/ours$1
  if [ ! -e "$stock" ]; then
    cat "$1"
  elif cmp -s "$1" "$ours" || cmp -s "$1" "$stock"; then
    cat "$stock"
  else
    # -E: a change that is in both, as after an interrupted undo, is not a conflict.
    diff3 -m -E "$1" "$ours" "$stock" ||
      die "${2:-$1} was changed by others where we had changed it: make it right by hand, from $stock and $ours"
  fi
}

# replace FILE NEW: replaces FILE with NEW, with FILE's owner and mode unless it is the
# stock file.
replace() {
  local tmp
  tmp=$(partial "$1")
  cp -p "$2" "$tmp"
  if [ "$2" != "$state/stock$1" ]; then
    chown --reference="$1" "$tmp"
    chmod --reference="$1" "$tmp"
    touch "$tmp"
  fi
  mv "$tmp" "$1"
}

# put FILE NEW PRISTINE: makes NEW the FILE, which would be PRISTINE without us. Sets
# changed if there was something to do.
put() {
  if cmp -s "$1" "$2" && [ -e "$state/stock$1" ]; then return 0; fi
  if cmp -s "$1" "$3"; then
    keep stock "$1" "$1"
  elif ! cmp -s "$state/stock$1" "$3"; then
    chmod --reference="$1" "$3"
    keep stock "$1" "$3"
  fi
  keep next "$1" "$2"
  replace "$1" "$2"
  arrived "$1"
  changed=1
}

# let_go FILE: forgets it, so that we no longer undo it.
let_go() {
  rm -f "$state/stock$1"
  rm -f "$state/ours$1"
  changed=1
}

# undo FILE: restores it as it would be without us. Sets changed if there was something
# to undo.
undo() {
  [ -e "$state/stock$1" ] || return 0
  pristine "$1" >"$work/pristine"
  if cmp -s "$work/pristine" "$state/stock$1"; then
    replace "$1" "$state/stock$1"
  else
    replace "$1" "$work/pristine"
  fi
  let_go "$1"
}

# with_gate: prints a KubeletConfiguration with our gate on, as the first of its gates.
with_gate() {
  awk -v gate="$gate" '
    function add(indent) { if (open) print indent gate ": true"; open = 0 }
    /^kind: *"?KubeletConfiguration"? *$/ { known = 1 }
    /^featureGates: *([{][}] *)?(#.*)?$/ { print "featureGates:"; open = done = 1; next }
    /^["\047]?featureGates/ { exit bad = 1 }
    /^ +[^ #]/ { match($0, /^ +/); add(substr($0, 1, RLENGTH)) }
    /^[^ #]/ { add("  ") }
    { key = $1; gsub(/["\047:]/, "", key); if (key != gate) print }
    END {
      if (bad || !known) exit 1
      if (!done) { print "featureGates:"; open = 1 }
      add("  ")
    }' || die "featureGates in $1 is not written as one gate a line, below 'featureGates:': write it so"
}

# mark UNIT: notes that it has to be restarted. The note survives an interruption.
mark() { mkdir -p "$state/restart" && touch "$state/restart/$1"; }
unit_of() { if [ "$1" = kubelet ]; then echo kubelet; else echo crio; fi; }

# Prints facts about this node, one "key value" per line. "conflict" is what cannot be
# undone, "foreign" what cannot be installed.
command_facts() {
  local version file reason
  version=$(crictl version 2>/dev/null) || version=
  echo "runtime $(sed -n 's/^RuntimeName: *//p' <<<"$version")"
  echo "crio $(sed -n 's/^RuntimeVersion: *v*//p' <<<"$version")"
  echo "kubelet $(kubelet --version 2>/dev/null | cut -d' ' -f2)"
  echo "machine $(uname -m)"
  for version in crio pinns kubelet kubectl jq diff3 skopeo curl; do
    command -v "$version" >/dev/null || echo "missing $version"
  done
  for file in "$kubelet_config" "$root/etc/kubernetes/manifests/"kube-{apiserver,controller-manager,scheduler}.yaml; do
    [ -e "$file" ] || continue
    reason=$(pristine "$file" 2>&1 >/dev/null) || echo "conflict $reason"
  done
  reason=$(pristine "$kubelet_config" 2>/dev/null | with_gate "$kubelet_config" 2>&1 >/dev/null) || echo "foreign $reason"
  file=$(manifest kube-scheduler)
  if [ -e "$file" ] && pristine "$file" 2>/dev/null | grep -e --config= -e layer-locality >/dev/null; then
    echo "foreign kube-scheduler has a configuration of its own (--config), or was replaced by hand: undo that first, $file"
  fi
  ! [ -d "$state/stock" ] || echo "installed yes"
}

# staged NAME SHA: whether that very binary is installed or waits to be.
command_staged() {
  if [ "$(sha "$(program "$1")")" = "$2" ]; then
    rm -f "$state/stage/$1" # of another run
  else
    [ -e "$state/stage/$1" ] && [ "$(sha "$state/stage/$1")" = "$2" ]
  fi
}

# stage NAME SHA <BINARY: stores it; it must run here.
command_stage() {
  local output
  mkdir -p "$state/stage"
  cat >"$state/partial"
  [ "$(sha "$state/partial")" = "$2" ] || die "$1 was not copied to its end"
  chmod 0755 "$state/partial"
  if [ "$1" != pinns ]; then # has no --version
    output=$("$state/partial" --version 2>&1) || die "$1 does not run: ${output%%$'\n'*}"
  fi
  mv "$state/partial" "$state/stage/$1"
}

# swap: replaces the stock binaries with the staged ones, turns the gate on, restarts
# services.
command_swap() {
  local name file pristine
  for name in crio pinns kubelet; do
    [ -e "$state/stage/$name" ] || continue
    file=$(program "$name")
    # A binary that is not as we left it was updated by somebody else: it is stock from
    # now on.
    if cmp -s "$file" "$state/ours$file"; then pristine=$state/stock$file; else pristine=$file; fi
    mark "$(unit_of "$name")"
    put "$file" "$state/stage/$name" "$pristine"
    rm "$state/stage/$name"
  done
  pristine "$kubelet_config" >"$work/pristine"
  with_gate "$kubelet_config" <"$work/pristine" >"$work/new"
  if ! cmp -s "$work/new" "$kubelet_config"; then mark kubelet; fi
  put "$kubelet_config" "$work/new" "$work/pristine"
  rm -rf "$state/stage"
  command_restart
}

# restore: restores the stock binaries and configuration, and restarts services.
command_restore() {
  local name file
  for name in crio pinns kubelet; do
    file=$(program "$name")
    [ -e "$state/stock$file" ] || continue
    mark "$(unit_of "$name")"
    # Binaries are not merged like text: an update by somebody else stays.
    if cmp -s "$file" "$state/ours$file"; then replace "$file" "$state/stock$file"; fi
    let_go "$file"
  done
  if [ -e "$state/stock$kubelet_config" ]; then mark kubelet; fi
  undo "$kubelet_config"
  command_restart
}

# restart: restarts what is marked, the runtime first. Prints what was restarted.
command_restart() {
  local unit
  for unit in crio kubelet; do
    [ -e "$state/restart/$unit" ] || continue
    systemctl restart "$unit.service" || die "$unit does not start: journalctl -u $unit -n 20"
    rm "$state/restart/$unit"
    echo "$unit"
  done
}

# alive: whether the services answer.
command_alive() {
  systemctl is-active --quiet crio.service || die "crio.service is $(systemctl is-active crio.service || true)"
  crictl info >/dev/null 2>&1 || die "crio does not answer"
  curl -sf -o /dev/null http://127.0.0.1:10248/healthz || die "the kubelet is not healthy"
}

command_has-image() { [ -n "$(crictl images -q "$1" 2>/dev/null)" ]; }

# load NAME <ARCHIVE: loads an image into CRI-O's storage.
command_load() {
  local output
  mkdir -p "$state"
  cat >"$state/partial"
  output=$(skopeo copy --quiet "docker-archive:$state/partial" "containers-storage:$1" 2>&1) ||
    die "skopeo cannot load $1: $output"
}

# scheduler-files <TAR: stores what static-pod needs for kube-scheduler.
command_scheduler-files() { mkdir -p "$work/scheduler" && tar -x -C "$work/scheduler"; }

# static-pod COMPONENT IMAGE: writes its manifest with our image. The apiserver gets the
# gate, the scheduler its configuration, in $state/scheduler, with its volume and
# arguments. Prints "changed" if the manifest was different.
command_static-pod() {
  local file ours='{}' digest='' folder=$state/scheduler
  file=$(manifest "$1")
  [ -e "$file" ] || die "no static pod $file"
  if [ "$1" = kube-scheduler ]; then
    mkdir -p "$folder"
    if ! cmp -s "$work/scheduler/config.yaml" "$folder/config.yaml"; then
      cp "$work/scheduler/config.yaml" "$state/partial"
      mv "$state/partial" "$folder/config.yaml"
    fi
    ours=$(json <"$work/scheduler/kube-scheduler.yaml")
    digest=$(sha "$folder/config.yaml")
  fi
  pristine "$file" >"$work/pristine"
  json <"$work/pristine" | jq --arg component "$1" --arg image "$2" --arg gate "$gate" --arg digest "$digest" --arg folder "$folder" --argjson ours "$ours" '
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
        | .spec.volumes += ($ours.spec.volumes | layer_locality | map(.hostPath.path = $folder))
        # So that another configuration makes another pod.
        | .metadata.annotations["layerlocality.io/config"] = $digest
      else . end' | yaml >"$work/new"
  put "$file" "$work/new" "$work/pristine"
  say_changed
}

json() { kubectl patch --local -f - --type merge -p '{}' -o json; }
yaml() { kubectl patch --local -f - --type merge -p '{}' -o yaml; }
say_changed() { [ -z "$changed" ] || echo changed; }

# undo-static-pod COMPONENT: restores it. Prints "changed" if there was something to
# undo.
command_undo-static-pod() {
  undo "$(manifest "$1")"
  say_changed
}

# pod COMPONENT: checks that the image in the manifest is the one that runs, and that it
# is ready.
command_pod() {
  local want
  want=$(json <"$(manifest "$1")" | jq -r '.spec.containers[0] | .image')
  kubectl -n kube-system get pod "$1-$(hostname)" --request-timeout 5s -o json | jq -e --arg want "$want" --arg name "$1" '
    .metadata.deletionTimestamp == null and .spec.containers[0].image == $want
    and any(.status.containerStatuses[]?; .ready and .image == $want)' >/dev/null ||
    die "$1 does not run ${want##*/} yet, or is not ready"
}

# configmap [undo]: sets or restores the gate in the kubelet configuration for future
# nodes. Prints "changed" if it was different.
command_configmap() {
  local name='ConfigMap kube-system/kubelet-config'
  kubectl -n kube-system get configmap kubelet-config -o json | jq -j .data.kubelet >"$configmap"
  pristine "$configmap" "$name" >"$work/pristine"
  if [ "${1:-}" != undo ]; then
    with_gate "$name" <"$work/pristine" >"$work/new"
    put "$configmap" "$work/new" "$work/pristine"
    if [ -n "$changed" ]; then write_configmap "$configmap"; fi
  elif [ -e "$state/stock$configmap" ]; then
    write_configmap "$work/pristine"
    # Only now, so that an interruption does not lose it.
    let_go "$configmap"
  fi
  say_changed
}

# write_configmap FILE
write_configmap() {
  jq -Rs '{data: {kubelet: .}}' "$1" >"$work/patch.json"
  kubectl -n kube-system patch configmap kubelet-config --type merge --patch-file "$work/patch.json" >/dev/null
}

# prune [KEEP...]: removes our images except these.
command_prune() {
  local image
  crictl images -o json | jq -r --arg ours "$repository" '.images[].repoTags[]? | select(startswith($ours))' |
    while read -r image; do
      [[ " $* " == *" $image "* ]] || crictl rmi "$image" >/dev/null 2>&1 || die "$image is still used"
    done
}

# forget: removes what only we put here.
command_forget() {
  local left
  left=$(find "$state/stock" -type f 2>/dev/null || true)
  [ -z "$left" ] || die "not undone yet: $left"
  rm -rf "$state"
}

# layers: prints how many images the runtime lists, and how many with layers.
command_layers() {
  crictl images -o json | jq -r '[.images[] | (.spec.annotations // {}) | any(keys[]; startswith("imageLayer."))] | "\(length) \(map(select(.)) | length)"'
}

command=$1
shift
mkdir -p "$work"
# A command that was killed on the host may still run here.
exec 9>"$work/lock"
flock -w 120 9 || die "another command of kind/install.sh still runs in this node: try again later"
trap tidy EXIT
tidy
"command_$command" "$@"

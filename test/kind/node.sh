#!/usr/bin/env bash
# Tests kind/node.sh without a cluster, in a folder that represents a node with its
# programs, manifests and API. Most of all, it tests that node.sh can be interrupted
# anywhere, and that a full disk does no harm.
#
#   node.sh
#
# Needs jq and diff3; not root.
. "$(dirname "$0")/../../scripts/lib.sh"
. "$ROOT/test/checks.sh"
export LAYERLOCALITY_ROOT=$WORK/node
NODE=$LAYERLOCALITY_ROOT
STATE=$NODE/var/lib/layer-locality
CONFIG=$NODE/var/lib/kubelet/config.yaml
MANIFESTS=$NODE/etc/kubernetes/manifests
API=$NODE/api/kubelet-config.json
PROGRAMS=(crio pinns kubelet)
COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler)

# binary NAME TEXT: makes a program of 64 KiB. Only its end differs.
binary() {
  printf '#!/bin/sh\necho %s version 1.36\nexit\n' "$1"
  head -c 65536 /dev/zero | tr '\0' '#'
  echo "$2"
}

# command NAME <BODY: makes a program of the node.
command_file() { { printf '#!/bin/sh\n' && cat; } >"$NODE/usr/bin/$1" && chmod +x "$NODE/usr/bin/$1"; }

# pod COMPONENT: prints its manifest, as JSON, which is YAML, so that jq can replace
# kubectl.
pod() {
  jq -n --arg name "$1" '{apiVersion: "v1", kind: "Pod", metadata: {name: $name}, spec: {
    containers: [{command: [$name, "--kubeconfig=/etc/kubernetes/\($name).conf"], image: "stock",
      volumeMounts: [{name: "kubeconfig", mountPath: "/etc"}]}],
    priority: 1, volumes: [{name: "kubeconfig"}]}}'
}

# stock: makes a node as kubeadm leaves it.
stock() {
  local name
  rm -rf "$NODE"
  mkdir -p "$NODE/usr/bin" "$MANIFESTS" "$(dirname "$CONFIG")" "$(dirname "$API")"
  for name in crio pinns kubelet; do
    binary "$name" stock >"$NODE/usr/bin/$name"
    chmod 0755 "$NODE/usr/bin/$name"
    touch -d 2020-02-02 "$NODE/usr/bin/$name"
  done
  printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'clusterDomain: cluster.local' 'failCgroupV1: false' \
    'imageGCHighThresholdPercent: 100' 'kind: KubeletConfiguration' 'rotateCertificates: true' 'staticPodPath: /etc' >"$CONFIG"
  for name in "${COMPONENTS[@]}"; do
    pod "$name" >"$MANIFESTS/$name.yaml"
    chmod 0600 "$MANIFESTS/$name.yaml"
  done
  touch -d 2020-02-02 "$CONFIG" "$MANIFESTS"/*
  jq -Rs '{data: {kubelet: .}}' "$CONFIG" >"$API"
  : >"$NODE/restarted"
  echo 0 >"$NODE/calls"
  echo localhost/layer-locality/kube-scheduler:own >"$NODE/images"
  command_file systemctl <<'END'
echo "$2" >>"$LAYERLOCALITY_ROOT/restarted"
END
  command_file kubectl <<'END'
api=$LAYERLOCALITY_ROOT/api/kubelet-config.json
case $* in
"patch --local"*) exec jq . ;;
*" get configmap "*) exec cat "$api" ;;
*" patch configmap "*)
  for patch; do :; done
  jq --slurpfile patch "$patch" '. * $patch[0]' "$api" >"$api.new" && mv "$api.new" "$api"
  ;;
*) exit 1 ;;
esac
END
  command_file crictl <<'END'
images=$LAYERLOCALITY_ROOT/images
case $1 in
version) printf 'RuntimeName:  cri-o\nRuntimeVersion:  1.36.3\n' ;;
images) jq -Rn '{images: [inputs | {repoTags: [.]}]}' "$images" ;;
rmi) sed -i "\\,^$2\$,d" "$images" ;;
esac
END
  # Programs that change a file's place or content. Call number STOP_AT stops: by killing
  # everything that runs in the node, or as on a full disk.
  for name in cp mv rm; do
    command_file "$name" <<END
if [ -n "\${STOP_AT:-}" ] && { [ "\$STOP" = fail ] || [ $name != cp ]; }; then
  read -r calls <"\$LAYERLOCALITY_ROOT/calls"
  calls=\$((calls + 1))
  echo "\$calls" >"\$LAYERLOCALITY_ROOT/calls"
  if [ "\$calls" = "\$STOP_AT" ]; then
    [ "\$STOP" = fail ] || kill -KILL 0
    [ $name != cp ] || for last; do :; done
    [ $name != cp ] || : >"\$last"
    echo "$name: No space left on device" >&2
    exit 1
  fi
fi
exec $(PATH=/usr/bin:/bin command -v "$name") "\$@"
END
  done
}

node() { bash "$ROOT/kind/node.sh" "$@"; }

# install VERSION: installs it as kind/install.sh does.
stage() {
  local name sum
  for name in "${PROGRAMS[@]}"; do
    sum=$(sha256sum <"$WORK/$1/$name" | cut -d' ' -f1)
    node staged "$name" "$sum" || node stage "$name" "$sum" <"$WORK/$1/$name"
  done
}
scheduler_files() {
  tar -C "$ROOT/deploy/scheduler/static-pod" -c config.yaml -C "$WORK" kube-scheduler.yaml | node scheduler-files
}
install() {
  local name
  stage "$1"
  scheduler_files
  for name in "${COMPONENTS[@]}"; do node static-pod "$name" "$1"; done
  node swap
  node configmap
}
uninstall() {
  local name
  node restore
  node configmap undo
  for name in "${COMPONENTS[@]}"; do node undo-static-pod "$name"; done
  node forget
}

# contents: prints all files of the node, with mode and date.
contents() {
  find "$NODE"/{etc,usr,var} -path "$STATE" -prune -o -type f -printf '%P %m %T@\n' -exec sha256sum {} +
  jq -r .data.kubelet "$API"
  cat "$NODE/images"
}
# remember: remembers how the node must be without us.
remember() { contents | sort >"$WORK/remembered"; }
unchanged() { contents | sort | diff "$WORK/remembered" -; }
undone() {
  unchanged
  [ ! -e "$STATE" ]
}
# The same, except for the dates of files that others have changed since.
merged() {
  local file
  for file in "$CONFIG" "$MANIFESTS"/*; do touch -d 2020-02-02 "$file"; done
  undone
}

# is VERSION: whether it is installed, including the gate, without any partly written
# file.
is() {
  local name
  for name in "${PROGRAMS[@]}"; do cmp "$WORK/$1/$name" "$NODE/usr/bin/$name"; done
  for name in "${COMPONENTS[@]}"; do
    jq -e --arg image "$1" '.spec.containers[0].image == $image' "$MANIFESTS/$name.yaml"
  done
  grep '^  NodeStatusImageLayers: true' "$CONFIG"
  grep NodeStatusImageLayers "$API"
  [ -z "$(find "$NODE" -name '.*.layer-locality')" ]
}

# save NAME, load NAME: save or load the whole node.
save() { rm -rf "$WORK/saved-$1" && cp -a "$NODE" "$WORK/saved-$1"; }
load() { rm -rf "$NODE" && cp -a "$WORK/saved-$1" "$NODE"; }

# stopped HOW FROM THEN COMMAND...: the command is stopped (kill, fail) at each of its
# steps, beginning with the saved node FROM; each time THEN must succeed.
stopped() {
  local how=$1 from=$2 then=$3 at status
  shift 3
  for at in $(seq 100); do
    load "$from"
    set +e
    STOP=$how STOP_AT=$at setsid --wait bash "$ROOT/kind/node.sh" "$@" >"$WORK/out" 2>&1
    status=$?
    set -e
    if [ "$(cat "$NODE/calls")" -lt "$at" ]; then
      [ "$at" -gt 3 ] && [ "$status" = 0 ]
      return
    fi
    if [ "$status" = 0 ]; then
      echo "step $at of $* failed, and the command went on"
      return 1
    fi
    set +e
    (
      set -e
      "$then"
    ) >"$WORK/then" 2>&1
    status=$?
    set -e
    if [ "$status" != 0 ]; then
      echo "$how at step $at of $*: $(cat "$WORK/out")"
      cat "$WORK/then"
      return 1
    fi
  done
  return 1
}
# What must be possible after a stop.
uninstalls() {
  uninstall
  undone
}
uninstalls_merged() {
  uninstall
  merged
}
installs() {
  install v1
  is v1
  uninstall
  undone
}

# small_files KIB COMMAND...: runs it as on a disk that is full after so much; the log is
# not on it.
small_files() {
  (
    trap '' XFSZ
    ulimit -f "$1"
    node "${@:2}"
  ) 2>&1 | cat
}

for version in v1 v2 update; do
  mkdir -p "$WORK/$version"
  for name in crio pinns kubelet; do binary "$name" "$version" >"$WORK/$version/$name"; done
done
for name in v1 v2; do chmod +x "$WORK/$name"/*; done
# YAML cannot be read here.
jq -n '{spec: {containers: [{command: ["kube-scheduler", "--config=/etc/kubernetes/layer-locality/config.yaml"],
  securityContext: {runAsUser: 0}, volumeMounts: [{name: "layer-locality", mountPath: "/etc/kubernetes/layer-locality"}]}],
  volumes: [{name: "layer-locality", hostPath: {path: "/etc/kubernetes/layer-locality", type: "Directory"}}]}}' >"$WORK/kube-scheduler.yaml"

stock
remember
save stock
check "install" install v1
check "install: everything is there" is v1
save v1
with_state() { contents && find "$STATE" -type f -printf '%P %T@\n' | sort; }
with_state >"$WORK/installed" && cp "$NODE/restarted" "$WORK/restarted"
check "install: a second time" install v1
nothing_done() { with_state | diff "$WORK/installed" - && diff "$NODE/restarted" "$WORK/restarted"; }
check "install: the second time has changed and restarted nothing" nothing_done
check "upgrade" install v2
check "upgrade: everything is there" is v2
check "uninstall, of the upgrade" uninstall
check "uninstall: as before, byte for byte" undone

# Every step that changes files; for one binary and one static pod, to be quick.
PROGRAMS=(crio) COMPONENTS=(kube-scheduler)
load stock && stage v1 && save staged
load stock && install v1 >/dev/null && save one
stage v2 && save staged-upgrade
scheduler_files && save files
check "swap, killed anywhere: can be undone" stopped kill staged uninstalls swap
check "upgrade, killed anywhere: can be undone" stopped kill staged-upgrade uninstalls swap
check "upgrade, killed anywhere: back to the older binaries" stopped kill staged-upgrade installs swap
check "upgrade, no space anywhere: can be undone" stopped fail staged-upgrade uninstalls swap
check "upgrade of a static pod, killed anywhere: can be undone" stopped kill files uninstalls static-pod kube-scheduler v2
check "restore, killed anywhere: can go on" stopped kill one uninstalls restore
check "restore, no space anywhere: can go on" stopped fail one uninstalls restore
check "undo of a static pod, no space anywhere: can go on" stopped fail one uninstalls undo-static-pod kube-scheduler
check "undo of the ConfigMap, killed anywhere: can go on" stopped kill one uninstalls configmap undo

# Others' changes.
change() {
  sed -i '2i maxPods: 99' "$CONFIG"
  jq '.data.kubelet |= sub("clusterDomain"; "maxPods: 99\nclusterDomain")' "$API" >"$API.new" && mv "$API.new" "$API"
  sed -i 's/"priority": 1/"priority": 2/' "$MANIFESTS"/*
  touch -d 2020-02-02 "$CONFIG" "$MANIFESTS"/*
}
load stock && change && remember
load one && change && save changed
stage v2 && save changed-upgrade
check "others' changes: restore, killed anywhere: can go on" stopped kill changed uninstalls_merged restore
check "others' changes: undo of a static pod, killed anywhere: can go on" stopped kill changed uninstalls_merged undo-static-pod kube-scheduler
check "others' changes: undo of the ConfigMap, killed anywhere: can go on" stopped kill changed uninstalls_merged configmap undo
check "others' changes: upgrade, killed anywhere: can be undone" stopped kill changed-upgrade uninstalls_merged swap
PROGRAMS=(crio pinns kubelet) COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler)
load stock && remember
load v1
sed -i '/^featureGates/,+1d' "$CONFIG"
check "our lines removed by hand: uninstall" uninstalls_merged
load v1
sed -i 's/NodeStatusImageLayers: true/NodeStatusImageLayers: false/' "$CONFIG"
says() { node facts | grep -E -e "$1"; }
says_not() {
  node facts >"$WORK/facts"
  ! grep -E "^($1) " "$WORK/facts"
}
check "a change of our own line is a conflict, said before anything is changed" says "^conflict $CONFIG was changed by others"
load v1
jq '.data.kubelet |= sub("Layers: true"; "Layers: false")' "$API" >"$API.new" && mv "$API.new" "$API"
refuses "the same in the ConfigMap, by its name" '^ConfigMap kube-system/kubelet-config was changed' node configmap undo
load v1
cp "$WORK/update/crio" "$NODE/usr/bin/crio"
uninstall >/dev/null
check "somebody's newer binary stays" cmp "$WORK/update/crio" "$NODE/usr/bin/crio"
load v1
cp "$WORK/update/crio" "$NODE/usr/bin/crio"
install v2 >/dev/null
uninstall >/dev/null
check "somebody's newer binary is what an upgrade is undone to" cmp "$WORK/update/crio" "$NODE/usr/bin/crio"

# Full disks, by the kernel.
full_disk() {
  load "$1"
  refuses "full disk, $2 KiB left, $1: ${*:3}" 'File too large|No space' small_files "${@:2}"
  check "full disk, $2 KiB left, $1: ${*:3}, then uninstall" uninstalls
}
full_disk staged 32 swap
full_disk staged-upgrade 32 swap
full_disk v1 32 restore
full_disk v1 0 undo-static-pod kube-scheduler
full_disk files 0 static-pod kube-scheduler v2
load stock && refuses "full disk: stage" 'File too large|not copied' small_files 32 stage crio "$(sha256sum <"$WORK/v1/crio" | cut -d' ' -f1)" <"$WORK/v1/crio"

# What is staged.
cut_off() { head -c 1000 "$WORK/v1/pinns" | node stage pinns "$(sha256sum <"$WORK/v1/pinns" | cut -d' ' -f1)"; }
load stock
refuses "a binary of which not everything arrives" 'pinns was not copied to its end' cut_off
load v1
stage v2
install v1 >/dev/null
check "what another run has staged is not installed" is v1

# featureGates in several notations: the gate is in once, and the rest is unchanged.
gates() {
  load stock
  printf '%s\n' 'kind: KubeletConfiguration' "$@" 'maxPods: 9' >"$CONFIG"
  remember
}
config_is() { printf '%s\n' 'kind: KubeletConfiguration' "$@" | diff - "$CONFIG"; }
form() {
  local what=$1
  check "featureGates $what: install" node swap
}
gates
form "absent" && check "featureGates absent: added" config_is 'maxPods: 9' 'featureGates:' '  NodeStatusImageLayers: true'
gates 'featureGates: {}'
form "empty" && check "featureGates empty: added" config_is 'featureGates:' '  NodeStatusImageLayers: true' 'maxPods: 9'
gates 'featureGates:' '    A: true' '    B: false'
form "of four spaces" && check "featureGates of four spaces: as deep" config_is 'featureGates:' '    NodeStatusImageLayers: true' '    A: true' '    B: false' 'maxPods: 9'
gates 'featureGates:' '# of ours' '  # more' '  A: true' '  "NodeStatusImageLayers": false'
form "with the gate off" && check "featureGates with the gate off: on, once" config_is 'featureGates:' '# of ours' '  # more' '  NodeStatusImageLayers: true' '  A: true' 'maxPods: 9'
for text in 'featureGates: {A: true}' '"featureGates": {A: true}' 'featureGates: &gates' 'featureGates: {'; do
  gates "$text"
  check "$text: said before anything is changed" says "^foreign featureGates in $CONFIG is not written"
  refuses "$text: refused" 'write it so' node swap
done
gates && echo '{"kind": "KubeletConfiguration"}' >"$CONFIG"
check "a configuration in JSON: said before anything is changed" says '^foreign featureGates'

# What belongs to others.
load stock
check "a stock node: nothing in the way" says_not 'foreign|conflict|installed'
jq '.spec.containers[0].command += ["--config=/etc/mine.yaml"]' "$WORK/saved-stock/etc/kubernetes/manifests/kube-scheduler.yaml" >"$MANIFESTS/kube-scheduler.yaml"
check "kube-scheduler with a configuration of its own" says '^foreign kube-scheduler has a configuration of its own'
load v1
check "an installed node: nothing in the way" says_not 'foreign|conflict'
load stock
mkdir "$NODE/etc/kubernetes/layer-locality" && echo mine >"$NODE/etc/kubernetes/layer-locality/config.yaml"
remember
check "a configuration in /etc/kubernetes/layer-locality, made by hand, stays" installs
load v1
printf '%s\n' localhost/layer-locality-kind/kube-scheduler:{old,new} >>"$NODE/images"
node prune localhost/layer-locality-kind/kube-scheduler:new
check "prune removes our images of other versions, and nobody else's" \
  diff "$NODE/images" <(printf '%s\n' localhost/layer-locality/kube-scheduler:own localhost/layer-locality-kind/kube-scheduler:new)

# One command at a time.
load stock
mkdir -p "$NODE/run/layer-locality"
waits() {
  exec 8>"$NODE/run/layer-locality/lock"
  flock 8
  node facts >"$WORK/facts" 8>&- &
  sleep 1
  [ ! -s "$WORK/facts" ]
  exec 8>&-
  wait $!
  [ -s "$WORK/facts" ]
}
check "a command waits for the one that still runs" waits
finish

#!/usr/bin/env bash
# Tests kind/up.sh and kind/install.sh, as root: first node.sh, which needs no cluster,
# then a real kind cluster of three CRI-O nodes on Debian's docker, and one of one node on
# podman.
#
#   run.sh [docker|podman]...   default: both
#
# The engines run in their own namespaces without access to the outside, so nothing is
# pulled; networks, firewall rules, mounts and processes end with the namespaces. Prints
# one line per check and ends with "N passed, N failed"; logs are in _out/test/kind.
. "$(dirname "$0")/../../scripts/lib.sh"
. "$ROOT/test/engine/lib.sh"
. "$ROOT/test/engine/namespaces.sh"
. "$ROOT/test/checks.sh"
cd "$ROOT"
LOGS=$ROOT/_out/test/kind
CONTROL=layer-locality-control-plane
WORKERS=(layer-locality-worker layer-locality-worker2)

installer() { kind/install.sh --timeout 240 "$@"; }
in_node() { "$engine" exec -i "$@"; }
kubectl() { in_node "$CONTROL" kubectl --kubeconfig /etc/kubernetes/admin.conf "$@"; }
# within SECONDS COMMAND...: repeats it until it succeeds.
within() {
  local end=$((SECONDS + $1))
  until "${@:2}"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 1
  done
}

# snapshot FILE: records what an installation may change: files with owner, mode, date and
# content, images, ConfigMaps.
snapshot() {
  local node
  for node in "${nodes[@]}"; do
    echo "== $node"
    in_node "$node" sh -c '
      find /etc /usr/bin /usr/sbin /usr/local /kind /var/lib/kubelet/config.yaml /var/lib/layer-locality -type f >/tmp/files 2>/dev/null
      xargs -a /tmp/files -d "\n" stat -c "%n %U:%G %a %y" | sort
      xargs -a /tmp/files -d "\n" sha256sum | sort
      crictl images --no-trunc -o json | jq -r ".images[] | [.id, .repoTags[]?] | @tsv" | sort'
  done
  kubectl -n kube-system get configmap -o json | jq '[.items[] | {(.metadata.name): .data}]'
}
unchanged() { snapshot >"$WORK/now" && diff -u "$WORK/$1" "$WORK/now"; }

no_layers() {
  local node
  for node in "${nodes[@]}"; do
    ! in_node "$node" crictl images -o json | grep imageLayer || return 1
  done
  kubectl get nodes -o json | jq -e 'any(.items[].status.images[]?; has("layers")) | not'
}
stock_binaries() {
  local node name
  for node in "${nodes[@]}"; do
    for name in crio pinns kubelet; do
      [ "$(in_node "$node" sha256sum "/usr/bin/$name" | cut -d' ' -f1)" = "$(sha256sum <"_build/bin/stock/$name" | cut -d' ' -f1)" ] || return 1
    done
  done
}

# with_fake NODE PROGRAM TEXT COMMAND...: runs it while that program of the node prints
# TEXT.
with_fake() {
  local status=0
  printf '#!/bin/sh\ncat <<END\n%s\nEND\n' "$3" | in_node "$1" sh -c "cat >/usr/local/sbin/$2 && chmod +x /usr/local/sbin/$2"
  "${@:4}" || status=$?
  in_node "$1" rm "/usr/local/sbin/$2"
  return "$status"
}
# without NODE FILE COMMAND...: runs it while that file is not there.
without() {
  local status=0
  in_node "$1" mv "$2" "$2.away"
  "${@:3}" || status=$?
  in_node "$1" mv "$2.away" "$2"
  return "$status"
}

# binaries FOLDER: copies the patched ones, to be changed.
binaries() {
  mkdir -p "$WORK/$1"
  cp -sf "$(realpath _build/bin/patched)"/* "$WORK/$1/"
}

# killed_at TEXT ARGS...: runs kind/install.sh and kills it when it has printed TEXT.
killed_at() {
  local pid
  setsid kind/install.sh "${@:2}" >"$WORK/killed" 2>&1 &
  pid=$!
  within 300 grep -q -e "$1" "$WORK/killed" || true
  kill -KILL -- "-$pid"
  wait "$pid" 2>/dev/null || true
}

# up: creates a cluster for the following checks.
up() {
  check "$engine: a cluster of CRI-O nodes, all ready" kind/up.sh --engine "$engine" --offline \
    --config "$WORK/cluster.yaml" --kubeconfig "$WORK/kubeconfig"
  cp "$WORK/log" "$LOGS/$engine-up.log"
  mapfile -t nodes < <(kubectl get nodes -o name | cut -d/ -f2)
  [ ${#nodes[@]} -gt 0 ] || exit 1
}

# cluster_config NODES: prints kind/cluster-offline.yaml with so many nodes, and with what
# this machine needs.
cluster_config() {
  awk -v nodes="$1" -v root="$ROOT" -v aided="$(lacks_sys_resource && echo yes)" '
    /^- role/ && ++n > nodes { next }
    { print }
    /^- role/ && aided {
      print "  extraMounts:"
      print "  - {hostPath: " root "/test/engine/oci-runtime, containerPath: /usr/local/sbin/oci-runtime, readOnly: true}"
      print "  - {hostPath: " root "/test/kind/node-runtime.conf, containerPath: /etc/crio/crio.conf.d/90-test.conf, readOnly: true}"
    }' kind/cluster-offline.yaml >"$WORK/cluster.yaml"
}

# What is refused with a reason before anything is changed.
refusals() {
  local containerd='Version:  0.1.0
RuntimeName:  containerd
RuntimeVersion:  v2.3.4' old='Version:  0.1.0
RuntimeName:  cri-o
RuntimeVersion:  1.35.2'
  refuses "install: a cluster that is not there, with the names of those that are" "has no kind cluster 'other'; it has: layer-locality\." installer --name other install
  refuses "install: an unknown engine" "unknown engine 'nerdctl'" installer --engine nerdctl install
  refuses "install: an engine that is not installed" 'podman is not installed' env PATH="$WORK/path" kind/install.sh --engine podman install
  refuses "install: an engine that does not answer" 'docker does not answer' env DOCKER_HOST=unix:///nowhere kind/install.sh --engine docker install
  refuses "install: an unknown command" 'kind/install.sh \[OPTIONS\] install' installer upgrade
  binaries lacking && rm "$WORK/lacking/kubelet"
  refuses "install: a missing binary" "lacking/kubelet is missing: build it" installer --binaries "$WORK/lacking" install
  refuses "install: stock binaries" 'crio is not patched' installer --binaries _build/bin/stock install
  binaries mixed && cp --remove-destination _build/bin/stock/kube-scheduler "$WORK/mixed/kube-scheduler" && echo LayerLocality >>"$WORK/mixed/kube-scheduler"
  refuses "install: binaries of two builds" 'kube-scheduler is v1\.[0-9.]+, but kubelet there is v1\.[0-9.]+\+' installer --binaries "$WORK/mixed" install
  # Runs here, but not in a node.
  binaries linked && cp -L "$(command -v sh)" "$WORK/interpreter" && rm "$WORK/linked/crio" &&
    printf '#!%s\n# imageLayer.\necho crio version %s\n' "$WORK/interpreter" "${CRIO_VERSION#v}" >"$WORK/linked/crio" && chmod +x "$WORK/linked/crio"
  refuses "install: a binary that does not run in a node" 'crio does not run: .*static' installer --binaries "$WORK/linked" install
  refuses "install: a node with containerd" "node ${WORKERS[1]} runs containerd, not CRI-O" with_fake "${WORKERS[1]}" crictl "$containerd" installer install
  refuses "install: a node with another minor of CRI-O" "node ${WORKERS[0]} runs CRI-O 1\.35\.2, the binaries are 1\.36" with_fake "${WORKERS[0]}" crictl "$old" installer install
  refuses "install: a node with another minor of Kubernetes" "node ${WORKERS[0]} runs kubelet v1\.35\.9" with_fake "${WORKERS[0]}" kubelet "Kubernetes v1.35.9" installer install
  refuses "install: a node without skopeo, with what to do" "docker exec $CONTROL .*apt-get install -y skopeo" without "$CONTROL" /usr/bin/skopeo installer install
  "$engine" pause "${WORKERS[0]}" >/dev/null
  refuses "install: a node that does not run" "node ${WORKERS[0]} is paused" installer install
  "$engine" unpause "${WORKERS[0]}" >/dev/null
  refuses "verify: a stock cluster" 'FAILED: .*crictl lists layers of none of 5 images' installer verify
  refuses "kind-up: a cluster of that name" "'layer-locality' exists" kind/up.sh --image none
  check "uninstall: of nothing" installer uninstall
  check "nothing of this has changed anything" unchanged stock
}

# running FILE: records what a second installation must leave running.
running() {
  local node
  for node in "${nodes[@]}"; do
    in_node "$node" sh -c 'systemctl show -p MainPID,NRestarts crio kubelet; crictl ps -q | sort'
  done
}

pod() {
  kubectl apply -f - >/dev/null <<END
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1"}, "spec": {
  "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
  "containers": [{"name": "main", "image": "$2", "resources": {"requests": {"cpu": "1100m"}}}]}}
END
  kubectl wait --for=condition=Ready "pod/$1" --timeout=90s >/dev/null
}
node_of() { kubectl get pod "$1" -o 'jsonpath={.spec.nodeName}'; }
# states NODE IMAGE: whether the Node object has at least three layers of it.
states() {
  kubectl get node "$1" -o json |
    jq -e --arg image "$2" 'any(.status.images[]; any(.names[]; startswith($image)) and (.layers | length) >= 3)' >/dev/null
}
# score NODE IMAGE: prints the score with LayerLocality's explanation.
scores() {
  # shellcheck disable=SC2016 # the node's variables
  in_node "$CONTROL" bash -c '
    k="kubectl --kubeconfig /etc/kubernetes/admin.conf config view --raw -o json"
    $k | jq -r ".users[0].user[\"client-certificate-data\"]" | base64 -d >/run/crt
    $k | jq -r ".users[0].user[\"client-key-data\"]" | base64 -d >/run/key
    curl -sk --cert /run/crt --key /run/key "https://127.0.0.1:10259/debug/layerlocality?image='"$1"'"'
}

# A pod goes where most of its image is, although the whole image is on another node,
# which is full (docs/demo.md).
scenario() {
  local registry gateway first second third node
  gateway=$(docker network inspect kind | jq -r '.[0].IPAM.Config[].Gateway | select(. != null and (contains(":") | not))')
  registry=$gateway:5000
  printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' \
    "$WORK/registry" "$registry" >"$WORK/registry.yaml"
  _build/bin/tools/registry serve "$WORK/registry.yaml" >"$LOGS/registry.log" 2>&1 &
  within 20 curl -sf -o /dev/null "http://$registry/v2/"
  "$FAMILY" "$registry"
  for node in "${nodes[@]}"; do
    printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$registry" |
      in_node "$node" sh -c 'cat >/etc/containers/registries.conf.d/50-test.conf && systemctl reload crio'
  done
  # Three equal places: each has room for one pod.
  kubectl taint node "$CONTROL" node-role.kubernetes.io/control-plane- >/dev/null
  check "pod p1 of image one = L1 L2 L3 runs" pod p1 "$registry/one:v1"
  check "pod p2 of image two = L1 L2 L4 runs" pod p2 "$registry/two:v1"
  first=$(node_of p1) second=$(node_of p2)
  check "they fill two nodes ($first, $second)" test "$first" != "$second"
  check "the Node object of $first states the layers of image one" within 90 states "$first" "$registry/one"
  check "the Node object of $second states the layers of image two" within 90 states "$second" "$registry/two"
  kubectl delete pod p2 --wait >/dev/null
  scores "$registry/one:v1" >"$WORK/scores" 2>&1 || true
  # shellcheck disable=SC2016 # jq's variable
  check "kube-scheduler knows two of three layers of image one on $second" jq -e --arg node "$second" \
    'any(.. | objects | select(.node? == $node); .presentBytes > 79e6 and .missingBytes < 41e6)' "$WORK/scores"
  check "another pod of image one runs" pod p3 "$registry/one:v1"
  third=$(node_of p3)
  check "it runs where p2's layers are, not on the free node" test "$third" = "$second"
  kubectl delete pod p1 p3 --wait >/dev/null
  for node in "${nodes[@]}"; do
    in_node "$node" sh -c "rm /etc/containers/registries.conf.d/50-test.conf; systemctl reload crio"
    # Wait until CRI-O has removed the containers.
    within 30 in_node "$node" sh -c "crictl images -o json | jq -r '.images[].repoTags[]?' | grep '^$registry/' | xargs -r crictl rmi >/dev/null 2>&1"
  done
  kubectl taint node "$CONTROL" node-role.kubernetes.io/control-plane=:NoSchedule >/dev/null
}

# upgrade: to binaries that differ in their last byte, killed in the middle.
upgrade() {
  local program
  binaries newer
  for program in kubelet kube-scheduler; do
    cp -L --remove-destination "_build/bin/patched/$program" "$WORK/newer/$program"
    echo >>"$WORK/newer/$program"
  done
  killed_at "${WORKERS[0]}: patched" --binaries "$WORK/newer" install
  check "upgrade, killed after the first worker: run again" installer --binaries "$WORK/newer" install
  check "upgrade: the newer kubelet is on every node" newer_kubelets
  check "upgrade: the older image of kube-scheduler is gone" older_image_gone
}
newer_kubelets() {
  local node
  for node in "${nodes[@]}"; do in_node "$node" cmp - /usr/bin/kubelet <"$WORK/newer/kubelet"; done
}
older_image_gone() {
  [ "$(in_node "$CONTROL" crictl images -o json | jq '[.images[].repoTags[] | select(contains("/layer-locality-kind/kube-scheduler:"))] | length')" = 1 ]
}

# down: removes the cluster.
down() {
  check "$engine: the cluster is deleted" kind/up.sh --engine "$engine" --kubeconfig "$WORK/kubeconfig" --delete
  check "$engine: no node is left" no_nodes
}
no_nodes() { [ -z "$("$engine" ps -aq)" ]; }

on_docker() {
  start_dockerd "$WORK/docker" "$CGROUP"
  cluster_config 3
  up
  check "stock: no layers in CRI and in Node objects" no_layers
  check "stock: the binaries are stock" stock_binaries
  snapshot >"$WORK/stock"
  in_node "${WORKERS[1]}" cp -p /var/lib/kubelet/config.yaml /tmp/stock
  refusals

  killed_at 'kube-apiserver is v1' install
  check "install, killed after the apiserver: uninstall" installer uninstall
  check "install, killed after the apiserver: undone, byte for byte" unchanged stock
  killed_at "${WORKERS[0]}: patched" install
  check "install, killed after the first worker: run again" installer install
  cp "$WORK/log" "$LOGS/install.log"
  check "install: verified" installer verify
  check "install: the rest was not done twice" sh -c "! grep -q 'kube-apiserver is v1\|${WORKERS[0]}: patched' '$LOGS/install.log'"
  snapshot >"$WORK/installed" && running >"$WORK/running"
  check "install: a second time" installer install
  check "install: the second time there was nothing to do" grep 'nothing to change' "$WORK/log"
  check "install: the second time has changed nothing" unchanged installed
  running >"$WORK/now"
  check "install: the second time has restarted nothing" diff -u "$WORK/running" "$WORK/now"
  scenario
  upgrade
  # A user's own change stays.
  in_node "${WORKERS[1]}" sed -i '1i maxPods: 99' /var/lib/kubelet/config.yaml
  killed_at "${WORKERS[0]}: stock" uninstall
  check "uninstall, killed after the first worker: run again" installer uninstall
  check "uninstall: somebody's own change of a file is still there, and nothing else is changed" \
    in_node "${WORKERS[1]}" sh -c 'sed 1d /var/lib/kubelet/config.yaml | cmp - /tmp/stock && grep "^maxPods: 99" /var/lib/kubelet/config.yaml'
  in_node "${WORKERS[1]}" cp -p /tmp/stock /var/lib/kubelet/config.yaml
  check "uninstall: everything as before, byte for byte" unchanged stock
  check "uninstall: no layers" no_layers
  refuses "uninstall: verify says so" 'kube-apiserver: is the stock one' installer verify
  check "uninstall: a second time" installer uninstall
  check "uninstall: the second time there was nothing to do" grep 'nothing to undo' "$WORK/log"
  down
}

on_podman() {
  start_podman "$WORK/podman" "$CGROUP"
  cluster_config 1
  up
  snapshot >"$WORK/stock"
  check "podman: install" installer --engine podman install
  check "podman: uninstall" installer --engine podman uninstall
  check "podman: everything as before, byte for byte" unchanged stock
  down
}

# machine: prints what engines or the test leave behind, but not what other tests make
# meanwhile.
machine() {
  ip -o link | cut -d: -f2 | grep -E '^ (docker|br-|veth|podman|cni-)' || true
  iptables-save 2>/dev/null | grep -E 'DOCKER|NETAVARK|CNI' || true
  find /sys/fs/cgroup -name "$CGROUP*" 2>/dev/null || true
  cut -d' ' -f5 /proc/self/mountinfo | grep -F "$WORK/" || true
  pgrep -af -- "$WORK/" || true
  # Without podman's own locks, which it makes at its first use on a machine and keeps.
  { find /var/lib/docker /etc/containers/networks /etc/cni/net.d -mindepth 1 -maxdepth 1 ! -name '*.lock' 2>/dev/null || true; } | sort
}

if [ "${1:-}" = --inside ]; then
  engine=$2 CGROUP=$3
  # It is the first process of its namespace, so its end ends all others there.
  # shellcheck disable=SC2317 # called at the end, by checks.sh
  clean_up() {
    kill -KILL -1 || true
    awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount --lazy
    grep '' "$WORK"/*/log >"$LOGS/$engine-engine.log" 2>/dev/null || true
  }
  mkdir -p "$WORK/path"
  for tool in bash env sed dirname cat jq; do ln -s "$(command -v "$tool")" "$WORK/path/$tool"; done
  "on_$engine"
  finish
  exit
fi

[ "$(id -u)" = 0 ] || die "container engines and the node image need root"
[ $# -gt 0 ] || set -- docker podman
CGROUP=layer-locality-test-${WORK##*.} pid=''
clean_up() {
  [ -z "$pid" ] || kill -KILL "$pid" || true
  cgroups_gone "$CGROUP"
}
rm -rf "$LOGS"
mkdir -p "$LOGS"
scripts/build.sh patched
scripts/build.sh tools registry
kind/build-node-image.sh --archive >/dev/null
go_tool sigs.k8s.io/kind "$KIND_VERSION" >/dev/null
export TMPDIR=$WORK FAMILY=$WORK/family
GOFLAGS="-trimpath -buildvcs=false" go build -o "$FAMILY" ./test/kind/family
machine >"$WORK/before"
# count NAME: counts the checks of a part, from its log.
count() {
  CHECKS_PASSED=$((CHECKS_PASSED + $(grep -c '^ok: ' "$LOGS/$1.log" || true)))
  CHECKS_FAILED=$((CHECKS_FAILED + $(grep -c '^FAILED: ' "$LOGS/$1.log" || true)))
  check "$1: the checks came to their end" grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$LOGS/$1.log"
}
say "node.sh"
test/kind/node.sh 2>&1 </dev/null | tee "$LOGS/node.log" | sed -u '/^[0-9]* passed, [0-9]* failed$/d' || true
count node
for engine in "$@"; do
  say "$engine"
  in_namespaces "$0" --inside "$engine" "$CGROUP" </dev/null >"$LOGS/$engine.log" 2>&1 &
  pid=$!
  tail -f -n +1 --pid "$pid" "$LOGS/$engine.log" | sed -u '/^[0-9]* passed, [0-9]* failed$/d' &
  wait "$pid" || true
  pid=
  wait
  count "$engine"
  cgroups_gone "$CGROUP"
done
left() { machine >"$WORK/after" && diff -u "$WORK/before" "$WORK/after"; }
check "nothing is left on the machine" left
finish

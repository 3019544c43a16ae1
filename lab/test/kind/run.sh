#!/usr/bin/env bash
# Tests kind/up.sh and kind/copy.sh, as root, on real kind clusters: three nodes on
# Debian's docker, one on podman. The programs that are put into running nodes come from
# `nix build`, as in docs/install-kind.md.
#
#   run.sh [docker|podman|containerd]...   default: docker, with FULL=1 all
#
# "containerd" is a cluster of one node on docker, as kind's own nodes are, with layer-agent.
#
# The engines run in their own namespaces without access to the outside, so nothing is
# pulled; networks, firewall rules, mounts and processes end with the namespaces. Prints
# one line per check and ends with "N passed, N failed"; logs are in _out/test/kind.
. "$(dirname "$0")/../../../scripts/lib.sh"
. "$ROOT/kind/lib.sh"
. "$ROOT/lab/test/engine/lib.sh"
. "$ROOT/lab/test/engine/namespaces.sh"
. "$ROOT/lab/test/checks.sh"
# shellcheck source=containerd.sh
. "$ROOT/lab/test/kind/containerd.sh"
cd "$ROOT"
LOGS=$ROOT/_out/test/kind
CONTROL='layer-locality-control-plane'
WORKER='layer-locality-worker'
REGISTRY=192.0.2.1:5000 # as in registries.conf

in_node() { "$KIND_EXPERIMENTAL_PROVIDER" exec -i "$@"; }
kubectl() { in_node "$CONTROL" kubectl --kubeconfig /etc/kubernetes/admin.conf "$@"; }

# withholds: whether nodes lack capabilities that CRI-O gives to privileged pods, as with
# Docker 20.10 (docs/install-kind.md) or on such a machine.
withholds() {
  lacks_sys_resource ||
    { [ "$KIND_EXPERIMENTAL_PROVIDER" = docker ] && [ "$(docker version --format '{{.Server.Version}}' | cut -d. -f1)" -lt 23 ]; }
}

# cluster_config NODES: writes kind/cluster.yaml with so many nodes and what this machine
# needs: a runtime that makes do with the nodes' capabilities, and a registry in place of
# docker.io.
cluster_config() {
  awk -v nodes="$1" -v root="$ROOT/lab" -v aided="$(withholds && echo yes)" '
    /^- role/ && ++n > nodes { next }
    { print }
    /^- role/ {
      print "  extraMounts:"
      print "  - {hostPath: " root "/test/kind/registries.conf, containerPath: /etc/containers/registries.conf.d/50-test.conf, readOnly: true}"
    }
    /^- role/ && aided {
      print "  - {hostPath: " root "/test/engine/oci-runtime, containerPath: /usr/local/sbin/oci-runtime, readOnly: true}"
      print "  - {hostPath: " root "/test/kind/node-runtime.conf, containerPath: /etc/crio/crio.conf.d/90-test.conf, readOnly: true}"
    }' kind/cluster.yaml >"$WORK/cluster.yaml"
}

# start_registry: starts a registry that every node reaches, with what takes kindnetd's place
# (lab/test/kind/network) under kindnetd's name.
start_registry() {
  local kindnetd
  ip address add "${REGISTRY%:*}" dev lo
  printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' \
    "$WORK/registry" "$REGISTRY" >"$WORK/registry.yaml"
  _build/bin/tools/registry serve "$WORK/registry.yaml" >"$LOGS/$engine-registry.log" 2>&1 &
  within 60 curl -sf -o /dev/null "http://$REGISTRY/v2/"
  kindnetd=$(grep -rho 'kindest/kindnetd:[^"]*' "$(module_dir sigs.k8s.io/kind "$KIND_VERSION")/pkg/build/nodeimage")
  push "$kindnetd" "$NETWORK"
  push peer:v1 "$PEER"
}
# push NAME PROGRAM [FOLDER]: pushes an image that runs this program, in that folder (/) there.
push() {
  local path=${3:-}/${2##*/}
  install -D "$2" "$WORK/image$path"
  program_image "$WORK/image.tar" "$REGISTRY/$1" "$WORK/image" "$path"
  skopeo copy --quiet --dest-tls-verify=false "docker-archive:$WORK/image.tar" "docker://$REGISTRY/$1"
  rm -r "$WORK/image"
}

# up NODES: creates a cluster for the following checks.
up() {
  local name
  start_registry
  cluster_config "$1"
  check "$engine: kind/up.sh: a cluster of $1 nodes" kind/up.sh --config "$WORK/cluster.yaml" --kubeconfig "$WORK/kubeconfig"
  cp "$WORK/log" "$LOGS/$engine-up.log"
  check "$engine: crictl lists layers on each node" said "$engine-up" "$1" 'crictl lists layers of [1-9]'
  check "$engine: the Node object of each node states layers" said "$engine-up" "$1" 'its Node object states layers'
  mapfile -t nodes < <(kubectl get nodes -o name | cut -d/ -f2)
  [ ${#nodes[@]} -gt 0 ] || exit 1
  for name in daemonset/kindnet daemonset/kube-proxy deployment/coredns; do
    check "$engine: $name is ready" kubectl -n kube-system rollout status "$name" --timeout=240s
  done
  check "$engine: kind's storage provisioner is ready" kubectl -n local-path-storage rollout status deployment --timeout=240s
}
# said LOG TIMES PATTERN: whether it has so many such lines.
said() { [ "$(grep -c "^ok: .*$3" "$LOGS/$1.log")" = "$2" ]; }

down() {
  check "$engine: the cluster is deleted" kind/up.sh --delete --kubeconfig "$WORK/kubeconfig"
  check "$engine: and its entry in the kubeconfig" gone_from_kubeconfig
  check "$engine: no node is left" no_nodes
}
no_nodes() {
  local left
  left=$("$KIND_EXPERIMENTAL_PROVIDER" ps -aq)
  [ -z "$left" ]
}
gone_from_kubeconfig() { [ ! -e "$WORK/kubeconfig" ] || ! grep layer-locality "$WORK/kubeconfig"; }

# pod NAME IMAGE [NODE [PULLPOLICY]]: runs it, on that node or where the scheduler says.
pod() {
  kubectl apply -f - >/dev/null <<END
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1", "labels": {"app": "$1"}}, "spec": {
  "nodeName": "${3:-}", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
  "containers": [{"name": "main", "image": "$2", "imagePullPolicy": "${4:-IfNotPresent}", "resources": {"requests": {"cpu": "100m"}}}]}}
END
  kubectl wait --for=condition=Ready "pod/$1" --timeout=240s >/dev/null
}
# states NODE IMAGE: whether the Node object has three layers of it.
states() {
  kubectl get node "$1" -o json |
    jq -e --arg image "$2" 'any(.status.images[]; any(.names[]; startswith($image)) and (.layers | length) == 3)' >/dev/null
}
runs_on() { [ "$(kubectl get pod "$1" -o 'jsonpath={.spec.nodeName}')" = "$2" ]; }

# network: what a user expects of pods, services and volumes.
network() {
  check "a pod on $WORKER" pod web "$REGISTRY/peer:v1" "$WORKER"
  check "a pod on ${WORKER}2" pod client "$REGISTRY/peer:v1" "${WORKER}2"
  kubectl expose pod web --port=80 >/dev/null
  check "it reaches the other pod's address, on another node" within 60 fetches "$(field pod/web .status.podIP)"
  check "and the Service's address, by kube-proxy" within 60 fetches "$(field service/web .spec.clusterIP)"
  check "and the Service's name, by CoreDNS" within 60 fetches web
  check "CoreDNS tells it kubernetes.default.svc.cluster.local" resolves
  check "a pod with a volume of kind's storage provisioner" volume
}

# load: what kind load brings, by way of kind/node/usr/local/bin/ctr.
load() {
  local kind
  kind=$(go_tool sigs.k8s.io/kind "$KIND_VERSION")
  install -D "$PEER" "$WORK/image/peer"
  # Otherwise it is an image that the kubelet pulled by another name, whose credentials it would check.
  echo loaded >"$WORK/image/loaded"
  program_image "$WORK/loaded.tar" loaded.example.com/peer:v1 "$WORK/image" /peer
  rm -r "$WORK/image"
  check "kind load image-archive" "$kind" load image-archive "$WORK/loaded.tar" --name layer-locality
  check "a pod with that image, which no registry has" pod loaded loaded.example.com/peer:v1 "$WORKER" Never
  check "CRI-O lists its layer, uncompressed" lists_loaded
  docker load --quiet --input "$WORK/loaded.tar" >/dev/null
  docker tag loaded.example.com/peer:v1 peer:v2
  check "kind load docker-image, of an image that is there under another name" "$kind" load docker-image peer:v2 --name layer-locality
  check "a pod with its short name" pod loaded2 peer:v2 "${WORKER}2" Never
  skopeo copy --quiet "docker-archive:$WORK/loaded.tar" "oci-archive:$WORK/oci.tar:loaded.example.com/peer:v3"
  check "kind load image-archive of an OCI archive" "$kind" load image-archive "$WORK/oci.tar" --name layer-locality
  check "a pod with that image" pod loaded3 loaded.example.com/peer:v3 "$WORKER" Never
  tar -C "$WORK" -cf "$WORK/other.tar" cluster.yaml
  refuses "kind load of something else" 'no archive of images' "$kind" load image-archive "$WORK/other.tar" --name layer-locality
  refuses "ctr for anything else" 'this node has CRI-O' in_node "$WORKER" ctr images list
}
lists_loaded() {
  in_node "$WORKER" crictl images -o json | jq -e --argjson size "$(stat -Lc %s "$PEER")" \
    '[.images[] | select(any(.repoTags[]; endswith("/peer:v1") and startswith("loaded"))).spec.annotations
      | to_entries[] | select(.key | startswith("imageLayer.sha256:")) | .value | tonumber | select(. > $size)] | length == 1'
}
field() { kubectl get "$1" -o "jsonpath={$2}"; }
in_client() { kubectl exec client -- /peer "$@"; }
fetches() { [ "$(in_client get "$1")" = web ]; }
resolves() { [ "$(in_client resolve kubernetes.default.svc.cluster.local)" = "$(field service/kubernetes .spec.clusterIP)" ]; }
volume() {
  kubectl apply -f - <<END
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
  "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "data"}, "spec": {
  "terminationGracePeriodSeconds": 0, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
  "containers": [{"name": "main", "image": "$REGISTRY/peer:v1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}}
END
  kubectl wait --for=condition=Ready pod/data --timeout=240s
}

# scenario: a pod goes to the node that holds layers of its image, although that node
# already has a pod and the image is on none (docs/demo.md).
scenario() {
  "$FAMILY" "$REGISTRY"
  check "pod p1 of image one = L1 L2 L3 runs on $WORKER" pod p1 "$REGISTRY/one:v1" "$WORKER"
  check "its Node object states the layers" within 240 states "$WORKER" "$REGISTRY/one"
  # Bound by name, so no scheduler has to know image two yet. The Node object then tells the
  # scheduler its layers.
  check "a pod of image two = L1 L2 L4 runs on the control plane" pod seen "$REGISTRY/two:v1" "$CONTROL"
  check "its Node object states the layers, too" within 240 states "$CONTROL" "$REGISTRY/two"
  check "pod p2 of image two runs" pod p2 "$REGISTRY/two:v1"
  check "it runs on $WORKER, which holds L1 and L2" runs_on p2 "$WORKER"
}

# programs FOLDER: makes a folder with a crio that runs as the standard input says.
programs() {
  mkdir -p "$WORK/$1"
  cat >"$WORK/$1/crio"
  chmod +x "$WORK/$1/crio"
}

# What is refused with a reason before anything is changed.
refusals() {
  refuses "kind/up.sh: a cluster of that name" "'layer-locality' exists" kind/up.sh
  refuses "an engine that does not answer" 'docker does not answer' env DOCKER_HOST=unix:///nowhere kind/copy.sh _build/bin/patched
  refuses "a cluster that is not there, with the names of those that are" "no kind cluster 'other'; it has: layer-locality$" env KIND_CLUSTER_NAME=other kind/copy.sh _build/bin/patched
  refuses "a folder without programs" "$WORK/empty has no crio, pinns or kubelet: build them" kind/copy.sh "$WORK/empty"
  programs linked <<<'#!/nowhere'
  refuses "a program that does not run in a node" 'linked/crio does not run there: .*' kind/copy.sh "$WORK/linked"
  programs older < <(printf '#!/bin/sh\necho crio version 1.35.2\n')
  refuses "another minor version" 'has crio 1\.36, .*/older/crio is 1\.35: the minor version must be the same' kind/copy.sh "$WORK/older"
  mkdir "$WORK/half" && cp -L _build/bin/stock/crio "$WORK/half/" && cp "$WORK/older/crio" "$WORK/half/kubelet"
  refuses "one of two programs" 'has kubelet 1\.36, .*/half/kubelet is 1\.35' kind/copy.sh "$WORK/half"
  mkdir "$WORK/pinns" && cp "$WORK/linked/crio" "$WORK/pinns/pinns"
  refuses "a pinns that does not run" 'pinns/pinns does not run there' kind/copy.sh "$WORK/pinns"
  in_node "$CONTROL" mv /usr/bin/crio /usr/bin/crio.away
  refuses "a node without CRI-O" "node $CONTROL has no crio: kind's own node images run containerd" kind/copy.sh _build/bin/patched
  in_node "$CONTROL" mv /usr/bin/crio.away /usr/bin/crio
  check "nothing of this has changed a program" same_programs _build/bin/patched/{crio,pinns,kubelet}
  check "no copy is left" no_copies
}
# same_programs FILE...: whether each node has these.
same_programs() {
  local node file
  for node in "${nodes[@]}"; do
    for file in "$@"; do in_node "$node" cmp - "/usr/bin/${file##*/}" <"$file"; done
  done
}
no_copies() {
  local node
  for node in "${nodes[@]}"; do in_node "$node" sh -c '! ls -d /kind/*.new'; done
}
containers() { in_node "$WORKER" crictl ps -q | sort; }

# cp_route: a CRI-O without layers, then the one that nix build made.
cp_route() {
  mkdir -p "$WORK/nix-kind" "$WORK/stock" && ln -sf "$ROOT"/_build/bin/stock/{crio,pinns} "$WORK/stock"
  refuses "a stock CRI-O in a running node: no layers, and it says so" "node $CONTROL: crictl lists 0 of [0-9]+ images with layers" \
    kind/copy.sh "$WORK/stock"
  # shellcheck disable=SC2016 # $4 is that of the script
  printf '#!/bin/sh\nln -s "%s/crio" "$4"\n' "$NIX" >"$WORK/nix-kind/nix" # built above
  chmod +x "$WORK/nix-kind/nix"
  check "lab/demos/nix-kind.sh: stock, ours and stock again" env "PATH=$WORK/nix-kind:$PATH" lab/demos/nix-kind.sh "$CONTROL"
  containers >"$WORK/containers"
  check "nix build .#crio, docker cp: crictl lists layers" kind/copy.sh "$NIX/crio/bin"
  cp "$WORK/log" "$LOGS/copy.log"
  check "on every node" said copy "${#nodes[@]}" 'crictl lists layers of [1-9]'
  check "nix build .#kubelet, docker cp" kind/copy.sh "$NIX/kubelet/bin"
  check "the nodes run what Nix built" same_programs "$NIX"/crio/bin/{crio,pinns} "$NIX/kubelet/bin/kubelet"
  containers >"$WORK/now"
  check "the containers were not restarted" diff "$WORK/containers" "$WORK/now"
  check "no copy is left" no_copies
  check "crictl images -o json on $WORKER has the layers of image one" three_layers
  check "a pod starts" pod p4 "$(kubectl get pod p1 -o 'jsonpath={.spec.containers[0].image}')" "$WORKER"
}
three_layers() {
  in_node "$WORKER" crictl images -o json | jq -e '[.images[] | select(any(.repoTags[]; endswith("/one:v1"))).spec.annotations
    | to_entries[] | select(.key | startswith("imageLayer.sha256:")) | .value | tonumber | select(. > 39e6)] | length == 3'
}

# demos: what is different on kind in the texts of demos/: the scheduler's log, its identity and
# the arguments of its static pod. With FULL, all of both texts, with images of their names.
demos() {
  local text
  local -x KUBECONFIG=$WORK/kubeconfig
  check "lab/demos/cluster.sh kind" lab/demos/cluster.sh kind
  refuses "lab/demos/cluster.sh kind, again" "has the scheduler of the demos" lab/demos/cluster.sh kind
  check "the tour's first stop, word for word" lab/run test/demos/run -until '2. The events of a pod' lab/demos/scheduler-tour/README.md
  check "the log of the scheduler says that it is the leader" bash -c '. lab/demos/env.sh && scheduler_log | grep "Successfully acquired lease"'
  if [ -n "${FULL:-}" ]; then
    _out/demos/hub "$REGISTRY" >/dev/null
    for text in image-locality scheduler-tour; do
      check "demos/$text, word for word" lab/run test/demos/run "lab/demos/$text/README.md"
      cp "$WORK/log" "$LOGS/$text.log"
    done
  fi
  check "lab/demos/cluster.sh kind --undo" lab/demos/cluster.sh kind --undo
  refuses "lab/demos/cluster.sh kind --undo, again" "has the scheduler that it was made with" lab/demos/cluster.sh kind --undo
  refuses "lab/demos/env.sh: a cluster without the profiles" "no profile 'layer-locality', .* 'lab/demos/cluster.sh kind' adds it" bash -c '. lab/demos/env.sh'
  check "the scheduler has its own configuration" on_disk "$CONTROL" /etc/kubernetes/layer-locality/config.yaml deploy/scheduler/static-pod/config.yaml
}
# on_disk NODE PATH FILE: whether the node has this file there.
on_disk() { in_node "$1" cmp - "$2" <"$3"; }

on_docker() {
  start_dockerd "$WORK/docker" "$CGROUP"
  up 3
  demos
  scenario
  network
  load
  refusals
  cp_route
  down
}

on_podman() {
  start_podman "$WORK/podman" "$CGROUP"
  up 1
  check "podman: kind/copy.sh" kind/copy.sh _build/bin/patched
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
  { find ~/.kube /var/lib/docker /etc/containers/networks /etc/cni/net.d -mindepth 1 -maxdepth 1 ! -name '*.lock' 2>/dev/null || true; } | sort
}

if [ "${1:-}" = --inside ]; then
  engine=$2 CGROUP=$3
  export KIND_EXPERIMENTAL_PROVIDER=${engine/containerd/docker}
  # It is the first process of its namespace, so its end ends all others there.
  # shellcheck disable=SC2317 # called at the end, by checks.sh
  clean_up() {
    exec 2>/dev/null # the shell says of each process that it was killed
    kill -KILL -1 || true
    awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount --lazy
    grep '' "$WORK"/*/log >"$LOGS/$engine-engine.log" 2>/dev/null || true
  }
  "on_$engine"
  finish
  exit
fi

[ "$(id -u)" = 0 ] || die "container engines and the node image need root"
[ $# -gt 0 ] || set -- docker ${FULL:+podman containerd}
CGROUP=layer-locality-test-${WORK##*.} pid=''
clean_up() {
  [ -z "$pid" ] || kill -KILL "$pid" || true
  cgroups_gone "$CGROUP"
}
rm -rf "$LOGS"
mkdir -p "$LOGS"
scripts/build.sh patched
scripts/build.sh stock crio pinns kubectl
scripts/build.sh tools registry
if [[ " $* " = *" containerd "* ]]; then
  scripts/build.sh stock kubelet kube-apiserver kube-controller-manager kube-scheduler
  scripts/build.sh tools containerd containerd-shim-runc-v2 ctr runc
fi
kind/build-node-image.sh --archive >/dev/null
go_tool sigs.k8s.io/kind "$KIND_VERSION" >/dev/null
# Where kubectl keeps what it learns of a server, instead of ~/.kube/cache.
export KUBECACHEDIR=$WORK/kubectl-cache
export TMPDIR=$WORK FAMILY=$WORK/family NETWORK=$WORK/network PEER=$WORK/peer
GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 go -C lab build -o "$WORK/" ./test/kind/{family,network,peer}
# In a shell of its own, whose "nix" and "build" have other meanings.
nix_build() (
  . "$ROOT/lab/test/nix/lib.sh"
  prepare
  clone
  build crio crio
  build kubelet kubelet
  ln -s "$STORE/roots" "$WORK/nix"
)
if [[ " $* " = *" docker "* ]]; then check "nix build .#crio .#kubelet" nix_build; fi
export NIX=$WORK/nix
machine >"$WORK/before"
for engine in "$@"; do
  say "$engine"
  : >"$LOGS/$engine.log" # for tail, which may be first
  in_namespaces "$0" --inside "$engine" "$CGROUP" </dev/null >"$LOGS/$engine.log" 2>&1 &
  pid=$!
  tail -f -n +1 --pid "$pid" "$LOGS/$engine.log" | sed -u '/^[0-9]* passed, [0-9]* failed$/d' &
  wait "$pid" || true
  pid=
  wait
  CHECKS_PASSED=$((CHECKS_PASSED + $(grep -c '^ok: ' "$LOGS/$engine.log" || true)))
  CHECKS_FAILED=$((CHECKS_FAILED + $(grep -c '^FAILED: ' "$LOGS/$engine.log" || true)))
  check "$engine: the checks came to their end" grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$LOGS/$engine.log"
  cgroups_gone "$CGROUP"
done
left() { machine >"$WORK/after" && diff -u "$WORK/before" "$WORK/after"; }
check "nothing is left on the machine" left
finish

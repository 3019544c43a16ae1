# Sourced by the demos in a clone of this repository: `. lab/demos/env.sh`. Hides what differs
# between kind and the local cluster; kubectl's current context says which one it is.
#
#   on NODE COMMAND...      runs a command on a node
#   pull NODE IMAGE...      a node pulls images
#   forget IMAGE...         the workers remove images
#   settled                 waits until the Node objects name the images that workers have:
#                           a kubelet looks every 30 s, and reports every 10 s
#   scheduler_log           prints the log of kube-scheduler
#   scheduler_arguments     prints the arguments of kube-scheduler, one a line
#   scheduler_config FILE   gives kube-scheduler another configuration, restarts it, and waits until
#                           it serves
#   as_scheduler COMMAND... runs a command with the kubeconfig of kube-scheduler
#   kube_scheduler ARG...   runs the program kube-scheduler once more
#   scores PLUGIN POD       prints what a score plugin gave the workers for a pod, from the log
#   placed SELECTOR         prints how many of the pods each worker has
#   $CONTROL, $A, $B        the control plane and two workers
#
# Sourcing it changes nothing in the cluster. It fails with what is missing.
# shellcheck shell=bash

# demos_fail TEXT: says what is missing and how to get it.
demos_fail() {
  printf 'demos: %s\n' "$*" >&2
  return 1
}

# demos_within SECONDS COMMAND...: repeats it until it succeeds; fails after that time, with what
# the last try printed.
demos_within() {
  local end=$((SECONDS + $1)) printed
  until printed=$("${@:2}" 2>&1); do
    [ "$SECONDS" -lt "$end" ] || demos_fail "not within $1 s: ${*:2}: $printed" || return
    sleep 1
  done
}

on() {
  case $DEMOS in
  local) "$DEMOS_BIN/localcluster" --dir "$DEMOS_DIR" exec "$@" ;;
  kind) "$DEMOS_ENGINE" exec "$@" ;; # without what was pasted after it
  esac
}

pull() {
  local node=$1 image
  shift
  for image in "$@"; do
    on "$node" crictl pull "$image" >/dev/null || return
  done
}

# demos_removed NODE IMAGE: removes an image, and fails with the containers while they use it.
demos_removed() {
  on "$1" crictl rmi "$2" || ! on "$1" crictl inspecti -q "$2" >/dev/null 2>&1 || {
    on "$1" crictl ps -a
    false
  }
}

forget() {
  local node image
  for image in "$@"; do
    # A container that ended still uses its image. The kubelet may leave one to its ContainerGCPeriod, a minute.
    for node in "$A" "$B"; do demos_within 150 demos_removed "$node" "$image" || return; done
  done
}

# demos_states NODE: whether its Node object names the images that crictl lists.
demos_states() {
  local has states
  has=$(on "$1" crictl images -o json | jq -c '[.images[].repoTags[]?] | sort') || return
  states=$(kubectl get node "$1" -o json | jq -c '[.status.images[]?.names[]? | select(contains("@") | not)] | sort') || return
  [ "$has" = "$states" ]
}

settled() {
  local node
  for node in "$A" "$B"; do demos_within 90 demos_states "$node" || return; done
}

scheduler_log() {
  case $DEMOS in
  local) cat "$(demos_scheduler .log)" ;;
  kind) kubectl -n kube-system logs "kube-scheduler-$CONTROL" ;;
  esac
}

# demos_scheduler FIELD: a field of what `localcluster status` says of kube-scheduler.
demos_scheduler() {
  "$DEMOS_BIN/localcluster" --dir "$DEMOS_DIR" status --json | jq -r ".processes[] | select(.name | endswith(\"kube-scheduler\")) | $1"
}

scheduler_arguments() {
  case $DEMOS in
  local) tr '\0' '\n' <"/proc/$(demos_scheduler .pid)/cmdline" ;;
  kind) kubectl -n kube-system get pod "kube-scheduler-$CONTROL" -o json | jq -r '.spec.containers[0].command[]' ;;
  esac
}

scheduler_config() {
  local file
  case $DEMOS in
  local) "$DEMOS_BIN/localcluster" --dir "$DEMOS_DIR" restart-scheduler --config "$1" ;;
  kind)
    file=$(scheduler_arguments | sed -n 's/^--config=//p')
    # shellcheck disable=SC2016 # it expands there
    "$DEMOS_ENGINE" cp "$1" "$CONTROL:$file" >/dev/null &&
      # Static: the kubelet starts it again.
      on "$CONTROL" sh -c 'crictl stop "$(crictl ps -q --name kube-scheduler)"' >/dev/null &&
      demos_within 120 on "$CONTROL" curl -sfk -o /dev/null https://127.0.0.1:10259/readyz
    ;;
  esac
}

as_scheduler() {
  case $DEMOS in
  local) KUBECONFIG=$DEMOS_DIR/pki/kube-scheduler.kubeconfig "$@" ;;
  kind) "$DEMOS_ENGINE" exec -e KUBECONFIG=/etc/kubernetes/scheduler.conf "$CONTROL" "$@" ;;
  esac
}

kube_scheduler() {
  case $DEMOS in
  local) "$(demos_scheduler .binary)" "$@" ;;
  kind) kubectl -n kube-system exec -i "kube-scheduler-$CONTROL" -- kube-scheduler "$@" ;;
  esac
}

scores() {
  # Of several pods of that name, the last one counts.
  scheduler_log | awk -v plugin="plugin=\"$1\"" -v pod="pod=\"default/$2\"" -v a="node=\"$A\"" -v b="node=\"$B\"" '
    /Plugin scored node for pod/ && index($0, plugin) && index($0, pod) {
      score = $0; sub(/.* score=/, "", score)
      if (index($0, a)) of["A"] = score
      if (index($0, b)) of["B"] = score
    }
    END {
      if (!("A" in of) || !("B" in of)) { print "no scores of this pod in the log" > "/dev/stderr"; exit 1 }
      printf "A %s, B %s\n", of["A"], of["B"]
    }'
}

placed() {
  kubectl get pods -l "$1" -o json | jq -r --arg a "$A" --arg b "$B" '
    [.items[].spec.nodeName] | "\(length) pods: A \(map(select(. == $a)) | length), B \(map(select(. == $b)) | length)"'
}

# demos_find: sets what the functions above need.
demos_find() {
  local context program kubeconfig nodes profiles runtimes profile
  local root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  DEMOS_BIN=$root/_out/demos
  [ ! -x "$DEMOS_BIN/kubectl" ] || case :$PATH: in *":$DEMOS_BIN:"*) ;; *) PATH=$DEMOS_BIN:$PATH ;; esac
  for program in kubectl kubectl-layers jq openssl; do
    command -v "$program" >/dev/null || demos_fail "$program is not installed: install it" || return
  done
  context=$(kubectl config current-context 2>/dev/null) ||
    demos_fail "kubectl has no current context: make a cluster with 'lab/demos/cluster.sh up' and export KUBECONFIG as it says" || return
  kubeconfig=${KUBECONFIG:-$HOME/.kube/config}
  DEMOS_DIR=$(dirname "$kubeconfig")
  case $context in
  kind-*)
    DEMOS=kind DEMOS_ENGINE=${KIND_EXPERIMENTAL_PROVIDER:-docker}
    command -v "$DEMOS_ENGINE" >/dev/null ||
      demos_fail "$DEMOS_ENGINE is not installed, and the cluster is one of kind: of podman, set KIND_EXPERIMENTAL_PROVIDER=podman" || return
    ;;
  *)
    DEMOS=local
    [ -f "$DEMOS_DIR/cluster.json" ] ||
      demos_fail "$context is neither a kind cluster nor one of lab/demos/cluster.sh: make one with 'lab/demos/cluster.sh up'" || return
    [ -x "$DEMOS_BIN/localcluster" ] ||
      demos_fail "$DEMOS_BIN/localcluster is not there: 'lab/demos/cluster.sh up' builds it" || return
    ;;
  esac
  nodes=$(kubectl get nodes -o json) || demos_fail "the cluster of $context does not answer" || return
  CONTROL=$(jq -r '[.items[] | select(.metadata.labels | has("node-role.kubernetes.io/control-plane")) | .metadata.name][0] // ""' <<<"$nodes")
  read -r A B < <(jq -r '[.items[] | select(.metadata.labels | has("node-role.kubernetes.io/control-plane") | not) | .metadata.name] | sort | .[:2] | join(" ")' <<<"$nodes")
  if [ -z "$CONTROL" ] || [ -z "${B:-}" ] || [ "$(jq '.items | length' <<<"$nodes")" != 3 ]; then
    demos_fail "want a control plane and two workers, not the nodes $(jq -r '[.items[].metadata.name] | join(", ")' <<<"$nodes"): make a cluster with 'lab/demos/cluster.sh up'"
    return 1
  fi
  runtimes=$(jq -r '[.items[].status.nodeInfo.containerRuntimeVersion | select(startswith("cri-o://") | not)] | unique | join(", ")' <<<"$nodes")
  [ -z "$runtimes" ] ||
    demos_fail "nodes run $runtimes, not CRI-O: make a cluster of our node image with 'make kind-up'" || return
  profiles=$(demos_profiles) || demos_fail "kube-scheduler does not say how it is configured" || return
  for profile in layer-locality image-locality tour; do
    grep -qx "$profile" <<<"$profiles" ||
      demos_fail "kube-scheduler has no profile '$profile', only $(paste -sd' ' <<<"$profiles"): on kind, 'lab/demos/cluster.sh kind' adds it; else 'lab/demos/cluster.sh up'" || return
  done
  scheduler_arguments | grep -q -- '--vmodule=.*schedule_one=10' ||
    demos_fail "kube-scheduler does not log scores, for lack of --vmodule=schedule_one=10: on kind, 'lab/demos/cluster.sh kind' adds it; else 'lab/demos/cluster.sh up'" || return
  echo "$DEMOS cluster: control plane $CONTROL, workers A = $A and B = $B"
}

# demos_profiles: the names of kube-scheduler's profiles, from its configuration file.
demos_profiles() {
  local file
  file=$(scheduler_arguments | sed -n 's/^--config=//p')
  [ -n "$file" ] || return 1
  case $DEMOS in
  local) cat "$file" ;;
  kind) on "$CONTROL" cat "$file" ;;
  esac | sed -n 's/^[- ]*schedulerName: *//p'
}

demos_find

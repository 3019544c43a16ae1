#!/usr/bin/env bash
# The cluster of the demos: a control plane, two workers, and kube-scheduler with the
# profiles of scheduler.yaml. Run it as root.
#
#   cluster.sh up            on this machine, without a container engine
#   cluster.sh down          removes that cluster
#   cluster.sh kind          gives these profiles to the scheduler of a kind cluster of our node
#                            image ('make kind-up'), and has it log scores
#   cluster.sh kind --undo   gives it back what it had
#   cluster.sh prepare REGISTRY
#                            makes n3 of a local cluster the control plane, and pushes the images
#                            of the demos to the registry that stands in for Docker Hub
#
# DEMOS_NAME names the cluster on this machine (default demos), KIND_CLUSTER_NAME and
# KIND_EXPERIMENTAL_PROVIDER the one of kind.
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=../../kind/lib.sh
. "$ROOT/kind/lib.sh"
cd "$ROOT"
NAME=${DEMOS_NAME:-demos}
BIN=$ROOT/_out/demos
LOG_SCORES=--vmodule=schedule_one=10

# programs: builds what env.sh looks for in _out/demos.
programs() {
  scripts/build.sh stock kubectl patched kubectl-layers &&
    mkdir -p "$BIN" &&
    ln -sf "$BUILD/bin/stock/kubectl" "$BUILD/bin/patched/kubectl-layers" "$BIN/" &&
    GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 go -C lab build -o "$BIN/" ./cmd/localcluster ./test/demos/hub
}

up() {
  local settings KUBECONFIG REGISTRY
  scripts/build.sh tools
  scripts/build.sh patched
  programs
  settings=$("$BIN/localcluster" up --name "$NAME" --nodes 3 --scheduler-config lab/demos/scheduler.yaml --scheduler-arg=$LOG_SCORES)
  eval "$(grep '^export' <<<"$settings")"
  export KUBECONFIG
  prepare "$REGISTRY" || {
    down
    die "the cluster could not be prepared and is removed"
  }
  echo "export KUBECONFIG=$KUBECONFIG"
}

down() { lab/run localcluster down --name "$NAME"; }

prepare() {
  programs || return
  [ -n "${1:-}" ] || die "prepare: name the registry, as in 198.51.100.1:5000"
  # As kubeadm does: pods of users stay off the control plane.
  "$BIN/kubectl" label --overwrite node n3 node-role.kubernetes.io/control-plane= >/dev/null || return
  "$BIN/kubectl" taint --overwrite node n3 node-role.kubernetes.io/control-plane:NoSchedule >/dev/null || return
  say "pushing images to the registry that stands in for Docker Hub"
  "$BIN/hub" "$1" >/dev/null
}

# Both files of the control plane: the configuration of kube-scheduler and its static pod.
CONFIG=/etc/kubernetes/layer-locality/config.yaml
POD=/etc/kubernetes/manifests/kube-scheduler.yaml
BEFORE=/etc/kubernetes/layer-locality/before-demos # not in the folder of static pods

on_control() { "$ENGINE" exec -i "$control" "$@"; }

# find_control: sets control, the control plane of the kind cluster.
find_control() {
  use_cluster
  find_nodes
  control=$(printf '%s\n' "${nodes[@]}" | grep -m1 control-plane)
  on_control test -f "$CONFIG" || die "$control has no $CONFIG: its kube-scheduler is not ours. 'make kind-up' makes a cluster where it is"
}

# restart_scheduler COMMAND...: runs what changes the files, and waits for the scheduler that
# the kubelet then starts.
restart_scheduler() {
  local was
  was=$(on_control crictl ps -q --name kube-scheduler)
  "$@"
  within 120 another_scheduler "$was" || die "kube-scheduler does not start again: $ENGINE exec $control crictl ps -a --name kube-scheduler"
}
another_scheduler() {
  local now
  now=$(on_control crictl ps -q --name kube-scheduler)
  [ -n "$now" ] && [ "$now" != "$1" ] && on_control curl -sfk -o /dev/null https://127.0.0.1:10259/readyz
}

change() {
  on_control sh -c "mkdir -p $BEFORE && cp $CONFIG $BEFORE/config.yaml && cp $POD $BEFORE/pod.yaml"
  on_control sh -c "cat >$CONFIG" <lab/demos/scheduler.yaml
  on_control sed -i "s|^\( *\)- kube-scheduler\$|&\n\1- $LOG_SCORES|" "$POD"
}
change_back() { on_control sh -c "cp $BEFORE/config.yaml $CONFIG && cp $BEFORE/pod.yaml $POD && rm -r $BEFORE"; }

kind() {
  find_control
  if [ "${1:-}" = --undo ]; then
    on_control test -d "$BEFORE" || die "$control has the scheduler that it was made with"
    restart_scheduler change_back
  else
    ! on_control test -d "$BEFORE" || die "$control has the scheduler of the demos; '$0 kind --undo' gives it back its own"
    programs
    restart_scheduler change
  fi
}

case "${1:-} ${2:-}" in
"up " | "down ") "$1" ;;
"prepare "*) prepare "${2:-}" ;;
"kind " | "kind --undo") kind "${2:-}" ;;
*)
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac

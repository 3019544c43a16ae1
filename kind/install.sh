#!/usr/bin/env bash
# Installs Layer Locality on a running kind cluster whose nodes run CRI-O, checks it, or
# removes it again.
#
#   kind/install.sh [OPTIONS] install     patched CRI-O and kubelet on every node, control plane
#                                         and scheduler in place of the stock ones, then verify
#   kind/install.sh [OPTIONS] verify      what nodes and Node objects say about layers
#   kind/install.sh [OPTIONS] uninstall   everything as it was before
#
#   --name CLUSTER    default layer-locality, as kind/up.sh makes it
#   --engine ENGINE   docker or podman; default: KIND_EXPERIMENTAL_PROVIDER, or the one that answers
#   --binaries DIR    crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler;
#                     default _build/bin/patched ('make build')
#   --timeout SECONDS how long to wait for one component or node, default 300
#
# Nothing is changed before all nodes and binaries have been checked. A second run changes
# nothing. Run it again to continue an interrupted run, or undo it with uninstall.
. "$(dirname "$0")/../scripts/lib.sh"
# shellcheck source=lib.sh
. "$ROOT/kind/lib.sh"

NODE_PROGRAMS=(crio pinns kubelet)
CONTROL_PLANE=(kube-apiserver kube-controller-manager kube-scheduler)
REPOSITORY=localhost/layer-locality-kind # of images that only this script makes
NODE_SCRIPT=/run/layer-locality-node.sh  # in the nodes, gone when they restart

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

# on NODE COMMAND...: runs a command of kind/node.sh there, with standard input.
on() { "$ENGINE" exec -i "$1" bash "$NODE_SCRIPT" "${@:2}"; }

# wait_for WHAT COMMAND...: waits until the command succeeds twice in a row; prints every
# ten seconds what is missing.
wait_for() {
  local what=$1 started=$SECONDS said=$SECONDS good=0 reason=''
  shift
  while [ "$good" -lt 2 ]; do
    if reason=$("$@" 2>&1 </dev/null); then
      good=$((good + 1))
      continue
    fi
    good=0
    reason=${reason##*$'\n'}
    [ $((SECONDS - started)) -lt "$timeout" ] || die "$what: not after $timeout s: $reason
Look at it with '$ENGINE exec NODE crictl ps -a' and '$ENGINE exec NODE journalctl -u kubelet -u crio'.
Then run this again to go on, or '$0 --name $name uninstall' to go back."
    if [ $((SECONDS - said)) -ge 10 ]; then
      said=$SECONDS
      say "waiting for $what: $reason"
    fi
    sleep 1
  done
}

fact() { sed -n "s/^$1 //p" <<<"${facts[$node]}"; }

# nodes: finds the cluster's nodes, and checks that they run.
find_nodes() {
  local known state
  mapfile -t control_planes < <(kind_nodes "$name" control-plane)
  mapfile -t workers < <(kind_nodes "$name" worker)
  nodes=("${workers[@]}" "${control_planes[@]}")
  if [ ${#control_planes[@]} -eq 0 ]; then
    known=$(kind_clusters | paste -sd' ')
    die "$ENGINE has no kind cluster '$name'${known:+; it has: $known}. Create one with kind/up.sh, or name yours with --name"
  fi
  for node in "${nodes[@]}"; do
    state=$("$ENGINE" inspect --format '{{.State.Status}}' "$node")
    [ "$state" = running ] || die "node $node is $state: '$ENGINE $([ "$state" = paused ] && echo unpause || echo start) $node', then run this again"
    # Replace it by renaming: a script that was killed here may still run there.
    "$ENGINE" exec -i "$node" sh -c "cat >$NODE_SCRIPT.tmp && mv $NODE_SCRIPT.tmp $NODE_SCRIPT" <"$ROOT/kind/node.sh"
    facts[$node]=$(on "$node" facts)
  done
}

# minor VERSION: 1.36 of v1.36.4+x.
minor() { sed -E 's/^v?([0-9]+\.[0-9]+).*/\1/' <<<"$1"; }

# version_of PROGRAM: the version that it prints.
version_of() {
  local output
  output=$("$binaries/$1" --version 2>&1) || die "$binaries/$1 does not run here: ${output%%$'\n'*}"
  head -n 1 <<<"$output" | awk '{ print $NF }'
}

# Checks that the binaries are there, patched, and from one version. Sets crio_version,
# version, sums and tags.
check_binaries() {
  local program mark
  for program in "${NODE_PROGRAMS[@]}" "${CONTROL_PLANE[@]}"; do
    if [ ! -f "$binaries/$program" ] || [ ! -x "$binaries/$program" ]; then
      die "$binaries/$program is missing: build it ('make build'), or name the folder that has it with --binaries"
    fi
    case $program in
    pinns) mark= ;;
    crio) mark=imageLayer. ;;
    kube-scheduler) mark=LayerLocality ;;
    *) mark=NodeStatusImageLayers ;;
    esac
    [ -z "$mark" ] || grep -qaF "$mark" "$binaries/$program" ||
      die "$binaries/$program is not patched, it knows nothing of $mark: 'make build' makes patched ones"
    sums[$program]=$(sha256sum "$binaries/$program" | cut -d' ' -f1)
  done
  crio_version=$(version_of crio)
  version=$(version_of kubelet)
  for program in "${CONTROL_PLANE[@]}"; do
    [ "$(version_of "$program")" = "$version" ] ||
      die "$binaries/$program is $(version_of "$program"), but kubelet there is $version: take all from one build"
    tags[$program]=$REPOSITORY/$program:${version/+/_}-${sums[$program]:0:12}
  done
}

# Checks that changes by others can be kept.
check_conflicts() {
  for node in "${nodes[@]}"; do
    [ -z "$(fact conflict)" ] || die "node $node: $(fact conflict)"
  done
}

# Checks that the nodes can run them.
check_nodes() {
  local missing
  for node in "${nodes[@]}"; do
    case $(fact runtime) in
    cri-o) ;;
    '') die "node $node: crictl gets no answer from a container runtime: $ENGINE exec $node crictl version" ;;
    *) die "node $node runs $(fact runtime), not CRI-O, as kind's own images do. Make a cluster of CRI-O nodes with kind/up.sh; docs/install-kind.md has more" ;;
    esac
    [ "$(minor "$(fact crio)")" = "$(minor "$crio_version")" ] ||
      die "node $node runs CRI-O $(fact crio), the binaries are $crio_version: the minor version must be the same"
    [ "$(minor "$(fact kubelet)")" = "$(minor "$version")" ] ||
      die "node $node runs kubelet $(fact kubelet), the binaries are $version: the minor version must be the same"
    missing=$(fact missing | paste -sd' ')
    missing=" ${missing/diff3/diffutils} "
    # Only control planes get images, and files by kubectl.
    [[ " ${control_planes[*]} " == *" $node "* ]] || missing=${missing/ skopeo / }
    missing=$(xargs <<<"$missing")
    [ -z "$missing" ] || die "node $node lacks $missing, which this script needs there. Install it:
$ENGINE exec $node sh -c 'apt-get update && apt-get install -y $missing'
or add it to the node image"
    [ -z "$(fact foreign)" ] || die "node $node: $(fact foreign)"
  done
}

# Copies missing binaries to a node, and runs them there.
stage() {
  local program reason
  for node in "${nodes[@]}"; do
    for program in "${NODE_PROGRAMS[@]}"; do
      if ! on "$node" staged "$program" "${sums[$program]}" </dev/null; then
        reason=$(on "$node" stage "$program" "${sums[$program]}" <"$binaries/$program" 2>&1) ||
          die "node $node ($(fact machine)): $reason. It must be for that machine, and static ('file $binaries/$program')"
      fi
    done
  done
}

# load_images NODE
load_images() {
  local program
  for program in "${CONTROL_PLANE[@]}"; do
    if on "$1" has-image "${tags[$program]}" </dev/null; then continue; fi
    say "$1: loading the image of $program"
    [ -f "$work/$program.tar" ] || program_image "$work/$program.tar" "${tags[$program]}" "$binaries/$program"
    on "$1" load "${tags[$program]}" <"$work/$program.tar"
  done
  tar -C "$ROOT/deploy/scheduler/static-pod" -c config.yaml kube-scheduler.yaml | on "$1" scheduler-files
}

# api NODE: checks that the apiserver that kubectl reaches from there is ready.
api() { "$ENGINE" exec "$1" kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout 5s get --raw /readyz; }

# node_ready NODE: checks that its services answer, and that the current binaries have
# reported this to the apiserver.
node_ready() {
  local facts kubelet crio
  on "$1" alive || return 1
  facts=$(on "$1" facts)
  kubelet=$(sed -n 's/^kubelet //p' <<<"$facts")
  crio=$(sed -n 's/^crio //p' <<<"$facts")
  "$ENGINE" exec "${control_planes[0]}" kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout 5s get node "$1" -o json |
    jq -e --arg kubelet "$kubelet" --arg crio "cri-o://$crio" '
      .status.nodeInfo.kubeletVersion == $kubelet and .status.nodeInfo.containerRuntimeVersion == $crio
      and any(.status.conditions[]; .type == "Ready" and .status == "True")' >/dev/null ||
    die "the Node object is not Ready, or not written by kubelet $kubelet"
}

# settle_control_plane NODE: waits until its static pods run as their manifests say.
settle_control_plane() {
  local program
  wait_for "$1: kube-apiserver" api "$1"
  for program in "${CONTROL_PLANE[@]}"; do wait_for "$1: $program" on "$1" pod "$program"; done
}

# settle NODE: waits until everything that restarts with CRI-O is back.
settle() {
  if [[ " ${control_planes[*]} " == *" $1 "* ]]; then settle_control_plane "$1"; fi
  wait_for "$1: node" node_ready "$1"
}

# changed TEXT: prints what was done, if anything was.
changed() {
  [ -n "$output" ] || return 0
  changes=$((changes + 1))
  say "$1"
}

# static_pod COMPONENT: installs its manifest with our image on $node.
static_pod() {
  output=$(on "$node" static-pod "$1" "${tags[$1]}" </dev/null)
  changed "$node: $1 is $version"
}

# stock_pod COMPONENT: restores its own manifest on $node.
stock_pod() {
  output=$(on "$node" undo-static-pod "$1" </dev/null)
  changed "$node: $1 is the stock one"
}

# in_turn static_pod|stock_pod COMPONENT...: on one control plane node after the other, so
# that one of several always answers.
in_turn() {
  local program
  for node in "${control_planes[@]}"; do
    for program in "${@:2}"; do "$1" "$program"; done
    settle_control_plane "$node"
  done
}

# The names differ from those of the programs they call.
run_install() {
  check_binaries
  check_nodes
  check_conflicts
  say "$name: CRI-O $crio_version, Kubernetes $version onto ${#nodes[@]} nodes"
  stage
  for node in "${control_planes[@]}"; do load_images "$node"; done
  in_turn static_pod kube-apiserver
  in_turn static_pod kube-controller-manager kube-scheduler
  for node in "${nodes[@]}"; do
    output=$(on "$node" swap </dev/null | paste -sd' ')
    changed "$node: patched CRI-O and kubelet, gate on; restarted: $output"
    settle "$node"
  done
  output=$(on "${control_planes[0]}" configmap </dev/null)
  changed "ConfigMap kube-system/kubelet-config: gate on, for nodes to come"
  for node in "${control_planes[@]}"; do
    wait_for "$node: our older images to be unused" on "$node" prune "${tags[@]}"
  done
  [ "$changes" -gt 0 ] || say "$name: nothing to change"
  run_verify
}

# node_layers NODE: prints for how many images the Node object has layers. Fails if there
# are none.
node_layers() {
  "$ENGINE" exec "${control_planes[0]}" kubectl --kubeconfig /etc/kubernetes/admin.conf get node "$1" -o json |
    jq -er '[.status.images[]? | select(.layers)] | length | if . == 0 then error("no layers in the Node object") else . end'
}

run_verify() {
  local listed with program reason failed=0
  for node in "${control_planes[@]}"; do
    for program in "${CONTROL_PLANE[@]}"; do
      reason=
      if "$ENGINE" exec "$node" grep -q "image: $REPOSITORY/$program:" "/etc/kubernetes/manifests/$program.yaml" &&
        reason=$(on "$node" pod "$program" 2>&1 </dev/null); then
        echo "ok: $node: $program is patched and ready"
      else
        echo "FAILED: $node: $program: ${reason:-is the stock one}"
        failed=1
      fi
    done
  done
  for node in "${nodes[@]}"; do
    read -r listed with < <(on "$node" layers </dev/null) || true
    if [ "${with:-0}" -gt 0 ]; then
      echo "ok: $node: crictl lists layers of $with of $listed images"
      # The kubelet reports images every 30 to 40 s.
      wait_for "$node: layers in the Node object" node_layers "$node"
      echo "ok: $node: the Node object states layers of $(node_layers "$node") images"
    else
      echo "FAILED: $node: crictl lists layers of none of ${listed:-0} images: CRI-O there is not patched, or CRIO_IMAGE_LAYERS=off is set"
      failed=1
    fi
  done
  [ "$failed" = 0 ] || die "not everything is installed: '$0 --name $name install' does it, or goes on with it"
}

# restore: restores the stock binaries on $node.
restore() {
  output=$(on "$node" restore </dev/null | paste -sd' ') || die "$node: not all is undone, see above"
  changed "$node: stock CRI-O and kubelet, gate gone; restarted: $output"
}

# rescue: undoes a whole control plane that does not answer, before it waits for anything.
rescue() {
  local program
  for node in "${control_planes[@]}"; do
    restore
    for program in "${CONTROL_PLANE[@]}"; do stock_pod "$program"; done
  done
  for node in "${control_planes[@]}"; do settle_control_plane "$node"; done
}

run_uninstall() {
  local late=()
  if ! grep -q '^installed' <<<"${facts[*]}"; then
    for node in "${nodes[@]}"; do on "$node" forget </dev/null; done
    say "$name: nothing to undo"
    return
  fi
  check_conflicts
  if ! api "${control_planes[0]}" >/dev/null 2>&1; then
    say "the apiserver does not answer: the control plane goes first"
    rescue
  fi
  # A worker with other problems must not prevent that the rest is undone.
  for node in "${workers[@]}"; do
    (restore && settle "$node") || late+=("$node")
  done
  for node in "${control_planes[@]}"; do
    restore
    settle "$node"
  done
  output=$(on "${control_planes[0]}" configmap undo </dev/null)
  changed "ConfigMap kube-system/kubelet-config: as before"
  in_turn stock_pod kube-scheduler kube-controller-manager
  in_turn stock_pod kube-apiserver
  for node in "${control_planes[@]}"; do wait_for "$node: our images to be unused" on "$node" prune; done
  for node in "${nodes[@]}"; do on "$node" forget </dev/null; done
  [ ${#late[@]} -eq 0 ] || die "$name: undone, but these nodes have other troubles: ${late[*]}"
  say "$name: as before"
}

name=layer-locality engine='' binaries=$BUILD/bin/patched timeout=300 action='' changes=0 output=''
declare -A facts sums tags
while [ $# -gt 0 ]; do
  case $1 in
  --name | --engine | --binaries | --timeout)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  install | verify | uninstall)
    [ -z "$action" ] || usage
    action=$1
    ;;
  *) usage ;;
  esac
  shift
done
[ -n "$action" ] || usage
[[ $timeout =~ ^[1-9][0-9]*$ ]] || die "--timeout $timeout: want a number of seconds"
command -v jq >/dev/null || die "jq is missing: install it"
[[ $name =~ ^[a-z0-9.-]+$ ]] || die "--name $name: no name of a kind cluster"
use_engine "$engine"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$BUILD"
exec {lock}>"$BUILD/.lock-kind-$name"
flock -n "$lock" || {
  say "waiting for another run that works on $name"
  flock "$lock"
}
find_nodes
"run_$action"

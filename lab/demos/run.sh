#!/usr/bin/env bash
# Makes the cluster of the demos on this machine, runs a text word for word, and removes the
# cluster: run.sh image-locality | scheduler-tour
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$ROOT"
text=lab/demos/${1:-}/README.md
[[ -n ${1:-} && -f $text ]] || die "usage: $0 image-locality | scheduler-tour"
export DEMOS_NAME=${DEMOS_NAME:-demos}
settings=$(lab/demos/cluster.sh up) # which leaves nothing behind when it fails
trap 'lab/demos/cluster.sh down' EXIT
eval "$settings"
lab/run test/demos/run "$text"
trap - EXIT
lab/demos/cluster.sh down
echo "demo: ok: every command of $text did what the text says"

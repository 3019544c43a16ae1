#!/bin/sh
# runc for a host whose root lacks CAP_SYS_RESOURCE, as in some virtual machines
# and containers. The kernel then refuses two things that CRI-O requests for
# every pod sandbox and privileged container: an oom_score_adj below the
# caller's own, and that capability. This script removes both from the request.
#
# A link beside this script, with ".real" added to its name, points to runc.
set -eu

edit() { # FILE PATH-OF-PROCESS
  jq --argjson least "$(cat /proc/self/oom_score_adj)" "$2"' |= (
    if (.oomScoreAdj // $least) < $least then .oomScoreAdj = $least else . end
    | if .capabilities then .capabilities |= map_values(. - ["CAP_SYS_RESOURCE"]) else . end
  )' "$1" >"$1.new"
  mv "$1.new" "$1"
}

option=
for word; do
  case $option in
  --bundle | -b) edit "$word/config.json" .process ;;
  --process | -p) edit "$word" . ;;
  esac
  option=$word
done
exec "$0.real" "$@"

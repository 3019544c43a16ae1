#!/usr/bin/env bash
# Fails if the first figures of README.md are not true on the images that are there: with
# LAYER_DATA those of Docker Hub, else generated ones. Call it after eval.sh, which builds
# the simulator.
. "$(dirname "$0")/../../scripts/lib.sh"

report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$BUILD/bin/tools/layersim" run --scenarios zipf-1,nodes-50 --seeds 5 --policies default,layerlocality --out "$report"

# claim SCENARIO MOST TEXT: LayerLocality pulls at most so much of what stock pulls there.
claim() {
  local ratio
  ratio=$(jq -r --arg scenario "$1" '
    def pulled($policy): [.experiments[].runs[] | select(.scenario == $scenario and .policy == $policy).pulledBytes] | add;
    pulled("layerlocality") / pulled("default") * 1000 | round / 1000' "$report")
  jq -ne --argjson ratio "$ratio" --argjson most "$2" '$ratio > 0 and $ratio <= $most' >/dev/null ||
    die "README.md says that nodes pull $3: it is $ratio, more than $2"
  say "$1: $ratio of what stock pulls ($3)"
}
claim zipf-1 0.55 "half as much on 10 nodes"
claim nodes-50 0.27 "a quarter on 50 nodes"

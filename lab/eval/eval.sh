#!/usr/bin/env bash
# The evaluation: plays the experiments of lab/cmd/layersim and writes raw numbers
# and a page to look at into _out/eval. Variables:
#
#   SIZE=full|small         how much is played (full)
#   SEEDS=N                 how often each workload is drawn (5; small: 2)
#   EXPERIMENTS=NAME,...    only some; 'layersim list' has the names
#   LAYER_DATA, LAYER_HISTORY, LAYER_MOVES
#                           files of a data set; without them images are generated
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$ROOT"

SIZE=${SIZE:-full}
SEEDS=${SEEDS:-$([ "$SIZE" = small ] && echo 2 || echo 5)}
OUT=$ROOT/_out/eval
LAYERSIM=$BUILD/bin/tools/layersim

# As build.sh builds kube-scheduler, so that one compilation serves both.
build() {
  local tree
  tree=$(scripts/tree.sh workspace)
  say "building layersim: minutes the first time, for it contains kube-scheduler"
  (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 \
    go build -tags "$SCHEDULER_TAGS" -ldflags "-X main.version=$(git -C "$ROOT" describe --always --dirty)" -o "$LAYERSIM" ./lab/cmd/layersim)
}

with_lock layersim build

say "playing: size $SIZE, seeds: $SEEDS, ${LAYER_DATA:-generated images}"
"$LAYERSIM" eval --size "$SIZE" --seeds "$SEEDS" --out "$OUT/report.json" ${EXPERIMENTS:+--experiments "$EXPERIMENTS"}
lab/run evalpage "$OUT/report.json" --out "$OUT" >/dev/null
say "done: open $OUT/index.html; raw numbers are in report.csv and report.json beside it, the program is $LAYERSIM"

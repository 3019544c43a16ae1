#!/usr/bin/env bash
# Records real runs of demos, for README.md:
#
#   record-demo.sh                 `make demo` as docs/demo.svg, which a browser plays; the end of
#                                  that run is put into README.md. Pauses are shortened to two
#                                  seconds; nothing else is changed
#   record-demo.sh kubectl-layers  what kubectl layers says at the end of `make demo-agent`, as a
#                                  picture, docs/kubectl-layers.svg
#
# Needs root, as the demos do, and asciinema and termtosvg.
. "$(dirname "$0")/lib.sh"

for tool in asciinema termtosvg; do
  command -v "$tool" >/dev/null || die "$tool is not installed: install the package $tool (Debian)"
done
cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Both read text as the locale says, and images of layers may have any name.
export LC_ALL=C.UTF-8

# said: prints what kubectl layers says in a run, which is in $work/run.
said() { awk '/^\$ kubectl layers/ { said = 1 } /^ *[0-9.]+ s  / { said = 0 } said' "$work/run" | cat -s | sed '${/^$/d}'; }

if [ "${1:-}" = kubectl-layers ]; then
  make demo-agent | tee "$work/run"
  tail -n 1 "$work/run" | grep '^demo: ok' >/dev/null || die "the demo failed: $(tail -n 2 "$work/run")"
  said >"$work/said"
  asciinema rec --quiet --overwrite --cols "$(wc -L <"$work/said")" --rows "$(($(wc -l <"$work/said") + 1))" \
    --command "cat $work/said" "$work/cast" </dev/null
  mkdir "$work/frames"
  termtosvg render "$work/cast" "$work/frames" --still-frames --template window_frame
  mv "$(find "$work/frames" -name '*.svg' | sort | tail -n 1)" docs/kubectl-layers.svg
  say "docs/kubectl-layers.svg is the end of this run; docs/demo.md is for you to check"
  exit
fi
[ $# = 0 ] || die "usage: record-demo.sh [kubectl-layers]"

# First what takes minutes and shows nothing.
make deps
scripts/build.sh tools
scripts/build.sh patched
asciinema rec --quiet --overwrite --cols 120 --rows 32 \
  --command "bash -o pipefail -c 'make demo | tee $work/run'" "$work/cast" </dev/null
tail -n 1 "$work/run" | grep '^demo: ok' >/dev/null || die "the demo failed: $(tail -n 2 "$work/run")"
termtosvg render "$work/cast" "$work/demo.svg" --template window_frame --loop-delay 10000 --max-frame-duration 2000
mv "$work/demo.svg" docs/demo.svg

# From the table of scores to the end, without the lines of steps.
sed -n '/^kube-scheduler# /,$p' "$work/run" | grep -v '^ *[0-9.]* s  ' | cat -s >"$work/sample"
awk -v sample="$work/sample" '
  !inside { print }
  inside && /^```/ { while ((getline line <sample) > 0) print line; inside = 0; print }
  /^<!-- From the recording/ { marked = 1 }
  marked && /^```/ { inside = 1; marked = 0 }' README.md >"$work/README.md"
cat "$work/README.md" >README.md
say "docs/demo.svg and README.md are of one run; docs/demo.md is for you to check"

#!/usr/bin/env bash
# Records a real run of `make demo` as docs/demo.svg, which a browser plays, and puts the
# two tables of that run into README.md.
#
#   record-demo.sh                  needs root, as the demo does, and asciinema and termtosvg
#   record-demo.sh kubectl-layers   the end of a run of `make demo D=agent`, as the picture
#                                   docs/kubectl-layers.svg
#
# Pauses are shortened to two seconds; nothing else is changed.
. "$(dirname "$0")/lib.sh"

for tool in asciinema termtosvg; do
  command -v "$tool" >/dev/null || die "$tool is not installed: install the package $tool (Debian)"
done
cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Both read text as the locale says, and images of layers may have any name.
export LC_ALL=C.UTF-8
if [ "${1-}" = kubectl-layers ]; then
  make demo D=agent | tee "$work/run"
  # Without the last note of savings, which is wider than the picture.
  sed -n '/^\$ kubectl layers nodes/,/^Since /p' "$work/run" | sed '/^Since /d' >"$work/end"
  [ -s "$work/end" ] || die "the demo did not end with kubectl layers"
  asciinema rec --quiet --overwrite --cols 108 --rows $(($(wc -l <"$work/end") + 2)) \
    --command "cat $work/end; sleep 2" "$work/cast" </dev/null
  mkdir "$work/stills"
  termtosvg render "$work/cast" "$work/stills" --still-frames --template window_frame
  mv "$(printf '%s\n' "$work"/stills/*.svg | tail -n 1)" docs/kubectl-layers.svg
  say "docs/kubectl-layers.svg is of one run; docs/kubectl-layers.md and docs/demo.md are for you to check"
  exit
fi
# First what takes minutes and shows nothing.
make demo >/dev/null
asciinema rec --quiet --overwrite --cols 120 --rows 32 \
  --command "bash -o pipefail -c 'make demo | tee $work/run'" "$work/cast" </dev/null
tail -n 1 "$work/run" | grep '^demo: ok' >/dev/null || die "the demo failed: $(tail -n 2 "$work/run")"
termtosvg render "$work/cast" "$work/demo.svg" --template window_frame --loop-delay 10000 --max-frame-duration 2000
mv "$work/demo.svg" docs/demo.svg

# The two tables of placements, without the lines of steps.
grep -v '^ *[0-9.]* s  ' "$work/run" | sed -n '/^  third pod by /,/^$/p; /^  a pod of each /,/^$/p' | cat -s | sed '${/^$/d}' >"$work/sample"
awk -v sample="$work/sample" '
  !inside { print }
  inside && /^```/ { while ((getline line <sample) > 0) print line; inside = 0; print }
  /^<!-- From the recording/ { marked = 1 }
  marked && /^```/ { inside = 1; marked = 0 }' README.md >"$work/README.md"
cat "$work/README.md" >README.md
say "docs/demo.svg and README.md are of one run; docs/demo.md is for you to check"

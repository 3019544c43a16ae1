#!/usr/bin/env bash
# Fetches the JavaScript libraries that are inlined into the evaluation's page,
# as pinned with checksums in internal/eval/page/package-lock.json, and prints the
# folder that holds them. Nothing of them is run; a second call fetches nothing.
. "$(dirname "$0")/../../../scripts/lib.sh"

PINS=$ROOT/internal/eval/page
ASSETS=$BUILD/page-assets

fetch() {
  local want log=$BUILD/log/page-assets.log
  want=$(cat "$PINS/package.json" "$PINS/package-lock.json" | sha256sum)
  if [ "$(cat "$ASSETS/.complete" 2>/dev/null)" != "$want" ]; then
    "$ROOT/scripts/install-deps.sh" npm
    rm -rf "$ASSETS"
    mkdir -p "$ASSETS" "$BUILD/log"
    cp "$PINS/package.json" "$PINS/package-lock.json" "$ASSETS/"
    say "fetching the libraries of the evaluation's page"
    (cd "$ASSETS" && npm ci --ignore-scripts --prefer-offline --no-audit --no-fund) >"$log" 2>&1 ||
      die "npm ci failed; the log is $log"
    echo "$want" >"$ASSETS/.complete"
  fi
}

with_lock page-assets fetch
echo "$ASSETS"

#!/usr/bin/env bash
# Fetches packages of npm and prints the folder that has them.
#
#   npm.sh PINS NAME WHAT   the packages that PINS/package-lock.json pins with checksums, into
#                           _build/NAME; WHAT is what they are called while they are fetched
#
# Nothing of them is run while they are installed; a second call fetches nothing.
. "$(dirname "$0")/lib.sh"

[ $# -eq 3 ] || die "usage: npm.sh PINS NAME WHAT"
PINS=$1 NAME=$2 WHAT=$3
FOLDER=$BUILD/$NAME

fetch() {
  local want log=$BUILD/log/$NAME.log
  want=$(cat "$PINS/package.json" "$PINS/package-lock.json" | sha256sum)
  if [ "$(cat "$FOLDER/.complete" 2>/dev/null)" != "$want" ]; then
    "$ROOT/scripts/install-deps.sh" npm
    rm -rf "$FOLDER"
    mkdir -p "$FOLDER" "$BUILD/log"
    cp "$PINS/package.json" "$PINS/package-lock.json" "$FOLDER/"
    say "fetching $WHAT"
    (cd "$FOLDER" && npm ci --ignore-scripts --prefer-offline --no-audit --no-fund) >"$log" 2>&1 ||
      die "cannot fetch $WHAT from the npm registry ('npm config get registry' tells which): $(grep -E -m 1 'request to|E[0-9]{3}|code E' "$log" || echo "npm ci failed"); the log is $log"
    echo "$want" >"$FOLDER/.complete"
  fi
}

with_lock "$NAME" fetch
echo "$FOLDER"

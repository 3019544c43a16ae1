#!/usr/bin/env bash
# Fetches the JavaScript libraries that are inlined into the evaluation's page,
# as pinned with checksums in lab/eval/page/package-lock.json, and prints the
# folder that holds them.
. "$(dirname "$0")/../../../scripts/lib.sh"
exec "$ROOT/scripts/npm.sh" "$ROOT/lab/eval/page" page-assets "the libraries of the evaluation's page"

#!/usr/bin/env bash
# Runs texts on the cluster that is up, and compares what they print.
#
#   test.sh [image-locality] [scheduler-tour]   without a name, both
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- image-locality scheduler-tour
for text in "$@"; do
  lab/run test/demos/run "lab/demos/$text/README.md"
done

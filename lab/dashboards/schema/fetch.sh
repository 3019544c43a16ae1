#!/usr/bin/env bash
# Fetches TypeScript and Grafana's types of dashboards, as pinned with checksums in
# lab/dashboards/schema/package-lock.json, and prints the folder that holds them.
. "$(dirname "$0")/../../../scripts/lib.sh"
exec "$ROOT/scripts/npm.sh" "$ROOT/lab/dashboards/schema" grafana-schema "Grafana's types of dashboards"

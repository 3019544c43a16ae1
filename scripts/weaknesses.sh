#!/usr/bin/env bash
# Prints which packages with known weaknesses (https://vuln.go.dev) the programs of cmd/ link, and fails unless
# scripts/weaknesses.txt explains each. Those of Go's own library are only reported: they depend on this machine's Go, and a newer
# one mends them.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

mkdir -p "$BUILD/log"
govulncheck=$(go_tool golang.org/x/vuln/cmd/govulncheck "$GOVULNCHECK_VERSION")
# The database is a Go module, too: the module proxy has it where vuln.go.dev cannot be reached.
database=$(cd / && go mod download -json golang.org/x/vulndb@latest 2>"$BUILD/log/vulndb.log") || {
  echo "skipped: known weaknesses: the module proxy does not have golang.org/x/vulndb: $(tail -n 1 "$BUILD/log/vulndb.log")"
  exit
}
"$govulncheck" -db "file://$(jq -r .Dir <<<"$database")/data/osv" -scan package -format json ./cmd/... >"$BUILD/log/govulncheck.json"
linked=$(jq -r 'select(.finding.trace[0].package) | .finding | "\(.osv) \(.trace[0].module) \(.fixed_version // "no version")"' \
  "$BUILD/log/govulncheck.json" | sort -u)
status=0 newer=''
while read -r id module fixed; do
  case $module in
  '') ;;
  stdlib) newer+="go${fixed#v}"$'\n' ;;
  *)
    ! grep -q "^$id " scripts/weaknesses.txt || continue
    echo "$id in $module, mended in $fixed (https://pkg.go.dev/vuln/$id): raise it, or explain in scripts/weaknesses.txt why it does no harm"
    status=1
    ;;
  esac
done <<<"$linked"
[ -z "$newer" ] || echo "note: $(go env GOVERSION) has $(grep -c . <<<"$newer") known weaknesses that $(sort -V <<<"$newer" | tail -n 1) has not: release with that"
while read -r id _; do
  grep -q "^$id " <<<"$linked" || {
    echo "scripts/weaknesses.txt explains $id, which no program links: remove it"
    status=1
  }
done < <(grep '^GO-' scripts/weaknesses.txt)
exit "$status"

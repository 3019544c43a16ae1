# A registry without TLS, for tests of packages: `. "$ROOT/lab/test/registry.sh"`, after
# checks.sh. clean_up has to call stop_registry.
# shellcheck shell=bash

registry_pid=''
# start_registry: starts one on a free port and sets registry to its address. It is the one
# that 'scripts/build.sh tools registry' builds.
start_registry() {
  local port
  for port in $(shuf -i 20000-30000 -n 20); do
    registry=127.0.0.1:$port
    cat >"$WORK/registry.yml" <<END
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: $WORK/registry}
http: {addr: $registry}
END
    "$BUILD/bin/tools/registry" serve "$WORK/registry.yml" >"$WORK/registry.log" 2>&1 &
    registry_pid=$!
    for _ in $(seq 50); do
      kill -0 "$registry_pid" 2>/dev/null || continue 2 # the port was taken
      if curl --silent --fail "http://$registry/v2/" >/dev/null; then return; fi
      sleep 0.1
    done
    kill "$registry_pid"
  done
  die "the registry does not start: $(tail -n 1 "$WORK/registry.log")"
}
stop_registry() { [ -z "$registry_pid" ] || kill "$registry_pid" 2>/dev/null; }

# Shared by the tests of packages: `. "$(dirname "$0")/../checks.sh"`, after lib.sh.
# Prints one line per check, and always "N passed, N failed" at the end.
#
# Sets WORK, a temporary folder. A script calls finish as its last command. It may
# define clean_up, which is also called at the end.
# shellcheck shell=bash disable=SC2034
shopt -s inherit_errexit

WORK=$(mktemp -d -t layer-locality.XXXXXX)
CHECKS_PASSED=0 CHECKS_FAILED=0 CHECKS_FINISHED=''

_result() {
  if [ "$1" = 0 ]; then
    CHECKS_PASSED=$((CHECKS_PASSED + 1))
    echo "ok: $2"
  else
    CHECKS_FAILED=$((CHECKS_FAILED + 1))
    echo "FAILED: $2"
    # Why, for the log.
    tail -n 40 "$WORK/log" | sed 's/^/    /'
  fi
}

# _try COMMAND...: sets STATUS to its exit code and writes its output to $WORK/log,
# where the command itself still finds that of the previous one. It is not called in a
# condition: there the shell would continue after a command that failed in a function.
_try() {
  set +e
  (
    set -e
    "$@"
  ) >"$WORK/log.new" 2>&1
  STATUS=$?
  set -e
  mv "$WORK/log.new" "$WORK/log"
}

# check WHAT COMMAND...: checks that the command, which may be a function, succeeds.
check() {
  _try "${@:2}"
  _result "$STATUS" "$1"
}

# refuses WHAT MESSAGE COMMAND...: checks that the command fails with MESSAGE
# (extended regular expression).
refuses() {
  _try "${@:3}"
  if [ "$STATUS" != 0 ] && grep -qE -e "$2" "$WORK/log"; then
    _result 0 "$1"
  else
    echo "(exit code $STATUS)" >>"$WORK/log"
    _result 1 "$1"
  fi
}

# says TEXT COMMAND...: checks that the command succeeds and prints TEXT.
says() {
  "${@:2}" 2>&1 | tee "$WORK/said"
  grep -qF -e "$1" "$WORK/said"
}

# emulator ARCH: prints the program that runs programs for that architecture, nothing for
# the machine's own.
emulator() (
  use_arch "$1"
  [ -z "$CROSS" ] || echo "qemu-${CROSS%%-*}-static"
)
# on ARCH PROGRAM ARGS...: runs a program that was compiled for that architecture.
on() {
  local emulator
  emulator=$(emulator "$1")
  ${emulator:+"$emulator"} "${@:2}"
}

# static FILE...: checks that none needs a loader.
static() {
  local file
  for file in "$@"; do
    readelf --program-headers --wide "$file" >"$WORK/headers"
    if grep INTERP "$WORK/headers"; then
      echo "$file is linked dynamically"
      return 1
    fi
  done
}

# skipped WHAT REASON: reports what this machine cannot test.
skipped() { echo "skipped: $1: $2"; }

_end() {
  local status=$?
  trap - EXIT
  set +e
  # Before anything is printed, because the reader may be gone.
  if [ "$(type -t clean_up)" = function ]; then clean_up; fi
  rm -rf "$WORK"
  if [ -z "$CHECKS_FINISHED" ]; then
    echo "FAILED: ended before the last check, with $status"
    CHECKS_FAILED=$((CHECKS_FAILED + 1))
  fi
  echo "$CHECKS_PASSED passed, $CHECKS_FAILED failed"
  if [ "$CHECKS_FAILED" = 0 ]; then exit 0; else exit 1; fi
}
finish() { CHECKS_FINISHED=1; }
trap _end EXIT
trap 'exit 130' INT TERM

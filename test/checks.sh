# Shared by the tests of packages: `. "$(dirname "$0")/../checks.sh"`, after lib.sh. A line
# a check, and at the end, whatever that is, "N passed, N failed".
#
# Gives WORK, a temporary folder. A script may define clean_up, which is called at the
# end too, and calls finish as its last command.
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

# _try COMMAND...: its exit code is in STATUS, what it wrote in $WORK/log, where the
# command itself still finds that of the one before. Not in a condition: there the shell
# would go on after a command that failed in a function.
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

# check WHAT COMMAND...: the command, which may be a function, succeeds.
check() {
  _try "${@:2}"
  _result "$STATUS" "$1"
}

# refuses WHAT MESSAGE COMMAND...: the command fails, and says MESSAGE (extended regular expression).
refuses() {
  _try "${@:3}"
  if [ "$STATUS" != 0 ] && grep -qE -e "$2" "$WORK/log"; then
    _result 0 "$1"
  else
    echo "(exit code $STATUS)" >>"$WORK/log"
    _result 1 "$1"
  fi
}

# skipped WHAT REASON: what this machine cannot show.
skipped() { echo "skipped: $1: $2"; }

_end() {
  local status=$?
  trap - EXIT
  set +e
  # Before anything is printed: nobody may be reading any more.
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

#!/usr/bin/env bash
# Refuses programs that are not what we ship; every package calls it when it is built.
#
#   verify.sh VERSION PROGRAM...   static, of that version; crio: with seccomp
set -euo pipefail

fail() {
  echo "error: $*" >&2
  exit 1
}

[ $# -ge 2 ] || fail "usage: verify.sh VERSION PROGRAM..."
version=$1
shift
for program in "$@"; do
  # Copied to a node without /nix/store, a program with an interpreter from there
  # fails with "no such file or directory".
  headers=$(LC_ALL=C readelf --program-headers --wide "$program")
  ! grep -E '^ *(INTERP|DYNAMIC) ' <<<"$headers" || fail "$program is not static"
  case $program in
  */pinns) ;; # has no version
  */crio)
    says=$("$program" version 2>/dev/null)
    grep -qx "Version: *$version" <<<"$says" || fail "$program is not version $version: $says"
    grep -qx 'SeccompEnabled: *true' <<<"$says" || fail "$program has no seccomp: $says"
    ;;
  *)
    says=$("$program" --version)
    [ "${says##* }" = "$version" ] || fail "$program is not version $version: $says"
    ;;
  esac
done

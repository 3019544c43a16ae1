#!/usr/bin/env bash
# Prints a folder with the headers and static libraries of the C libraries that crio
# needs, for another architecture. They come from Debian's packages, unpacked below
# $LAYERLOCALITY_CACHE; the machine's own packages do not change. They are fetched
# again after a week, for fixes.
#
#   sysroot.sh amd64|arm64
. "$(dirname "$0")/lib.sh"

[ $# = 1 ] || die "usage: sysroot.sh amd64|arm64"
arch=$1 sysroot=$CACHE/sysroot-$1
case $arch in
amd64) compiler=x86_64-linux-gnu-gcc package=gcc-x86-64-linux-gnu ;;
arm64) compiler=aarch64-linux-gnu-gcc package=gcc-aarch64-linux-gnu ;;
*) die "unknown architecture '$arch': amd64 or arm64" ;;
esac
command -v apt-get >/dev/null ||
  die "compiling crio for $arch takes Debian's packages: use Debian, or build on a machine of that architecture"
command -v "$compiler" >/dev/null || die "$compiler is missing: apt-get install $package libc6-dev-$arch-cross"

fetch() {
  local tmp
  [ -z "$(find "$sysroot" -maxdepth 0 -mtime -7 2>/dev/null)" ] || return 0
  say "fetching libseccomp for $arch"
  mkdir -p "$(dirname "$sysroot")"
  tmp=$(mktemp -d "$sysroot.XXXXXX") # other clones use the same cache
  mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial" "$tmp/root" "$BUILD/log"
  # A separate package list: apt need not know the architecture.
  (
    cd "$tmp"
    apt() { apt-get -q -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root \
      -o Dir::State="$tmp/state" -o Dir::State::status=/dev/null -o Dir::Cache="$tmp/cache" "$@"; }
    apt update && apt download libseccomp-dev && dpkg -x libseccomp-dev_*.deb root
  ) >"$BUILD/log/sysroot-$arch.log" 2>&1 || die "cannot fetch libseccomp-dev for $arch; the log is $BUILD/log/sysroot-$arch.log"
  rm -rf "$sysroot"
  touch "$tmp/root"
  mv -T "$tmp/root" "$sysroot" 2>/dev/null || [ -d "$sysroot" ]
  rm -rf "$tmp"
}
with_lock "sysroot-$arch" fetch
echo "$sysroot"

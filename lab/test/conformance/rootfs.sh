#!/usr/bin/env bash
# Makes a root file system of Debian with the programs that images of Kubernetes' tests have beside their own, and prints
# the path of its tar archive. Kept in $CACHE by the hash of what it is made from.
. "$(dirname "$0")/../../../scripts/lib.sh"

SUITE=bookworm
# What the Dockerfile of agnhost installs (test/images/agnhost of k8s.io/kubernetes), that of nginx, and what kube-proxy
# runs.
PACKAGES=bash,bind9-dnsutils,conntrack,curl,iperf,iproute2,kmod,netcat-openbsd,nftables,nginx-light,procps,util-linux,wget

make_root() {
  local mirror
  say "root file system of test images: debootstrap of $SUITE"
  mirror=$(debian_mirror "$SUITE")
  debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$made/root" ${mirror:+"$mirror"} >"$made/log" 2>&1 || {
    tail -n 20 "$made/log" >&2
    die "debootstrap failed: are Debian's archives reachable?"
  }
  # As the Dockerfile of agnhost has them.
  chroot "$made/root" sh -ec '
    useradd --uid 1000 user-defined-in-image
    groupadd --gid 50000 group-defined-in-image
    usermod --append --groups group-defined-in-image user-defined-in-image'
  ln -s ../../bin/iperf "$made/root/usr/local/bin/iperf"
  rm -rf "$made"/root/usr/share/{doc,man,locale,info} "$made"/root/var/{cache/apt,lib/apt/lists}/* "$made"/root/dev/*
  tar --numeric-owner -C "$made/root" -cf "$out/root.tar" .
}

command -v debootstrap >/dev/null || die "debootstrap is missing: scripts/install-deps.sh conformance"
hash=$({
  echo "$SUITE $PACKAGES $(dpkg --print-architecture)"
  declare -f make_root
} | sha256sum | cut -c1-16)
result=$CACHE/test-root/$hash
if [ ! -e "$result/root.tar" ]; then
  mkdir -p "$CACHE/test-root"
  out=$(mktemp -d "$CACHE/test-root/tmp.XXXXXX")
  made=$(mktemp -d)
  trap 'rm -rf "$made" "$out"' EXIT
  make_root
  rm -rf "$result"
  mv "$out" "$result"
fi
touch "$result"
find "$CACHE/test-root" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
echo "$result/root.tar"

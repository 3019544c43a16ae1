#!/usr/bin/env bash
# Makes the stand-ins for operating system images that lab/test/okd builds on, and prints the
# folder that holds them as tar archives: okd.tar (OKD's), fcos.tar (Fedora CoreOS),
# packages/*.rpm (stubs).
#
# Debian with rpm, whose database is in /usr and whose /var is empty, packages with the names
# and versions of the real ones, and base/rpm-ostree and base/ostree. Kept in $CACHE by the
# hash of what they are made from.
. "$(dirname "$0")/../../../scripts/lib.sh"

HERE=$ROOT/lab/test/okd
SUITE=bookworm

# Names of what our packages require and Debian's rpm knows nothing of.
PROVIDED="conmon = 2.1.12, container-selinux, containers-common, crun, runc, systemd, /bin/sh, \
iptables, iptables-nft, iproute, iproute-tc, ethtool, socat, util-linux, conntrack-tools, ebtables, nfs-utils, \
kubernetes-cni, containernetworking-plugins"

# stub NAME VERSION RELEASE [FILE SAYS [PROVIDES]]: its package, into packages/.
stub() {
  local define=(--define "stub_name $1" --define "stub_version $2" --define "stub_release $3")
  [ -z "${4:-}" ] || define+=(--define "stub_file $4" --define "stub_says $5")
  [ -z "${6:-}" ] || define+=(--define "stub_provides $6")
  rpmbuild --quiet -bb --define "_topdir $work/rpmbuild" --define "_rpmdir $out/packages" --define "_build_id_links none" \
    --define "_rpmfilename %%{NAME}-%%{VERSION}.rpm" --define "_tmppath $work" \
    "${define[@]}" "$HERE/base/stub.spec" >>"$work/log" 2>&1 || {
    cat "$work/log" >&2
    die "cannot build the stub package $1"
  }
}

# system FOLDER OS_RELEASE PACKAGE...: a root with these packages, from $work/debian.
system() {
  local folder=$1 release=$2
  shift 2
  cp -a --reflink=auto "$work/debian" "$folder"
  printf '%s\n' "$release" >"$folder/usr/lib/os-release"
  install -m 0755 "$HERE/base/rpm-ostree" "$HERE/base/ostree" "$folder/usr/bin/"
  mkdir -p "$folder/packages"
  (cd "$out/packages" && cp "$@" "$folder/packages/")
  chroot "$folder" sh -c 'rpm -i --nosignature --force-debian /packages/*.rpm'
  rm -rf "$folder/packages"
}

archive() { tar --numeric-owner -C "$1" -cf "$2" .; }

make_base() {
  local mirror
  say "stand-in base images: debootstrap of $SUITE"
  mkdir -p "$out/packages" "$work/rpmbuild"
  mirror=$(debian_mirror "$SUITE")
  debootstrap --variant=minbase --include=rpm "$SUITE" "$work/debian" ${mirror:+"$mirror"} >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    die "debootstrap failed: are Debian's archives reachable?"
  }
  # As in an ostree system: nothing in /var, rpm's database in /usr.
  mkdir -p "$work/debian/usr/lib/rpm/macros.d" "$work/debian/usr/lib/sysimage/rpm"
  echo '%_dbpath /usr/lib/sysimage/rpm' >"$work/debian/usr/lib/rpm/macros.d/macros.dbpath"
  rm -rf "$work"/debian/var/* "$work"/debian/usr/share/{doc,man,locale,info} "$work/debian/etc/os-release" \
    "$work"/debian/dev/* "$work/debian/usr/lib/rpm/macros.d/macros.debian"
  mkdir -m 1777 "$work/debian/var/tmp"
  ln -s ../usr/lib/os-release "$work/debian/etc/os-release"

  stub base-files-stub 1 1 "" "" "$PROVIDED"
  stub cri-o 1.36.2 1.rhaos5.0.gitabcdef0.el10 crio "crio version 1.36.2"
  stub cri-o 1.36.9 1.rhaos5.0.gitabcdef0.el10 crio "crio version 1.36.9"
  # OKD numbers this package after itself.
  stub openshift-kubelet 5.0.0 202608010000.p0.gabcdef0.el10 kubelet "Kubernetes v1.36.3"
  stub openshift-kubelet 4.22.0 202607010000.p0.gabcdef0.el10 kubelet "Kubernetes v1.35.5"
  stub openshift-kubelet 5.0.1 202611010000.p0.gabcdef0.el10 kubelet "Kubernetes v1.36.9"

  system "$work/okd" $'NAME="CentOS Stream CoreOS"\nID="centos"\nVARIANT_ID="coreos"\nVERSION_ID="10"' \
    base-files-stub-1.rpm cri-o-1.36.2.rpm openshift-kubelet-5.0.0.rpm
  archive "$work/okd" "$out/okd.tar"
  system "$work/fcos" $'NAME="Fedora Linux"\nID=fedora\nVARIANT_ID=coreos\nVERSION_ID=44' base-files-stub-1.rpm
  archive "$work/fcos" "$out/fcos.tar"
}

command -v debootstrap >/dev/null || die "debootstrap is missing: scripts/install-deps.sh okd"
hash=$({
  echo "$SUITE $(dpkg --print-architecture)"
  declare -p PROVIDED
  declare -f stub system archive make_base
  cat "$HERE"/base/*
} | sha256sum | cut -c1-16)
result=$CACHE/okd-base/$hash
if [ ! -e "$result/.complete" ]; then
  mkdir -p "$CACHE/okd-base"
  out=$(mktemp -d "$CACHE/okd-base/tmp.XXXXXX")
  work=$(mktemp -d)
  trap 'rm -rf "$work" "$out"' EXIT
  make_base
  touch "$out/.complete"
  rm -rf "$result"
  mv "$out" "$result"
fi
touch "$result"
find "$CACHE/okd-base" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
echo "$result"

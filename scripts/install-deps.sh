#!/usr/bin/env bash
# Installs missing system packages for building, the local cluster and the tests, on
# Debian/Ubuntu (apt) or Fedora (dnf).
#
#   install-deps.sh [--check] [--run] [EXTRA...]   with --check: report what is missing, install nothing;
#                                          with --run: only what programs need that are compiled already;
#                                          EXTRA: dev, gh, npm, prometheus, cross, qemu, nix, rpm, okd, kind, kind-image, vm, bats
. "$(dirname "$0")/lib.sh"

# What must be there (a command, or a name that present() knows), and the package that has
# it: apt, dnf.
TABLE='
git             git                        git-core
gcc             gcc                        gcc
libc.a          libc6-dev                  glibc-static
pkg-config      pkg-config                 pkgconf-pkg-config
seccomp.h       libseccomp-dev             libseccomp-devel
libseccomp.a    libseccomp-dev             libseccomp-static
busybox         busybox-static             busybox
conmon          conmon                     conmon
cni             containernetworking-plugins containernetworking-plugins
runc            runc                       runc
ip              iproute2                   iproute
tc              iproute2                   iproute-tc
iptables        iptables                   iptables-nft
nsenter         util-linux                 util-linux
flock           util-linux                 util-linux-core
ps              procps                     procps-ng
jq              jq                         jq
curl            curl                       curl
openssl         openssl                    openssl
find            findutils                  findutils
diff            diffutils                  diffutils
awk             gawk                       gawk
ca-certificates ca-certificates            ca-certificates
'
# Packages that the demo and make test do without: installed only if named. dev: what a change to this
# project needs (lint, generators, images); gh: what fills the releases page; npm: tests of dashboards and
# of CRI-O; prometheus: what layer-extender asks in a test; cross: crio for the other architecture; qemu:
# runs it; kind-image: a kind node image; conformance: images of Kubernetes' tests; vm: a virtual machine; bats: what CRI-O's own tests need (bats
# itself is from npm); the others: packages of that kind and their tests.
EXTRAS='
dev       skopeo          skopeo                     skopeo
dev       buildah         buildah                    buildah
dev       protoc          protobuf-compiler          protobuf-compiler
dev       protobuf.proto  libprotobuf-dev            protobuf-devel
dev       shellcheck      shellcheck                 ShellCheck
gh        gh                gh                   gh
npm       npm               npm                  nodejs-npm
prometheus prometheus       prometheus           golang-github-prometheus
nix       nix               nix-bin              nix
rpm       rpmbuild          rpm                  rpm-build
rpm       rpmsign           rpm                  rpm-sign
rpm       rpmlint           rpmlint              rpmlint
rpm       createrepo_c      createrepo-c         createrepo_c
rpm       dnf               dnf                  dnf
rpm       debootstrap       debootstrap          debootstrap
rpm       zstd              zstd                 zstd
rpm       gpg               gnupg                gnupg2
rpm       readelf           binutils             binutils
rpm       systemd-analyze   systemd              systemd
okd       podman            podman               podman
okd       runc              runc                 runc
okd       debootstrap       debootstrap          debootstrap
okd       ostree            ostree               ostree
kind      dockerd           docker.io            moby-engine
kind      podman            podman               podman
kind      netavark          netavark             netavark
kind      aardvark-dns      aardvark-dns         aardvark-dns
kind      runc              runc                 runc
kind      debootstrap       debootstrap          debootstrap
kind-image debootstrap      debootstrap          debootstrap
conformance debootstrap     debootstrap          debootstrap
conformance nft             nftables             nftables
vm        qemu-system-x86_64 qemu-system-x86     qemu-system-x86-core
vm        debootstrap       debootstrap          debootstrap
vm        mkfs.ext4         e2fsprogs            e2fsprogs
vm        ssh-keygen        openssh-client       openssh
bats      podman            podman               podman
bats      runc              runc                 runc
bats      /usr/share/zoneinfo/Asia/Singapore     tzdata                 tzdata
'
# The system's package manager. Debian may have dnf, too.
MANAGER=$(basename "$(command -v apt-get || command -v dnf || true)")
if [ "$MANAGER" = dnf ]; then
  # The specs ask for it there, and only there.
  EXTRAS+='
rpm       /usr/lib/rpm/macros.d/macros.systemd     -                      systemd-rpm-macros
'
fi
case $(uname -m) in
x86_64) OWN=amd64 EXTRAS+='
cross     aarch64-linux-gnu-gcc                    gcc-aarch64-linux-gnu  gcc-aarch64-linux-gnu
cross     /usr/aarch64-linux-gnu/lib/libc.a        libc6-dev-arm64-cross  -
qemu      qemu-aarch64-static                      qemu-user-static       qemu-user-static-aarch64
' ;;
aarch64) OWN=arm64 EXTRAS+='
cross     x86_64-linux-gnu-gcc                     gcc-x86-64-linux-gnu   gcc-x86_64-linux-gnu
cross     /usr/x86_64-linux-gnu/lib/libc.a         libc6-dev-amd64-cross  -
qemu      qemu-x86_64-static                       qemu-user-static       qemu-user-static-x86
' ;;
esac

any() {
  local path
  for path in "$@"; do [ ! -e "$path" ] || return 0; done
  return 1
}

present() {
  case ${IN_NIX_SHELL:+nix}:$1 in
  # Not in such places, but where the shell of flake.nix points to.
  nix:libc.a | nix:libseccomp.a | nix:seccomp.h | nix:cni | nix:protobuf.proto | nix:ca-certificates) return ;;
  esac
  case $1 in
  libc.a | libseccomp.a) any /usr/lib/*/"$1" /usr/lib64/"$1" ;;
  seccomp.h) any /usr/include/seccomp.h ;;
  cni) any /usr/lib/cni/bridge /usr/libexec/cni/bridge /opt/cni/bin/bridge ;;
  protobuf.proto) any /usr/include/google/protobuf/descriptor.proto ;;
  netavark | aardvark-dns) any "/usr/lib/podman/$1" "/usr/libexec/podman/$1" ;;
  /*) any "$1" ;;
  ca-certificates) any /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt ;;
  *) command -v "$1" >/dev/null ;;
  esac
}

missing() {
  local need
  while read -r need _; do
    [ -z "$need" ] || present "$need" || echo "$need"
  done <<<"$TABLE"
}

# packages_for COLUMN NEED...: prints the names in that column (2 apt, 3 dnf), each once; - means
# that there is none.
packages_for() {
  local column=$1
  shift
  printf '%s\n' "$@" | awk -v column="$column" \
    'NR == FNR { package[$1] = $column; next } { print package[$1] }' <(echo "$TABLE") - | sort -u
}

# Go 1.21 and later fetch the toolchain that go.mod requires through the module proxy.
# Older versions cannot build this project.
check_go() {
  local want have
  want=$(sed -n 's/^go //p' "$ROOT/go.mod")
  command -v go >/dev/null || die "Go is not installed: get Go $want or later from https://go.dev/dl/ and put it on PATH"
  have=$(cd / && go env GOVERSION)
  have=${have#go}
  if [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
    case $have in
    1.2[1-9]* | 1.[3-9][0-9]*)
      [ "$(go env GOTOOLCHAIN)" != local ] ||
        die "Go $have is older than $want and may not fetch a newer one: set GOTOOLCHAIN=auto (go env -w GOTOOLCHAIN=auto), or install Go $want from https://go.dev/dl/"
      ;;
    *) die "Go $have is too old: get Go $want or later from https://go.dev/dl/" ;;
    esac
  fi
}

check='' run=''
for arg in "$@"; do
  if [ "$arg" = --check ]; then
    check=1
  elif [ "$arg" = --run ]; then
    run=1 TABLE=$(grep -vE '^(git|gcc|libc\.a|pkg-config|seccomp\.h|libseccomp\.a) ' <<<"$TABLE")
  else
    TABLE+=$(sed -n "s/^$arg  *//p" <<<"$EXTRAS" | grep .)$'\n' || die "unknown extra '$arg': dev, gh, npm, prometheus, cross, qemu, nix, rpm, okd, kind, kind-image, vm or bats"
  fi
done
# One at a time: apt waits for another's packages, but not for its lists.
install_missing() {
  local needs packages install
  mapfile -t needs < <(missing)
  [ ${#needs[@]} -gt 0 ] || return 0
  case $MANAGER in
  apt-get)
    mapfile -t packages < <(packages_for 2 "${needs[@]}")
    install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends)
    ;;
  dnf)
    mapfile -t packages < <(packages_for 3 "${needs[@]}")
    install=(dnf install -y --setopt=install_weak_deps=False)
    ;;
  *) die "neither apt-get nor dnf here; install these yourself: ${needs[*]}" ;;
  esac
  # Only the extra "cross" has such a need.
  [[ " ${packages[*]} " != *" - "* ]] ||
    die "$MANAGER has no static C library for another architecture, which crio takes: run 'make release PLATFORM=linux/$OWN' here, and that of the other on a machine of its own"
  if [ -n "$check" ]; then
    die "missing: ${needs[*]}; without --check this runs: ${install[*]} ${packages[*]}"
  fi
  [ "$(id -u)" = 0 ] || die "missing: ${needs[*]}; run as root: ${install[*]} ${packages[*]}"
  say "installing system packages: ${packages[*]}"
  mkdir -p "$BUILD/log"
  {
    if [ "$MANAGER" = apt-get ]; then apt-get update; fi
    "${install[@]}" "${packages[@]}"
  } >"$BUILD/log/install-deps.log" 2>&1 || die "installing failed; the log is $BUILD/log/install-deps.log"
  mapfile -t needs < <(missing)
  [ ${#needs[@]} -eq 0 ] || die "still missing after installing ${packages[*]}: ${needs[*]}"
}
with_lock install-deps install_missing
[ -n "$run" ] || check_go

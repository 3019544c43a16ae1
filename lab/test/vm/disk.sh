#!/usr/bin/env bash
# Makes what the virtual machine of lab/test/vm boots from, once for the same recipe, and prints
# its folder: Debian's kernel and initrd, disk.ext4 (Debian with systemd and what
# docs/install-binaries.md takes for granted), and the key of root's SSH login.
#
# Needs root and a Debian mirror. DEBIAN_MIRROR names one other than the machine's own.
. "$(dirname "$0")/../../../scripts/lib.sh"

SUITE=bookworm
# What a node with CRI-O has besides CRI-O and the kubelet: Debian's kernel for virtual
# machines, the OCI runtime, its monitor, CNI's plugins, AppArmor's parser, and the tools that
# kubelet and CRI-O call.
PACKAGES=(
  systemd-sysv dbus udev kmod linux-image-cloud-amd64 initramfs-tools zstd openssh-server ca-certificates
  iproute2 iptables nftables ethtool socat conntrack util-linux mount
  conmon runc containernetworking-plugins apparmor
)

# The guest has one interface. Its address is on the kernel's command line, as a cloud's
# metadata would be.
network_unit() {
  cat <<'UNIT'
[Unit]
Description=Address of the node, from the kernel's command line
Before=network-online.target ssh.service
Wants=network.target network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/node-network

[Install]
WantedBy=multi-user.target
UNIT
}

network_script() {
  cat <<'SCRIPT'
#!/bin/sh
# node.address=ADDRESS/BITS node.gateway=ADDRESS
set -e
for word in $(cat /proc/cmdline); do
  case $word in
  node.address=*) address=${word#*=} ;;
  node.gateway=*) gateway=${word#*=} ;;
  esac
done
link=$(ls -d /sys/class/net/e* | head -n 1)
ip address add "$address" dev "${link##*/}"
ip link set "${link##*/}" up
ip route add default via "$gateway"
SCRIPT
}

make_disk() {
  local root=$work/root include kernel
  include=$(
    IFS=,
    echo "${PACKAGES[*]}"
  )
  say "disk of a virtual machine: debootstrap of $SUITE"
  debootstrap --variant=minbase --include="$include" "$SUITE" "$root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    die "debootstrap failed: are Debian's archives reachable?"
  }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

  network_unit >"$root/etc/systemd/system/node-network.service"
  network_script >"$root/usr/local/sbin/node-network"
  chmod 0755 "$root/usr/local/sbin/node-network"
  chroot "$root" systemctl --quiet enable node-network.service ssh.service
  echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
  # As the installer of a Kubernetes node leaves it (kubernetes.io, "Container Runtimes").
  printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/k8s.conf"
  printf 'net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n' >"$root/etc/sysctl.d/k8s.conf"
  # Where kubernetes-cni has them; Debian's package does not.
  mkdir -p "$root/opt/cni" && ln -s /usr/lib/cni "$root/opt/cni/bin"

  ssh-keygen -q -t ed25519 -N '' -C test -f "$work/key"
  chroot "$root" sh -c 'umask 077 && mkdir -p ~root/.ssh && cat >~root/.ssh/authorized_keys' <"$work/key.pub"

  kernel=$(cd "$root/boot" && echo vmlinuz-*)
  cp "$root/boot/$kernel" "$work/kernel"
  cp "$root/boot/initrd.img-${kernel#vmlinuz-}" "$work/initrd"
  cp "$root/etc/ssh/ssh_host_ed25519_key.pub" "$work/host.pub"
  truncate -s 8G "$work/disk.ext4"
  mkfs.ext4 -q -F -d "$root" "$work/disk.ext4"
  rm -rf "$root"
}

make_once() {
  if [ -e "$folder/disk.ext4" ]; then
    touch "$folder"
    return
  fi
  mkdir -p "${folder%/*}"
  work=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf --one-file-system "$work"' EXIT
  make_disk
  rm -rf "$folder"
  mv "$work" "$folder"
  trap - EXIT
}

[ "$(id -u)" = 0 ] || die "debootstrap and chroot need root: run as root"
MIRROR=${DEBIAN_MIRROR:-$(debian_mirror "$SUITE")}
folder=$CACHE/vm/$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-16)
with_lock vm-disk make_once >&2
echo "$folder"

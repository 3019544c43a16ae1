#!/usr/bin/env bash
# Builds a kind node image with the patched CRI-O and Kubernetes, loads it into the engine,
# and prints its name.
#
#   build-node-image.sh [--archive]   --archive: loads nothing, needs no engine; prints the
#                                     file for 'docker load'
#
# Needs root, Linux, debootstrap, the Go module proxy and a Debian mirror. The image
# contains Debian with systemd; the patched CRI-O and kubelet, kubeadm and kubectl; kind's
# own files for nodes from its Go module; the images of the patched control plane; and those
# of kube-proxy, CoreDNS and kind's storage provisioner. The result is kept in
# $LAYERLOCALITY_CACHE (default ~/.cache/layer-locality) by the hash of its inputs.
# KIND_EXPERIMENTAL_PROVIDER is the engine, docker or podman.
#
# DEBIAN_MIRROR names a mirror other than the machine's own or debootstrap's default.
. "$(dirname "$0")/../scripts/lib.sh"
# shellcheck source=lib.sh
. "$ROOT/kind/lib.sh"

# The last Debian whose systemd runs on hosts with cgroup v1 as well as v2.
SUITE=bookworm
MIRROR=${DEBIAN_MIRROR:-$(debian_mirror "$SUITE")}
PACKAGES=(
  systemd iptables nftables iproute2 conntrack ethtool kmod mount procps e2fsprogs
  ca-certificates curl jq runc conmon skopeo containernetworking-plugins
)
NODE=(crio pinns kubelet)
CONTROL_PLANE=(kube-apiserver kube-controller-manager kube-scheduler)
CLIENTS=(kubeadm kubectl) # no patch changes these, nor kube-proxy
TOOLS=(etcd crictl coredns local-path-provisioner)

# constant NAME: prints a string constant in kind's Go code, such as a manifest with names
# of images.
constant() {
  local source=$KIND/pkg/build/nodeimage
  awk -v name="$1" '
    FNR == 1 { inside = 0 }
    /^const [A-Za-z]+ = "/ { split($0, part, "\""); value[$2] = part[2] }
    $0 ~ "^const " name " = `" { inside = 1; sub(/^[^`]*`/, "") }
    inside { text = text $0 "\n"; if (/^`$/) inside = 0 }
    END {
      for (image in value) gsub("` *[+] *" image " *[+] *`", value[image], text)
      sub(/`\n$/, "", text)
      if (text == "" || text ~ /`/) exit 1
      printf "%s", text
    }' "$source"/const_*.go || die "no constant $1 in kind $KIND_VERSION"
}

# in_root COMMAND...: runs it with the image's own programs.
in_root() { chroot "$rootfs" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

# stage FILE...: puts programs of the node's Debian, or files by their path, and the
# libraries of each into the next image.
stage() {
  mkdir -p "$rootfs/image"
  # shellcheck disable=SC2016 # for that shell
  in_root bash -euo pipefail -c '
    for file; do
      [[ $file = /* ]] || file=$(command -v "$file")
      echo "$file"
      ldd "$file"
    done | grep -o "/[^ ]*" | sort -u |
      tar --create --dereference --files-from - | tar --extract --directory /image' stage "$@" >>"$log" 2>&1 ||
    die "cannot copy $* from the node; the log is $log"
}

# preload NAME PROGRAM [FOLDER]: puts an image into the node's storage: this program in that
# folder (/usr/local/bin), which it runs, and what is staged.
preload() {
  local path=${3:-/usr/local/bin}
  path=${path%/}/${2##*/}
  say "image $1"
  install -D -m 0755 "$2" "$rootfs/image$path"
  program_image "$rootfs/image.tar" "$1" "$rootfs/image" "$path"
  in_root skopeo copy --quiet docker-archive:/image.tar "containers-storage:$1" >>"$log" 2>&1 ||
    die "cannot put $1 into the image: $(tail -n 1 "$log")"
  rm -r "$rootfs/image.tar" "$rootfs/image"
}

# packages: installs Debian, as kind's Dockerfile leaves it.
packages() {
  local include
  include=$(
    IFS=,
    echo "${PACKAGES[*]}"
  )
  debootstrap --variant=minbase --include="$include" "$SUITE" "$rootfs" ${MIRROR:+"$MIRROR"} >"$log" 2>&1 ||
    die "debootstrap failed: $(tail -n 1 "$log"); the log is $log"
  rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/* "$rootfs"/usr/share/{doc,man,locale}/*
  find "$rootfs"/lib/systemd/system/sysinit.target.wants -name systemd-tmpfiles-setup.service -delete
  rm -f "$rootfs"/lib/systemd/system/{multi-user,local-fs}.target.wants/* "$rootfs"/etc/systemd/system/*.wants/* \
    "$rootfs"/lib/systemd/system/sockets.target.wants/{*udev*,*initctl*}
  echo ReadKMsg=no >>"$rootfs/etc/systemd/journald.conf"
  ln -sf /lib/systemd/systemd "$rootfs/sbin/init"
  rm -f "$rootfs/etc/hostname" "$rootfs/etc/resolv.conf"
}

# files: installs kind's files, changed from containerd to CRI-O, then ours.
files() {
  local name
  cp -r --no-preserve=mode,ownership "$KIND/images/base/files/." "$rootfs/"
  rm "$rootfs"/etc/systemd/system/containerd*.service
  sed -i 's/containerd\.service/crio.service/' "$rootfs/etc/default/kubelet" "$rootfs/etc/systemd/system/undo-mount-hacks.service"
  cp -r --no-preserve=mode,ownership "$ROOT/kind/node/." "$rootfs/"
  chmod 0755 "$rootfs"/usr/local/bin/* "$rootfs"/kind/bin/*
  mkdir -p "$rootfs/etc/kubernetes/manifests" "$rootfs/kind/manifests" "$rootfs/opt/cni"
  ln -s /usr/lib/cni "$rootfs/opt/cni/bin"
  constant defaultCNIManifest >"$rootfs/kind/manifests/default-cni.yaml"
  # kind's own build of the provisioner is of a later version.
  constant defaultStorageManifest | sed "s|image: .*/local-path-provisioner:.*|image: $PROVISIONER|" >"$rootfs/kind/manifests/default-storage.yaml"
  printf %s "$KUBERNETES_VERSION" >"$rootfs/kind/version"
  for name in "${NODE[@]}"; do install -m 0755 "$PATCHED/$name" "$rootfs/usr/bin/$name"; done
  for name in "${CLIENTS[@]}"; do install -m 0755 "$STOCK/$name" "$rootfs/usr/bin/$name"; done
  install -D -m 0644 "$SCHEDULER_CONFIG" "$rootfs/etc/kubernetes/layer-locality/config.yaml"
  install -m 0755 "$BUILD/bin/tools/crictl" "$rootfs/usr/local/bin/crictl"
  in_root systemctl enable --quiet kubelet.service crio.service undo-mount-hacks.service
  in_root systemctl mask --quiet systemd-binfmt.service
}

# images: adds those of every cluster, under the names that kubeadm, kind and CRI-O request.
# Only kindnetd is missing: its source is in no Go module.
images() {
  local wanted name extensions
  wanted=$(in_root kubeadm config images list --kubernetes-version "$KUBERNETES_VERSION" 2>>"$log") ||
    die "kubeadm names no images; the log is $log"
  grep -q "/coredns:$COREDNS_VERSION\$" <<<"$wanted" ||
    die "COREDNS_VERSION in versions.env is not what kubeadm wants: $(grep /coredns: <<<"$wanted")"
  for name in "${CONTROL_PLANE[@]}"; do preload "$(grep "/$name:" <<<"$wanted")" "$PATCHED/$name"; done
  preload "$(grep /etcd: <<<"$wanted")" "$BUILD/bin/tools/etcd"
  cc -Os -Wall -static -DVERSION="$KUBERNETES_VERSION" -o "$work/pause" "$KUBERNETES/build/pause/linux/pause.c" ||
    die "cannot compile pause"
  preload "$(in_root crio config 2>/dev/null | sed -n 's/^#* *pause_image = "\(.*\)"/\1/p')" "$work/pause" /
  preload "$(grep /coredns: <<<"$wanted")" "$BUILD/bin/tools/coredns" /
  extensions=("$rootfs"/usr/lib/*/xtables/*.so)
  stage iptables{,-save,-restore} ip6tables{,-save,-restore} nft "${extensions[@]#"$rootfs"}"
  preload "$(grep /kube-proxy: <<<"$wanted")" "$STOCK/kube-proxy"
  preload "$PROVISIONER" "$BUILD/bin/tools/local-path-provisioner"
  stage /bin/sh rm mkdir
  preload "$(sed -n 's/^ *image: \(.*local-path-helper:.*\)/\1/p' "$rootfs/kind/manifests/default-storage.yaml")" "$rootfs/bin/sh" /bin
}

# unmount FOLDER: unmounts everything there and below.
unmount() {
  awk -v root="$1/" 'index($5 "/", root) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount
}

# build: builds the image as an archive.
build() {
  local rootfs=$work/root log=$BUILD/log/kind-node.log
  [ ! -f "$archive" ] || return 0 # made by another run meanwhile
  mkdir -p "$BUILD/log"
  say "kind node: Debian $SUITE; log $log"
  packages
  # skopeo remounts its root directory: that must be a mount.
  mount --bind "$rootfs" "$rootfs"
  mount -t proc proc "$rootfs/proc"
  files
  images
  unmount "$rootfs"
  rm -rf "$rootfs"/run/* "$rootfs"/tmp/*
  say "kind node: packing"
  tar --sort=name --numeric-owner -C "$rootfs" -cf "$work/layer.tar" .
  # systemd needs to know that it is in a container, and stops on that signal.
  image_archive "$work/image.tar" "$image" "$work/layer.tar" \
    '{"Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"], "Env": ["container=docker"], "StopSignal": "SIGRTMIN+3"}'
  mv "$work/image.tar" "$archive"
}

inputs() {
  echo "$SUITE ${PACKAGES[*]} $KIND_VERSION $KUBERNETES_VERSION $PROVISIONER"
  declare -f constant in_root stage preload packages files images build image_archive program_image
  (cd "$PATCHED" && sha256sum "${NODE[@]}" "${CONTROL_PLANE[@]}")
  (cd "$STOCK" && sha256sum "${CLIENTS[@]}" kube-proxy)
  sha256sum <"$SCHEDULER_CONFIG"
  (cd "$BUILD/bin/tools" && sha256sum "${TOOLS[@]}")
  (cd "$ROOT/kind/node" && find . -type f -exec sha256sum {} + | sort)
}

# Private mounts, which end with this script.
if [ -z "${LAYERLOCALITY_MOUNTS:-}" ] && [ "$(id -u)" = 0 ]; then
  LAYERLOCALITY_MOUNTS=own exec unshare --mount "$0" "$@"
fi
load=1
if [ "${1:-}" = --archive ]; then
  load=
  shift
fi
if [ $# -gt 0 ]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
[ "$(id -u)" = 0 ] || die "debootstrap and chroot need root: run as root"
[ -z "$load" ] || use_engine
for tool in debootstrap cc jq; do
  command -v "$tool" >/dev/null || die "$tool is missing: install it ('scripts/install-deps.sh kind-image' on Debian)"
done
"$ROOT/scripts/build.sh" patched "${NODE[@]}" "${CONTROL_PLANE[@]}"
"$ROOT/scripts/build.sh" stock "${CLIENTS[@]}" kube-proxy
"$ROOT/scripts/build.sh" tools "${TOOLS[@]}"
KIND=$(module_dir sigs.k8s.io/kind "$KIND_VERSION")
KUBERNETES=$(module_dir k8s.io/kubernetes "$KUBERNETES_VERSION")
PROVISIONER=docker.io/rancher/local-path-provisioner:$LOCAL_PATH_PROVISIONER_VERSION
PATCHED=$BUILD/bin/patched STOCK=$BUILD/bin/stock
SCHEDULER_CONFIG=$ROOT/deploy/scheduler/static-pod/config.yaml
hash=$(inputs | sha256sum | cut -c1-12)
image=localhost/layer-locality/kind-node:$KUBERNETES_VERSION-$hash
archive=$CACHE/kind-node/$hash/image.tar
if [ ! -f "$archive" ]; then
  mkdir -p "$(dirname "$archive")"
  work=$(mktemp -d "$CACHE/kind-node/build.XXXXXX")
  trap 'unmount "$work"; rm -rf --one-file-system "$work"' EXIT
  with_lock kind-node build
fi
# Remove images that were not used for two weeks.
touch "$(dirname "$archive")"
find "$CACHE/kind-node" -mindepth 1 -maxdepth 1 -type d -mtime +14 -exec rm -rf {} +
if [ -z "$load" ]; then
  echo "$archive"
  exit
fi
if ! "$ENGINE" image inspect "$image" >/dev/null 2>&1; then
  say "loading the node image into $ENGINE"
  "$ENGINE" load --quiet --input "$archive" >/dev/null
fi
echo "$image"

#!/usr/bin/env bash
# Tests okd-machine-os/, as root: the real Containerfiles with podman on stand-in base
# images (base.sh), the scripts with a stand-in for oc and a real registry.
#
#   run.sh
#
# Prints one line per check and ends with "N passed, N failed". What only real rpm-ostree,
# SELinux, a booting machine or an OKD cluster can show is listed as skipped.
. "$(dirname "$0")/../../../scripts/lib.sh"
. "$ROOT/lab/test/engine/lib.sh"
cd "$ROOT"

[ "$(id -u)" = 0 ] || die "container engines and the stand-in base need root"
. "$ROOT/lab/test/checks.sh"
work=$WORK
. "$ROOT/lab/test/registry.sh"
clean_up() {
  stop_registry
  stop_clusters
  private_engine_gone "$work/engine"
}

say "binaries, packages, stand-in base images"
scripts/build.sh tools registry etcd butane ignition-validate
scripts/build.sh patched kube-apiserver kube-controller-manager kubelet
scripts/build.sh stock kube-apiserver kubectl
rpm/rpms.sh --output "$work/rpms" cri-o kubelet openshift-kubelet
base=$(lab/test/okd/base.sh)
private_engine "$work/engine"
export PATH=$work/engine/bin:$PATH
start_registry
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$registry" >"$work/registries.conf"
export CONTAINERS_REGISTRIES_CONF=$work/registries.conf
# skopeo only accepts it as an argument.
printf '#!/bin/sh\nexec %s --registries-conf %s "$@"\n' "$(type -P skopeo)" "$work/registries.conf" >"$work/engine/bin/skopeo"
chmod +x "$work/engine/bin/skopeo"
for archive in okd fcos; do
  podman import --quiet "$base/$archive.tar" "localhost/base/$archive:5.0" >/dev/null
done

# variant NAME FROM COMMAND: makes a base image in which the command has run.
variant() {
  printf 'FROM localhost/base/%s\nRUN %s\n' "$2" "$3" >"$work/Containerfile"
  podman build --quiet --file "$work/Containerfile" --volume "$base/packages:/packages:ro" --tag "localhost/base/$1" "$work/engine/bin" >/dev/null
}
upgrade='rpm -U --force-debian --nosignature --oldpackage'
variant minor okd:5.0 "$upgrade /packages/openshift-kubelet-4.22.0.rpm"
variant newer okd:5.0 "$upgrade /packages/openshift-kubelet-5.0.1.rpm"
variant newer-crio okd:5.0 "$upgrade /packages/cri-o-1.36.9.rpm"
variant no-crio okd:5.0 "rpm -e --force-debian cri-o"
variant no-kubelet okd:5.0 "rpm -e --force-debian openshift-kubelet"
variant no-rpm-ostree okd:5.0 "rm /usr/bin/rpm-ostree"
variant var okd:5.0 "mkdir -p /var/lib/left && echo x >/var/lib/left/over"
variant other fcos:5.0 "sed -i s/^ID=.*/ID=debian/ /usr/lib/os-release"
MINOR=${KUBERNETES_VERSION#v}
MINOR=${MINOR%.*}
. "$ROOT/lab/test/okd/cluster.sh"
for part in image manifests control-plane; do
  say "$part"
  # shellcheck source=/dev/null
  . "$ROOT/lab/test/okd/$part.sh"
done

# versions MODULE VERSION: its versions of that minor version on the module proxy, none if that lists none.
versions() { (cd / && go list -m -versions "$1" 2>/dev/null) | tr ' ' '\n' | grep "^${2%.*}\.[0-9]*$" || true; }
for pin in "k8s.io/kubernetes $KUBERNETES_VERSION" "github.com/cri-o/cri-o $CRIO_VERSION"; do
  found=$(versions "${pin% *}" "${pin#* }")
  latest=$(printf '%s\n' "$found" "${pin#* }" | sort -V | tail -n 1)
  if [ -z "$found" ]; then
    skipped "whether there are releases of ${pin% *} after ${pin#* }" "the module proxy lists no versions"
  elif [ "$latest" != "${pin#* }" ]; then
    skipped "releases of OKD with ${pin% *} after ${pin#* }" "$latest is out: install.sh refuses bases with it until versions.env has it"
  fi
done
skipped "real rpm-ostree and ostree container commit" "they need Fedora's or CentOS' packages; base/ stands in for them"
skipped "SELinux labels" "no policy and no SELinux in the kernel here"
skipped "booting the image, MachineConfig on a cluster, oc, the installer" "no OKD here; docs/install-okd.md says what to look at"
skipped "lab/demos/rpm-image.sh" "the CRI-O of the stand-in base does not run"
finish

#!/usr/bin/env bash
# Tests the RPMs: builds them (rpm/rpms.sh), checks their contents, installs,
# upgrades, downgrades and removes them with dnf in separate root folders, and with
# FULL=1 rebuilds the source packages. The machine's package database is not touched.
#
#   run.sh
#
# Needs root (dnf --installroot changes its root). Prints one line per check; the
# last line counts them.
. "$(dirname "$0")/../../../scripts/lib.sh"
HERE=$ROOT/lab/test/rpm

[ "$(id -u)" = 0 ] || die "dnf --installroot changes its root directory: run as root"
for tool in rpmbuild rpmsign rpmlint createrepo_c dnf zstd gpg busybox readelf systemd-analyze; do
  command -v "$tool" >/dev/null || die "$tool is missing: run scripts/install-deps.sh rpm"
done
. "$ROOT/lab/test/checks.sh"
. "$HERE/fedora.sh"
T=$WORK
REPO=$T/repo
clean_up() { gpgconf --homedir "$T/gnupg" --kill all 2>/dev/null; }

# same EXPECTED-FILE: checks that standard input equals the file.
same() { diff -u "$1" -; }
has() { grep -q -- "$1" "$2" || { echo "no '$1' in $2:" && cat "$2" && false; }; }
hasnt() { test -e "$2" && ! grep -- "$1" "$2"; }
# quietly COMMAND...: checks that it succeeds and prints nothing.
# each PATTERN FILE...: checks that every file has a line that is PATTERN.
each() {
  local pattern=$1 file
  shift
  for file in "$@"; do
    grep -qx -- "$pattern" "$file" || { echo "no '$pattern' in $file" && return 1; }
  done
}
quietly() { "$@" >"$T/quiet" 2>&1 || { cat "$T/quiet" && false; } && hasnt . "$T/quiet"; }
# fails MESSAGE COMMAND...: checks that the command fails with MESSAGE.
fails() {
  local message=$1
  shift
  if "$@" >"$T/message" 2>&1; then
    echo "succeeded: $*" && cat "$T/message" && false
  fi
  has "$message" "$T/message"
}

# machine_packages: lists what is in the machine's own package database. Others, such as
# podman, may make an empty one at any time.
machine_packages() { if [ -e ~/.rpmdb ] || [ -e /var/lib/rpm/rpmdb.sqlite ]; then rpm -qa | sort; fi; }
machine_packages >"$T/machine"

# rpmlint unpacks packages there, too.
mkdir "$T/tmp"
export TMPDIR=$T/tmp

# rpm with the test's own database and keyring.
rpmq() { HOME=$T/home rpm --dbpath "$T/db" "$@"; }
mkdir -p "$T/home" "$T/db" "$T/repos" "$T/gnupg"
chmod 0700 "$T/gnupg"
export GNUPGHOME=$T/gnupg
echo "%_dbpath $T/db" >"$T/home/.rpmmacros" # below --root, too

# root NAME: makes an empty root for dnf.
root() {
  mkdir -p "$T/roots/$1"
  echo "$T/roots/$1"
}
# use REPOSITORY...: sets the repositories that dnf knows, as name or
# name,option=value,...
use() {
  local each name
  rm -f "$T"/repos/*
  for each in "$@"; do
    name=${each%%,*}
    {
      printf '[%s]\nname=%s\nbaseurl=file://%s/%s\n' "$name" "$name" "$T" "$name"
      [ "$name" = "$each" ] || tr , '\n' <<<"${each#*,}"
    } >"$T/repos/$name.repo"
  done
}
# dnf_in ROOT ARGS...
dnf_in() {
  local root=$1
  shift
  HOME=$T/home dnf -q -y -c "$T/dnf.conf" --noplugins --installroot="$root" --releasever=1 "$@"
}
cat >"$T/dnf.conf" <<END
[main]
reposdir=$T/repos
cachedir=$T/dnf/cache
logdir=$T/dnf/log
persistdir=$T/dnf/persist
install_weak_deps=False
gpgcheck=0
metadata_expire=0
END
rpm_in() {
  local root=$1
  shift
  HOME=$T/home rpm --root "$root" "$@"
}
# installed ROOT PACKAGE...: prints their versions.
installed() {
  local root=$1
  shift
  rpm_in "$root" -q --qf '%{NAME}-%{VERSION}-%{RELEASE}\n' "$@"
}

crio=${CRIO_VERSION#v}
kubernetes=${KUBERNETES_VERSION#v}
release=100.layers$LAYERLOCALITY_REVISION
arch=$(uname -m)
PACKAGES=(cri-o kubelet openshift-kubelet kube-scheduler-layerlocality)
version_of() { if [ "$1" = cri-o ]; then echo "$crio"; else echo "$kubernetes"; fi; }
file_of() { echo "$REPO/$arch/$1-$(version_of "$1")-$release.$arch.rpm"; }
source_of() { echo "$REPO/SRPMS/$1-$(version_of "$1")-$release.src.rpm"; }

#--- Building.

gpg --batch --quiet --passphrase '' --quick-generate-key 'Layer Locality test <test@example.com>' rsa2048 sign 1d
gpg --batch --quiet --passphrase '' --quick-generate-key 'Somebody else <else@example.com>' rsa2048 sign 1d
check "rpms.sh builds all packages and signs them" \
  "$ROOT/rpm/rpms.sh" --sign test@example.com --output "$REPO"
for name in "${PACKAGES[@]}"; do
  check "$name: package and source package are there" test -s "$(file_of "$name")" -a -s "$(source_of "$name")"
done
[ "$CHECKS_FAILED" = 0 ] || {
  exit 1
}

#--- What is in them.

# For each module in the tree that was compiled.
licenses() {
  local name=$1 tree module missing=0
  tree=$("$ROOT/scripts/tree.sh" vendored "$(if [ "$name" = cri-o ]; then echo cri-o; else echo kubernetes; fi)")
  awk '/^# / { module = $2 } /^[a-z]/ && module { print module; module = "" }' "$tree/vendor/modules.txt" >"$T/modules"
  test -s "$T/modules"
  while read -r module; do
    grep -q " l /usr/share/licenses/$name/vendor/$module/" "$T/$name.all" || { missing=1 && echo "no license of $module"; }
  done <"$T/modules"
  test "$missing" = 0
}
inside_usr_and_etc() { ! awk '{ print $NF }' "$1" | grep -v -e '^/usr/' -e '^/etc/'; }
identity() { rpmq -qp --qf '%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{BUILDHOST}\n' "$(file_of "$1")" 2>/dev/null; }
for name in "${PACKAGES[@]}"; do
  rpmq -qp --qf '[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEFLAGS:fflags} %{FILENAMES}\n]' "$(file_of "$name")" 2>/dev/null |
    tr -s ' ' >"$T/$name.all"
  # Without versions of Go and C libraries.
  grep -v " /usr/share/licenses/$name/\(vendor\|third_party\)" "$T/$name.all" |
    sed "s,\( /usr/share/licenses/$name/[a-z]*\)@[^/]*,\1," >"$T/$name.files"
  check "$name: files, modes, owners and what is configuration" same "$HERE/$name.files" <"$T/$name.files"
  check "$name: nothing outside /usr and /etc" inside_usr_and_etc "$T/$name.all"
  check "$name: a license of every vendored module" licenses "$name"
  rpmq -qp --qf '[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]' "$(file_of "$name")" 2>/dev/null |
    grep -v '^rpmlib(' | sed "s/ *\$//; s/$(version_of "$name")-$release\$/@VERSION@-@RELEASE@/" | sort -u >"$T/$name.requires"
  check "$name: requires" same "$HERE/$name.requires" <"$T/$name.requires"
done
check "cri-o recommends crictl" grep -qx cri-tools <(rpmq -qp --recommends "$(file_of cri-o)" 2>/dev/null)
check "openshift-kubelet has no scriptlets" test -z "$(rpmq -qp --scripts "$(file_of openshift-kubelet)" 2>/dev/null)"
lint() { env HOME="$T/home" rpmlint --strict -c "$ROOT/rpm/rpmlint.toml" "$1"; }
for name in "${PACKAGES[@]}"; do
  # One at a time: rpmlint 2.4 unpacks them all into one folder.
  check "$name: rpmlint finds nothing but what rpm/rpmlint.toml gives reasons for" lint "$(file_of "$name")"
  check "$name: nor in the source package" lint "$(source_of "$name")"
done

# Fedora's and EL's tools see the spec, too.
spec() {
  rpmq --define "_sourcedir $T/spec/$1" --define "_specdir $T/spec/$1" -i "$(source_of "$1")" 2>/dev/null
  echo "$T/spec/$1/$1.spec"
}
build_requires() {
  local spec=$1
  shift
  HOME=$T/home rpmspec -q --srpm --qf '[%{REQUIRENAME}\n]' --define "_sourcedir $(dirname "$spec")" "$@" "$spec" | grep -v '^rpmlib(' | sort
}
crio_spec=$(spec cri-o)
fedora() {
  build_requires "$crio_spec" --define 'fedora 43' >"$T/fedora"
  each glibc-static "$T/fedora" && each libseccomp-static "$T/fedora"
}
licensed() { HOME=$T/home rpmspec -q --qf '%{LICENSE}\n' --define "_sourcedir $T/spec/cri-o" "$@" "$crio_spec"; }
dynamic() {
  build_requires "$crio_spec" --define 'fedora 43' --without static >"$T/dynamic"
  each gcc "$T/dynamic" && hasnt static "$T/dynamic"
}
check "cri-o: the spec parses as on Fedora, and asks for static libraries" fedora
check "cri-o: --without static does not ask for them" dynamic
check "cri-o: nor is it under their license" \
  diff <(licensed | sed 's/LGPL-[^ ]* AND //g') <(licensed --without static)
# Go is the package golang there, which the guide names.
asked_for() {
  local name
  for name in "${PACKAGES[@]}"; do build_requires "$(spec "$name")" --define 'fedora 43'; done | grep -vx golang | sort -u
}
asked_for >"$T/asked"
installed_for_rpms() {
  test -s "$T/asked"
  test -z "$(comm -23 "$T/asked" <(named_by_install_deps rpm) | tee /dev/stderr)"
}
check "install-deps.sh rpm names everything that the specs ask for on Fedora but Go" installed_for_rpms
# With another date, so that the package is in no cache.
asks_the_system() {
  local packages
  mapfile -t packages < <(grep -vx zstd "$T/fedora")
  fedora_home "$T/fedora-home" "${packages[@]}"
  fails 'zstd is needed by' env HOME="$T/fedora-home" GOENV="$(go env GOENV)" GOPATH="$(go env GOPATH)" GOCACHE="$(go env GOCACHE)" \
    LAYERLOCALITY_CACHE="$CACHE" SOURCE_DATE_EPOCH=1577836800 "$ROOT/rpm/rpms.sh" --output "$T/nowhere" cri-o
  ! grep ' is needed by ' "$T/message" | grep -v zstd
}
check "on Fedora rpms.sh looks for what the specs ask for among the system's packages" asks_the_system
guide() { # git has git-core
  sed -n 's/^# dnf install \(rpm-build .*[^ ]\) *# Fedora$/\1/p' "$ROOT/docs/install-rpm.md" | tr -s ' ' '\n' | sed 's/^git$/git-core/' | sort >"$T/guide"
  test -s "$T/guide"
  test -z "$(comm -23 "$T/fedora" "$T/guide" | tee /dev/stderr)"
}
check "the guide has everything that the specs ask for on Fedora installed" guide
mkdir "$T/traced"
check "cri-o: compiler and linker write down what they read" traced "$T/traced"
all_needed() { # one command a line: in a condition, the shell would continue after a failure
  needed "$T/traced" >"$T/needed"
  test -s "$T/needed"
}
check "cri-o: Fedora's package of each such file is known" all_needed
named_by_install_deps >"$T/install-deps"
check "cri-o: install-deps.sh names these packages on Fedora" names "$T/install-deps" "$T/needed"
check "cri-o: so does the spec" names "$T/fedora" "$T/needed"
cut -d' ' -f1 "$T/needed" | sort | uniq -c | sed 's/^ */    /'
check "cri-o: on Debian the spec asks for no package" test -z "$(build_requires "$crio_spec")"
check "cri-o: tags and linker flags are those of versions.env" \
  grep -qxF -e "%global crio_tags $CRIO_TAGS" "$crio_spec"
every_patch() {
  local component=$1 spec=$2
  diff <(series "$component" | xargs -n 1 basename) <(sed -n 's/^Patch[0-9]*: *//p' "$spec" | grep -v OKD)
}
check "cri-o: the patches are those of patches/cri-o, in order" every_patch cri-o "$crio_spec"
check "kubelet: the patches are those of patches/kubernetes, in order" every_patch kubernetes "$(spec kubelet)"
kubelet_names() { HOME=$T/home rpmspec -q --qf '%{NAME}\n' --define "_sourcedir $T/spec/kubelet" "$@"; }
tests_run_here() {
  local line
  line=$(HOME=$T/home rpmspec -P --target aarch64 --define "_sourcedir $T/spec/kubelet" "$T/spec/kubelet/kubelet.spec" | grep 'go test')
  test "$(env -C / bash -c "${line%%go test *} go env GOARCH")" = "$(cd / && go env GOHOSTARCH)"
}
check "kubelet: its tests are compiled for the machine that builds, for another architecture too" tests_run_here
check "kubelet: the same spec is openshift-kubelet with --with okd" \
  test "$(kubelet_names --with okd "$T/spec/kubelet/kubelet.spec")" = openshift-kubelet
check "openshift-kubelet: its source package builds that without an option" \
  test "$(kubelet_names "$(spec openshift-kubelet)")" = openshift-kubelet

#--- A repository of a distribution.

stubs() {
  local name=$1 spec=$2
  shift 2
  HOME=$T/home rpmbuild -bb --define "_topdir $T/stubs" --define "_dbpath $T/stubs/db" --define "_tmppath $T/tmp" --define "_rpmdir $T/$name" "$@" "$spec" &&
    createrepo_c -q "$T/$name"
}
check "repository of stand-ins for a distribution" stubs base "$HERE/stubs.spec"
later=(--define "crio_version $crio" --define "kubernetes_version $kubernetes")
check "repository with later releases of our packages" stubs later "$HERE/later.spec" "${later[@]}" --define "later_release 101"
check "repository with the releases of Kubernetes' own packages" stubs upstream "$HERE/later.spec" "${later[@]}" --define "later_release 150500.1.1"

#--- Fresh installation.

use base repo
R=$(root fresh)
ours=(cri-o kubelet kube-scheduler-layerlocality)
check "fresh: dnf installs ${ours[*]}" dnf_in "$R" install "${ours[@]}"
for name in "${ours[@]}"; do
  check "fresh: $name is ours" test "$(installed "$R" "$name")" = "$name-$(version_of "$name")-$release"
  check "fresh: rpm -V $name finds no difference" rpm_in "$R" -V --nodeps "$name"
  unit=$name.service
  [ "$name" != cri-o ] || unit=crio.service
  check "fresh: $unit gets its preset" has "^systemd-update-helper install-system-units $unit\$" "$R/calls"
done
check "fresh: nothing is restarted" hasnt mark-restart "$R/calls"
check "fresh: users of crio are made" has '^systemd-sysusers /usr/lib/sysusers.d/crio.conf' "$R/calls"
check "fresh: the user of the scheduler is made" has '^systemd-sysusers /usr/lib/sysusers.d/kube-scheduler-layerlocality.conf' "$R/calls"
check "fresh: /var/lib/kubelet is made" has '^systemd-tmpfiles --create /usr/lib/tmpfiles.d/kubelet.conf' "$R/calls"
no_network() { test ! -e "$R/etc/cni/net.d" || test -z "$(ls -A "$R/etc/cni/net.d")"; }
check "fresh: no CNI network is active" no_network

says() { # TEXT COMMAND...
  local text=$1
  shift
  "$@" >"$T/says" 2>&1 || { cat "$T/says" && false; }
  has "$text" "$T/says"
}
ours_version=v$kubernetes+layerlocality.$LAYERLOCALITY_REVISION
check "crio says $crio" says "^crio version $crio\$" chroot "$R" /usr/bin/crio --version
check "crio has seccomp, linked in" says 'Linkmode: *static' chroot "$R" /usr/bin/crio version
check "pinns runs" fails 'Path for pinning namespaces not specified' chroot "$R" /usr/bin/pinns
check "kubelet says $ours_version" says "^Kubernetes $ours_version\$" chroot "$R" /usr/bin/kubelet --version
check "the scheduler says $ours_version" says "^Kubernetes $ours_version\$" \
  chroot "$R" /usr/bin/kube-scheduler-layerlocality --version
for binary in crio pinns kubelet kube-scheduler-layerlocality; do
  check "$binary is static" static "$R/usr/bin/$binary"
done
# license PACKAGE BINARY NAME: checks that the tag is what the texts of everything in the
# binary say, which build.sh calls NAME.
license() {
  local tag found
  ln -sfn "$R/usr/bin/$2" "$T/linked/$3"
  "$ROOT/scripts/sbom.sh" "$T/linked/$3" "$T/texts" >"$T/bill.json"
  found=$(jq -r '.metadata.component.licenses[].expression' "$T/bill.json")
  tag=$(rpmq -qp --qf '%{LICENSE}' "$(file_of "$1")" 2>/dev/null)
  [ "$tag" = "$found" ] || { echo "the tag is $tag, what is linked in $found" && false; }
}
mkdir "$T/linked"
check "cri-o: its license tag is that of what is linked in" license cri-o crio crio
check "kubelet: its license tag, too" license kubelet kubelet kubelet
check "kube-scheduler-layerlocality: its license tag, too" \
  license kube-scheduler-layerlocality kube-scheduler-layerlocality kube-scheduler
check "openshift-kubelet: its license tag is the kubelet's" \
  diff <(rpmq -qp --qf '%{LICENSE}' "$(file_of openshift-kubelet)") <(rpmq -qp --qf '%{LICENSE}' "$(file_of kubelet)")
check "crio reports layers: the overlay is in it" grep -q CRIO_IMAGE_LAYERS "$R/usr/bin/crio"
check "crio reads its configuration" says '"/usr/libexec/cni/"' "$R/usr/bin/crio" \
  --config "$R/etc/crio/crio.conf" --config-dir "$R/etc/crio/crio.conf.d" config
# This is why we put no file there, and why the guide tells users to move such files
# away.
mkdir "$T/crio.conf.d"
printf '[crio.network]\nplugin_dirs = ["/from/rpmsave/"]\n' >"$T/crio.conf.d/10-crio.conf.rpmsave"
check "crio reads what rpm keeps aside in crio.conf.d" says '"/from/rpmsave/"' "$R/usr/bin/crio" \
  --config "$R/etc/crio/crio.conf" --config-dir "$T/crio.conf.d" config

# The kubelet ends at the last field, after it has read the gates from the drop-in.
# kubelet_reads ROOT FOLDER GATES [ARGS...]: with these gates in the file of
# --config.
kubelet_reads() {
  mkdir -p "$1/var/lib/kubelet"
  printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'kind: KubeletConfiguration' \
    "featureGates: {$3}" 'healthzPort: 99999' >"$1/var/lib/kubelet/config.yaml"
  chroot "$1" /usr/bin/kubelet --v=1 --config=/var/lib/kubelet/config.yaml --config-dir="$2" "${@:4}"
}
gate_on() {
  fails 'healthzPort' kubelet_reads "$R" /etc/kubernetes/kubelet.conf.d ''
  has 'NodeStatusImageLayers:true\|NodeStatusImageLayers":true' "$T/message"
}
check "kubelet: the drop-in turns NodeStatusImageLayers on" gate_on
limits() {
  sed 's/^#\(nodeStatus[A-Za-z]*\):.*/\1: 999999999/' "$R/etc/kubernetes/kubelet.conf.d/20-image-layers.conf" >"$R/limits/20.conf"
  fails nodeStatusImageLayersMaxPerImage kubelet_reads "$R" /limits ''
}
mkdir -p "$R/limits"
check "kubelet: the limits in the drop-in, as comments, are its fields" limits
rm -r "$R/limits"
check "kubelet: an unknown gate is refused" fails 'unrecognized feature gate: OpenShiftGate' \
  kubelet_reads "$R" /etc/kubernetes/kubelet.conf.d 'OpenShiftGate: true'

check "kubelet: a label that names the role is refused" fails 'unknown .*labels' \
  kubelet_reads "$R" /etc/kubernetes/kubelet.conf.d '' --node-labels=node-role.kubernetes.io/worker

check "the scheduler reads its configuration" fails '/run/credentials/kube-scheduler-layerlocality.service/scheduler.conf: no such file' \
  chroot "$R" /usr/bin/kube-scheduler-layerlocality --config=/etc/kubernetes/kube-scheduler-layerlocality/config.yaml
check "the scheduler's configuration is the static pod's, but for the kubeconfig" \
  diff <(sed '1d; /kubeconfig: /d' "$ROOT/deploy/scheduler/static-pod/config.yaml") \
  <(sed '1d; /kubeconfig: /d' "$R/etc/kubernetes/kube-scheduler-layerlocality/config.yaml")

# Units, with what they need from the system.
for unit in {basic,multi-user,network-online,shutdown,sysinit}.target system.slice; do
  printf '[Unit]\nDescription=%s\n' "$unit" >"$R/usr/lib/systemd/system/$unit"
done
install -m 0755 /dev/null "$R/usr/bin/kill"
for unit in crio kubelet kube-scheduler-layerlocality; do
  check "systemd-analyze verify $unit.service says nothing" quietly systemd-analyze --root="$R" --man=no verify "$unit.service"
done
score() { systemd-analyze security --root="$R" --offline=true --threshold=15 kube-scheduler-layerlocality.service >"$T/score"; }
check "the scheduler's unit is hardened: exposure of at most 1.5 of 10" score
sed -n 's/^.*\(Overall exposure.*\)/    \1/p' "$T/score"
skipped "how systemd merges kubelet.service with kubeadm's drop-in" "no systemd runs here"

#--- Upgrade from a distribution's packages, and ways back.

use base
R=$(root upgrade)
check "upgrade: a distribution's cri-o, kubelet and kubeadm" dnf_in "$R" install cri-o kubelet kubeadm
check "upgrade: they are stock" each stock "$R/usr/bin/crio" "$R/usr/bin/kubelet"
before=$(installed "$R" cri-o kubelet)
echo '# mine' >>"$R/etc/crio/crio.conf"
echo 'KUBELET_EXTRA_ARGS=--v=3' >"$R/etc/sysconfig/kubelet"
use base repo
check "upgrade: dnf upgrades them to ours" dnf_in "$R" upgrade
for name in cri-o kubelet; do
  check "upgrade: $name is ours" test "$(installed "$R" "$name")" = "$name-$(version_of "$name")-$release"
done
check "upgrade: an edited crio.conf stays" has '^# mine$' "$R/etc/crio/crio.conf"
check "upgrade: ours lies beside it" has 'crio config' "$R/etc/crio/crio.conf.rpmnew"
check "upgrade: an edited sysconfig stays" has '--v=3' "$R/etc/sysconfig/kubelet"
check "upgrade: a file nobody edited is ours" has 'unix:///run/crio/crio.sock' "$R/etc/crictl.yaml"
last() { find "$R/usr/lib/systemd/system/kubelet.service.d" -name '*.conf' -printf '%f\n' | sort | tail -n 1; }
check "upgrade: our drop-in comes after kubeadm's" test "$(last)" = 20-image-layers.conf
variables() { # both set the same variable, and ours keeps what kubeadm's says
  local theirs ours
  theirs=$(sed -n 's/^Environment="KUBELET_CONFIG_ARGS=\(.*\)"$/\1/p' "$R/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf")
  ours=$(sed -n 's/^Environment="KUBELET_CONFIG_ARGS=\(.*\)"$/\1/p' "$R/usr/lib/systemd/system/kubelet.service.d/20-image-layers.conf")
  test -n "$theirs" && test "$ours" = "$theirs --config-dir=/etc/kubernetes/kubelet.conf.d"
}
check "upgrade: our drop-in adds the folder to kubeadm's arguments" variables
echo '# mine' >>"$R/etc/kubernetes/kubelet.conf.d/20-image-layers.conf"
# plugins_stay PLUGIN: what the replaced packages required, and ours only recommend, is
# not removed as unused.
plugins_stay() { dnf_in "$R" autoremove && test -x "$R$1"; }
check "upgrade: dnf autoremove keeps the CNI plugins that their kubelet required" plugins_stay /opt/cni/bin/bridge
# A later version is there, too.
use base repo later
# shellcheck disable=SC2086 # two packages
check "downgrade: dnf goes back to what was installed before" dnf_in "$R" --disablerepo=repo install $before
check "downgrade: they are those of before" test "$(installed "$R" cri-o kubelet)" = "$before"
check "downgrade: they are stock" each stock "$R/usr/bin/crio" "$R/usr/bin/kubelet"
check "downgrade: an edited crio.conf stays" has '^# mine$' "$R/etc/crio/crio.conf"
check "downgrade: the stock kubelet is given no gate" test ! -e "$R/etc/kubernetes/kubelet.conf.d/20-image-layers.conf"
check "downgrade: nor the folder" test ! -e "$R/usr/lib/systemd/system/kubelet.service.d/20-image-layers.conf"
check "downgrade: what was edited of ours is kept aside" has '^# mine$' "$R/etc/kubernetes/kubelet.conf.d/20-image-layers.conf.rpmsave"
check "downgrade: nothing of ours is left in crio.conf.d" test -z "$(ls -A "$R/etc/crio/crio.conf.d" 2>/dev/null)"

# Fedora's own packages have other names.
use base
R=$(root fedora)
check "Fedora's own: cri-o1.36, kubernetes1.36 and its kubeadm" dnf_in "$R" install cri-o1.36 kubernetes1.36 kubernetes1.36-kubeadm
rm "$R/calls"
use base repo
check "Fedora's own: dnf replaces them" dnf_in "$R" --best --allowerasing install cri-o kubelet kubeadm
check "Fedora's own: it is ours" test "$(installed "$R" cri-o kubelet)" = "cri-o-$crio-$release
kubelet-$kubernetes-$release"
check "Fedora's own: they are gone" fails 'not installed' rpm_in "$R" -q cri-o1.36
check "Fedora's own: dnf autoremove keeps the CNI plugins" plugins_stay /usr/libexec/cni/bridge
# This is why the guide enables the services again.
disabled_last() { grep "system-units $1.service" "$R/calls" | tail -n 1 | grep remove-system-units; }
for unit in crio kubelet; do
  check "Fedora's own: its scriptlet disables $unit.service after ours has enabled it" disabled_last "$unit"
done
check "Fedora's own: dnf goes back with kubeadm and the kubelet" \
  dnf_in "$R" --disablerepo=repo swap kubeadm kubernetes1.36-kubeadm --allowerasing
check "Fedora's own: dnf goes back with cri-o" dnf_in "$R" --disablerepo=repo swap cri-o cri-o1.36
check "Fedora's own: they are back" rpm_in "$R" -q cri-o1.36 kubernetes1.36 kubernetes1.36-kubeadm
check "Fedora's own: they are stock" each stock "$R/usr/bin/crio" "$R/usr/bin/kubelet"

use base repo
R=$(root restart)
dnf_in "$R" install "${ours[@]}" >/dev/null
rm "$R/calls"
use base repo later
check "a later release of ours is an upgrade" dnf_in "$R" upgrade
for unit in crio kubelet kube-scheduler-layerlocality; do
  check "upgrade of ours: $unit.service is restarted" has "^systemd-update-helper mark-restart-system-units $unit.service\$" "$R/calls"
done
check "upgrade of ours: nothing is disabled or enabled" hasnt '\(install\|remove\)-system-units' "$R/calls"

use base repo
R=$(root remove)
find_all() { (cd "$R" && find etc usr ! -type d | sort); }
dnf_in "$R" install systemd base >/dev/null
find_all >"$T/before"
dnf_in "$R" install "${ours[@]}" >/dev/null
echo '# mine' >>"$R/etc/kubernetes/kubelet.conf.d/20-image-layers.conf"
rm "$R/calls"
check "removal: dnf removes ours" dnf_in "$R" --setopt=clean_requirements_on_remove=False remove "${ours[@]}"
for unit in crio kubelet kube-scheduler-layerlocality; do
  check "removal: $unit.service is stopped and disabled" has "^systemd-update-helper remove-system-units $unit.service\$" "$R/calls"
done
check "removal: all files are gone, but an edited one is kept aside" \
  diff <({ cat "$T/before" && echo etc/kubernetes/kubelet.conf.d/20-image-layers.conf.rpmsave; } | sort) <(find_all)

#--- Versions of others.

use base repo,priority=50 upstream
R=$(root priority)
check "priority: ours is chosen before a higher release of another repository" dnf_in "$R" install cri-o kubelet
check "priority: it is ours" test "$(installed "$R" kubelet)" = "kubelet-$kubernetes-$release"
check "priority: and stays at an upgrade" dnf_in "$R" upgrade
check "priority: it is still ours" test "$(installed "$R" kubelet)" = "kubelet-$kubernetes-$release"
use base upstream
R=$(root sync)
dnf_in "$R" install cri-o kubelet >/dev/null
use base repo,priority=50 upstream
check "from Kubernetes' own packages: an exclude= keeps them" dnf_in "$R" --exclude=kubelet distro-sync cri-o kubelet
check "from Kubernetes' own packages: they are still theirs" test "$(installed "$R" kubelet)" = "kubelet-$kubernetes-150500.1.1"
check "from Kubernetes' own packages: distro-sync takes ours" dnf_in "$R" --exclude=kubelet --disableexcludes=all distro-sync cri-o kubelet
check "from Kubernetes' own packages: it is ours" test "$(installed "$R" kubelet)" = "kubelet-$kubernetes-$release"
check "from Kubernetes' own packages: distro-sync goes back without our repository" \
  dnf_in "$R" --disablerepo=repo distro-sync cri-o kubelet
check "from Kubernetes' own packages: it is theirs" test "$(installed "$R" kubelet)" = "kubelet-$kubernetes-150500.1.1"

#--- OKD.

use base repo
R=$(root okd)
check "OKD: its own kubelet" dnf_in "$R" --disablerepo=repo install openshift-kubelet cri-o
dnf_in "$R" upgrade >/dev/null
check "OKD: cri-o of the distribution is lower than ours" test "$(installed "$R" cri-o)" = "cri-o-$crio-$release"
check "OKD: its kubelet has the version of the release, which is higher than ours" \
  test "$(installed "$R" openshift-kubelet)" = openshift-kubelet-5.0.0-202609210000.p0.el10
check "OKD: ours replaces it when asked for by version" dnf_in "$R" install "openshift-kubelet-$kubernetes-$release"
check "OKD: it is ours" test "$(installed "$R" openshift-kubelet)" = "openshift-kubelet-$kubernetes-$release"
check "OKD: rpm -V finds no difference" rpm_in "$R" -V --nodeps openshift-kubelet cri-o
check "OKD: kubelet says $ours_version" says "^Kubernetes $ours_version\$" chroot "$R" /usr/bin/kubelet --version
check "OKD: no unit of the kubelet" test ! -e "$R/usr/lib/systemd/system/kubelet.service"
okd_gates() {
  fails 'healthzPort' kubelet_reads "$R" /etc/openshift/kubelet.conf.d 'OpenShiftGate: true'
  has 'NodeStatusImageLayers' "$T/message" && has 'Passing over.*OpenShiftGate' "$T/message"
}
check "OKD: gates of other components are passed over, ours is on" okd_gates
check "OKD: a label that names the role is taken" fails 'healthzPort' \
  kubelet_reads "$R" /etc/openshift/kubelet.conf.d '' --node-labels=node-role.kubernetes.io/worker
check "OKD: other labels of Kubernetes are not" fails 'unknown .*labels' \
  kubelet_reads "$R" /etc/openshift/kubelet.conf.d '' --node-labels=kubernetes.io/mine=1
check "OKD: kubelet and openshift-kubelet exclude each other" fails 'conflict' dnf_in "$R" install "kubelet-$kubernetes-$release"

#--- Signatures.

signed="gpgcheck=1,repo_gpgcheck=1,gpgkey=file://$REPO/RPM-GPG-KEY-layer-locality"
use base "repo,$signed"
R=$(root signed)
check "signed: packages and metadata are verified and installed" dnf_in "$R" install cri-o
tampered() { # NAME: a copy of the repository
  rm -rf "${T:?}/$1"
  cp -r "$REPO" "$T/$1"
  use base "$1,gpgcheck=1,gpgkey=file://$REPO/RPM-GPG-KEY-layer-locality"
}
tampered unsigned
rpmsign --define "_dbpath $T/db" --delsign "$T/unsigned/$arch/"cri-o-*.rpm >/dev/null 2>&1
createrepo_c -q "$T/unsigned"
check "signed: a package without signature is refused" fails 'not signed' dnf_in "$(root unsigned)" install cri-o
tampered foreign
rpmsign --define "_dbpath $T/db" --define '_gpg_name else@example.com' --define "__gpg $(command -v gpg)" --addsign "$T/foreign/$arch/"cri-o-*.rpm >/dev/null 2>&1
createrepo_c -q "$T/foreign"
check "signed: a package that somebody else signed is refused" fails 'not correct\|public key\|GPG' dnf_in "$(root foreign)" install cri-o
tampered flipped
size=$(stat -c %s "$(file_of cri-o)")
printf 'tampered' | dd of="$T/flipped/$arch/$(basename "$(file_of cri-o)")" bs=1 seek=$((size - 100000)) conv=notrunc status=none
createrepo_c -q "$T/flipped"
check "signed: a package with changed content is refused" fails 'digest\|GPG\|signature' dnf_in "$(root flipped)" install cri-o
tampered metadata
sed -i 's/<revision>/<revision>9/' "$T/metadata/repodata/repomd.xml"
use base "metadata,$signed"
check "signed: changed metadata is refused" fails 'GPG\|repomd\|signature' dnf_in "$(root metadata)" install cri-o
for option in gpgcheck repo_gpgcheck; do
  check "signed: the .repo file has $option on" each "$option=1" "$REPO/layer-locality.repo"
done
public_keys() { gpg --batch --with-colons --show-keys "$REPO/RPM-GPG-KEY-layer-locality" | grep -c '^pub:'; }
check "signed: one public key is there" test "$(public_keys)" = 1
check "the folder of the repository is readable for everybody" test "$(stat -c %a "$REPO")" = 755
no_scratch() { test "$(find "$T" -maxdepth 1 -name 'repo*' | sort)" = "$T/repo
$T/repos"; }
check "rpms.sh leaves nothing beside it" no_scratch

#--- What rpms.sh refuses.

mkdir "$T/bin"
ln -s /usr/bin/* /usr/sbin/* "$T/bin/" 2>/dev/null || true
rm -f "$T/bin/rpmbuild"
without() { env PATH="$T/bin:$(dirname "$(command -v go)")" "$@"; }
check "without rpmbuild: a message that names the package to install" fails 'rpmbuild is missing: install rpm' without "$ROOT/rpm/rpms.sh"
rm -f "$T/bin/apt-get"
check "install-deps.sh with dnf alone: it names Fedora's macros of systemd for RPMs" \
  fails 'dnf install .* systemd-rpm-macros' without "$ROOT/scripts/install-deps.sh" --check rpm
# As on a machine of the other architecture: the cross compiler for this one is surely not here.
case $arch in
x86_64) other=(aarch64 arm64) ;;
*) other=(x86_64 amd64) ;;
esac
rm -f "$T/bin/uname" # a link
printf '#!/bin/sh\necho %s\n' "${other[0]}" >"$T/bin/uname"
chmod +x "$T/bin/uname"
check "and says how to make a release for the machine's own architecture" \
  fails "make release PLATFORM=linux/${other[1]}" without "$ROOT/scripts/install-deps.sh" --check cross
check "unknown package" fails "unknown package 'etcd'" "$ROOT/rpm/rpms.sh" etcd
check "unknown architecture" fails "unknown architecture 'riscv64'" "$ROOT/rpm/rpms.sh" --arch riscv64
check "unknown key" fails "no secret key 'nobody@example.com'" "$ROOT/rpm/rpms.sh" --sign nobody@example.com
gpg --batch --quiet --passphrase '' --quick-generate-key 'Namesake <else@example.com>' rsa2048 sign 1d
check "a name of two keys" fails '2 secret keys .else@example.com.: give the fingerprint' "$ROOT/rpm/rpms.sh" --sign else@example.com
check "a date that is none" fails "not a number" env SOURCE_DATE_EPOCH=yesterday "$ROOT/rpm/rpms.sh" --output "$T/nowhere" cri-o
check "a folder that holds something else" fails 'is no repository' "$ROOT/rpm/rpms.sh" --output "$T/bin" cri-o

database_untouched() { machine_packages | same "$T/machine"; }
check "the machine's own package database was left alone" database_untouched

#--- The same again from the source packages.

# The identity of a package, whoever signed it: its header, which has the digests of
# all files.
digest() { rpmq -qp --qf '%{SHA256HEADER} ' "$1" 2>/dev/null; }
rebuild() {
  local name=$1 again=$T/rebuild/$1
  # Without network, elsewhere.
  unshare --net rpmbuild --rebuild --define "_topdir $again" --define "_dbpath $again/db" --define "_tmppath $T/tmp" \
    "$(source_of "$name")" >"$T/rebuild.log" 2>&1 || { tail -n 40 "$T/rebuild.log" && false; }
  rpmq -qp --qf '[%{FILEDIGESTS} %{FILENAMES}\n]' "$again/RPMS/$arch/"*.rpm >"$T/again"
  rpmq -qp --qf '[%{FILEDIGESTS} %{FILENAMES}\n]' "$(file_of "$name")" 2>/dev/null | diff - "$T/again"
  test "$(digest "$(file_of "$name")")" = "$(digest "$again/RPMS/$arch/"*.rpm)" || { echo "same files, another header" && false; }
}
# unpacks NAME: prepares the source package without network: what it needs is in it.
unpacks() {
  unshare --net rpmbuild -rp --define "_topdir $T/rebuild" --define "_dbpath $T/db" --define "_tmppath $T/tmp" "$(source_of "$1")"
}
for name in "${ours[@]}"; do
  if [ -z "${FULL:-}" ]; then
    check "$name: the source package unpacks and is patched without network" unpacks "$name"
    rm -rf "$T/rebuild"
    skipped "$name: rebuilt from its source package it is the same, byte by byte" "takes minutes: make test-all"
    continue
  fi
  known=$CACHE/rpms/rebuilt-$(echo "$(digest "$(source_of "$name")")$(digest "$(file_of "$name")") $(go version)" | sha256sum | cut -c1-16)
  if [ -e "$known" ]; then
    touch "$known"
    skipped "$name: rebuilt from its source package it is the same, byte by byte" "checked earlier with the same inputs"
    continue
  fi
  before=$CHECKS_FAILED
  check "$name: rebuilt from its source package without network it is the same, byte by byte" rebuild "$name"
  [ "$CHECKS_FAILED" != "$before" ] || touch "$known"
  rm -rf "$T/rebuild"
done
skipped "packages for another architecture" "compiling everything again takes many minutes: rpms.sh --arch"
skipped "a build with exactly the packages that install-deps.sh installs on Fedora" "no repository of Fedora here: checked file by file"
skipped "mock, and installation on Fedora or Enterprise Linux" "none here"
finish

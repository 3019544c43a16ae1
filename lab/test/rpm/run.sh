#!/usr/bin/env bash
# Tests the RPMs: builds them (rpm/rpms.sh), checks their contents, follows docs/install-rpm.md
# on nodes with dnf 4 and dnf 5 (nodes.sh), installs, upgrades and removes them in other root
# folders, and with FULL=1 rebuilds the source packages. The machine's package database is not
# touched.
#
#   run.sh
#
# Needs root (dnf --installroot changes its root). Prints one line per check; the
# last line counts them.
. "$(dirname "$0")/../../../scripts/lib.sh"
HERE=$ROOT/lab/test/rpm

[ "$(id -u)" = 0 ] || die "dnf --installroot changes its root directory: run as root"
for tool in rpmbuild rpmsign rpmlint createrepo_c debootstrap dnf zstd gpg busybox readelf systemd-analyze; do
  command -v "$tool" >/dev/null || die "$tool is missing: run scripts/install-deps.sh rpm"
done
. "$ROOT/lab/test/checks.sh"
. "$HERE/fedora.sh"
T=$WORK
. "$HERE/nodes.sh"
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

# root NAME: makes a root for dnf, with a shell for scriptlets.
root() {
  mkdir -p "$T/roots/$1"/{bin,dev}
  cp "$(type -P busybox)" "$T/roots/$1/bin/sh"
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
PACKAGES=(cri-o kubelet openshift-kubelet)
version_of() { if [ "$1" = cri-o ]; then echo "$crio"; else echo "$kubernetes"; fi; }
file_of() { echo "$REPO/$arch/$1-$(version_of "$1")-$release.$arch.rpm"; }
source_of() { echo "$REPO/SRPMS/$1-$(version_of "$1")-$release.src.rpm"; }

#--- Building.

# The page's commands, in a folder that looks like a clone. What they would ask is answered.
mkdir -p "$T/clone/rpm"
printf '#!/bin/sh\nexec %s --output %s "$@"\n' "$ROOT/rpm/rpms.sh" "$T/clone/_out/rpms" >"$T/clone/rpm/rpms.sh"
chmod +x "$T/clone/rpm/rpms.sh"
printf '%s\n' batch 'pinentry-mode loopback' "passphrase ''" >"$GNUPGHOME/gpg.conf"
# Fedora's list is compared with the specs below.
# shellcheck disable=SC2016 # a variable of that shell
in_clone() { env -C "$T/clone" HOME="$T/home" GOENV="$(go env GOENV)" GOPATH="$(go env GOPATH)" GOCACHE="$(go env GOCACHE)" LAYERLOCALITY_CACHE="$CACHE" bash -ec '
  apt-get() { command apt-get -y --no-upgrade --no-download "$@"; }
  dnf() { :; }
  eval "$1"' - "$1"; }
gpg --batch --quiet --passphrase '' --quick-generate-key 'Somebody else <else@example.com>' rsa2048 sign 1d
check "the page: nothing is missing to build" follow '^# apt-get install rpm' in_clone
check "the page: rpms.sh builds all packages" follow '^\$ rpm/rpms.sh$' in_clone
check "the page: and signs them" follow 'quick-generate-key' in_clone
ln -s clone/_out/rpms "$T/repo"
REPO=$T/repo
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
# bundled NAME BINARY: checks that the package says of each module that is linked in that it is bundled, in its version.
bundled() {
  rpm2archive - <"$(file_of "$1")" 2>/dev/null | tar -xz -C "$T/tmp" "./usr/bin/$2"
  # A line "=>" is what replaces the module of the line before.
  go version -m "$T/tmp/usr/bin/$2" | awk '$1 == "dep" || $1 == "=>" { if ($1 == "dep") print last; last = $2 " " $3 } END { print last }' |
    awk '$2 ~ /^v/ && $1 !~ /^\./ { gsub("-", "~", $2); print "bundled(golang(" $1 ")) = " substr($2, 2) }' | sort >"$T/modules"
  rm -r "$T/tmp/usr"
  test -s "$T/modules"
  rpmq -qp --provides "$(file_of "$1")" 2>/dev/null | grep '^bundled' | sort | diff "$T/modules" -
}
check "cri-o provides bundled(golang(MODULE)) for what is linked in" bundled cri-o crio
check "kubelet too" bundled kubelet kubelet
check "openshift-kubelet too" bundled openshift-kubelet kubelet
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
  build_requires "$crio_spec" --define 'fedora 43' >"$T/build-requires"
  each glibc-static "$T/build-requires" && each libseccomp-static "$T/build-requires"
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
  mapfile -t packages < <(grep -vx zstd "$T/build-requires")
  fedora_home "$T/fedora-home" "${packages[@]}"
  fails 'zstd is needed by' env HOME="$T/fedora-home" GOENV="$(go env GOENV)" GOPATH="$(go env GOPATH)" GOCACHE="$(go env GOCACHE)" \
    LAYERLOCALITY_CACHE="$CACHE" SOURCE_DATE_EPOCH=1577836800 "$ROOT/rpm/rpms.sh" --output "$T/nowhere" cri-o
  ! grep ' is needed by ' "$T/message" | grep -v zstd
}
check "on Fedora rpms.sh looks for what the specs ask for among the system's packages" asks_the_system
guide() { # git has git-core
  sed -n 's/^# dnf install \(rpm-build .*[^ ]\) *# Fedora$/\1/p' "$ROOT/docs/install-rpm.md" | tr -s ' ' '\n' | sed 's/^git$/git-core/' | sort >"$T/guide"
  test -s "$T/guide"
  test -z "$(comm -23 "$T/build-requires" "$T/guide" | tee /dev/stderr)"
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
check "cri-o: so does the spec" names "$T/build-requires" "$T/needed"
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

#--- Repositories of others.

stubs() { # NAME FROM [DEFINE...]
  local name=$1 from=$2
  shift 2
  HOME=$T/home rpmbuild -bb --define "_topdir $T/stubs" --define "_dbpath $T/stubs/db" --define "_tmppath $T/tmp" \
    --define "_rpmdir $T/$name" --define "from $from" "$@" "$HERE/stubs.spec"
  createrepo_c -q "$T/$name"
}
for name in base fedora okd; do check "stand-ins: repository $name" stubs "$name" "$name"; done
same_versions=(--define "crio_version $crio" --define "kubernetes_version $kubernetes")
k8s() { stubs k8s k8s --define "stub_release 150500.1.1" && stubs k8s k8s "${same_versions[@]}" --define "stub_release 150500.1.1"; }
check "stand-ins: repository of pkgs.k8s.io, with an earlier version and that of ours in a higher release" k8s
check "stand-ins: later releases of our packages" stubs later k8s "${same_versions[@]}" --define "stub_release 101"

#--- Fresh installation.

use base repo
R=$(root fresh)
ours=(cri-o kubelet)
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
for binary in crio pinns kubelet; do
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

# Units, with what they need from the system.
for unit in {basic,multi-user,network-online,shutdown,sysinit}.target system.slice; do
  printf '[Unit]\nDescription=%s\n' "$unit" >"$R/usr/lib/systemd/system/$unit"
done
install -m 0755 /dev/null "$R/usr/bin/kill"
for unit in crio crio-wipe kubelet; do
  check "systemd-analyze verify $unit.service says nothing" quietly systemd-analyze --root="$R" --man=no verify "$unit.service"
done
skipped "how systemd merges kubelet.service with kubeadm's drop-in" "no systemd runs here"

#--- Upgrade from packages of others, and ways back: docs/install-rpm.md, step by step.

# rpm_on NODE ARGS...
rpm_on() { in_node "$1" rpm "${@:2}"; }
# following NODE PATTERN: follows this block there. Where a repository has exclude=, dnf gets the option that
# the page names for its version.
following() {
  local options=''
  [ ! -e "$T/nodes/$1/options" ] || options=$(cat "$T/nodes/$1/options")
  follow "$2" in_node "$1" bash -o pipefail -ec "dnf() { command dnf $options \"\$@\"; }
eval \"\$1\"" -
}
are_ours() {
  test "$(rpm_on "$1" -q --qf '%{NAME}-%{VERSION}-%{RELEASE}\n' cri-o kubelet)" = "cri-o-$crio-$release
kubelet-$kubernetes-$release"
}
# from_repository NODE FILE... NAME: checks that the files are of that repository.
from_repository() {
  local file
  for file in "${@:2:$#-2}"; do
    in_node "$1" grep -qx "# ${*: -1}" "$file" || { echo "$file is not of ${*: -1}" && return 1; }
  done
}
# expected_losses NAME COMMAND...: checks what of $T/files/NAME, which the former cri-o had, is no longer there for
# COMMAND: cri-o.lost has the path and the reason.
expected_losses() {
  # shellcheck disable=SC2016 # variables of that shell
  "${@:2}" sh -c 'while read -r file; do [ -e "$file" ] || echo "$file"; done' <"$T/files/$1" >"$T/lost/$1"
  cut -d' ' -f1 "$HERE/cri-o.lost" >"$T/reasons"
  ! grep -vxF -f "$T/reasons" "$T/lost/$1" || { echo "^ lost, and cri-o.lost has no reason" && false; }
}
mkdir "$T/files" "$T/lost"
no_trace() { # of ours
  in_node "$1" sh -c 'ls /etc/kubernetes/kubelet.conf.d/20-image-layers.conf /usr/lib/systemd/system/kubelet.service.d/20-image-layers.conf /etc/yum.repos.d/layer-locality.repo' >"$T/trace" 2>/dev/null || true
  hasnt . "$T/trace"
}

sid=$(node_base sid rpm dnf5 jq)
bookworm=$(node_base bookworm rpm dnf jq)
[ -e "$sid/usr/bin/dnf" ] || ln -s dnf5 "$sid/usr/bin/dnf"
each_option() { grep -o -e "--setopt=disable_excludes='[*]'" -e '--disableexcludes=all' "$PAGE" | sort -u; }
check "the page has the options for exclude=" test "$(each_option | wc -l)" = 2

for dnf in dnf4 dnf5; do
  case $dnf in dnf4) base=$bookworm option=--disableexcludes ;; *) base=$sid option=disable_excludes ;; esac
  for from in k8s fedora; do
    node=$dnf-$from
    new_node "$node" "$base"
    node_repository "$node" base
    node_repository "$node" k8s
    sed "s,https://packages.example.com/layer-locality/,file:///repos/clone/_out/rpms/," "$REPO/layer-locality.repo" >"$T/layer-locality.repo"
    [ "$from" = fedora ] || {
      echo 'exclude=cri-o kubelet kubeadm' >>"$T/nodes/$node/upper/etc/dnf/dnf.conf"
      each_option | grep -e "$option" >"$T/nodes/$node/options"
    }
  done
  in_node "$node" sh -c 'rpm --version; dnf --version | head -n 2' | sed "s/^/    $dnf: /"

  # From pkgs.k8s.io, an earlier version.
  node=$dnf-k8s
  dnf_on() { in_node "$node" dnf "$@"; }
  check "$node: packages of pkgs.k8s.io" eval "dnf_on $(cat "$T/nodes/$node/options") install cri-o-1.36.1 kubelet-1.36.2 kubeadm-1.36.2"
  check "$node: they are" from_repository "$node" /usr/bin/crio /usr/bin/kubelet k8s
  former=$(rpm_on "$node" -q cri-o kubelet)
  rpm_on "$node" -ql cri-o >"$T/files/$node"
  in_node "$node" sh -c 'echo "# mine" >>/etc/crio/crio.conf.d/10-crio.conf; echo KUBELET_EXTRA_ARGS=--v=3 >/etc/sysconfig/kubelet'
  cp "$T/layer-locality.repo" "$T/nodes/$node/upper/etc/yum.repos.d/"
  # The option is needed.
  dnf_on distro-sync cri-o kubelet >"$T/excluded" 2>&1 || true
  check "$node: without the page's option, exclude= keeps theirs" test "$(rpm_on "$node" -q cri-o kubelet)" = "$former"
  check "$node: drain" following "$node" 'kubectl drain'
  check "$node: the packages are replaced" following "$node" 'distro-sync cri-o kubelet'
  check "$node: they are ours" are_ours "$node"
  check "$node: an edited 10-crio.conf is kept" in_node "$node" grep -qx '# mine' /var/tmp/10-crio.conf
  check "$node: an edited sysconfig stays" in_node "$node" grep -qx 'KUBELET_EXTRA_ARGS=--v=3' /etc/sysconfig/kubelet
  check "$node: a file nobody edited is ours" in_node "$node" grep -q unix:///run/crio/crio.sock /etc/crictl.yaml
  check "$node: what is lost of the former cri-o is known" expected_losses "$node" in_node "$node"
  in_node "$node" sh -c 'ls /usr/lib/systemd/system/kubelet.service.d' >"$T/dropins"
  check "$node: our drop-in comes after kubeadm's" test "$(tail -n 1 "$T/dropins")" = 20-image-layers.conf
  variables() { # both set the same variable, and ours keeps what kubeadm's says
    local name
    for name in 10-kubeadm 20-image-layers; do
      in_node "$node" sed -n 's/^Environment="KUBELET_CONFIG_ARGS=\(.*\)"$/\1/p' "/usr/lib/systemd/system/kubelet.service.d/$name.conf" >"$T/$name"
    done
    test -s "$T/10-kubeadm" && test "$(cat "$T/20-image-layers")" = "$(cat "$T/10-kubeadm") --config-dir=/etc/kubernetes/kubelet.conf.d"
  }
  check "$node: our drop-in adds the folder to kubeadm's arguments" variables
  check "$node: restart" following "$node" 'kubectl uncordon NODE$'
  check "$node: the page's output" following "$node" 'crio --version'
  check "$node: dnf autoremove" eval "dnf_on $(cat "$T/nodes/$node/options") autoremove"
  check "$node: keeps the CNI plugins that their kubelet required" in_node "$node" test -x /opt/cni/bin/bridge
  check "$node: an upgrade keeps ours, despite higher releases" eval "dnf_on $(cat "$T/nodes/$node/options") upgrade"
  check "$node: they are ours" are_ours "$node"
  check "$node: back: layers out of the Node" following "$node" 'NodeStatusImageLayers: false'
  check "$node: back: packages" following "$node" 'before-layer-locality)'
  check "$node: back: restart" following "$node" 'kubectl uncordon NODE$'
  check "$node: back: repository and label" following "$node" 'layerlocality.io/joins-downloads-'
  check "$node: back: the former versions" test "$(rpm_on "$node" -q cri-o kubelet)" = "$former"
  check "$node: back: their files" from_repository "$node" /usr/bin/crio /usr/bin/kubelet /usr/lib/systemd/system/kubelet.service k8s
  check "$node: back: rpm -V finds no difference" rpm_on "$node" -V --nodeps cri-o kubeadm
  check "$node: back: nothing of ours but what was edited" no_trace "$node"

  # Fedora's own, while pkgs.k8s.io is there as the page asks.
  node=$dnf-fedora
  node_repository "$node" fedora
  check "$node: packages of Fedora" dnf_on install cri-o1.36 kubernetes1.36 kubernetes1.36-kubeadm
  rpm_on "$node" -ql cri-o1.36 >"$T/files/$node"
  in_node "$node" sh -c "echo '# mine' >>/etc/crio/crio.conf"
  in_node "$node" rm /calls
  cp "$T/layer-locality.repo" "$T/nodes/$node/upper/etc/yum.repos.d/"
  check "$node: the packages are replaced" following "$node" 'allowerasing cri-o kubelet kubeadm'
  check "$node: they are ours" are_ours "$node"
  check "$node: an edited crio.conf stays" in_node "$node" grep -qx '# mine' /etc/crio/crio.conf
  check "$node: ours is beside it" in_node "$node" grep -q 'crio config' /etc/crio/crio.conf.rpmnew
  check "$node: what is lost of the former cri-o is known" expected_losses "$node" in_node "$node"
  in_node "$node" cat /calls >"$T/calls"
  # This is why the page enables the services again.
  disabled_last() { grep "system-units $1.service" "$T/calls" | tail -n 1 | grep remove-system-units; }
  for unit in crio kubelet; do
    check "$node: its scriptlet disables $unit.service after ours has enabled it" disabled_last "$unit"
  done
  check "$node: restart" following "$node" 'kubectl uncordon NODE$'
  check "$node: dnf autoremove" dnf_on autoremove
  check "$node: keeps the CNI plugins" in_node "$node" test -x /usr/libexec/cni/bridge
  check "$node: back: layers out of the Node" following "$node" 'NodeStatusImageLayers: false'
  check "$node: back: packages" following "$node" 'swap kubelet kubernetes1.36-kubeadm'
  check "$node: back: restart" following "$node" 'kubectl uncordon NODE$'
  check "$node: back: repository and label" following "$node" 'layerlocality.io/joins-downloads-'
  for name in kubelet kubeadm cri-o; do
    check "$node: back: $name is gone" fails "$name is not installed" rpm_on "$node" -q "$name"
  done
  check "$node: back: their files" from_repository "$node" /usr/bin/crio /usr/bin/kubelet /usr/bin/kubeadm /usr/lib/systemd/system/kubelet.service fedora
  check "$node: back: rpm -V finds no difference" rpm_on "$node" -V --nodeps kubernetes1.36 kubernetes1.36-kubeadm
  check "$node: back: nothing of ours but what was edited" no_trace "$node"
done

use base repo
R=$(root restart)
dnf_in "$R" install "${ours[@]}" >/dev/null
rm "$R/calls"
use base repo later
check "a later release of ours is an upgrade" dnf_in "$R" upgrade
for unit in crio kubelet; do
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
for unit in crio kubelet; do
  check "removal: $unit.service is stopped and disabled" has "^systemd-update-helper remove-system-units $unit.service\$" "$R/calls"
done
check "removal: all files are gone, but an edited one is kept aside" \
  diff <({ cat "$T/before" && echo etc/kubernetes/kubelet.conf.d/20-image-layers.conf.rpmsave; } | sort) <(find_all)

#--- OKD.

use base okd repo
R=$(root okd)
check "OKD: its own kubelet" dnf_in "$R" --disablerepo=repo install openshift-kubelet cri-o
rpm_in "$R" -ql cri-o >"$T/files/okd"
dnf_in "$R" upgrade >/dev/null
check "OKD: cri-o of the distribution is lower than ours" test "$(installed "$R" cri-o)" = "cri-o-$crio-$release"
check "OKD: what is lost of its cri-o is known" expected_losses okd chroot "$R"
reasons_hold() { diff <(sort -u "$T"/lost/*) <(sort "$T/reasons"); }
check "each entry of cri-o.lost is lost somewhere" reasons_hold
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
check "the folder of the repository is readable for everybody" test "$(stat -Lc %a "$REPO")" = 755
no_scratch() { test "$(ls "$T/clone/_out")" = rpms; }
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
check "every block of commands of the page was followed" test -z "$(not_followed)"
skipped "packages for another architecture" "compiling everything again takes many minutes: rpms.sh --arch"
skipped "a build with exactly the packages that install-deps.sh installs on Fedora" "no repository of Fedora here: checked file by file"
skipped "mock, and installation on Fedora or Enterprise Linux" "none here"
finish

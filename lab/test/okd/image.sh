# Tests the image of nodes; sourced by run.sh.
# shellcheck shell=bash disable=SC2154

build_os() { okd-machine-os/build.sh --rpms "$work/rpms" "$@"; }
# package FORMAT NAME: queries our package.
package() { rpm -qp --nosignature --queryformat "$1" "$work/rpms/$(uname -m)/$2"-[0-9]*.rpm; }
in_result() { podman run --rm --network none "$@"; }

for tool in podman buildah; do
  for wrong in \
    "minor|Kubernetes 1\.35\.5, ours is ${KUBERNETES_VERSION#v}.*OKD release with Kubernetes ${MINOR}|another minor of Kubernetes" \
    "newer|Kubernetes 1\.36\.9, newer than ours|a newer Kubernetes" \
    "newer-crio|cri-o 1\.36\.9-.*, not older than ours|a newer cri-o: ours has the lower EVR" \
    "no-crio|openshift-kubelet 5\.0\.0-.* but no package cri-o|no package cri-o" \
    "no-kubelet|cri-o 1\.36\.2-.* but no package openshift-kubelet|no package openshift-kubelet" \
    "no-rpm-ostree|CentOS Stream CoreOS has no rpm-ostree|no rpm-ostree" \
    "other|is not Fedora CoreOS|another system"; do
    IFS='|' read -r name message what <<<"$wrong"
    # With buildah one of them is enough, because the same script checks them.
    [ "$tool" = podman ] || [ "$name" = minor ] || continue
    refuses "$tool: base with $what is refused" "$message" build_os --tool "$tool" --base "localhost/base/$name"
  done
done
refuses "content in /var is refused" 'content in /var' build_os --base localhost/base/var
refuses "a base that does not exist" 'cannot pull .*nowhere' build_os --base "$registry/nowhere@sha256:$(printf '0%.0s' {1..64})"
mkdir -p "$work/empty/$(uname -m)"
refuses "no packages" 'no package cri-o' okd-machine-os/build.sh --rpms "$work/empty" --base localhost/base/okd:5.0
refuses "a folder without packages" 'run rpm/rpms.sh' okd-machine-os/build.sh --rpms "$work" --base localhost/base/okd:5.0

# Signed packages. The base is a wrong one, because it would be checked next.
signed() {
  (
    export GNUPGHOME=$work/gnupg
    mkdir -m 0700 "$GNUPGHOME"
    mkdir "$work/signed"
    trap 'gpgconf --kill all' EXIT
    cp -r "$work/rpms/$(uname -m)" "$work/signed/"
    gpg --batch --quiet --passphrase '' --quick-generate-key 'Layer Locality test <test@example.com>' rsa2048 sign 1d
    gpg --armor --export test@example.com >"$work/signed/RPM-GPG-KEY-layer-locality"
    rpmsign --define '_gpg_name test@example.com' --define "__gpg $(command -v gpg)" --addsign "$work/signed/$(uname -m)"/*.rpm
  )
}
check "packages are signed" signed
refuses "signed packages are taken" 'is not Fedora CoreOS' okd-machine-os/build.sh --rpms "$work/signed" --base localhost/base/other
cp "$work/rpms/$(uname -m)"/openshift-kubelet-*.rpm "$work/signed/$(uname -m)/"
refuses "one without a signature among them is not" 'not all packages of .* are signed' okd-machine-os/build.sh --rpms "$work/signed" --base localhost/base/other

check "OKD: the image is built, pushed, and so are the packages" \
  build_os --base localhost/base/okd:5.0 --image "$registry/own/os:5.0" --rpms-image "$registry/own/rpms:1" --push
grep "^$registry/" "$WORK/log" >"$work/images" || echo none >"$work/images"
os_image=$(sed -n 1p "$work/images") rpms_image=$(sed -n 2p "$work/images")
# is_there IMAGE@DIGEST: whether it is in the registry, under this digest.
is_there() { [ "$(skopeo inspect --tls-verify=false --raw "docker://$1" | sha256sum | cut -d' ' -f1)" = "${1##*:}" ]; }
check "OKD: what is printed is the digest in the registry" is_there "$os_image"
check "OKD: the image of packages is there by its digest" is_there "$rpms_image"
check "OKD: cri-o is ours" [ "$(in_result "$os_image" rpm -q --queryformat '%{EVR}' cri-o)" = "$(package '%{EVR}' cri-o)" ]
check "OKD: openshift-kubelet is ours, though OKD's has the higher version" \
  [ "$(in_result "$os_image" rpm -q --queryformat '%{EVR}' openshift-kubelet)" = "$(package '%{EVR}' openshift-kubelet)" ]
# prints MESSAGE COMMAND...
prints() {
  local out
  out=$("${@:2}" 2>&1) || return 1
  grep -q -e "$1" <<<"$out"
}
check "OKD: crio of the image runs" prints "^crio version ${CRIO_VERSION#v}" in_result "$os_image" crio --version
check "OKD: kubelet of the image runs" prints "^Kubernetes $KUBERNETES_VERSION+layerlocality" in_result "$os_image" kubelet --version
check "OKD: the gate is on in the kubelet's folder of drop-ins" \
  prints 'NodeStatusImageLayers: true' in_result "$os_image" cat /etc/openshift/kubelet.conf.d/20-image-layers.conf
check "OKD: no configuration of ours comes behind that of the Machine Config Operator" \
  [ "$(in_result "$os_image" sh -c 'find /etc/crio/crio.conf.d -name "[!0]*" -type f; echo end')" = end ]
check "OKD: nothing is left of the build" \
  [ "$(in_result "$os_image" sh -c 'find /var /run/layer-locality -type f; find / -xdev -name "*.rpm"; echo end' 2>/dev/null)" = end ]
refuses "OKD: an image with our packages is no base" 'not older than ours' build_os --base "$os_image"

check "Fedora CoreOS: the image is built with buildah" build_os --tool buildah --base localhost/base/fcos:5.0 --image localhost/own/fcos
check "Fedora CoreOS: crio runs" prints "^crio version ${CRIO_VERSION#v}" in_result localhost/own/fcos crio --version
check "Fedora CoreOS: kubelet runs" prints "^Kubernetes $KUBERNETES_VERSION+layerlocality" in_result localhost/own/fcos kubelet --version
check "Fedora CoreOS: rpm finds every file as packaged" in_result localhost/own/fcos rpm -V --nodeps cri-o kubelet
refuses "Fedora CoreOS: an image with our packages is no base" 'has cri-o .* already' build_os --base localhost/own/fcos

# As in a system that boots from it.
tree_of() {
  local container
  container=$(podman create "$1" true)
  podman export --output "$work/tree.tar" "$container"
  podman rm "$container" >/dev/null
  rm -rf "$work/tree"
  mkdir "$work/tree"
  tar -C "$work/tree" -xf "$work/tree.tar" --exclude './dev/*' --exclude 'dev/*'
  # ostree keeps the defaults of /etc there.
  mv "$work/tree/etc" "$work/tree/usr/etc"
}
# verify_units UNIT...: checks that systemd has no complaints about units of the
# tree, with its programs.
verify_units() {
  local unit
  mkdir -p "$work/units"
  for unit in "$@"; do
    sed "s,=/usr/bin/\(crio\|kubelet\),=$work/tree/usr/bin/\1," "$work/tree/usr/lib/systemd/system/$unit" >"$work/units/$unit"
  done
  (cd "$work/units" && systemd-analyze verify --man=no "${@/#/./}") >"$work/verify" 2>&1 && ! grep -F "$work/units" "$work/verify"
}
# deploy IMAGE: has the folder $work/machine boot the image next, as rpm-ostree does: with the files of /etc that were
# changed before. The kernel, without which nothing boots, is an empty file.
deploy() {
  tree_of "$1"
  mkdir -p "$work/tree/usr/lib/modules/0"
  : >"$work/tree/usr/lib/modules/0/vmlinuz"
  ostree --repo="$work/machine/ostree/repo" commit --branch=next --tree=dir="$work/tree" >/dev/null &&
    ostree admin --sysroot="$work/machine" deploy --os=os next >/dev/null
}
next() { echo "$work/machine/ostree/deploy/os/deploy/$(ostree --repo="$work/machine/ostree/repo" rev-parse next).0"; }
# edited: checks that the edits are in what boots next, as they were made.
edited() { [ "$(cat "$(next)/etc/hosts" "$(next)/etc/crio/crio.conf.d/99-own.conf")" = "edited
own" ]; }
in_etc() { (cd "$(next)/etc" && find . -type f | sort); }
# there_and_back BASE IMAGE
there_and_back() {
  local before there
  mkdir "$work/machine"
  { ostree admin --sysroot="$work/machine" init-fs "$work/machine" && ostree admin --sysroot="$work/machine" os-init os; } >/dev/null
  deploy "$1" || return 1
  echo edited >"$(next)/etc/hosts"
  mkdir -p "$(next)/etc/crio/crio.conf.d"
  echo own >"$(next)/etc/crio/crio.conf.d/99-own.conf"
  before=$(in_etc)
  deploy "$2" && edited || return 1
  there=$(comm -13 <(echo "$before") <(in_etc))
  echo "files in /etc that the image brings: $there"
  [ -n "$there" ] || return 1
  deploy "$1" && edited || return 1
  diff <(echo "$before") <(in_etc)
}
for system in okd fcos; do
  if [ "$system" = okd ]; then image=$os_image units=(crio.service); else image=localhost/own/fcos units=(crio.service kubelet.service); fi
  check "$system: from the base to the image and back, its files in /etc are gone, and edits stay" there_and_back "localhost/base/$system:5.0" "$image"
  chattr -i "$work"/machine/ostree/deploy/os/deploy/*.0 2>/dev/null || true # as ostree leaves them
  rm -rf "$work/machine"
  tree_of "$image"
  repository=$work/ostree-$system
  check "$system: ostree takes the tree" eval "ostree --repo='$repository' init --mode=archive && ostree --repo='$repository' commit --branch=os --tree=dir='$work/tree'"
  check "$system: crio and kubelet are in the commit, executable" \
    [ "$(ostree --repo="$repository" ls os /usr/bin/crio /usr/bin/kubelet | grep -c '^-00755 0 0')" = 2 ]
  check "$system: nothing but folders in /var of the commit" [ "$(ostree --repo="$repository" ls -R os /var | cut -c1 | sort -u)" = d ]
  check "$system: ostree fsck" ostree --repo="$repository" fsck
  rm -f "$(find "$repository/objects" -name '*.filez' | head -n 1)"
  refuses "$system: ostree fsck finds a missing file" 'missing|not found|No such file' ostree --repo="$repository" fsck
  rm -rf "$repository"
  check "$system: systemd takes the units" verify_units "${units[@]}"
done

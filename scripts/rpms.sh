#!/usr/bin/env bash
# Builds RPMs and source RPMs, and makes a dnf repository of them: _out/rpms.
#
#   rpms.sh [--arch x86_64|aarch64] [--sign KEYID] [PACKAGE...]
#
# PACKAGE: cri-o, kubelet, openshift-kubelet, kube-scheduler-layerlocality; without one,
# all. The repository holds the packages of this call.
# --arch: for that architecture; the machine's own is the default.
# --sign (or RPM_SIGN_KEY): signs packages and metadata with that key of gpg's keyring
# (GNUPGHOME) and puts its public half into the repository.
#
# Specs are rendered from rpm/*.spec, versions.env and patches/. A package is built once
# for its inputs; results are kept in $LAYERLOCALITY_CACHE/rpms. The date in a package is
# that of the last commit that touched its inputs, or SOURCE_DATE_EPOCH.
. "$(dirname "$0")/lib.sh"
shopt -s inherit_errexit

RPM=$ROOT/rpm
OUT=$ROOT/_out/rpms
WORK=$BUILD/rpm
ALL=(cri-o kubelet openshift-kubelet kube-scheduler-layerlocality)
# What overlay.sh needs, besides the overlays themselves.
SHARED=(LICENSE versions.env go.mod scripts/lib.sh scripts/overlay.sh)

component_of() { if [ "$1" = cri-o ]; then echo cri-o; else echo kubernetes; fi; }
spec_of() { echo "${1#openshift-}"; }

# patches_of PACKAGE: all it is built with, in order.
patches_of() {
  series "$(component_of "$1")"
  [ "$1" != openshift-kubelet ] || find "$RPM/kubelet/okd" -name '*.patch' | sort
}

# repository_files PACKAGE: files of this repository that land in its source, relative
# to the root.
repository_files() {
  local component overlay
  component=$(component_of "$1")
  overlay=$(overlay_of "$component") && overlay=${overlay% *}
  printf '%s\n' "${SHARED[@]}"
  overlay_files "$component" | sed "s,^\.,$overlay,"
  [ "$1" != kube-scheduler-layerlocality ] || scheduler_product_files
}

# package_files PACKAGE: units, configuration and the like.
package_files() {
  find "$RPM/$(spec_of "$1")" -maxdepth 1 -type f | sort
}

# scheduler_configuration: that of the static pod, with the kubeconfig where the
# service manager puts it.
scheduler_configuration() {
  local unit=kube-scheduler-layerlocality config
  config=$(sed -e "1s;.*;# Of $unit.service.;" \
    -e "s;^  kubeconfig: .*;  kubeconfig: /run/credentials/$unit.service/scheduler.conf;" \
    "$ROOT/deploy/scheduler/static-pod/config.yaml")
  grep -q "kubeconfig: /run/credentials" <<<"$config" || die "deploy/scheduler/static-pod/config.yaml names no kubeconfig"
  echo "$config"
}

# epoch PACKAGE: the date of its inputs.
epoch() {
  local paths
  if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
    echo "$SOURCE_DATE_EPOCH"
    return
  fi
  mapfile -t paths < <(
    repository_files "$1"
    patches_of "$1" | sed "s,^$ROOT/,,"
    package_files "$1" | sed "s,^$ROOT/,,"
    echo "rpm/$(spec_of "$1").spec"
    echo rpm/macros
  )
  git -C "$ROOT" log -1 --format=%ct -- "${paths[@]}" 2>/dev/null | grep . ||
    die "$ROOT is no git clone that knows when it was changed: set SOURCE_DATE_EPOCH"
}

# render PACKAGE: its spec.
render() {
  local name=$1 component patches date kubernetes=${KUBERNETES_VERSION#v} i=0 file module ldflags=""
  component=$(component_of "$name")
  mapfile -t patches < <(patches_of "$name" | xargs -n 1 basename)
  date=$(date -u -d "@$(epoch "$name")" '+%a %b %d %Y') || die "SOURCE_DATE_EPOCH is not a number of seconds: '$SOURCE_DATE_EPOCH'"
  for module in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $module.gitVersion=v$kubernetes+layerlocality.$LAYERLOCALITY_REVISION -X $module.gitMajor=1"
    ldflags+=" -X $module.gitMinor=$(echo "$kubernetes" | cut -d. -f2) -X $module.gitTreeState=clean"
  done
  while IFS= read -r line; do
    case $line in
    @PINS@)
      echo "%global layerlocality_revision $LAYERLOCALITY_REVISION"
      echo "%global go_minimum $(sed -n 's/^go //p' "$("$ROOT/scripts/tree.sh" vendored "$component")/go.mod")"
      case $component in
      cri-o)
        echo "%global crio_version ${CRIO_VERSION#v}"
        echo "%global crio_tags $CRIO_TAGS"
        echo "%global crio_ldflags $CRIO_LDFLAGS"
        ;;
      kubernetes)
        echo "%global kubernetes_version $kubernetes"
        echo "%global kubernetes_minor ${kubernetes%.*}"
        echo "%global version_ldflags${ldflags}"
        echo "%global scheduler_tags $SCHEDULER_TAGS"
        ;;
      esac
      echo "%global patchfiles ${patches[*]}"
      ;;
    @OKD@) if [ "$name" = openshift-kubelet ]; then echo "%bcond_without okd"; else echo "%bcond_with okd"; fi ;;
    @MACROS@) cat "$RPM/macros" ;;
    @PATCHES@) for file in "${patches[@]}"; do printf 'Patch%-10s %s\n' "$((++i)):" "$file"; done ;;
    @CHANGELOG@)
      echo "* $date Layer Locality <packages@layerlocality.io> - $(version_of "$name")-$(release)"
      echo "- Built from $component $(pinned_version "$component") with ${#patches[@]} patches."
      ;;
    *) printf '%s\n' "${line//@RELEASE@/$(release)}" ;;
    esac
  done <"$RPM/$(spec_of "$name").spec"
}

# Higher than any distribution's release of the same version.
release() { echo "100.layers$LAYERLOCALITY_REVISION"; }
version_of() {
  local version
  version=$(pinned_version "$(component_of "$1")")
  echo "${version#v}"
}

# archive FOLDER NAME DATE OUTPUT [FILE...]: FOLDER, or these files of it, as a tarball
# below NAME/ that depends on their content and the date alone.
archive() {
  local folder=$1 name=$2 date=$3 output=$4
  shift 4
  [ $# -gt 0 ] || set -- .
  tar -C "$folder" --sort=name --format=gnu --mtime="@$date" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+r,go-w --transform="flags=r;s,^\.\?/\?,$name/," -c "$@" | zstd -q -6 -T1 -f -o "$output"
}

# Upstream's source: the same tarball for all packages of a component.
upstream_archive() {
  local component=$1 version tree archive
  version=$(pinned_version "$component")
  archive=$WORK/$component-$version-vendored.tar.zst
  tree=$("$ROOT/scripts/tree.sh" vendored "$component")
  if [ ! -e "$archive" ]; then
    say "$component $version: packing its source"
    archive "$tree" "$component-$version" 0 "$archive.tmp"
    mv "$archive.tmp" "$archive"
  fi
  echo "$archive"
}

# inputs PACKAGE SPEC: everything that decides on the result.
inputs() {
  local files
  mapfile -t files < <(patches_of "$1" && package_files "$1" && repository_files "$1" | sed "s,^,$ROOT/,")
  cat "$2"
  scheduler_configuration
  sha256sum "${files[@]}" | sed "s,$ROOT/,,"
  go version
  rpmbuild --version
  echo "$ARCH"
  declare -f archive build # the recipe
}

# build PACKAGE SPEC OUTPUT: rpmbuild in a folder of its own.
build() {
  local name=$1 spec=$2 output=$3 top=$WORK/$1 component files file log=$BUILD/log/rpm-$1.log started
  started=$(date +%s)
  component=$(component_of "$name")
  rm -rf "$top"
  mkdir -p "$top"/{SOURCES,SPECS} "$BUILD/log"
  ln "$(upstream_archive "$component")" "$top/SOURCES/"
  mapfile -t files < <(repository_files "$name")
  archive "$ROOT" layer-locality-source "$(epoch "$name")" "$top/SOURCES/layer-locality-$LAYERLOCALITY_REVISION.tar.zst" "${files[@]}"
  { patches_of "$name" && package_files "$name"; } | while read -r file; do
    install -m 0644 "$file" "$top/SOURCES/"
  done
  [ "$name" != kube-scheduler-layerlocality ] || scheduler_configuration >"$top/SOURCES/config.yaml"
  cp "$spec" "$top/SPECS/"
  # What ends up in the source package carries the date of the inputs, too.
  find "$top/SOURCES" "$top/SPECS" -type f -links 1 -exec touch -d "@$(epoch "$name")" {} +
  say "$name: building for $ARCH; log $log"
  if ! rpmbuild -ba --target "$ARCH" --define "_topdir $top" --define "_dbpath $top/db" \
    "$top/SPECS/$(basename "$spec")" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "$name: rpmbuild failed; the whole log is $log"
  fi
  mkdir -p "$output.tmp"
  find "$top/RPMS" "$top/SRPMS" -name '*.rpm' -exec mv {} "$output.tmp/" \;
  rm -rf "$top"
  mv "$output.tmp" "$output"
  say "$name: built in $(($(date +%s) - started)) s"
}

# package PACKAGE: built, or from the cache; prints the folder.
package() {
  local name=$1 spec=$WORK/specs/$1/$(spec_of "$1").spec cached
  mkdir -p "$WORK/specs/$name"
  render "$name" >"$spec"
  cached=$CACHE/rpms/$name-$(inputs "$name" "$spec" | sha256sum | cut -c1-16)
  if [ ! -d "$cached" ]; then
    mkdir -p "$CACHE/rpms"
    rm -rf "$cached.tmp"
    build "$name" "$spec" "$cached"
  fi
  touch "$cached"
  echo "$cached"
}

# repository KEY FOLDER...: the packages in these folders, as a dnf repository.
repository() {
  local key=$1 folder tmp=$OUT.tmp file
  shift
  rm -rf "$tmp"
  mkdir -p "$tmp/$ARCH" "$tmp/SRPMS"
  for folder in "$@"; do
    for file in "$folder"/*.rpm; do
      case $file in
      *.src.rpm) cp "$file" "$tmp/SRPMS/" ;;
      *) cp "$file" "$tmp/$ARCH/" ;;
      esac
    done
  done
  if [ -n "$key" ]; then
    rpmsign --define "_gpg_name $key" --addsign "$tmp"/*/*.rpm >"$BUILD/log/rpmsign.log" 2>&1 ||
      die "cannot sign with key '$key': see $BUILD/log/rpmsign.log"
    gpg --armor --export "$key" >"$tmp/RPM-GPG-KEY-layer-locality"
  fi
  createrepo_c --quiet --no-database --simple-md-filenames \
    --revision "$LAYERLOCALITY_REVISION" --set-timestamp-to-revision "$tmp" ||
    die "createrepo_c failed"
  [ -z "$key" ] || gpg --batch --yes --armor --detach-sign --local-user "$key" "$tmp/repodata/repomd.xml"
  repo_file "$key" >"$tmp/layer-locality.repo"
  rm -rf "$OUT"
  mkdir -p "$(dirname "$OUT")"
  mv "$tmp" "$OUT"
}

# repo_file KEY: an example for /etc/yum.repos.d.
repo_file() {
  local signed=0
  [ -z "$1" ] || signed=1
  cat <<END
[layer-locality]
name=CRI-O and Kubernetes with Layer Locality
# Where you serve this folder.
baseurl=https://packages.example.com/layer-locality/
enabled=1
# Before repositories with packages of the same names and higher releases.
priority=50
gpgcheck=$signed
repo_gpgcheck=$signed
END
  [ -z "$1" ] || echo "gpgkey=https://packages.example.com/layer-locality/RPM-GPG-KEY-layer-locality"
}

build_all() {
  local name folders=() folder
  mkdir -p "$WORK"
  for name in "${PACKAGES[@]}"; do
    folder=$(package "$name")
    folders+=("$folder")
  done
  repository "$KEY" "${folders[@]}"
  # What nothing has asked for in two weeks.
  find "$CACHE/rpms" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
  find "$WORK" -maxdepth 1 -name '*.tar.zst' -mtime +14 -delete
}

ARCH=$(uname -m)
KEY=${RPM_SIGN_KEY:-}
PACKAGES=()
while [ $# -gt 0 ]; do
  case $1 in
  --arch | --sign)
    [ -n "${2:-}" ] || die "$1 needs a value"
    if [ "$1" = --arch ]; then ARCH=$2; else KEY=$2; fi
    shift
    ;;
  -*) die "usage: rpms.sh [--arch x86_64|aarch64] [--sign KEYID] [${ALL[*]}]" ;;
  *)
    [[ " ${ALL[*]} " == *" $1 "* ]] || die "unknown package '$1': ${ALL[*]}"
    PACKAGES+=("$1")
    ;;
  esac
  shift
done
case $ARCH in x86_64 | aarch64) ;; *) die "unknown architecture '$ARCH': x86_64 or aarch64" ;; esac
[ ${#PACKAGES[@]} -gt 0 ] || PACKAGES=("${ALL[@]}")
for tool in rpmbuild createrepo_c zstd; do
  command -v "$tool" >/dev/null ||
    die "$tool is missing: install rpm, createrepo-c and zstd (Debian), or rpm-build, createrepo_c and zstd (Fedora)"
done
if [ -n "$KEY" ]; then
  command -v rpmsign >/dev/null || die "rpmsign is missing: install rpm (Debian) or rpm-sign (Fedora)"
  gpg --batch --list-secret-keys "$KEY" >/dev/null 2>&1 || die "gpg has no secret key '$KEY'; GNUPGHOME is ${GNUPGHOME:-not set}"
fi
with_lock rpms build_all
say "$(find "$OUT" -name '*.rpm' | wc -l) packages in $OUT"

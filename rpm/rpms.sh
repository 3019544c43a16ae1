#!/usr/bin/env bash
# Builds RPMs and source RPMs, and makes a dnf repository from them: _out/rpms, with LINE in the environment _out/LINE/rpms.
#
#   rpms.sh [--arch x86_64|aarch64] [--sign KEYID] [--output FOLDER] [PACKAGE...]
#
# PACKAGE: cri-o, kubelet, openshift-kubelet; without one, all. The repository holds the
# packages of this call.
# --arch: for that architecture; the machine's own is the default.
# --sign (or RPM_SIGN_KEY): signs packages and metadata with that key of gpg's keyring
# (GNUPGHOME) and puts its public half into the repository.
# --output: instead of _out/rpms; what is there is replaced.
#
# Specs are rendered from rpm/*.spec, versions.env and patches/. A package is built once
# for its inputs; results are kept in $LAYERLOCALITY_CACHE/rpms. The date in a package is
# that of the last commit that touched its inputs, or SOURCE_DATE_EPOCH.
. "$(dirname "$0")/../scripts/lib.sh"
shopt -s inherit_errexit

# The user's settings would change the packages, but not the hash they are kept by.
unset GOWORK GOAMD64 GOARM64 GOEXPERIMENT CGO_CFLAGS CGO_LDFLAGS CGO_CPPFLAGS

RPM=$ROOT/rpm
OUT=$OUTPUT/rpms
WORK=$BUILD/rpm
ALL=(cri-o kubelet openshift-kubelet)

component_of() { if [ "$1" = cri-o ]; then echo cri-o; else echo kubernetes; fi; }
spec_of() { echo "${1#openshift-}"; }

# Patches of `--with okd`; every source package of the kubelet has them.
okd_patches() { [ "$(spec_of "$1")" != kubelet ] || find "$RPM/kubelet/okd" -name '*.patch' | sort; }

# bundled PACKAGE: prints what it provides for each module that is linked in, with the version of
# vendor/modules.txt. RPM's versions have no "-": "~", as Fedora's own packages have it. Modules of
# upstream's own repository have no version.
bundled() {
  local tree program=kubelet tags='' cgo=0
  [ "$1" != cri-o ] || program=crio tags=$CRIO_TAGS cgo=1
  tree=$("$ROOT/scripts/tree.sh" vendored "$(component_of "$1")")
  (cd "$tree" && CGO_ENABLED=$cgo GOFLAGS=-mod=vendor go list -deps -tags "$tags" \
    -f '{{with .Module}}{{with or .Replace .}}{{.Path}} {{.Version}}{{end}}{{end}}' "./cmd/$program") | sort -u |
    awk 'NF == 2 { gsub("-", "~", $2); print "Provides:       bundled(golang(" $1 ")) = " substr($2, 2) }'
}

# epoch PACKAGE: prints the date of its own inputs. rpm uses noon of the changelog's day
# as the time of all files, so it is the last noon before: never in the future.
epoch() {
  local date=${SOURCE_DATE_EPOCH:-} component overlay paths
  if [ -z "$date" ]; then
    component=$(component_of "$1")
    overlay=$(overlay_of "$component")
    paths=(versions.env "lines/$LINE" "patches/$component" "${overlay% *}" "rpm/$(spec_of "$1")" "rpm/$(spec_of "$1").spec" rpm/macros)
    date=$(git -C "$ROOT" log -1 --format=%ct -- "${paths[@]}" 2>/dev/null | grep .) ||
      die "$ROOT is no git clone that knows when it was changed: set SOURCE_DATE_EPOCH"
  fi
  [[ $date =~ ^[0-9]+$ ]] || die "SOURCE_DATE_EPOCH is not a number of seconds: '$date'"
  echo $(((date - 43200) / 86400 * 86400 + 43200))
}

# render PACKAGE: prints its spec.
render() {
  local name=$1 component patches okd date kubernetes=${KUBERNETES_VERSION#v} i=0 file module ldflags=""
  component=$(component_of "$name")
  mapfile -t patches < <(series "$component")
  mapfile -t okd < <(okd_patches "$name")
  date=$(date -u -d "@$DATE" '+%a %b %d %Y')
  for module in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $module.gitVersion=v$kubernetes+layerlocality.$LAYERLOCALITY_REVISION -X $module.gitMajor=1"
    ldflags+=" -X $module.gitMinor=$(echo "$kubernetes" | cut -d. -f2) -X $module.gitTreeState=clean"
  done
  while IFS= read -r line; do
    case $line in
    @PINS@)
      echo "%global layerlocality_revision $LAYERLOCALITY_REVISION"
      echo "%global minor $(pinned_version "$component" | sed 's/^v\([0-9]*\.[0-9]*\)\..*/\1/')"
      echo "%global go_minimum $(sed -n 's/^go //p' "$(module_dir "$(upstream_module "$component")" "$(pinned_version "$component")")/go.mod")"
      case $component in
      cri-o)
        echo "%global crio_version ${CRIO_VERSION#v}"
        echo "%global crio_tags $CRIO_TAGS"
        echo "%global crio_ldflags $CRIO_LDFLAGS"
        ;;
      kubernetes)
        echo "%global kubernetes_version $kubernetes"
        echo "%global version_ldflags${ldflags}"
        ;;
      esac
      ;;
    @OKD@) if [ "$name" = openshift-kubelet ]; then echo "%bcond_without okd"; else echo "%bcond_with okd"; fi ;;
    @MACROS@) cat "$RPM/macros" ;;
    @BUNDLED@) bundled "$name" ;;
    @PATCHES@) for file in "${patches[@]}" "${okd[@]}"; do printf 'Patch%-10s %s\n' "$((++i)):" "${file##*/}"; done ;;
    @APPLY@)
      echo "# git apply skips every file where another work tree is around this one."
      echo "export GIT_CEILING_DIRECTORIES=%{_builddir}"
      for ((i = 1; i <= ${#patches[@]} + ${#okd[@]}; i++)); do
        [ "$i" != $((${#patches[@]} + 1)) ] || echo "%if %{with okd}"
        echo "git apply %{PATCH$i}"
      done
      [ ${#okd[@]} = 0 ] || echo "%endif"
      ;;
    @CHANGELOG@)
      echo "* $date Layer Locality <packages@layerlocality.io> - $(version_of "$name")-$(release)"
      echo "- Built from $component $(pinned_version "$component") with Layer Locality's patches."
      ;;
    *@REPOSITORY@) echo "${line/@REPOSITORY@/$(repository_url)}" ;;
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

# archive FOLDER NAME OUTPUT: packs FOLDER as a tarball below NAME/ that depends only on
# its content.
archive() {
  tar -C "$1" --sort=name --format=gnu --mtime=@0 --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+r,go-w --transform="flags=r;s,^\./,$2/," -c . | zstd -q -6 -T1 -f -o "$3"
}

# Upstream's source: the same tarball for all packages of a component.
upstream_archive() {
  local component=$1 version tree archive
  version=$(pinned_version "$component")
  # The key includes how it is packed: another recipe must not find it.
  archive=$WORK/$(declare -f archive | sha256sum | cut -c1-8)/$component-$version-vendored.tar.zst
  tree=$("$ROOT/scripts/tree.sh" vendored "$component")
  if [ ! -e "$archive" ]; then
    say "$component $version: packing its source"
    mkdir -p "${archive%/*}"
    archive "$tree" "$component-$version" "$archive.tmp"
    mv "$archive.tmp" "$archive"
  fi
  echo "$archive"
}

# stage PACKAGE FOLDER: puts its spec into FOLDER/SPECS and all sources except upstream's
# into FOLDER/SOURCES: everything in this repository that influences the result.
stage() {
  local name=$1 folder=$2 component own
  component=$(component_of "$name")
  own=$folder/SOURCES/layer-locality-$LAYERLOCALITY_REVISION
  mkdir -p "$folder/SPECS" "$own"
  render "$name" >"$folder/SPECS/$name.spec"
  {
    series "$component"
    okd_patches "$name"
    find "$RPM/$(spec_of "$name")" -maxdepth 1 -type f
  } | while read -r file; do
    install -m 0644 "$file" "$folder/SOURCES/"
  done
  find "$folder/SOURCES" -name '*.service' -exec sed -i "s,@REPOSITORY@,$(repository_url)," {} +
  # What overlay.sh needs, and %collect_licenses.
  install -D -m 0644 -t "$own" "$ROOT/LICENSE"
  line_versions >"$own/versions.env"
  install -D -m 0755 -t "$own/scripts" "$ROOT/scripts/lib.sh" "$ROOT/scripts/overlay.sh"
  [ "$name" != cri-o ] || install -D -m 0644 -t "$own/docs" "$ROOT/docs/lgpl.md"
  mkdir -p "$own/$(overlay_of "$component" | cut -d ' ' -f 1)"
  copy_overlay_source "$component" "$own"
}

# copy_overlay_source COMPONENT FOLDER: copies the overlay, at its place in this
# repository.
copy_overlay_source() {
  local from file
  from=$(overlay_of "$1") && from=${from% *}
  overlay_files "$1" | while read -r file; do
    install -D -m 0644 "$ROOT/$from/$file" "$2/$from/$file"
  done
}

# rpmbuild_in FOLDER ARGS...: runs rpmbuild with its own folders. Where the specs ask for packages, on
# Fedora and Enterprise Linux, it looks for them in the system's package database. Elsewhere it has its
# own, so that none is made for the system.
rpmbuild_in() {
  local database=()
  [ "$(rpm --eval '0%{?fedora}%{?rhel}')" != 0 ] || database=(--define "_dbpath $1/db")
  rpmbuild --target "$ARCH" --define "_topdir $1" "${database[@]}" --define "_tmppath $1/tmp" "${@:2}"
}

# build PACKAGE FOLDER OUTPUT: builds the source package from what is staged in FOLDER,
# and from that the package, as any user would.
build() {
  local name=$1 folder=$2 output=$3 own log=$BUILD/log/rpm-$1.log started
  started=$(date +%s)
  own=layer-locality-$LAYERLOCALITY_REVISION
  archive "$folder/SOURCES/$own" "$own" "$folder/SOURCES/$own.tar.zst"
  rm -r "${folder:?}/SOURCES/$own"
  cp "$(upstream_archive "$(component_of "$name")")" "$folder/SOURCES/"
  # Source packages keep the times of these files.
  find "$folder/SOURCES" "$folder/SPECS" -type f -exec touch -d "@$DATE" {} +
  say "$name: building for $ARCH; log $log"
  mkdir -p "$BUILD/log"
  {
    rpmbuild_in "$folder" -bs "$folder/SPECS/$name.spec" &&
      rpmbuild_in "$folder" --rebuild "$folder"/SRPMS/*.src.rpm
  } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    rm -rf "$folder"
    die "$name: rpmbuild failed; the whole log is $log"
  }
  # Other clones use the same cache: the first one stays.
  local tmp
  mkdir -p "$(dirname "$output")"
  tmp=$(mktemp -d "$output.XXXXXX")
  chmod 755 "$tmp"
  find "$folder/RPMS" "$folder/SRPMS" -name '*.rpm' -exec mv -t "$tmp" {} +
  mv -T "$tmp" "$output" 2>/dev/null || rm -r "$tmp"
  [ -d "$output" ]
  say "$name: built in $(($(date +%s) - started)) s"
}

# package PACKAGE: builds it or takes it from the cache; prints the folder that holds it.
package() {
  local name=$1 folder=$WORK/$1 hash cached DATE
  DATE=$(epoch "$name")
  [ "$name" != cri-o ] || use_c
  rm -rf "$folder"
  stage "$name" "$folder"
  hash=$(
    {
      (cd "$folder" && find SOURCES SPECS -type f | sort | xargs sha256sum)
      echo "$ARCH"
      toolchain
      rpmbuild --version
      # The C compiler, and what is linked in from outside.
      [ "$name" != cri-o ] || { "${CC:-cc}" --version && c_libraries; }
      declare -f archive build rpmbuild_in upstream_archive # the recipe
    } | sha256sum | cut -c1-16
  )
  cached=$CACHE/rpms/$name-$hash
  [ -d "$cached" ] || {
    mkdir -p "$CACHE/rpms"
    build "$name" "$folder" "$cached"
  }
  rm -rf "$folder"
  touch "$cached"
  echo "$cached"
}

# fingerprint KEY: prints that of the one secret key that KEY names. With an e-mail
# address, gpg exports every key that has it.
fingerprint() {
  local found
  mapfile -t found < <(gpg --batch --with-colons --list-secret-keys "$1" 2>/dev/null |
    awk -F: '$1 == "sec" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
  case ${#found[@]} in
  0) die "gpg has no secret key '$1'; GNUPGHOME is ${GNUPGHOME:-not set}" ;;
  1) echo "${found[0]}" ;;
  *) die "gpg has ${#found[@]} secret keys '$1': give the fingerprint of one: ${found[*]}" ;;
  esac
}

# repository KEY FOLDER...: makes a dnf repository from the packages in these folders.
repository() {
  local key=$1 folder tmp file
  shift
  mkdir -p "$(dirname "$OUT")"
  # Beside it, so that mv only renames.
  tmp=$(mktemp -d "$OUT.XXXXXX")
  # shellcheck disable=SC2064 # tmp is local
  trap "rm -rf ${tmp@Q}" EXIT
  chmod 0755 "$tmp"
  mkdir "$tmp/$ARCH" "$tmp/SRPMS"
  for folder in "$@"; do
    for file in "$folder"/*.rpm; do
      case $file in
      *.src.rpm) cp "$file" "$tmp/SRPMS/" ;;
      *) cp "$file" "$tmp/$ARCH/" ;;
      esac
    done
  done
  if [ -n "$key" ]; then
    rpmsign --define "_dbpath $WORK/db" --define "_gpg_name $key" --define "__gpg $(command -v gpg)" --addsign "$tmp"/*/*.rpm >"$BUILD/log/rpmsign.log" 2>&1 ||
      die "cannot sign with key '$key': see $BUILD/log/rpmsign.log"
    gpg --armor --export "$key" >"$tmp/RPM-GPG-KEY-layer-locality"
  fi
  # The metadata have the times of files.
  for file in "$tmp"/*/*.rpm; do
    touch --date "@$(rpm --dbpath "$WORK/db" -qp --nosignature --queryformat '%{BUILDTIME}' "$file")" "$file"
  done
  createrepo_c --quiet --no-database --simple-md-filenames \
    --revision "$LAYERLOCALITY_REVISION" --set-timestamp-to-revision "$tmp" ||
    die "createrepo_c failed"
  [ -z "$key" ] || gpg --batch --yes --armor --detach-sign --local-user "$key" "$tmp/repodata/repomd.xml"
  repo_file "$key" >"$tmp/layer-locality.repo"
  rm -rf "$OUT"
  mv "$tmp" "$OUT"
}

# repo_file KEY: prints an example for /etc/yum.repos.d.
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
  # Remove what was not used for two weeks.
  find "$CACHE/rpms" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
  find "$WORK" -maxdepth 2 -name '*.tar.zst' -mtime +14 -delete
}

ARCH=$(uname -m)
KEY=${RPM_SIGN_KEY:-}
PACKAGES=()
while [ $# -gt 0 ]; do
  case $1 in
  --arch | --sign | --output)
    [ -n "${2:-}" ] || die "$1 needs a value"
    case $1 in
    --arch) ARCH=$2 ;;
    --sign) KEY=$2 ;;
    --output) OUT=$(realpath -m "$2") ;;
    esac
    shift
    ;;
  -*) die "usage: rpms.sh [--arch x86_64|aarch64] [--sign KEYID] [--output FOLDER] [${ALL[*]}]" ;;
  *)
    [[ " ${ALL[*]} " == *" $1 "* ]] || die "unknown package '$1': ${ALL[*]}"
    PACKAGES+=("$1")
    ;;
  esac
  shift
done
case $ARCH in
x86_64) use_arch amd64 ;;
aarch64) use_arch arm64 ;;
*) die "unknown architecture '$ARCH': x86_64 or aarch64" ;;
esac
[ ${#PACKAGES[@]} -gt 0 ] || PACKAGES=("${ALL[@]}")
for tool in rpmbuild createrepo_c zstd; do
  command -v "$tool" >/dev/null ||
    die "$tool is missing: install rpm, createrepo-c and zstd (Debian), or rpm-build, createrepo_c and zstd (Fedora)"
done
if [ -n "$KEY" ]; then
  command -v rpmsign >/dev/null || die "rpmsign is missing: install rpm (Debian) or rpm-sign (Fedora)"
  KEY=$(fingerprint "$KEY")
fi
[ ! -e "$OUT" ] || [ -e "$OUT/repodata/repomd.xml" ] || [ -z "$(ls -A "$OUT")" ] ||
  die "$OUT is there and is no repository: give another --output"
with_lock rpms build_all
say "$(find "$OUT" -name '*.rpm' | wc -l) packages in $OUT"

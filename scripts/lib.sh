# Shared by the scripts of this folder: `. "$(dirname "$0")/lib.sh"`.
# shellcheck shell=bash
set -euo pipefail
# One locale for everything that sorts, hashes or parses tool output.
export LC_ALL=C

# A user's workspace is none of ours.
unset GOWORK
# Where Go's own instructions install it, and where sudo does not look.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Built binaries, by the hash of everything they are made from. Kept outside
# the work tree, so that a fresh clone on the same machine builds nothing twice.
# shellcheck disable=SC2034
CACHE=${LAYERLOCALITY_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/layer-locality}

say() { printf '==> %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# shellcheck source=../versions.env
. "$ROOT/versions.env"
# The minor of Kubernetes that is built, by default that of versions.env. lines/MINOR has what another one has of its own.
[[ $KUBERNETES_VERSION =~ ^v([0-9]+\.[0-9]+)\. ]] || die "KUBERNETES_VERSION in versions.env must look like v1.36.5, not '$KUBERNETES_VERSION'"
DEFAULT_LINE=${BASH_REMATCH[1]}
LINE=${LINE:-$DEFAULT_LINE}
# lines: prints the minors that can be built.
lines() { { echo "$DEFAULT_LINE" && find "$ROOT/lines" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' 2>/dev/null; } | sort -Vu; }
# shellcheck disable=SC2034
BUILD=$ROOT/_build OUTPUT=$ROOT/_out
if [ "$LINE" != "$DEFAULT_LINE" ]; then
  lines | grep -qxF -e "$LINE" || die "LINE is '$LINE', want one of: $(lines | paste -sd ' ')"
  BUILD+=/$LINE OUTPUT+=/$LINE
  # shellcheck source=/dev/null
  . "$ROOT/lines/$LINE/versions.env"
fi

# line_versions: prints versions.env with what the line has of its own instead.
line_versions() {
  local own=$ROOT/lines/$LINE/versions.env
  [ "$LINE" != "$DEFAULT_LINE" ] || own=/dev/null
  awk -F= -v own="$own" 'FILENAME == own { if (/^[A-Z]/) line[$1] = $0; next } { print $1 in line ? line[$1] : $0 }' "$own" "$ROOT/versions.env"
}

# upstream_module COMPONENT: the Go module that holds the component's source.
upstream_module() {
  case $1 in
  cri-o) echo github.com/cri-o/cri-o ;;
  kubernetes) echo k8s.io/kubernetes ;;
  *) die "unknown component '$1': cri-o or kubernetes" ;;
  esac
}

# pinned_version COMPONENT: its version in versions.env.
pinned_version() {
  case $1 in
  cri-o) echo "$CRIO_VERSION" ;;
  kubernetes) echo "$KUBERNETES_VERSION" ;;
  *) die "unknown component '$1': cri-o or kubernetes" ;;
  esac
}

# overlay_of COMPONENT: "<folder here> <folder in the upstream tree>" of the Go
# packages that are developed here and land in the patched tree. They import none of each
# other: there, they have other paths.
overlay_of() {
  case $1 in
  cri-o) echo "crio internal" ;;
  kubernetes) echo "kubelet/imagelayers pkg/kubelet/imagelayers" ;;
  esac
}

# series COMPONENT: its patches, in order: a line's own instead of that with the same number. An empty file drops one.
series() {
  local folders=("$ROOT/patches/$1") own=$ROOT/lines/$LINE/patches/$1
  [ ! -d "$own" ] || folders+=("$own")
  find "${folders[@]}" -name '[0-9][0-9][0-9][0-9]-*.patch' -printf '%s %f\t%p\n' |
    awk -F '\t' -v own="$own/" '{ n = $1; sub(/^[0-9]* /, "", n); n = substr(n, 1, 4) } !(n in row) || index($2, own) == 1 { row[n] = $0 }
      END { for (n in row) if (row[n] !~ /^0 /) print n "\t" row[n] }' | sort | cut -f 3
}

# overlay_files COMPONENT: the overlay's files, relative to its folder: Go
# source and test data, not the README that belongs to this repository.
overlay_files() {
  local from
  from=$(overlay_of "$1") && from=${from% *}
  (cd "$ROOT/$from" && find . -type f ! -name README.md | sort)
}

# copy_overlay COMPONENT TREE: puts the overlay into a tree.
copy_overlay() {
  local overlay file
  overlay=$(overlay_of "$1")
  overlay_files "$1" | while read -r file; do
    install -D -m 0644 "$ROOT/${overlay% *}/$file" "$2/${overlay#* }/$file"
  done
}

# tree_hash COMPONENT: everything a patched tree is made from.
tree_hash() {
  local from patches
  from=$(overlay_of "$1") && from=${from% *}
  mapfile -t patches < <(series "$1")
  {
    echo "$1 $(pinned_version "$1")"
    (cd "$ROOT/$from" && overlay_files "$1" | xargs -r sha256sum)
    [ ${#patches[@]} -eq 0 ] || cat -- "${patches[@]}"
  } | sha256sum | cut -c1-16
}

# What is compiled beside the patched Kubernetes for users: the folders that the binary kube-scheduler is
# made from. They may import each other only, and of other modules what Kubernetes vendors.
# lab/test/layout compares these lists with what Go says.
SCHEDULER_PRODUCT=(api cmd/kube-scheduler imageref memlimit scheduler)
# What the binary layer-extender is made from in addition.
EXTENDER_PRODUCT=(cmd/layer-extender extender)
# What the binary kubectl-layers is made from, besides api, imageref and scheduler.
KUBECTL_PRODUCT=(cmd/kubectl-layers kubectllayers terminal)
# The build tag under which that code uses what only the patched tree has.
SCHEDULER_TAGS=imagelayers
[ "$LINE" = "$DEFAULT_LINE" ] || SCHEDULER_TAGS+=,kubernetes$LINE

# Folders of this repository that the workspace lacks: their modules are large and nothing else has them, or
# their tests are about this repository as a whole. Step module tests them.
NOT_IN_WORKSPACE=(lab/cmd/evalpage lab/cmd/sbom lab/eval/page lab/sbom lab/test/choice lab/test/layout lab/test/release/resolver lab/test/template)
# Modules that this repository or crictl requires and Kubernetes does not. The workspace has them without
# their own requirements, so that what is compiled there has the libraries of Kubernetes, each compiled once.
# shellcheck disable=SC2034 # tree.sh
WORKSPACE_MODULES=(
  cloud.google.com/go/compute/metadata github.com/BurntSushi/toml github.com/containerd/platforms
  github.com/containers/libtrust github.com/containers/ocicrypt github.com/docker/cli github.com/docker/docker
  github.com/docker/docker-credential-helpers github.com/evanphx/json-patch/v5 github.com/go-jose/go-jose/v4
  github.com/google/go-containerregistry
  github.com/klauspost/compress github.com/miekg/pkcs11 github.com/moby/sys/capability github.com/moby/sys/user
  github.com/smallstep/pkcs7 github.com/stefanberger/go-pkcs11uri go.podman.io/image/v5 go.podman.io/storage
  gomodules.xyz/jsonpatch/v2 gonum.org/v1/gonum sigs.k8s.io/controller-runtime
  github.com/bahlo/generic-list-go github.com/buger/jsonparser github.com/invopop/jsonschema
  github.com/urfave/cli/v2 github.com/wk8/go-ordered-map/v2 github.com/xrash/smetrics
)

# workspace_files [-type l -printf '%P\t%l\n']: prints the files of this repository that the workspace has; or its links,
# and where they lead.
workspace_files() {
  local name skip=()
  [ $# -gt 0 ] || set -- -type f -printf '%P\n'
  for name in _build _out .git "${NOT_IN_WORKSPACE[@]}"; do skip+=(-path "./$name" -o); done
  (cd "$ROOT" && find . \( "${skip[@]}" -name go.mod -o -name go.sum \) -prune -o "$@" | sort)
}

# product_files kube-scheduler|layer-extender|kubectl-layers: the files that this program is made from.
product_files() {
  local folders=("${SCHEDULER_PRODUCT[@]}")
  case $1 in
  kube-scheduler) ;;
  layer-extender) folders+=("${EXTENDER_PRODUCT[@]}") ;;
  kubectl-layers) folders+=("${KUBECTL_PRODUCT[@]}") ;;
  *) return 1 ;;
  esac
  (cd "$ROOT" && find "${folders[@]}" -type f ! -name README.md ! -name '*_test.go' | sort)
}

# scheduler_module: the go.mod of that code in a workspace, where it has no
# requirements of its own.
scheduler_module() { grep -e '^module ' -e '^go ' "$ROOT/go.mod"; }

# go_of GO.WORK: the version of Go that a workspace of Kubernetes must have to also hold that code.
go_of() { sed -n 's/^go //p' "$1" "$ROOT/go.mod" | sort -V | tail -n 1; }

# product_hash kube-scheduler|layer-extender|kubectl-layers: everything that this program is made from.
product_hash() {
  {
    tree_hash kubernetes
    echo "$SCHEDULER_TAGS"
    (cd "$ROOT" && product_files "$1" | xargs -r sha256sum)
  } | sha256sum | cut -c1-16
}

# module_dirs MODULE@VERSION...: downloads modules side by side, verified against the checksum database by
# Go, and prints "<module> <folder that holds it>", one a line.
module_dirs() {
  local out found
  out=$(cd / && go mod download -json "$@" 2>&1) ||
    die "cannot download $*: $(printf '%s' "$out" | sed -n 's/.*"Error": "\(.*\)".*/\1/p')"
  found=$(printf '%s' "$out" | sed -n -e 's/^\t"Path": "\(.*\)",$/\1/p' -e 's/^\t"Dir": "\(.*\)",$/\1/p' | paste -d ' ' - -)
  [ "$(wc -l <<<"$found")" = $# ] || die "go mod download of $# modules gave other folders: $out"
  echo "$found"
}

# module_dir MODULE VERSION: the folder of one module.
module_dir() {
  local found
  found=$(module_dirs "$1@$2") || exit 1
  echo "${found#* }"
}

# toolchain: prints Go's version and the cryptographic module that it compiles in
# (GOFIPS140): what decides the bytes of a binary besides source, recipe and architecture.
toolchain() { go version && go env GOFIPS140; }

# our_version COMPONENT: what the patched build of it is called.
our_version() { echo "$(pinned_version "$1")+layerlocality.$LAYERLOCALITY_REVISION"; }

# repository_url: prints where this repository is: its Go module is named after that.
repository_url() { echo "https://$(sed -n 's/^module //p' "$ROOT/go.mod")"; }

# image_registry: prints where a release of this repository has its images and its chart, unless it is told another place:
# GitHub's registry, below the owner's name.
image_registry() {
  local url owner
  url=$(repository_url)
  [[ $url == https://github.com/*/* ]] || die "$url is not on GitHub, whose registry is the default: name one with --registry"
  owner=${url#https://github.com/}
  owner=${owner%%/*}
  echo "ghcr.io/${owner,,}"
}

# use_arch [ARCH]: has Go compile for amd64 or arm64, by default the machine's own.
# CROSS is what the names of the C tools for it begin with: empty for the machine's own.
use_arch() {
  local host
  host=$(cd / && go env GOHOSTARCH)
  export GOARCH=${1:-$host}
  CROSS=''
  case $GOARCH in
  "$host") ;;
  amd64) CROSS=x86_64-linux-gnu- ;;
  arm64) CROSS=aarch64-linux-gnu- ;;
  *) die "unknown architecture '$GOARCH': amd64 or arm64" ;;
  esac
}

# use_c: after use_arch, has C compiled and linked for it too. Without that, the
# environment decides.
use_c() {
  local sysroot
  [ -n "${CROSS:-}" ] || return 0
  sysroot=$("$ROOT/scripts/sysroot.sh" "$GOARCH")
  export CC=${CROSS}gcc PKG_CONFIG_SYSROOT_DIR=$sysroot PKG_CONFIG_LIBDIR=$sysroot/usr/lib/${CROSS%-}/pkgconfig
}

# c_libraries: "<name> <version> <file's SHA-256>" of the C libraries that crio has
# linked in, one a line.
c_libraries() (
  use_c
  glibc=$(printf '#include <features.h>\n__GLIBC__.__GLIBC_MINOR__\n' | "${CC:-cc}" -E -P - | tail -n 1 | tr -d ' ')
  seccomp=$(pkg-config --variable=libdir libseccomp)/libseccomp.a
  echo "glibc $glibc $(sha256sum <"$("${CC:-cc}" -print-file-name=libc.a)" | cut -d' ' -f1)"
  echo "libseccomp $(pkg-config --modversion libseccomp) $(sha256sum <"$seccomp" | cut -d' ' -f1)"
)

# ca_certificates: prints the path of this machine's CA certificates, for an image.
ca_certificates() {
  local file
  for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    [ ! -f "$file" ] || {
      echo "$file"
      return
    }
  done
  die "no CA certificates found: install ca-certificates"
}

# go_license FOLDER: copies the texts of Go, whose standard library every binary has, to
# FOLDER/std@<version>. The Go is that of the current folder.
go_license() {
  local version from
  version=$(go env GOVERSION)
  # Where Go's own archives have it, or Fedora.
  for from in "$(go env GOROOT)" /usr/share/licenses/golang; do
    [ ! -f "$from/LICENSE" ] || {
      install -D -m 0644 -t "$1/std@$version" "$from"/{LICENSE,PATENTS}
      return
    }
  done
  die "no license text of $version, neither in $(go env GOROOT) nor in /usr/share/licenses/golang: install Go from https://go.dev/dl"
}

# c_licenses FOLDER: copies the texts of the C libraries that crio has linked in, to
# FOLDER/<name>@<version>, and what the LGPL asks of us.
c_licenses() (
  libraries=$(c_libraries)
  use_c
  while read -r library version _; do
    case $library in
    glibc) from=/usr/share/doc/libc6-dev${PKG_CONFIG_SYSROOT_DIR:+-$GOARCH-cross} ;;
    libseccomp) from=${PKG_CONFIG_SYSROOT_DIR:-}/usr/share/doc/libseccomp-dev ;;
    esac
    if [ -f "$from/copyright" ]; then
      # Debian's, which refer to the other file.
      texts=("$from/copyright" /usr/share/common-licenses/LGPL-2.1)
    else
      texts=("/usr/share/licenses/$library"/*)
      [ -f "${texts[0]}" ] || die "no license texts of $library, neither $from/copyright (Debian) nor in /usr/share/licenses/$library (Fedora)"
    fi
    install -D -m 0644 -t "$1/$library@$version" "${texts[@]}"
  done <<<"$libraries"
  install -m 0644 "$ROOT/docs/lgpl.md" "$1/LGPL.md"
)

# debian_mirror SUITE: from where this machine gets its own packages, if it is of this
# release of Debian; empty otherwise, and then debootstrap has a default.
debian_mirror() {
  # shellcheck disable=SC2016 # apt's variable
  { apt-get indextargets --format '$(REPO_URI)' "Codename: $1" 'Component: main' 'Created-By: Packages' 2>/dev/null || true; } | sed -n 1p
}

# private_store FOLDER: has buildah, podman and skopeo keep images there: nothing of the
# user's is touched.
private_store() {
  printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$1" "$1" >"$1/storage.conf"
  export CONTAINERS_STORAGE_CONF=$1/storage.conf
}

# git_in FOLDER ARGS...: git in a repository that scripts made, independent of
# the user's configuration.
git_in() {
  git -C "$1" -c user.name=layer-locality -c user.email=patches@layerlocality.io \
    -c commit.gpgsign=false -c core.autocrlf=false -c core.hooksPath=/dev/null \
    -c gc.auto=0 -c advice.detachedHead=false "${@:2}"
}

# use_huge_pages: compilers touch new memory all the time. In virtual machines that takes a third less time with
# huge pages for all processes, as Debian's kernels have it by default; others want to be asked for them. Root alone
# may change it; restore_huge_pages gives back what was.
HUGE_PAGES=/sys/kernel/mm/transparent_hugepage/enabled
HUGE_PAGES_BEFORE=''
use_huge_pages() {
  ! grep -q '\[madvise\]' "$HUGE_PAGES" 2>/dev/null || ! { echo always >"$HUGE_PAGES"; } 2>/dev/null || HUGE_PAGES_BEFORE=madvise
}
restore_huge_pages() { [ -z "$HUGE_PAGES_BEFORE" ] || echo "$HUGE_PAGES_BEFORE" >"$HUGE_PAGES"; }

# with_lock NAME COMMAND...: one run at a time of what writes below _build.
with_lock() {
  local name=$1
  shift
  mkdir -p "$BUILD"
  exec {lock}>"$BUILD/.lock-$name"
  flock -n "$lock" || {
    say "waiting for another run that works on $name"
    flock "$lock"
  }
  "$@"
  exec {lock}>&-
}

# go_tool PACKAGE VERSION: path of a Go program, installed once per version.
go_tool() {
  local bin=$CACHE/go-tools/$2
  if [ ! -x "$bin/$(basename "$1")" ]; then
    say "installing $1@$2"
    mkdir -p "$BUILD/log"
    (cd / && CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOBIN=$bin go install "$1@$2") >"$BUILD/log/go-tool.log" 2>&1 ||
      die "cannot install $1@$2; the log is $BUILD/log/go-tool.log"
  fi
  echo "$bin/$(basename "$1")"
}

#!/usr/bin/env bash
# Tests flake.nix and nix/ without nixpkgs: lab/test/nix/shim replaces it, with the
# machine's own compilers and the trees of `scripts/tree.sh vendored`. Prints one
# line per check; ends with "N passed, N failed".
#
#   run.sh   as root (CRI-O runs in the last check); with FULL=1 all packages are built, not
#            only crio and kubelet
. "$(dirname "$0")/../../../scripts/lib.sh"
cd "$ROOT"

[ $# = 0 ] || die "usage: run.sh"
[ "$(id -u)" = 0 ] || die "the last check starts CRI-O: run it as root"
. "$ROOT/lab/test/checks.sh"
. "$ROOT/lab/test/nix/lib.sh"
SYSTEM=$(uname -m)-linux

# file FILE COMMAND ARGS...: applies FILE in this folder or nix/ to the shim.
file() {
  nix "$2" -f "$1" --arg nixpkgs "$ROOT/lab/test/nix/shim" "${@:3}"
}

# edited FILE SED: prints a copy of TREE with an edit.
edited() {
  rm -rf "$WORK/edited"
  cp -r "$TREE" "$WORK/edited"
  sed -i "$2" "$WORK/edited/$1"
  ! cmp -s "$TREE/$1" "$WORK/edited/$1" || die "the edit '$2' changes nothing in $1"
  echo "$WORK/edited"
}

parses() { find flake.nix nix lab/test/nix -name '*.nix' -print0 | in_store xargs -0 nix-instantiate --parse; }

# says WANT COMMAND...: checks what the command prints.
says() {
  local got
  got=$("${@:2}")
  [ "$got" = "$1" ] || {
    printf 'want: %s\ngot: %s\n' "$1" "$got"
    return 1
  }
}

# holds TEXT COMMAND...: checks that the command prints a line that matches the
# pattern.
holds() { "${@:2}" 2>&1 | tee /dev/stderr | grep -- "$1" >/dev/null; }

# The pins in the shell and in Nix.
pins_of_shell() { grep -o '^[A-Z][A-Z0-9_]*' versions.env | while read -r key; do echo "$key=${!key}"; done | sort; }
pins_of_nix() { evaluated pins --json | jq -r 'to_entries[] | "\(.key)=\(.value)"' | sort; }
same_pins() { diff <(pins_of_shell) <(pins_of_nix); }

# evaluated ATTRIBUTE [FLAG]: evaluates an attribute of eval.nix.
evaluated() { file lab/test/nix/eval.nix eval "${@:2}" --arg nix "$TREE/nix" "$1"; }

# derivations TREE: prints what each package is made from, as JSON.
derivations() { flake eval "$1#packages.$SYSTEM" --json --apply 'builtins.mapAttrs (_: package: package.drvPath)'; }

# shellcheck disable=SC2016 # variables of jq
# rebuilt WANT FILE SED: checks which packages are rebuilt after an edit.
rebuilt() {
  local tree before after
  tree=$(edited "${@:2}")
  before=$(derivations "$TREE")
  after=$(derivations "$tree")
  says "$1" jq -rn --argjson before "$before" --argjson after "$after" \
    '[$before | to_entries[] | select(.value != $after[.key]).key] | join(" ")'
}

# result_of COMMAND...: prints where nix build would link result to.
result_of() { "$@" --no-link --json | jq -r '.[].outputs.out'; }

static() {
  local headers
  headers=$(readelf --program-headers --wide "$1")
  ! grep -E '^ *(INTERP|DYNAMIC) ' <<<"$headers"
}

# same_result ATTRIBUTE ARGS...: checks that nix build -f nix gives the same as
# the flake.
same_result() { says "$(realpath "$STORE/roots/$1")" result_of file "$TREE/nix" build "${@:2}"; }

# series SED: builds the patched source, with an edit in the first patch.
series() {
  local patches=(patches/cri-o/*.patch)
  flake build "$(edited "${patches[0]}" "$1")#checks.$SYSTEM.patches-cri-o" --no-link --print-build-logs
}

broken() { file lab/test/nix/broken.nix build --no-link --print-build-logs --arg nix "$TREE/nix" "$1"; }

# Also when the store has a result of that hash, from other sources.
same_modules() {
  flake build "$TREE#layer-resolver.goModules" --no-link
  flake build "$TREE#layer-resolver.goModules" --no-link --rebuild
}

other_modules() {
  flake build "$(edited versions.env 's/^OWN_VENDOR_HASH=sha256-..../OWN_VENDOR_HASH=sha256-AAAA/')#layer-resolver" --no-link
}

# Our programs replace those of nixpkgs; everything else comes from nixpkgs.
overlay_replaces() {
  local theirs
  theirs=$(overlaid cri-o-unwrapped)
  cmp "$theirs/bin/crio" "$STORE/roots/crio/bin/crio"
  theirs=$(overlaid kubernetes)
  for name in kubelet kube-apiserver kube-controller-manager kube-scheduler; do
    cmp "$theirs/bin/$name" "$STORE/roots/$name/bin/$name"
  done
  [ "$(cat "$theirs/bin/kubeadm")" = stock ]
  [ "$(cat "$theirs/bin/kubectl")" = stock ]
  theirs=$(overlaid kubectl)
  [ "$(cat "$theirs")" = stock ]
}
overlaid() {
  result_of file lab/test/nix/eval.nix build --arg nix "$TREE/nix" "overlay.$1"
}

# A folder with only the program, as /.
runs_alone() {
  mkdir -p "$WORK/root"
  cp "$STORE/roots/crio/bin/crio" "$WORK/root/"
  holds "^Version: *${CRIO_VERSION#v}$" env -i "$(command -v chroot)" "$WORK/root" /crio version
}

# shellcheck disable=SC2016 # a variable of that shell
in_shell() { flake develop "$TREE" --command sh -c 'echo "in $name"'; }

pulls() {
  scripts/build.sh tools registry runc
  CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" go -C lab test -vet=off -tags e2e -count=1 -timeout 5m ./test/nix/ -v -result "$STORE/roots/crio"
}

prepare
clone

check "every .nix file parses" parses
check "Nix and the shell read the same pins" same_pins
check "flake show" holds "package 'crio-${CRIO_VERSION#v}'" flake "flake show" "$TREE"
PACKAGES=(crio kubelet)
OTHERS=(kube-apiserver kube-controller-manager kube-scheduler layer-extender kubectl-layers layer-resolver layer-agent layer-prefetcher)
if [ -n "${FULL:-}" ]; then
  PACKAGES+=("${OTHERS[@]}")
  check "flake check: every package builds and passes its own checks" flake "flake check" "$TREE" --print-build-logs
else
  check "what flake check builds evaluates" flake eval "$TREE#checks.$SYSTEM" --json --apply 'builtins.mapAttrs (_: check: check.drvPath)'
  skipped "${OTHERS[*]}, built" "takes many minutes: make test STEP=nix FULL=1"
fi
for name in "${PACKAGES[@]}"; do check "nix build .#$name" build "$name" "$name"; done
for name in crio kubelet "${OTHERS[@]}"; do
  check "$name for aarch64 evaluates" says aarch64-linux flake eval "$TREE#packages.aarch64-linux.$name.system" --raw
done
check "nix build gives crio" says "$(realpath "$STORE/roots/crio")" result_of flake build "$TREE"
check "nix build -f nix gives the same" same_result crio
check "nix build -f nix kubelet gives the same" same_result kubelet kubelet
for name in cri-o kubernetes; do
  check "the patched source of $name" build "patches-$name" "checks.$SYSTEM.patches-$name"
done

for program in crio/bin/crio crio/bin/pinns kubelet/bin/kubelet; do
  check "${program##*/} is static" static "$STORE/roots/$program"
done
check "crio is ${CRIO_VERSION#v}" holds "^Version: *${CRIO_VERSION#v}$" "$STORE/roots/crio/bin/crio" version
check "crio has seccomp" holds "^SeccompEnabled: *true$" "$STORE/roots/crio/bin/crio" version
check "crio runs in a folder without store and libraries" runs_alone
for name in "${PACKAGES[@]}"; do
  case $name in
  kube-* | kubelet)
    check "$name is $KUBERNETES_VERSION+layerlocality.$LAYERLOCALITY_REVISION" \
      says "Kubernetes $KUBERNETES_VERSION+layerlocality.$LAYERLOCALITY_REVISION" "$STORE/roots/$name/bin/$name" --version
    ;;
  esac
  case $name in
  kubelet | kube-apiserver) check "$name knows the feature gate" holds "NodeStatusImageLayers=true|false" "$STORE/roots/$name/bin/$name" --help ;;
  kube-scheduler) check "it has the plugin" holds "layer-locality/cmd/kube-scheduler$" go version -m "$STORE/roots/$name/bin/$name" ;;
  esac
done

check "an edit of a document builds nothing again" rebuilt "" kubelet/imagelayers/README.md '1i more'
check "an edit of a test builds nothing again" rebuilt "" kubelet/imagelayers/guard_test.go '1i //'
check "an edit of CRI-O's overlay builds crio again" rebuilt "crio default" crio/imagelayers/layers.go '1i //'
check "an edit of the plugin builds what is made from its folder again" rebuilt "kube-scheduler kubectl-layers layer-agent layer-extender layer-prefetcher layer-resolver" scheduler/layerlocality/plugin.go '1i //'
check "an edit of a patch builds what it patches again" rebuilt "kube-apiserver kube-controller-manager kube-scheduler kubectl-layers kubelet layer-extender" \
  patches/kubernetes/0005-Kubelet-report-the-layers-of-images.patch '/^Subject:/s/$/ again/'
check "an edit of the resolver builds what is vendored with it again" rebuilt "kubectl-layers layer-agent layer-extender layer-prefetcher layer-resolver" cmd/layer-resolver/main.go '1i //'

refuses "a patch whose context differs is refused" "does not apply exactly" series '/^@@ /{n;s/$/ /}'
refuses "a patch whose lines have moved is refused" "does not apply exactly" series 's/^@@ -\([0-9,]*\) +/@@ -1\1 +1/'
check "OWN_VENDOR_HASH is that of the modules of nix/own.nix" same_modules
refuses "modules with another hash are refused" "hash mismatch" other_modules
for name in intact-crio intact-kubelet; do
  check "another program that says the right things is taken ($name)" broken "$name"
done
refuses "a dynamic crio is refused" "is not static" broken dynamic-crio
refuses "a dynamic kubelet is refused" "is not static" broken dynamic-kubelet
refuses "a crio without seccomp is refused" "has no seccomp" broken without-seccomp
refuses "a crio of another version is refused" "is not version" broken other-crio
refuses "a stock kubelet is refused" "is not version" broken stock-kubelet

check "the homepage of packages is this repository" says "$(repository_url)" flake eval "$TREE#crio.meta.homepage" --raw
[ -z "${FULL:-}" ] || check "the overlay replaces our programs and no others" overlay_replaces
check "the formatter evaluates" holds '\.drv' flake eval "$TREE#formatter.$SYSTEM.drvPath" --raw
[ -z "${FULL:-}" ] || check "nix run .#kubectl-layers" holds "$KUBERNETES_VERSION+layerlocality.$LAYERLOCALITY_REVISION$" flake run "$TREE#kubectl-layers" -- --version
check "the overlay keeps manual pages and the pause image" says true evaluated overlayKeeps
check "the shell of contributors starts" holds "in shell" in_shell
for name in moduleOption moduleOff moduleGates moduleRuntime moduleOverlay \
  moduleAccepts moduleRefusesOtherNixpkgs moduleRefusesOtherCRIO moduleRefusesOtherPackage moduleWarnsOfDowngrade; do
  check "the NixOS module: $name" says true evaluated "$name"
done

check "the built crio pulls an image and reports its layers" pulls
skipped "nixpkgs itself (its fetchers, buildGoModule, static libseccomp)" "cannot be fetched here"
skipped "a build for aarch64" "needs such a machine, or binfmt emulation"
skipped "NixOS (nix build .#nixosTest)" "its module system comes with nixpkgs; the module was evaluated alone"

# Keeps the results and the patched sources.
nix store gc >/dev/null 2>&1
finish

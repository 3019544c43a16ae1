# Builds a derivation of the shim: the phases of nixpkgs' stdenv, as far as nix/
# uses them. Run by Nix, without a sandbox.
# shellcheck shell=bash disable=SC2016,SC2034,SC2154 # phases are text; variables that Nix sets
set -eo pipefail
# What differs between machines and not in the result: where programs, vendored
# trees, Go's caches are.
# shellcheck disable=SC1091
. "${NIX_STORE%/*}/host.sh"

runHook() { eval "${!1:-}"; }

# Modules come from vendor/ alone.
export GOPATH=$TMPDIR/go GOPROXY=off GOSUMDB=off GOTOOLCHAIN=local
export GOFLAGS="-mod=vendor -trimpath -buildvcs=false"
export CC=cc HOME=$TMPDIR

# A copy, as nixpkgs makes it, only for those who write into it: for the others it
# would take longer than the build.
if [ -n "$unpackPhase" ]; then
  : "${sourceRoot:?}"
elif [ -n "$patchPhase$postPatch$goModules" ]; then
  unpackPhase='cp -r "$src/." source && chmod -R u+w source' sourceRoot=source
else
  unpackPhase=: sourceRoot=$src
fi
[ -z "$patches" ] || : "${patchPhase:?the shim applies no patches itself}"
patchPhase=${patchPhase:-'runHook prePatch; runHook postPatch'}
configurePhase='cd "${modRoot:-.}"; [ -z "$goModules" ] || cp -r "$goModules" vendor'
buildPhase="runHook preBuild
$buildPhase
runHook postBuild"
[ -n "$doInstallCheck" ] || unset installCheckPhase

cd "$TMPDIR"
for phase in ${phases:-unpackPhase patchPhase configurePhase buildPhase installPhase installCheckPhase}; do
  runHook "$phase"
  [ "$phase" != unpackPhase ] || cd "$sourceRoot"
done

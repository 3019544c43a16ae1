#!/usr/bin/env bash
# Prints the krew manifest of kubectl layers: deploy/krew/layers.yaml with the archives of a release.
#
#   krew.sh FOLDER
#
# FOLDER has kubectl-layers_<version>_<os>_<arch>.tar.gz. What a manifest has to say:
# https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || die "usage: krew.sh FOLDER"
version=$(our_version kubernetes)
# The tag of a release has no plus sign (docs/release.md).
url=$(repository_url)/releases/download/${version/+/-}
sed -e '/^#/d' -e "s,^  version: VERSION$,  version: $version," -e "s,^  homepage: REPOSITORY$,  homepage: $(repository_url)," "$ROOT/deploy/krew/layers.yaml"
found=''
for archive in "$1"/kubectl-layers_*.tar.gz; do
  [ -f "$archive" ] || continue
  found=1
  platform=${archive##*_}
  arch=${platform%.tar.gz}
  os=${archive%_*}
  os=${os##*_}
  suffix=''
  [ "$os" != windows ] || suffix=.exe
  cat <<MANIFEST
  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: $url/$(basename "$archive")
    sha256: $(sha256sum <"$archive" | cut -d' ' -f1)
    bin: kubectl-layers$suffix
    files:
    - from: kubectl-layers$suffix
      to: .
    - from: LICENSE
      to: .
MANIFEST
done
[ -n "$found" ] || die "no kubectl-layers_*.tar.gz in $1: scripts/release.sh makes them"

#!/usr/bin/env bash
# Prints the krew manifest of kubectl layers, from the archives of a release.
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
cat <<MANIFEST
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: layers
spec:
  version: $version
  homepage: $(repository_url)
  shortDescription: Which node holds which image layers, and why pods go there
  description: |
    Tells which node holds which image layers and who says so, what each node would
    have to pull for a pod, why a pod is on its node, and what that saved. It reads
    Nodes, pods, NodeLayers, ImageManifests and the debug endpoint of the scheduler
    of Layer Locality.
  caveats: |
    Without NodeLayers, ImageManifests or patched nodes, only the names of images are
    known. The rights that it needs: deploy/kubectl-layers in the repository.
  platforms:
MANIFEST
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

#!/usr/bin/env bash
# Makes what the release workflow publishes with GitHub Pages: for each architecture of a release its dnf repository, and
# the file for /etc/yum.repos.d.
#
#   pages.sh RELEASE FOLDER
#
# RELEASE is a folder that release.sh made; FOLDER gets rpms/layer-locality.repo and rpms/ARCHITECTURE.
. "$(dirname "$0")/lib.sh"

[ $# -eq 2 ] || die "usage: pages.sh RELEASE FOLDER"
[ ! -e "$2" ] || die "$2 is there: name another folder, or remove it"
url=$(repository_url)
owner=${url#https://github.com/} owner=${owner%%/*}
for archive in "$1"/layer-locality-*-rpms-*.tar.gz; do
  [ -f "$archive" ] || die "$1 has no packages: scripts/release.sh makes them"
  arch=${archive##*-rpms-} arch=${arch%.tar.gz}
  mkdir -p "$2/rpms/$arch"
  tar -xzf "$archive" -C "$2/rpms/$arch" --strip-components 1
done
# dnf knows its architecture.
sed "s,https://packages\.example\.com/layer-locality/,https://${owner,,}.github.io/${url##*/}/rpms/\$basearch/,; /^# Where you serve/d" \
  "$2/rpms/$arch/layer-locality.repo" >"$2/rpms/layer-locality.repo"
rm "$2"/rpms/*/layer-locality.repo

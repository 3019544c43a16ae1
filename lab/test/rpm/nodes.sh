# Nodes on which the test follows docs/install-rpm.md: root folders of Debian with a package manager of
# its own. Sourced by run.sh, which has T, ROOT and CACHE.
# shellcheck shell=bash disable=SC2154

# node_base SUITE PACKAGE...: prints the folder of a Debian with these packages, made once.
node_base() {
  local suite=$1 base=$CACHE/rpm-nodes/$1 mirror
  find "$CACHE/rpm-nodes" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} + 2>/dev/null || true
  if [ ! -d "$base" ]; then
    mirror=$(debian_mirror "$suite")
    rm -rf "$base.tmp"
    mkdir -p "$base.tmp"
    debootstrap --variant=minbase --include="$(tr ' ' , <<<"${*:2}")" "$suite" "$base.tmp" ${mirror:+"$mirror"} >"$T/debootstrap" 2>&1 || {
      tail -n 5 "$T/debootstrap" >&2
      die "debootstrap of $suite failed: are Debian's archives reachable?"
    }
    mv "$base.tmp" "$base"
  fi
  touch "$base"
  echo "$base"
}

# new_node NAME BASE: a node, on which dnf does not ask, with stand-ins for what a cluster has. They
# write down in /calls how they are called, and print what the page shows.
new_node() {
  local node=$T/nodes/$1 program
  mkdir -p "$node"/{work,root} "$node/upper"/{repos,run,etc/dnf,etc/yum.repos.d,usr/local/bin}
  echo "$2" >"$node/base"
  printf '[main]\nassumeyes=True\ngpgcheck=0\nmetadata_expire=0\nplugins=False\n' >"$node/upper/etc/dnf/dnf.conf"
  for program in systemctl kubectl crictl; do
    # shellcheck disable=SC2016 # variables of that shell
    printf '#!/bin/sh\necho "${0##*/} $*" >>/calls\n' >"$node/upper/usr/local/bin/$program"
    chmod +x "$node/upper/usr/local/bin/$program"
  done
  cat >>"$node/upper/usr/local/bin/kubectl" <<'END'
case "$*" in
*'-o json') echo '{"status": {"images": [{}]}}' ;;
*jsonpath*) echo '{"digest":"sha256:1","size":1}' ;;
esac
END
  echo 'echo "imageLayer.sha256:1: 1"' >>"$node/upper/usr/local/bin/crictl"
}

# node_repository NODE NAME LINES: has it know a repository of the test.
node_repository() {
  printf '[%s]\nname=%s\nbaseurl=file:///repos/%s\n%s\n' "$2" "$2" "$2" "${3:-}" >"$T/nodes/$1/upper/etc/yum.repos.d/$2.repo"
}

# in_node NODE COMMAND...: runs it there. What it mounts is gone afterwards.
in_node() {
  local node=$T/nodes/$1
  # shellcheck disable=SC2016 # variables of that shell
  unshare --mount --pid --fork --propagation private bash -ec '
    node=$1 repos=$2
    mount -t overlay -o "lowerdir=$(cat "$node/base"),upperdir=$node/upper,workdir=$node/work" node "$node/root"
    mount --bind "$repos" "$node/root/repos"
    mount --bind /dev "$node/root/dev"
    mount -t proc proc "$node/root/proc"
    exec env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$node/root" "${@:3}"' - "$node" "$T" "${@:2}"
}

# The blocks of commands of the page, a file each. Which of them have been followed is in $T/followed.
PAGE=$ROOT/docs/install-rpm.md
mkdir "$T/page" "$T/nodes"
awk -v folder="$T/page" '
  /^ *```console$/ { indent = index($0, "`") - 1; file = sprintf("%s/%02d", folder, ++n); next }
  /^ *```$/ { file = "" }
  file { print substr($0, indent + 1) >file }' "$PAGE"

# follow PATTERN COMMAND...: runs the commands of the one block that has a line with PATTERN: each as the
# last argument of COMMAND. Fails if one fails, or does not print what the page shows.
follow() {
  local file line command='' shown=()
  file=$(grep -l -e "$1" "$T"/page/*) || true
  [ "$(grep -c . <<<"$file")" = 1 ] || die "not one block of commands in $PAGE has '$1': $file"
  echo "$file" >>"$T/followed"
  while IFS= read -r line; do
    case $line in
    '# '* | '$ '* | '')
      [ -z "$command" ] || follow_one "${@:2}"
      command=${line#??} shown=()
      ;;
    *) if [ "${command: -1}" = "\\" ]; then command+=$'\n'$line; else shown+=("$line"); fi ;;
    esac
  done < <(cat "$file" && echo)
}
follow_one() {
  local line
  echo "\$ $command"
  "$@" "$command" >"$T/printed" 2>&1 </dev/null || { cat "$T/printed" && return 1; }
  cat "$T/printed"
  # ls has columns on a terminal only.
  tr -s ' \n' ' ' <"$T/printed" >"$T/words"
  for line in "${shown[@]}"; do
    grep -qF -e "$(tr -s ' ' <<<"$line")" "$T/words" || { echo "the page shows '$line'" && return 1; }
  done
}
# not_followed: prints the blocks of the page that were not.
not_followed() { printf '%s\n' "$T"/page/* | grep -vxF -f "$T/followed"; }

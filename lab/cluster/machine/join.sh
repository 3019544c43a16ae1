#!/bin/sh
# join.sh CGROUP COMMAND...: creates CGROUP in every cgroup hierarchy (one on
# cgroup v2, one per controller on v1), joins it, and then executes COMMAND.
set -eu
cgroup=$1
shift

while read -r _ _ _ root mount rest; do
  [ "$root" = / ] || continue
  case $rest in
  *" - cgroup "*) v2= ;;
  *" - cgroup2 "*) v2=yes ;;
  *) continue ;;
  esac
  path=$mount parents=
  for name in $(echo "$cgroup" | tr / ' '); do
    mkdir -p "$path/$name"
    # A new cpuset of v1 is empty, and as such accepts no process.
    for set in cpuset.cpus cpuset.mems; do
      if [ -z "$v2" ] && [ -e "$path/$set" ] && [ -z "$(cat "$path/$name/$set")" ]; then
        cat "$path/$set" >"$path/$name/$set"
      fi
    done
    parents="$parents $path"
    path=$path/$name
  done
  echo 0 >"$path/cgroup.procs" # 0: the writer, this shell
  if [ -n "$v2" ]; then
    # Children can use the controllers that their parents enable for them. A
    # parent can only enable controllers while it holds no processes itself.
    for parent in $parents; do
      read -r controllers <"$parent/cgroup.controllers" || : # there may be none
      for controller in $controllers; do
        echo "+$controller" 2>/dev/null >"$parent/cgroup.subtree_control" || :
      done
    done
  fi
done </proc/self/mountinfo

exec "$@"

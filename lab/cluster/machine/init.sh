#!/bin/sh
# PID 1 of a machine: gives its mount namespace a private view of the folders
# that components write to, prints "ready", and then only reaps orphans.
#
#   init.sh STATE KEEP JOIN
#
# STATE: the machine's folder on the host, which holds its private files.
# KEEP:  the cluster's folder, which holds STATE and stays visible as it is.
# JOIN:  the text of join.sh, which becomes /run/join.
#
# Nothing is written outside STATE, not even the table of mounts (mount -n):
# every mount below belongs to this machine's mount namespace and goes with it.
set -eu
state=$1 keep=$2 join=$3
private="/run /var/lib /var/log"

mount -n --make-rprivate /
mount -n -t proc proc /proc

# A /run of its own, in which the host's folders stay reachable.
mkdir -p "$state/run"
mount -n -t tmpfs -o mode=755 tmpfs "$state/run"
for path in $private; do
  mkdir -p "$state/run/host$path"
  mount -n --rbind "$path" "$state/run/host$path"
done
mount -n --move "$state/run" /run

# own PATH NAME...: the machine's own PATH/NAME, kept in STATE. PATH becomes a
# folder of links to the host's entries: a mount straight over an entry would
# need a mount point that the host may not have.
own() {
  path=$1
  shift
  [ "$path" = /run ] || mount -n -t tmpfs -o mode=755 tmpfs "$path"
  for entry in "/run/host$path"/*; do
    name=${entry##*/}
    case $keep/ in "$path/$name/"*) continue ;; esac
    case " $* " in *" $name "*) continue ;; esac
    ln -s "$entry" "$path/$name"
  done
  case $keep in
  "$path"/*)
    mkdir -p "$keep"
    mount -n --rbind "/run/host$keep" "$keep"
    ;;
  esac
  owned="$owned $(printf "$path/%s " "$@")"
}
owned=
own /run containerd containers crio lock netns runc systemd xtables.lock
own /var/lib cni containerd containers crio etcd kubelet
own /var/log containers pods
for path in $owned; do
  case $path in
  /run/containerd) ;; # its socket is for programs on the host, too
  /run/*) continue ;; # already this machine's own, and kept in memory
  esac
  mkdir -p "$state/root$path" "$path"
  mount -n --bind "$state/root$path" "$path"
done

# A kubelet sets these for the whole kernel when they differ from the values it
# wants. Here it finds files with those values, and the host's settings do not
# change.
mkdir /run/tunables
while read -r file value; do
  [ -e "/proc/sys/$file" ] || continue
  name=$(echo "$file" | tr / .)
  echo "$value" >"/run/tunables/$name"
  mount -n --bind "/run/tunables/$name" "/proc/sys/$file"
done <<'TUNABLES'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
TUNABLES

# No huge pages: where the kernel has them, the kubelet limits them in every
# container, and runc fails if (cgroup v1) no hugetlb hierarchy is mounted.
[ ! -d /sys/kernel/mm/hugepages ] || mount -n -t tmpfs tmpfs /sys/kernel/mm/hugepages

# Mount the cgroups again, from inside this machine's cgroup namespace: its own
# cgroup is the root, and no program sees or uses another.
mounts=$(cat /proc/self/mountinfo)
while read -r _ _ _ _ mount rest; do
  case $rest in
  *" - cgroup2 "*)
    umount -n -l "$mount"
    mount -n -t cgroup2 cgroup2 "$mount"
    ;;
  *" - cgroup "*)
    # Keep those of the super block's options that identify the hierarchy.
    which=
    for option in $(echo "${rest##* }" | tr , ' '); do
      case $option in
      rw | ro | xattr | noprefix | clone_children | cpuset_v2_mode | release_agent=*) ;;
      *) which=$which${which:+,}$option ;;
      esac
    done
    umount -n -l "$mount"
    mount -n -t cgroup -o "$which" cgroup "$mount"
    ;;
  esac
done <<MOUNTS
$mounts
MOUNTS

# As on a host run by systemd: pods may ask for mount propagation.
mount -n --make-rshared /

# PID 1 and all programs started in the machine are in a cgroup beside those of
# the pods.
printf '%s' "$join" >/run/join
# shellcheck disable=SC2016 # expanded by the shell that replaces this one
exec /bin/sh /run/join /system /bin/sh -c '
  echo ready
  exec >/dev/null
  while :; do
    sleep 86400 &
    wait
  done' "$0"

// Package machine makes machines out of Linux namespaces: each has its own
// processes (PID namespace), network, mounts and host name, and shares the
// host's kernel, root file system and cgroups.
//
// A machine lives as long as its PID 1, a shell script that only reaps
// orphans. To kill PID 1 is to end every process of the machine, containers
// included; its mounts and its network vanish with the last of them. So there
// is little to record and nothing to undo one by one.
package machine

// Package machine makes machines out of Linux namespaces: each has its own
// processes (PID namespace), network, mounts and host name, and shares the
// host's kernel, root file system and cgroups.
//
// A machine lives as long as its PID 1, a shell script that only reaps
// orphans. To kill PID 1 is to end every process of the machine, containers
// included; its mounts and its network vanish with the last of them. So there
// is little to record and nothing to undo one by one.
package machine

import "os"

// Machine is one set of namespaces, kept alive by its PID 1.
type Machine struct {
	Process
	// Keep is the cluster's folder.
	Keep string
}

// Spec describes a machine to boot.
type Spec struct {
	// Name becomes the host name.
	Name string
	// State is the folder for the machine's private files; it exists.
	State string
	// Keep is the cluster's folder, which contains State. It stays visible
	// under its own path and tells the cluster's processes from others.
	Keep string
	// Cgroup is the path of the machine's cgroup below each hierarchy's root.
	// It holds all that the machine and its containers use.
	Cgroup string
	// Log takes what PID 1 says.
	Log *os.File
}

// Process identifies a process for good: ids are used again, a start time with
// the same id is not.
type Process struct {
	PID int `json:"pid"`
	// Started is field 22 of /proc/PID/stat, in clock ticks since boot.
	Started uint64 `json:"started"`
}

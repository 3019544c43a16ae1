// Package machine makes machines out of Linux namespaces: each has its own
// processes (PID namespace), network, mounts and host name, and shares the
// host's kernel, root file system and cgroups.
//
// A machine lives as long as its PID 1, a shell script that only reaps orphans.
// Killing PID 1 ends every process of the machine, including containers; its
// mounts and its network vanish with the last of them. So there is little to
// record, and nothing to undo step by step.
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
	// Keep is the cluster's folder, which contains State. Inside the machine it is
	// visible under the same path. It also identifies the cluster's processes.
	Keep string
	// Cgroup is the path of the machine's cgroup below each hierarchy's root.
	// It holds all that the machine and its containers use.
	Cgroup string
	// Log gets the output of PID 1.
	Log *os.File
}

// Process identifies a process uniquely: ids are reused, but not together with
// the same start time.
type Process struct {
	PID int `json:"pid"`
	// Started is field 22 of /proc/PID/stat, in clock ticks since boot.
	Started uint64 `json:"started"`
}

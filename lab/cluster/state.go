package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// state is the content of a folder's cluster.json. The file is written before
// anything else is made: a folder may be removed if it has this file, and only
// then.
type state struct {
	Config Config `json:"config"`
	// Owner is the process that the cluster belongs to. It is empty once the
	// cluster is detached.
	Owner machine.Process `json:"owner"`
	// Ready is set when the start has succeeded.
	Ready  bool         `json:"ready"`
	Subnet netip.Prefix `json:"subnet"`
}

// record is what is known about a running process or machine.
type record struct {
	machine.Process
	Settings Component `json:"settings"`
}

func statePath(dir string) string { return filepath.Join(dir, folder.State) }

func readState(dir string) (*state, error) {
	s := new(state)
	if err := folder.ReadJSON(statePath(dir), s); err != nil {
		return nil, err
	}
	// A folder that does not belong to this cluster must not be removed.
	if s.Config.Dir != dir {
		return nil, fmt.Errorf("%s was not written for a cluster in %s", statePath(dir), dir)
	}
	return s, nil
}

// recordPath returns the path of the record of a machine, or of a process
// "machine.name". These files are the only record of what runs: every handle
// reads them.
func recordPath(dir, name string) string {
	return filepath.Join(dir, "state", name+".json")
}

func readRecord(dir, name string) (record, error) {
	var r record
	err := folder.ReadJSON(recordPath(dir, name), &r)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // never started
	}
	return r, err
}

func writeRecord(dir, name string, r record) error {
	return folder.WriteJSON(recordPath(dir, name), r)
}

// host returns address n of a /24, with the prefix length of the network.
func host(subnet netip.Prefix, n int) netip.Prefix {
	a := subnet.Addr().As4()
	a[3] = byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(a), subnet.Bits())
}

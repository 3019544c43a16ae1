package cluster

import (
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// Guest is a place in the cluster's network for a node that the caller runs, such as a virtual
// machine. The cluster does not manage what runs there.
type Guest struct {
	// Name of the node, and of the tap device that leads to it.
	Name string
	// Address in the cluster's network, reachable from the host, with the network's length.
	Address netip.Prefix
	// Gateway is the control machine, on which apiserver and registry listen.
	Gateway netip.Addr

	control *machine.Machine
}

// AddGuest makes room for one more node: an address, and a tap device that is a port of the
// cluster's bridge. The device is in the network of the control machine. One caller at a time.
func (c *Cluster) AddGuest(name string) (*Guest, error) {
	control, err := c.machine(control)
	if err != nil {
		return nil, err
	}
	address := host(c.subnet, 11+len(c.nodes)+len(c.guests))
	guest := &Guest{Name: name, Address: address, Gateway: c.Address(), control: control}
	if err := control.Tap(name); err != nil {
		return nil, err
	}
	c.guests = append(c.guests, guest)
	return guest, nil
}

// Guests are the guests that this handle has added.
func (c *Cluster) Guests() []*Guest { return c.guests }

// Start starts a program where the guest's tap device is, on the control machine: an emulator.
// It ends with the cluster. The caller has to wait for it.
func (g *Guest) Start(cmd *exec.Cmd) error {
	if err := g.control.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", g.Name, err)
	}
	return nil
}

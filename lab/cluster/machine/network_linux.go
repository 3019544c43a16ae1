package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const bridge = "br0"

// burst passes the largest packet that segmentation offload hands over.
const burst = 256 << 10

// reserved holds address ranges that no real network should use: one of those
// for examples (RFC 5737) and those for benchmarks (RFC 2544). The other two of
// RFC 5737 are left alone: a private network may use them behind its default
// route, and a cluster with the same addresses would cut it off.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
}

// FreeSubnet returns a /24 that overlaps with no address or route of the calling process's network.
func FreeSubnet() (netip.Prefix, error) {
	used, err := usedPrefixes()
	if err != nil {
		return netip.Prefix{}, err
	}
	return freeSubnet(used)
}

// freeSubnet finds a /24 that overlaps with nothing in use.
func freeSubnet(used []netip.Prefix) (netip.Prefix, error) {
	for _, network := range reserved {
		for candidate := netip.PrefixFrom(network.Addr(), 24); network.Contains(candidate.Addr()); candidate = following(candidate) {
			if !slices.ContainsFunc(used, candidate.Overlaps) {
				return candidate, nil
			}
		}
	}
	return netip.Prefix{}, errors.New("no free network: every reserved range is in use; stop another cluster first")
}

// following returns the /24 after a /24.
func following(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	if a[2]++; a[2] == 0 {
		a[1]++
	}
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// usedPrefixes lists the addresses and routes of the calling process's network.
func usedPrefixes() ([]netip.Prefix, error) {
	var used []netip.Prefix
	add := func(ipnet *net.IPNet) {
		if ipnet == nil {
			return
		}
		ip, ok := netip.AddrFromSlice(ipnet.IP)
		ones, _ := ipnet.Mask.Size()
		// A default route covers every network and occupies none.
		if ok && ones > 0 {
			used = append(used, netip.PrefixFrom(ip.Unmap(), ones).Masked())
		}
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, addr := range addrs {
		add(addr.IPNet)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		add(route.Dst)
	}
	return used, nil
}

// ConnectHost creates a bridge with the given addresses in the machine, and
// connects the host to it through the link named link with address host. The
// bridge is in the machine's network, so the host's firewall rules do not apply
// between machines.
func (m *Machine) ConnectHost(link string, host netip.Prefix, addresses ...netip.Prefix) error {
	err := m.network(func(inside *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := inside.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		if err := up(inside, bridge, addresses...); err != nil {
			return err
		}
		return up(inside, "lo")
	})
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "host", PeerNamespace: netlink.NsPid(m.PID)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	err = m.network(func(inside *netlink.Handle) error { return enslave(inside, "host") })
	if err != nil {
		return err
	}
	handle, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer handle.Close()
	return up(handle, link, host)
}

// Connect gives node a link eth0 with an address and a default route. The other
// end of the link is named port and goes to m, which holds the bridge.
func (m *Machine) Connect(node *Machine, port string, address netip.Prefix, gateway netip.Addr) error {
	err := m.network(func(inside *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = port
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(node.PID)}
		if err := inside.LinkAdd(veth); err != nil {
			return fmt.Errorf("link %s: %w", port, err)
		}
		return enslave(inside, port)
	})
	if err != nil {
		return err
	}
	return node.network(func(inside *netlink.Handle) error {
		if err := up(inside, "lo"); err != nil {
			return err
		}
		if err := up(inside, "eth0", address); err != nil {
			return err
		}
		return addRoute(inside, netip.Prefix{}, gateway)
	})
}

// Tap creates a tap device and connects it to the machine's bridge. A program in the machine
// that opens it, an emulator, sends and gets the frames of that port.
func (m *Machine) Tap(name string) error {
	err := m.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP})
	})
	if err != nil {
		return fmt.Errorf("tap device %s: %w", name, err)
	}
	return m.network(func(inside *netlink.Handle) error { return enslave(inside, name) })
}

// Route sends packets for prefix to the machine with address via.
func (m *Machine) Route(prefix netip.Prefix, via netip.Addr) error {
	return m.network(func(inside *netlink.Handle) error { return addRoute(inside, prefix, via) })
}

// Limit sets how fast the bridge's machine sends to the node behind port: what
// the node can download, in bits per second. 0 removes the limit.
func (m *Machine) Limit(port string, bitsPerSecond uint64) error {
	return m.network(func(inside *netlink.Handle) error {
		link, err := inside.LinkByName(port)
		if err != nil {
			return fmt.Errorf("link %s: %w", port, err)
		}
		// tbf is the rate limiter that every kernel has.
		attrs := netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		}
		if bitsPerSecond == 0 {
			err := inside.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "tbf"})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
				return nil // there was none
			}
			return err
		}
		// The queue adds up to 200 ms.
		rate := bitsPerSecond / 8
		err = inside.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: attrs,
			Rate:       rate,
			Limit:      uint32(min(rate/5+burst, 1<<31)),
			Buffer:     netlink.Xmittime(rate, burst),
		})
		if err != nil {
			return fmt.Errorf("limit link %s: %w", port, err)
		}
		return nil
	})
}

// LimitFrom is Limit for what comes from one address, and for what comes from all others, once.
func (m *Machine) LimitFrom(port string, from netip.Addr, bitsPerSecond, others uint64) error {
	return m.network(func(inside *netlink.Handle) error {
		link, err := inside.LinkByName(port)
		if err != nil {
			return fmt.Errorf("link %s: %w", port, err)
		}
		index, root := link.Attrs().Index, netlink.MakeHandle(2, 0) // that of Limit cannot be replaced
		both := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
		both.Defcls = 2
		if err := inside.QdiscReplace(both); err != nil {
			return fmt.Errorf("limit link %s: %w", port, err)
		}
		for i, rate := range []uint64{bitsPerSecond, others} {
			class := netlink.MakeHandle(2, uint16(i+1)) //nolint:gosec // 1 or 2
			err := inside.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Parent: root, Handle: class},
				netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst}))
			if err == nil { // bytes count, not packets, which segmentation offload makes large
				err = inside.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: class}, QdiscType: "bfifo"})
			}
			if err != nil {
				return fmt.Errorf("limit link %s: %w", port, err)
			}
		}
		address := from.As4()
		source := netlink.TcU32Key{Mask: 1<<32 - 1, Val: binary.BigEndian.Uint32(address[:]), Off: 12}
		err = inside.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: root, Priority: 1, Protocol: unix.ETH_P_IP},
			Sel:         &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{source}},
			ClassId:     netlink.MakeHandle(2, 1),
		})
		if err != nil {
			return fmt.Errorf("limit what link %s gets from %s: %w", port, from, err)
		}
		return nil
	})
}

// RemoveLink removes a link of the calling process's network, if it is there.
func RemoveLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	// The other end may vanish at any time, and this one with it.
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// LockNetwork locks the calling process's network among the users of this
// package until unlock is called. It is for the time between choosing a free
// address and using it. The lock is on the namespace itself and leaves no file.
func LockNetwork() (unlock func(), err error) {
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock the network: %w", err)
	}
	return func() { unix.Close(fd) }, nil
}

// network calls f with a handle on the machine's network.
func (m *Machine) network(f func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPid(m.PID)
	if err != nil {
		return fmt.Errorf("the machine is down: %w", err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer handle.Close()
	return f(handle)
}

func up(h *netlink.Handle, name string, addresses ...netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for _, address := range addresses {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
			return fmt.Errorf("address %s of link %s: %w", address, name, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}

func enslave(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	master, err := h.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := h.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("link %s into the bridge: %w", name, err)
	}
	return up(h, name)
}

// addRoute adds a route; the zero prefix is the default route.
func addRoute(h *netlink.Handle, prefix netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Gw: via.AsSlice()}
	if prefix.IsValid() {
		route.Dst = ipNet(prefix)
	}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("route to %s via %s: %w", prefix, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

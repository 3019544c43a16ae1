//go:build !linux

package machine

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"syscall"
)

// Other systems have no such machines. The package still compiles there, so
// that the rest of the repository can be worked on.
var errNotLinux = errors.New("machines are made of Linux namespaces")

func Boot(context.Context, Spec) (*Machine, error)                  { return nil, errNotLinux }
func Self() (Process, error)                                        { return Process{}, errNotLinux }
func Identify(int) (Process, error)                                 { return Process{}, errNotLinux }
func Leftovers(string) ([]Process, error)                           { return nil, errNotLinux }
func RemoveCgroups(context.Context, string) error                   { return errNotLinux }
func CheckInotify(int) error                                        { return errNotLinux }
func MayLowerOOMScore() bool                                        { return false }
func RemoveLink(string) error                                       { return errNotLinux }
func LockNetwork() (func(), error)                                  { return nil, errNotLinux }
func FreeSubnet() (netip.Prefix, error)                             { return netip.Prefix{}, errNotLinux }
func (Process) Alive() bool                                         { return false }
func (Process) Signal(syscall.Signal) error                         { return errNotLinux }
func (Process) Kill() error                                         { return errNotLinux }
func (Process) Gone(context.Context) error                          { return errNotLinux }
func (*Machine) Tap(string) error                                   { return errNotLinux }
func (*Machine) Start(*exec.Cmd) error                              { return errNotLinux }
func (*Machine) Route(netip.Prefix, netip.Addr) error               { return errNotLinux }
func (*Machine) Limit(string, uint64) error                         { return errNotLinux }
func (*Machine) LimitFrom(string, netip.Addr, uint64, uint64) error { return errNotLinux }
func (*Machine) ConnectHost(string, netip.Prefix, ...netip.Prefix) error {
	return errNotLinux
}
func (*Machine) Connect(*Machine, string, netip.Prefix, netip.Addr) error {
	return errNotLinux
}

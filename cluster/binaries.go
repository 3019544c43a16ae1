package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/cluster/internal/machine"
)

// Binaries that exist in one build only, below BinDir/tools.
var tools = []string{"etcd", "registry", "runc", "crictl"}

// cniDirs are where distributions install the CNI plugins.
var cniDirs = []string{"/usr/libexec/cni", "/usr/lib/cni", "/opt/cni/bin"}

// binary is the program that a component runs.
func (c *Config) binary(name string, component Component) string {
	if component.Binary != "" {
		return component.Binary
	}
	return filepath.Join(c.BinDir, c.flavourOf(name, component), name)
}

func (c *Config) flavourOf(name string, component Component) string {
	switch {
	case slices.Contains(tools, name):
		return "tools"
	case name == "layer-resolver": // which upstream does not have
		return string(Patched)
	}
	return string(cmp.Or(component.Flavour, c.Flavour))
}

// checkBinary says how to get a binary that is missing.
func (c *Config) checkBinary(name string, component Component) error {
	path := c.binary(name, component)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0:
		return nil
	case err == nil:
		return fmt.Errorf("%s is not a program", path)
	case component.Binary != "":
		return fmt.Errorf("%s: %w", name, err)
	default:
		return fmt.Errorf("%s is not there: build it with 'scripts/build.sh %s %s'", path, c.flavourOf(name, component), name)
	}
}

// preflight checks everything that a start needs, and reports all that is
// missing at once.
func (c *Config) preflight() error {
	if runtime.GOOS != "linux" {
		return errors.New("a cluster needs Linux: it is made of Linux namespaces")
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: run it with sudo")
	}
	var errs []error
	var missing []string
	programs := []string{"sh", "mount", "umount", "unshare", "conmon"}
	if !machine.MayLowerOOMScore() {
		programs = append(programs, "jq") // for runc.sh
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	dir := cniDir()
	for _, plugin := range []string{"bridge", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(dir, plugin)); err != nil {
			missing = append(missing, "CNI plugin "+plugin)
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing on this machine: %s; 'make deps' installs them", strings.Join(missing, ", ")))
	}
	for name, component := range c.components() {
		errs = append(errs, c.checkBinary(name, *component))
	}
	errs = append(errs, c.checkBinary("runc", Component{}), c.checkBinary("pinns", Component{Flavour: c.CRIO.Flavour}))
	return errors.Join(errs...)
}

// inotifyInstances is how many the components use, counted on a running
// cluster: few by themselves, but the kernel's usual limit is 128 for all of
// root's processes together.
func (c *Config) inotifyInstances() int {
	const crio, kubelet, controlPlane = 4, 6, 12
	if c.RuntimeOnly {
		return crio * c.Nodes
	}
	return controlPlane + (crio+kubelet)*c.Nodes
}

// cniDir is the folder of the CNI plugins.
func cniDir() string {
	for _, dir := range cniDirs {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return cniDirs[0]
}

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
	"github.com/layer-locality/layer-locality/lab/cluster/render"
)

// tools is the folder of BinDir with the programs that are the same in every
// flavour.
const tools = "tools"

// lab is the folder of BinDir with what Config.Lab names.
const lab = "lab"

// labOr returns lab, or another build without Config.Lab.
func (c *Config) labOr(build string) string {
	if c.Lab {
		return lab
	}
	return build
}

// program is the path of a program of a build.
func (c *Config) program(build, name string) string { return filepath.Join(c.BinDir, build, name) }

// checkProgram returns an error if a program of a build is missing. The error
// names the way to get it.
func (c *Config) checkProgram(build, name string) error {
	err := executable(c.program(build, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: build it with 'scripts/build.sh %s %s'", c.program(build, name), build, name)
	}
	return err
}

// flavour returns the build that the component's program comes from, unless the
// settings name the program.
func (p *Process) flavour(settings Component) string {
	return cmp.Or(p.build, string(settings.Flavour), string(p.cluster.config.Flavour))
}

// binary is the program that the component runs.
func (p *Process) binary(settings Component) string {
	return cmp.Or(settings.Binary, p.cluster.config.program(p.flavour(settings), p.name))
}

func (p *Process) checkBinary(settings Component) error {
	if settings.Binary == "" {
		return p.cluster.config.checkProgram(p.flavour(settings), p.name)
	}
	if err := executable(settings.Binary); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = fmt.Errorf("%s is not a program", path)
	}
	return err
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
	programs := []string{"sh", "mount", "umount", "unshare"}
	if !c.ControlPlaneOnly {
		for _, kind := range c.kinds() {
			programs = append(programs, kind.programs...)
		}
		if !machine.MayLowerOOMScore() {
			programs = append(programs, "jq") // for runc.sh
		}
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if !c.ControlPlaneOnly {
		dir := render.CNIDir()
		for _, plugin := range []string{"bridge", "host-local", "loopback"} {
			if _, err := os.Stat(filepath.Join(dir, plugin)); err != nil {
				missing = append(missing, "CNI plugin "+plugin)
			}
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing on this machine: %s; 'make deps' installs them", strings.Join(missing, ", ")))
	}
	for _, p := range c.components() {
		errs = append(errs, p.checkBinary(p.settings))
	}
	if c.ControlPlaneOnly {
		return errors.Join(errs...)
	}
	errs = append(errs, c.checkProgram(c.labOr(tools), "runc"))
	for _, kind := range c.kinds() {
		for _, name := range kind.binaries {
			errs = append(errs, c.checkProgram(cmp.Or(kind.build, string(c.Runtime.Flavour), string(c.Flavour)), name))
		}
	}
	return errors.Join(errs...)
}

// inotifyInstances returns how many inotify instances the components use, as
// counted on a running cluster. They are few, but the kernel's usual limit is
// 128 for all of root's processes together.
func (c *Config) inotifyInstances() int {
	const kubelet, controlPlane = 6, 12
	runtimes := 0
	for _, node := range c.nodeNames() {
		runtimes += c.kind(node).inotify
	}
	if c.RuntimeOnly {
		return runtimes
	}
	return controlPlane + runtimes + kubelet*c.Nodes
}

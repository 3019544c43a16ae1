package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// How long a component may take until it answers, and until it ends after
// SIGTERM. The limits are generous, since the machine may be small and busy.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Process is a handle on one component. It holds no state of its own: handles
// in several processes see the same state.
type Process struct {
	entry
	cluster *Cluster
	machine string
}

// Name returns the machine and the component, as in "n1 kubelet".
func (p *Process) Name() string { return p.machine + " " + p.name }

// Log returns the path of the component's log file. All runs append to it.
func (p *Process) Log() string {
	return filepath.Join(p.cluster.config.LogDir, p.machine+"-"+p.name+".log")
}

// PID returns the id of the running process, or 0 if none runs.
func (p *Process) PID() int {
	if r, err := p.record(); err == nil && r.Alive() {
		return r.PID
	}
	return 0
}

// Settings returns the settings of the last start.
func (p *Process) Settings() (Component, error) {
	r, err := p.record()
	return r.Settings, err
}

// Start starts the component with the settings of its last start and the given
// changes, and returns once it serves. If the component does not serve, Start
// ends it and returns an error with the end of its log. The new settings are
// kept in any case.
func (p *Process) Start(ctx context.Context, change ...func(*Component)) error {
	r, err := p.record()
	if err != nil {
		return err
	}
	if r.Alive() {
		return fmt.Errorf("%s already runs as process %d", p.Name(), r.PID)
	}
	settings := r.Settings.clone()
	for _, f := range change {
		f(&settings)
	}
	if err := p.checkBinary(settings); err != nil {
		return err
	}
	args, err := p.arguments(settings)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name(), err)
	}
	args = append(args, p.gates(settings)...)
	return p.launch(ctx, settings, append(args, settings.Args...))
}

func (p *Process) launch(ctx context.Context, settings Component, args []string) error {
	log, err := os.OpenFile(p.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.binary(settings), args...)
	cmd.Env = slices.Concat(p.env, settings.Env)
	cmd.Stdout, cmd.Stderr = log, log
	if p.stdout != "" {
		out, err := os.OpenFile(p.stdout, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer out.Close()
		cmd.Stdout = out
	}
	host, err := p.cluster.machine(p.machine)
	if err != nil {
		return err
	}
	if err := host.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.Name(), err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	running, err := machine.Identify(cmd.Process.Pid)
	if err == nil {
		err = writeRecord(p.cluster.config.Dir, p.key(), record{Process: running, Settings: settings})
	}
	if err != nil {
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("%s: %w", p.Name(), err)
	}

	err = poll.Until(ctx, 50*time.Millisecond, startTimeout, func(ctx context.Context) error {
		err := p.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return poll.Permanent(err)
		default:
			return err
		}
	})
	if err == nil {
		return nil
	}
	select {
	case <-ended:
		return fmt.Errorf("%s ended early (%s); its log is %s%s",
			p.Name(), cmd.ProcessState, p.Log(), tail(p.Log(), begin))
	default:
		// A process that does not serve is of no use, and would block the next start.
		_ = running.Kill()
		<-ended
		return fmt.Errorf("%s does not serve: %w; its log is %s%s", p.Name(), err, p.Log(), tail(p.Log(), begin))
	}
}

// Stop ends the component with SIGTERM, or after 30 seconds with SIGKILL, and
// waits for its end. If the component does not run, Stop does nothing.
func (p *Process) Stop(ctx context.Context) error {
	r, err := p.record()
	if err != nil {
		return err
	}
	if err := r.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name(), err)
	}
	grace, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if r.Gone(grace) == nil {
		return nil
	}
	return p.Kill(ctx)
}

// Kill ends the component with SIGKILL and waits for its end. If the component
// does not run, Kill does nothing.
func (p *Process) Kill(ctx context.Context) error {
	r, err := p.record()
	if err != nil {
		return err
	}
	if err := r.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name(), err)
	}
	return r.Gone(ctx)
}

// Restart calls Stop and Start.
func (p *Process) Restart(ctx context.Context, change ...func(*Component)) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start(ctx, change...)
}

// startFirst starts the component with the settings from the cluster's Config.
func (p *Process) startFirst(ctx context.Context) error { return p.Start(ctx, with(p.settings)) }

func (p *Process) key() string { return p.machine + "." + p.name }

func (p *Process) record() (record, error) { return readRecord(p.cluster.config.Dir, p.key()) }

// with returns a change that replaces all settings.
func with(settings Component) func(*Component) {
	return func(c *Component) { *c = settings.clone() }
}

// clone returns a deep copy, so that changes to it do not affect the original.
func (c Component) clone() Component {
	c.Args = slices.Clone(c.Args)
	c.Env = slices.Clone(c.Env)
	c.FeatureGates = maps.Clone(c.FeatureGates)
	c.Config = maps.Clone(c.Config)
	return c
}

// gates returns the command line option for the feature gates of a component.
func (p *Process) gates(settings Component) []string {
	all := map[string]bool{}
	if p.layersGate && p.flavour(settings) == string(Patched) {
		all[LayersGate] = true
	}
	maps.Copy(all, settings.FeatureGates)
	if len(all) == 0 {
		return nil
	}
	var list []string
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		list = append(list, fmt.Sprintf("%s=%t", gate, all[gate]))
	}
	return []string{"--feature-gates=" + strings.Join(list, ",")}
}

// tail returns the last lines of a log that come after the offset begin.
func tail(path string, begin int64) string {
	const lines, most = 12, 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	content := make([]byte, min(end-begin, most))
	if _, err := file.ReadAt(content, end-int64(len(content))); err != nil || len(content) == 0 {
		return ""
	}
	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	all = all[max(0, len(all)-lines):]
	return ", which ends with:\n    " + string(bytes.Join(all, []byte("\n    ")))
}

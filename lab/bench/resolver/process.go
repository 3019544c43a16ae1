package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/layer-locality/layer-locality/internal/poll"
)

// process is a running layer-resolver.
type process struct {
	command         *exec.Cmd
	began           time.Time
	log             string
	health, metrics string
	ended           chan struct{}
	err             error // of Wait, once it has ended
}

// stopLimit is how long the process may take to end.
const stopLimit = 30 * time.Second

// startProcess starts layer-resolver with its output in a file. It serves
// probes and metrics on free ports.
func startProcess(ctx context.Context, binary, log string, environment []string, args ...string) (*process, error) {
	p := &process{log: log, ended: make(chan struct{})}
	for _, address := range []*string{&p.health, &p.metrics} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // not before both are chosen
		*address = listener.Addr().String()
	}
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p.command = exec.CommandContext(ctx, binary, append([]string{
		"run", "--health-probe-bind-address", p.health, "--metrics-bind-address", p.metrics, "--metrics-secure=false",
	}, args...)...)
	p.command.Env = append(os.Environ(), environment...)
	p.command.Stdout, p.command.Stderr = output, output
	p.command.Cancel = func() error { return p.command.Process.Signal(syscall.SIGTERM) }
	p.command.WaitDelay = stopLimit
	p.began = time.Now()
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		p.err = p.command.Wait()
	}()
	return p, nil
}

// until waits until the condition holds, and fails if the process ends before.
func (p *process) until(ctx context.Context, what string, condition func() error) error {
	const limit = 30 * time.Minute // 5,000 images with the default rate take nine minutes
	err := poll.Until(ctx, 20*time.Millisecond, limit, func(context.Context) error {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return poll.Permanent(fmt.Errorf("layer-resolver ended: %w", cmp.Or(p.err, errors.New("without an error"))))
		default:
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w; see %s", what, err, p.log)
	}
	return nil
}

// ready waits until the readiness probe succeeds, and returns the time from the
// start.
func (p *process) ready(ctx context.Context) (time.Duration, error) {
	err := p.until(ctx, "it was ready", func() error {
		resp, err := http.Get("http://" + p.health + "/readyz")
		if err != nil {
			return err // it does not listen yet
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return time.Since(p.began), err
}

// metric returns a metric of the process that has no labels.
func (p *process) metric(name string) (int, error) {
	resp, err := http.Get("http://" + p.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("metrics of layer-resolver: %w", err)
	}
	metrics := families[name].GetMetric()
	if len(metrics) != 1 {
		return 0, fmt.Errorf("layer-resolver has %d metrics %s, want one", len(metrics), name)
	}
	return int(metrics[0].GetCounter().GetValue() + metrics[0].GetGauge().GetValue()), nil
}

// peakRSS returns the peak of the process's resident memory, in bytes.
func (p *process) peakRSS() (int64, error) {
	proc, err := procfs.NewProc(p.command.Process.Pid)
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	if err != nil {
		return 0, err
	}
	return int64(status.VmHWM), nil //nolint:gosec // far from the limit
}

// stop ends the process and returns its processor time.
func (p *process) stop() (time.Duration, error) {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		_ = p.command.Process.Kill()
		<-p.ended
	}
	if p.err != nil {
		return 0, fmt.Errorf("%s: %w; see %s", strings.Join(p.command.Args[:2], " "), p.err, p.log)
	}
	return p.command.ProcessState.UserTime() + p.command.ProcessState.SystemTime(), nil
}

// processorTimes returns the processor time of this process and its children so
// far, by name.
func processorTimes() (map[string]time.Duration, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	times := map[string]time.Duration{}
	for _, proc := range all {
		stat, err := proc.Stat()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		if stat.PID == os.Getpid() || stat.PPID == os.Getpid() {
			times[stat.Comm] += time.Duration(stat.CPUTime() * float64(time.Second))
		}
	}
	return times, nil
}

package benchresolver

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

// stopLimit is how long it may take to end.
const stopLimit = 30 * time.Second

// startProcess starts it with its output in a file. It serves probes and metrics
// on ports of its own.
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
		"run", "--health-probe-bind-address", p.health, "--metrics-bind-address", p.metrics,
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

// until waits until done says so, and fails if the process ends before.
func (p *process) until(ctx context.Context, what string, done func() (bool, error)) error {
	const limit = 30 * time.Minute // 5,000 images with the default rate take nine
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-p.ended:
			return fmt.Errorf("layer-resolver ended before %s: %w; see %s", what, cmp.Or(p.err, errors.New("without an error")), p.log)
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; see %s", what, ctx.Err(), p.log)
		}
	}
}

// ready waits for the readiness probe and returns how long it took from the
// start.
func (p *process) ready(ctx context.Context) (time.Duration, error) {
	err := p.until(ctx, "it was ready", func() (bool, error) {
		resp, err := http.Get("http://" + p.health + "/readyz")
		if err != nil {
			return false, nil // it does not listen yet
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
	return time.Since(p.began), err
}

// looked returns how many images it has taken from the queue of a registry.
func (p *process) looked(registry string) (int, error) {
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
	for _, metric := range families["workqueue_work_duration_seconds"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "name" && label.GetValue() == registry {
				return int(metric.GetHistogram().GetSampleCount()), nil
			}
		}
	}
	return 0, nil
}

// peakRSS is the most memory (bytes) that it had in RAM at a time.
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

// stop ends it and returns the processor time that it took.
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

// processorTimes returns what this process and its children have run so far, by
// name.
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

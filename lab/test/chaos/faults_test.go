//go:build e2e

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

const (
	// between is the time from the begin of a fault to that of the next, on average.
	between = 12 * time.Second
	// folder is a node's container storage.
	folder = "/var/lib/containers/storage"
)

// fault is one that can be caused.
type fault struct {
	// what does not work meanwhile.
	what string
	// least and most are how long it lasts.
	least, most time.Duration
	// cause causes it, and ends it after so long, or when the run ends.
	cause func(run context.Context, lasts time.Duration) error
}

// faults causes all of them. Those of what is broken already are left out.
type faults struct {
	*chaos
	all       []fault
	processes []*cluster.Process
	// caused is how often each was caused, and ended how often a component ended that was not killed.
	caused, ended map[string]int
}

func newFaults(x *chaos) *faults {
	f := &faults{chaos: x, caused: map[string]int{}, ended: map[string]int{}}
	f.processes = []*cluster.Process{x.c.Etcd(), x.c.APIServer(), x.c.ControllerManager(), x.c.Scheduler(), x.c.Addon(addons.LayerResolver)}
	for _, node := range x.c.Nodes() {
		f.processes = append(f.processes, node.Kubelet(), node.Runtime())
	}
	for _, p := range f.processes {
		f.all = append(f.all, fault{p.Name(), 0, 10 * time.Second, func(run context.Context, lasts time.Duration) error {
			if err := p.Kill(x.t.Context()); err != nil {
				return err
			}
			sleep(run, lasts)
			return f.again(p)
		}})
	}
	for _, node := range x.c.Nodes() {
		exec := func(program string, args ...string) error {
			_, err := node.Exec(x.t.Context(), program, args...)
			return err
		}
		f.all = append(f.all,
			fault{node.Name + " " + scenario.Agent, 0, 0, func(context.Context, time.Duration) error {
				pids, err := agents(node)
				if err != nil || len(pids) == 0 {
					return err // it does not run
				}
				args := []string{"-KILL"}
				for _, pid := range pids {
					args = append(args, strconv.Itoa(pid))
				}
				_ = exec("kill", args...) // one may have ended
				// The kubelet waits the longer the more often it has started it.
				return poll.Until(x.t.Context(), time.Second, settled, func(context.Context) error {
					pids, err := agents(node)
					if err == nil && len(pids) < len(containers) {
						err = fmt.Errorf("%d of its containers run", len(pids))
					}
					return err
				})
			}},
			fault{node.Name + " link", 5 * time.Second, 20 * time.Second, func(run context.Context, lasts time.Duration) error {
				drop := func(action string) error {
					return errors.Join(exec("iptables", "-w", action, "INPUT", "-i", "eth0", "-j", "DROP"), exec("iptables", "-w", action, "FORWARD", "-i", "eth0", "-j", "DROP"))
				}
				if err := drop("-I"); err != nil {
					return err
				}
				sleep(run, lasts)
				return drop("-D")
			}},
			fault{node.Name + " speed", 10 * time.Second, 30 * time.Second, func(run context.Context, lasts time.Duration) error {
				if err := node.SetBandwidth(speed / 40); err != nil {
					return err
				}
				sleep(run, lasts)
				return node.SetBandwidth(speed)
			}},
			fault{node.Name + " images", 0, 0, func(context.Context, time.Duration) error {
				_ = exec("crictl", "rmi", "--prune") // fails for one that a pod begins to use, or without CRI-O
				return nil
			}},
		)
	}
	// Longer than the period of the kubelet's collection, on one node.
	if full := x.c.Node("n1"); f.seconds >= 900 {
		f.all = append(f.all, fault{full.Name + " disk", 330 * time.Second, 360 * time.Second, func(run context.Context, lasts time.Duration) error {
			const file = folder + "/filled"
			fill := fmt.Sprintf("fallocate -l $(($(df --output=avail --block-size=1 %s | tail -n 1) - %d)) %s", folder, storage/10, file)
			if _, err := full.Exec(x.t.Context(), "sh", "-c", fill); err != nil {
				return err
			}
			sleep(run, lasts)
			_, err := full.Exec(x.t.Context(), "rm", file)
			return err
		}})
	}
	return f
}

// containers are those of layer-agent.
var containers = []string{"read", "publish"}

// agents returns the processes of layer-agent on a node, by their ids there: one of each container, if it works. They are
// looked for from CRI-O, which is part of the node as they are.
func agents(node *cluster.Node) (all []int, err error) {
	for _, container := range containers {
		pids, err := process.SeenBy(node.Runtime().PID()).Running(scenario.Agent, container)
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

// run causes faults until the run ends, and then waits until none is left.
func (f *faults) run(run context.Context) {
	random := f.random(2)
	var group sync.WaitGroup
	defer group.Wait()
	for {
		next := f.all[random.IntN(len(f.all))]
		lasts := next.least + time.Duration(random.Int64N(int64(next.most-next.least)+1))
		sleep(run, between/2+time.Duration(random.Int64N(int64(between))))
		if run.Err() != nil {
			return
		}
		if end, works := f.begin(next.what, time.Now()); works {
			f.caused[next.what]++
			f.t.Logf("%4.0f s: %s, for %s", time.Since(f.began).Seconds(), next.what, lasts.Round(time.Second))
			group.Go(func() {
				defer func() { end(time.Now()) }()
				if err := next.cause(run, lasts); err != nil {
					f.add("fault "+next.what, "%s: %v", next.what, err)
				}
			})
		}
	}
}

// again starts a component until it runs: it may need another one that is killed.
func (f *faults) again(p *cluster.Process) error {
	return poll.Until(f.t.Context(), 2*time.Second, 5*time.Minute, func(ctx context.Context) error {
		if p.PID() != 0 {
			return nil
		}
		return p.Start(ctx)
	})
}

// keepRunning starts components again that have ended, as one may that has lost another.
func (f *faults) keepRunning(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, 5*time.Second) {
		for _, p := range f.processes {
			if p.PID() != 0 {
				continue
			}
			end, works := f.begin(p.Name(), time.Now())
			if !works {
				continue // it was killed
			}
			f.t.Logf("%4.0f s: %s has ended", time.Since(f.began).Seconds(), p.Name())
			f.ended[p.Name()]++
			if err := f.again(p); err != nil {
				f.add("again "+p.Name(), "%s: %v", p.Name(), err)
			}
			end(time.Now())
		}
	}
}

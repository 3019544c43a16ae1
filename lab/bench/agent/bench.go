// Package agent measures layer-agent on nodes with many images, one with containerd and one with
// CRI-O, as it is deployed: how long it reads, what it takes of the node, whether pulls take
// longer beside it, and how soon the plugin's index has what was pulled or removed.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/bench/store"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	Images  int           `json:"images"`  // on each node
	Layers  int           `json:"layers"`  // of each image
	Rounds  int           `json:"rounds"`  // in each, nodes are measured once without and once with agents
	Pulls   int           `json:"pulls"`   // of the image of 100 MB a turn, on each node
	Changes int           `json:"changes"` // pulls whose way into the index is measured, and removals, on each node
	Burst   int           `json:"burst"`   // pulls in quick succession, and removals, on each node
	Idle    time.Duration `json:"idle"`    // without any change
	Agents  []string      `json:"agents"`  // the nodes that have one, some of Runtimes

	// Root is the folder of the repository.
	Root string `json:"-"`
	// LogDir gets the logs of all components.
	LogDir string `json:"-"`
}

// Runtimes are the names of the nodes in Config.Agents.
func Runtimes() []string { return []string{"containerd", "cri-o"} }

func (c *Config) check() error {
	for _, field := range []struct {
		flag        string
		value, high int
	}{
		{"images", c.Images, 10_000}, {"layers", c.Layers, 100}, {"rounds", c.Rounds, 100},
		{"pulls", c.Pulls, 100}, {"changes", c.Changes, 30}, {"burst", c.Burst, 15},
	} {
		if field.value < 1 || field.value > field.high {
			return fmt.Errorf("--%s=%d: want 1 to %d", field.flag, field.value, field.high)
		}
	}
	if c.Idle < time.Second {
		return fmt.Errorf("--idle=%s: want at least 1s", c.Idle)
	}
	other := func(name string) bool { return !slices.Contains(Runtimes(), name) }
	if len(c.Agents) == 0 || slices.ContainsFunc(c.Agents, other) {
		return fmt.Errorf("--agents=%s: want some of %s", strings.Join(c.Agents, ","), strings.Join(Runtimes(), ", "))
	}
	return nil
}

const (
	// apart is the time between two changes, later than the agent's pause after a write.
	apart = 6 * time.Second
	// hurry is that between two pulls of a burst, and between two removals.
	hurry = 2 * time.Second
)

// Node is what was measured on a node.
type Node struct {
	Runtime cluster.ContainerRuntime `json:"runtime"`
	// Agent reports whether it has one; otherwise only pulls of the large image are measured.
	Agent bool `json:"agent"`
	// First are the first readings of agents that were started, Lists those that followed.
	First []time.Duration `json:"first"`
	Lists []time.Duration `json:"lists"`
	// CRI are lists of the images by the runtime itself, over CRI as the kubelet asks for them: the floor of Lists.
	CRI []time.Duration `json:"cri"`
	// Without and With are pulls of the large image while no agents run, and while they do.
	Without []time.Duration `json:"without"`
	With    []time.Duration `json:"with"`
	// Seen are the times from the end of pulls until the plugin's index had them, Status those
	// until NodeStatus named them; Gone those from the end of removals until the index did not
	// have them any more; Burst and BurstGone are Seen and Gone in quick succession.
	Seen      []time.Duration `json:"seen"`
	Status    []time.Duration `json:"status"`
	Gone      []time.Duration `json:"gone"`
	Burst     []time.Duration `json:"burst"`
	BurstGone []time.Duration `json:"burstGone"`
	// Reader and Publisher are the containers after all of that; Idle is the processor time of
	// both while nothing changed.
	Reader    process.Memory `json:"reader"`
	Publisher process.Memory `json:"publisher"`
	Idle      time.Duration  `json:"idle"`
}

// Result is everything that was measured.
type Result struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	// Load is the machine's load average over one minute at the end of turns.
	Load  []float64 `json:"load"`
	Nodes []*Node   `json:"nodes"`
}

// Run fills two nodes with images, and measures on both. With an error it returns what was
// measured before.
func Run(ctx context.Context, config Config) (_ *Result, err error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if config.LogDir, err = filepath.Abs(config.LogDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.LogDir, 0o755); err != nil {
		return nil, err
	}
	schedulers := scenario.Schedulers()
	schedulers.Flavour = cluster.Patched // it has the debug endpoint that shows what the index holds
	c, err := cluster.Start(ctx, cluster.Config{
		Name: "bench-agent", LogDir: config.LogDir, Nodes: 2, Flavour: cluster.Stock, Scheduler: schedulers,
		ContainerRuntimes: map[string]cluster.ContainerRuntime{"n1": cluster.Containerd, "n2": cluster.CRIO},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		config.Logf("removing the nodes and their images")
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		err = errors.Join(err, c.Stop(cleanup))
	}()
	m, err := prepare(ctx, c, config)
	if err != nil {
		return nil, err
	}
	result := &Result{Config: config, Started: time.Now().UTC().Truncate(time.Second)}
	for _, node := range m.nodes {
		result.Nodes = append(result.Nodes, node.measured)
	}
	for round := range config.Rounds {
		for _, with := range order(round) {
			if err := m.turn(ctx, with); err != nil {
				return result, err
			}
			load, err := process.Load()
			if err != nil {
				return result, err
			}
			result.Load = append(result.Load, load)
			config.Logf("round %d of %d, with agents: %t; load %.1f", round+1, config.Rounds, with, load)
		}
	}
	if err := m.start(ctx); err != nil {
		return result, err
	}
	for _, step := range []func(context.Context) error{m.changes, m.burst, m.takes, m.readings, m.lists} {
		if err := step(ctx); err != nil {
			return result, err
		}
	}
	return result, nil
}

// lists has the runtimes list their images.
func (m *measurement) lists(ctx context.Context) error {
	for _, node := range m.nodes {
		for range 20 {
			begin := time.Now()
			if _, err := node.cri.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err != nil {
				return err
			}
			node.measured.CRI = append(node.measured.CRI, time.Since(begin))
		}
	}
	return nil
}

// order returns, for a round, which turns have agents: A B B A.
func order(round int) []bool {
	if round%2 == 0 {
		return []bool{false, true}
	}
	return []bool{true, false}
}

// measurement is the cluster that is measured.
type measurement struct {
	Config
	c     *cluster.Cluster
	lab   *scenario.Lab
	nodes []*node
	// with are the nodes that have an agent while agents run.
	with []*node
	// agents are the objects that install them, large is the image of 100 MB.
	agents []*unstructured.Unstructured
	large  string
	// running reports whether agents run.
	running bool
}

// node is one of its nodes.
type node struct {
	*cluster.Node
	cri      *cluster.CRI
	measured *Node
}

// prepare fills the nodes.
func prepare(ctx context.Context, c *cluster.Cluster, config Config) (*measurement, error) {
	m := &measurement{Config: config, c: c}
	many := store.Images{Count: config.Images, Layers: config.Layers, Logf: config.Logf}
	if err := many.Push(ctx, c); err != nil {
		return nil, err
	}
	for _, of := range c.Nodes() {
		cri, err := of.CRI()
		if err != nil {
			return nil, err
		}
		next := &node{of, cri, &Node{Runtime: of.ContainerRuntime(), Agent: slices.Contains(config.Agents, scenario.Overlay(of))}}
		if m.nodes = append(m.nodes, next); next.measured.Agent {
			m.with = append(m.with, next)
		}
		if err := many.Pull(ctx, c, of); err != nil {
			return nil, err
		}
	}
	var err error
	if m.large, err = store.Large(ctx, c); err != nil {
		return nil, err
	}
	if m.lab, err = scenario.NewLab(c); err != nil {
		return nil, err
	}
	image, err := scenario.PushProgram(ctx, c, config.Root, scenario.Agent)
	if err != nil {
		return nil, err
	}
	if m.agents, err = m.lab.Agents(ctx, config.Root, image, "--spread=0s"); err != nil {
		return nil, err
	}
	m.agents = slices.DeleteFunc(m.agents, func(o *unstructured.Unstructured) bool {
		runtime := o.GetLabels()[scenario.RuntimeLabel]
		return runtime != "" && !slices.Contains(config.Agents, runtime)
	})
	// It logs how long it reads. The layers of the images are small: all are listed, up to what an object may have.
	return m, scenario.AgentArgs(m.agents, "read", "--v=2", "--min-layer-bytes=0")
}

// start starts the agents, and returns once they have written, and the scheduler has read it: it
// looks from time to time whether there are NodeLayers in the cluster at last.
func (m *measurement) start(ctx context.Context) error {
	if m.running {
		return nil
	}
	if err := m.lab.Apply(ctx, m.agents...); err != nil {
		return err
	}
	m.running = true
	if err := m.lab.AppReady(ctx, scenario.Agent, len(m.with)); err != nil {
		return err
	}
	return scenario.Poll(ctx, func(ctx context.Context) error {
		states, err := m.lab.MetricOf(ctx, m.c.SchedulerURL(), "scheduler_layerlocality_node_layers", "state")
		if err == nil && states["fresh"] != len(m.with) {
			err = fmt.Errorf("of %d nodes, the scheduler has NodeLayers of %v", len(m.with), states)
		}
		return err
	})
}

// stop ends the agents, after it has read what they logged.
func (m *measurement) stop(ctx context.Context) error {
	if !m.running {
		return nil
	}
	if err := m.readings(ctx); err != nil {
		return err
	}
	sets := m.lab.Client.AppsV1().DaemonSets(scenario.AgentNamespace)
	for _, object := range m.agents {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		if err := sets.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	m.running = false
	return scenario.Poll(ctx, func(ctx context.Context) error {
		pods, err := m.pods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d pods of %s are left", len(pods), scenario.Agent)
		}
		return err
	})
}

func (m *measurement) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := m.lab.Client.CoreV1().Pods(scenario.AgentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + scenario.Agent})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// turn pulls the large image, with agents or without.
func (m *measurement) turn(ctx context.Context, with bool) error {
	toggle := m.stop
	if with {
		toggle = m.start
	}
	if err := toggle(ctx); err != nil {
		return err
	}
	for range m.Pulls {
		for _, node := range m.nodes {
			unix.Sync() // pending disk writes must not slow down the pull
			begin := time.Now()
			if err := store.Pull(ctx, node.cri, m.large); err != nil {
				return err
			}
			pulls := &node.measured.Without
			if with {
				pulls = &node.measured.With
			}
			*pulls = append(*pulls, time.Since(begin))
			if err := store.Remove(ctx, node.cri, m.large); err != nil {
				return err
			}
		}
	}
	return nil
}

// reading is what the agent logs of a reading.
var reading = regexp.MustCompile(`"Read" images=(\d+) took="([^"]+)"`)

// readings takes over how long the agents that run have read.
func (m *measurement) readings(ctx context.Context) error {
	pods, err := m.pods(ctx)
	if err != nil {
		return err
	}
	for _, node := range m.with {
		for _, pod := range pods {
			if pod.Spec.NodeName != node.Name {
				continue
			}
			log, err := m.lab.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "read"}).DoRaw(ctx)
			if err != nil {
				return err
			}
			took, err := readings(string(log), m.Images)
			if err != nil {
				return fmt.Errorf("log of %s: %w", pod.Name, err)
			}
			node.measured.First = append(node.measured.First, took[0])
			node.measured.Lists = append(node.measured.Lists, took[1:]...)
		}
	}
	return nil
}

// readings returns how long the readings took that an agent has logged; all of at least so many
// images.
func readings(log string, images int) ([]time.Duration, error) {
	var all []time.Duration
	for _, found := range reading.FindAllStringSubmatch(log, -1) {
		count, err := strconv.Atoi(found[1])
		if err != nil {
			return nil, err
		}
		took, err := time.ParseDuration(found[2])
		if err != nil {
			return nil, err
		}
		if count < images {
			return nil, fmt.Errorf("it has read %d images, want at least %d", count, images)
		}
		all = append(all, took)
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("it has read %d times, want a first time and others", len(all))
	}
	return all, nil
}

// each calls do for all nodes with agents at once.
func (m *measurement) each(ctx context.Context, do func(context.Context, *node) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range m.with {
		group.Go(func() error { return do(ctx, node) })
	}
	return group.Wait()
}

// takes measures what the agents take: their memory, and processor time while nothing changes.
func (m *measurement) takes(ctx context.Context) error {
	if err := pause(ctx, 2*apart); err != nil {
		return err
	}
	type running struct {
		table             process.Table
		reader, publisher int
	}
	agents := map[*node]running{}
	cpu := func(node *node) (sum time.Duration, err error) {
		for _, pid := range []int{agents[node].reader, agents[node].publisher} {
			used, err := agents[node].table.CPU(pid)
			if err != nil {
				return 0, err
			}
			sum += used
		}
		return sum, nil
	}
	before := map[*node]time.Duration{}
	for _, node := range m.with {
		a := running{table: process.SeenBy(node.Runtime().PID())}
		for argument, pid := range map[string]*int{"read": &a.reader, "publish": &a.publisher} {
			found, err := a.table.Running(scenario.Agent, argument)
			if err != nil || len(found) != 1 {
				return errors.Join(fmt.Errorf("%s: %d processes %s %s, want one", node.Name, len(found), scenario.Agent, argument), err)
			}
			*pid = found[0]
		}
		agents[node] = a
		var err error
		if node.measured.Reader, err = a.table.Memory(a.reader); err != nil {
			return err
		}
		if node.measured.Publisher, err = a.table.Memory(a.publisher); err != nil {
			return err
		}
		if before[node], err = cpu(node); err != nil {
			return err
		}
	}
	m.Logf("nothing changes for %s", m.Idle)
	if err := pause(ctx, m.Idle); err != nil {
		return err
	}
	for _, node := range m.with {
		after, err := cpu(node)
		if err != nil {
			return err
		}
		node.measured.Idle = after - before[node]
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Command measure has Kubernetes' own HTTPExtender ask layer-extender over loopback about
// pods on a large cluster, and compares its choices with those of the plugin on the same nodes,
// in one process. Memory and the other agents are measured with layer-extender in a process of
// its own, as users run it.
//
// It is built against the patched Kubernetes: `lab/run bench extender`.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/expectedpods"
	"github.com/layer-locality/layer-locality/extender/handler"
	"github.com/layer-locality/layer-locality/extender/host"
	"github.com/layer-locality/layer-locality/lab/bench/fleet"
	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes of the cluster; a tenth is measured, too")
	flag.IntVar(&o.images, "images", 50, "images of a node")
	flag.IntVar(&o.pods, "pods", 1000, "pods to ask for")
	flag.StringVar(&o.out, "out", "", "file for all that was measured (JSON)")
	flag.StringVar(&o.serve, "serve", "", "serve this agent until the input ends, and print its times and memory: for the process that measures")
	flag.Parse()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	nodes, images, pods int
	out                 string
	serve               string
}

// measured is what was measured with so many nodes and steps.
type measured struct {
	Nodes int `json:"nodes"`
	// MaxScore is --max-score, and Weight that of the extender: their product is
	// always 40.
	MaxScore int64 `json:"maxScore"`
	Weight   int64 `json:"weight"`
	// AnswerMillis is from the last byte of a request to the last byte of its answer,
	// RoundTripMillis what kube-scheduler waits, PluginMillis what the plugin takes in a
	// scheduler that has no other: medians.
	AnswerMillis float64 `json:"answerMillis"`
	// AnswerCPUMillis is the processor time of an answer: without other programs on the
	// machine, and without the garbage collector.
	AnswerCPUMillis float64 `json:"answerCPUMillis"`
	RoundTripMillis float64 `json:"roundTripMillis"`
	PluginMillis    float64 `json:"pluginMillis"`
	// EchoMillis is what kube-scheduler waits for a server that sends the same answers without reading the
	// requests: the floor of RoundTripMillis.
	EchoMillis float64 `json:"echoMillis"`
	// SameNode is the share of pods for which the best node with the extender is one of the
	// best with the plugin.
	SameNode float64 `json:"sameNode"`
	// Tied is the share of pods for which the plugin has several best nodes.
	Tied float64 `json:"tied"`
}

func (o *options) run(ctx context.Context) error {
	if err := nodestatus.NeedLayers(); err != nil {
		return err
	}
	if o.nodes < 20 || o.images < 1 || o.pods < 1 {
		return fmt.Errorf("-nodes=%d -images=%d -pods=%d: want at least 20 nodes, and 1 of the others", o.nodes, o.images, o.pods)
	}
	atStart, err := residentMiB(now)
	if err != nil {
		return err
	}
	images, source, err := dataset.FromEnv()
	if err != nil {
		return err
	}
	debug.SetGCPercent(host.GCPercent) // as cmd/layer-extender does
	stated := fleet.Images(images)
	if o.serve != "" {
		return serveAlone(ctx, o.serve, fleet.Nodes(stated, o.nodes, o.images), atStart)
	}
	fmt.Printf("images=%s pods=%d\n", source, o.pods)
	rss, err := o.memory(ctx, stated)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	var all []measured
	for _, nodes := range []int{o.nodes / 10, o.nodes} {
		for _, steps := range []struct{ most, weight int64 }{{4, 10}, {10, 4}, {40, 1}} {
			m, err := measure(ctx, stated, fleet.Nodes(stated, nodes, o.images), o.pods, steps.most, steps.weight)
			if err != nil {
				return err
			}
			fmt.Printf("nodes=%d max_score=%d weight=%d answer_ms=%.2f answer_cpu_ms=%.2f roundtrip_ms=%.2f echo_ms=%.2f plugin_ms=%.2f same_node=%.3f tied=%.3f\n",
				m.Nodes, m.MaxScore, m.Weight, m.AnswerMillis, m.AnswerCPUMillis, m.RoundTripMillis, m.EchoMillis, m.PluginMillis, m.SameNode, m.Tied)
			all = append(all, *m)
		}
	}
	var agents []agentMeasured
	for _, nodes := range []int{o.nodes / 10, o.nodes} {
		m, err := o.measureAgents(ctx, fleet.Nodes(stated, nodes, o.images))
		if err != nil {
			return err
		}
		report(m)
		agents = append(agents, m...)
	}
	if o.out != "" {
		data, err := json.MarshalIndent(map[string]any{"source": source, "pods": o.pods, "runs": all, "agents": agents, "rssMiB": rss}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, data, 0o644); err != nil {
			return err
		}
	}
	last := all[len(all)-1]
	fmt.Printf("extender nodes=%d answer_ms=%.2f roundtrip_ms=%.2f echo_ratio=%.2f same_node=%.3f rss_mib=%d\n", last.Nodes, last.AnswerMillis, last.RoundTripMillis, last.RoundTripMillis/last.EchoMillis, last.SameNode, rss)
	return nil
}

// memory returns how many MiB layer-extender needs at most while it follows the nodes and
// answers for pods.
func (o *options) memory(ctx context.Context, images []v1.ContainerImage) (int, error) {
	asked, err := schedulercache.NewSnapshot(nil, fleet.Nodes(images, o.nodes, o.images)).NodeInfos().List()
	if err != nil {
		return 0, err
	}
	random := rand.New(rand.NewPCG(2, 2))
	served, err := o.alone(ctx, layers, o.nodes, func(extender fwk.Extender) error {
		for i := range o.pods {
			if _, _, err := extender.Prioritize(podOf(fmt.Sprint("pod-", i), pick(random, images)), asked); err != nil {
				return err
			}
		}
		return nil
	})
	return served.MiB, err
}

// served is what a process that served an agent measured of itself.
type served struct {
	// MiB is what it needed at most.
	MiB int `json:"mib"`
	// AnswerMillis is from the last byte of a request to the last byte of its answer, the
	// median; P99Millis is what one of a hundred takes longer than; AnswerCPUMillis is the
	// processor time of the answering thread, the median: without the garbage collector.
	AnswerMillis    float64 `json:"answerMillis"`
	P99Millis       float64 `json:"p99Millis"`
	AnswerCPUMillis float64 `json:"answerCPUMillis"`
}

// alone serves an agent in a process of its own, has ask ask it, and returns what it measured.
func (o *options) alone(ctx context.Context, agent string, nodes int, ask func(fwk.Extender) error) (result served, err error) {
	self, err := os.Executable()
	if err != nil {
		return served{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	command := exec.CommandContext(ctx, self, "-serve", agent, "-nodes", strconv.Itoa(nodes), "-images", strconv.Itoa(o.images))
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return served{}, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return served{}, err
	}
	if err := command.Start(); err != nil {
		return served{}, err
	}
	defer func() { err = errors.Join(err, command.Wait()) }()
	defer input.Close() // the process ends
	lines := bufio.NewReader(output)
	url, err := lines.ReadString('\n')
	if err != nil {
		return served{}, fmt.Errorf("layer-extender did not start: %w", err)
	}
	extender, err := extenderAt(strings.TrimSpace(url), agent, 1)
	if err != nil {
		return served{}, err
	}
	if err := ask(extender); err != nil {
		return served{}, err
	}
	if err := input.Close(); err != nil {
		return served{}, err
	}
	err = json.NewDecoder(lines).Decode(&result)
	return result, err
}

// serveAlone serves layer-extender with one agent, prints its address, and when the input ends,
// what was measured. Its memory is what the process had at the start, and by how much it grew at
// most since the nodes were there: they are what an apiserver has, and layer-extender follows
// copies of them, as if it had decoded them.
func serveAlone(ctx context.Context, name string, nodes []*v1.Node, atStart int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := host.Config{MaxScore: handler.DefaultMaxScore, Kinds: []agent.Kind{layersKind()}}
	answered := func() {}
	if name != layers {
		all := agentKinds()
		i := slices.IndexFunc(all, func(kind agent.Kind) bool { return kind.Name == name })
		if i < 0 {
			return fmt.Errorf("-serve=%s: there is no such agent", name)
		}
		stateUse(rand.New(rand.NewPCG(3, 3)), nodes)
		clock := clocktesting.NewFakeClock(time.Now())
		config.Kinds, config.Clock = all[i:i+1], clock
		answered = func() { clock.Step(expectedpods.Timeout) } // each pod finds the same nodes
	}
	client := fake.NewClientset()
	lists(client, nodes, running(nodes))
	config.Client = client
	debug.FreeOSMemory()
	before, err := residentMiB(now)
	if err != nil {
		return err
	}
	// From here on, the peak is a new one: see proc_pid_clear_refs(5).
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("the kernel cannot forget the peak of memory: %w", err)
	}
	h, server, listening, err := serve(ctx, config)
	if err != nil {
		return err
	}
	defer listening.Close()
	server.answered = answered
	fmt.Println(listening.URL)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	after, err := residentMiB(peak)
	took, cpu := server.all()
	if len(took) == 0 {
		return errors.New("nobody asked")
	}
	result := served{MiB: atStart + after - before, AnswerMillis: median(took), P99Millis: percentile(took, 99), AnswerCPUMillis: median(cpu)}
	cancel()
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(result), h.Close())
}

// extenderAt returns Kubernetes' own client of an agent, for both verbs.
func extenderAt(url, name string, weight int64) (fwk.Extender, error) {
	return scheduler.NewHTTPExtender(&config.Extender{
		URLPrefix: url + strings.TrimSuffix(handler.Prefix, "/"), PrioritizeVerb: handler.Priorities + "/" + name, FilterVerb: handler.Predicates + "/" + name,
		Weight: weight, NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: time.Minute},
	})
}

// layers is the name of the agent whose choices are compared with those of the plugin.
const layers = "layers"

func layersKind() agent.Kind {
	return agent.Kind{Name: layers, Plugin: layerlocality.Name, New: layerlocality.NewFactory().New, Expects: true}
}

// The lines of /proc/self/status with resident memory.
const (
	now  = "VmRSS:"
	peak = "VmHWM:"
)

// residentMiB returns how much memory this process has, or had at most.
func residentMiB(line string) (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for each := range strings.Lines(string(status)) {
		if fields := strings.Fields(each); len(fields) > 1 && fields[0] == line {
			kib, err := strconv.Atoi(fields[1])
			return kib >> 10, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", line)
}

// timed serves a handler, and notes the time from the last byte of each request to the last
// byte of its answer, and the processor time of that.
type timed struct {
	next http.Handler
	// answered is called after each answer, if it is not nil.
	answered  func()
	mu        sync.Mutex
	took, cpu []time.Duration
	last      []byte // answer
}

// recorder keeps what it writes.
type recorder struct {
	http.ResponseWriter
	written bytes.Buffer
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	r.written.Write(p)
	return r.ResponseWriter.Write(p)
}

// echo answers as the timed server did last, whatever it is asked.
func (t *timed) echo(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	t.mu.Lock()
	answer := t.last
	t.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer)
}

func (t *timed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	record := &recorder{ResponseWriter: w}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, used := time.Now(), timing.Thread()
	t.next.ServeHTTP(record, r)
	took, cpu := time.Since(began), timing.Thread()-used
	if t.answered != nil {
		t.answered()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took, t.cpu, t.last = append(t.took, took), append(t.cpu, cpu), record.written.Bytes()
}

// all returns what every answer took. The last one may be counted after it was read.
func (t *timed) all() (took, cpu []time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.took), slices.Clone(t.cpu)
}

// serve runs agents behind a server that notes times, and returns once they can answer.
func serve(ctx context.Context, config host.Config) (*host.Host, *timed, *httptest.Server, error) {
	h, err := host.New(ctx, config)
	if err != nil {
		return nil, nil, nil, err
	}
	server := &timed{next: h.Handler(nil)}
	h.Start(ctx)
	for !h.HasSynced() {
		time.Sleep(10 * time.Millisecond)
	}
	return h, server, httptest.NewServer(server), nil
}

func measure(ctx context.Context, images []v1.ContainerImage, nodes []*v1.Node, pods int, most, weight int64) (*measured, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running := running(nodes)
	client := fake.NewClientset()
	lists(client, nodes, running)
	clock := clocktesting.NewFakeClock(time.Now())
	h, server, listening, err := serve(ctx, host.Config{Client: client, MaxScore: most, Clock: clock, Kinds: []agent.Kind{layersKind()}})
	if err != nil {
		return nil, err
	}
	defer listening.Close()
	beside, err := newScheduler(ctx, nodes, running, defaults)
	if err != nil {
		return nil, err
	}
	alone, err := newScheduler(ctx, nodes, running, "")
	if err != nil {
		return nil, err
	}
	extender, err := extenderAt(listening.URL, layers, weight)
	if err != nil {
		return nil, err
	}

	echoing := httptest.NewServer(http.HandlerFunc(server.echo))
	defer echoing.Close()
	echo, err := extenderAt(echoing.URL, layers, weight)
	if err != nil {
		return nil, err
	}

	random := rand.New(rand.NewPCG(1, 1))
	var roundTrips, echoes, scored []time.Duration
	same, tied := 0, 0
	for i := range pods {
		pod := podOf(fmt.Sprint("pod-", i), pick(random, images))
		began := time.Now()
		answer, weight, err := extender.Prioritize(pod, beside.nodes)
		if err != nil {
			return nil, err
		}
		roundTrips = append(roundTrips, time.Since(began))
		clock.Step(expectedpods.Timeout) // each pod finds the same nodes
		began = time.Now()
		if _, _, err := echo.Prioritize(pod, beside.nodes); err != nil {
			return nil, err
		}
		echoes = append(echoes, time.Since(began))

		others, ours, err := beside.score(ctx, pod)
		if err != nil {
			return nil, err
		}
		began = time.Now()
		if _, _, err := alone.score(ctx, pod); err != nil {
			return nil, err
		}
		scored = append(scored, time.Since(began))
		withPlugin, withExtender := make([]int64, len(others)), make([]int64, len(others))
		for j := range others {
			withPlugin[j] = others[j] + ours[j]
			// As kube-scheduler adds it: see k8s.io/kubernetes/pkg/scheduler/schedule_one.go.
			withExtender[j] = others[j] + (*answer)[j].Score*weight*(fwk.MaxScore/10)
		}
		best := slices.Max(withPlugin)
		if withPlugin[slices.Index(withExtender, slices.Max(withExtender))] == best {
			same++
		}
		if first := slices.Index(withPlugin, best); slices.Contains(withPlugin[first+1:], best) {
			tied++
		}
	}
	cancel()
	took, cpu := server.all()
	return &measured{
		Nodes: len(nodes), MaxScore: most, Weight: weight,
		AnswerMillis: median(took), AnswerCPUMillis: median(cpu), RoundTripMillis: median(roundTrips), EchoMillis: median(echoes), PluginMillis: median(scored),
		SameNode: float64(same) / float64(pods), Tied: float64(tied) / float64(pods),
	}, h.Close()
}

// median returns the median in milliseconds.
func median(times []time.Duration) float64 { return percentile(times, 50) }

// percentile returns what so many of a hundred times are not longer than, in milliseconds.
func percentile(times []time.Duration, percent int) float64 {
	slices.Sort(times)
	return millis(times[len(times)*percent/100])
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// lists has a client answer lists with copies of the objects.
func lists(client *fake.Clientset, nodes []*v1.Node, pods []*v1.Pod) {
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, kruntime.Object, error) {
		list := &v1.NodeList{}
		for _, node := range nodes {
			list.Items = append(list.Items, *node.DeepCopy())
		}
		return true, list, nil
	})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
		list := &v1.PodList{}
		for _, pod := range pods {
			list.Items = append(list.Items, *pod.DeepCopy())
		}
		return true, list, nil
	})
}

// pick returns an image: most pods have a popular one, as nodes do (see fleet.Draw), and one
// in ten has one that no node has.
func pick(random *rand.Rand, images []v1.ContainerImage) string {
	if random.IntN(10) == 0 {
		return fmt.Sprintf("registry.example/unknown-%d:v1", random.IntN(1000))
	}
	return fleet.Draw(random, images, 1)[0].Names[1]
}

// running returns pods that request some of the nodes' CPU and memory.
func running(nodes []*v1.Node) []*v1.Pod {
	var pods []*v1.Pod
	for i, node := range nodes {
		for j := range i % 4 {
			pod := podOf(fmt.Sprint("running-", i, "-", j), "registry.example/running:v1")
			pod.Spec.NodeName = node.Name
			pod.Status.Phase = v1.PodRunning
			pods = append(pods, pod)
		}
	}
	return pods
}

func podOf(name, image string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("512Mi"),
		}}}}},
	}
}

// theScheduler is a framework of kube-scheduler, and the nodes of its snapshot.
type theScheduler struct {
	framework framework.Framework
	nodes     []fwk.NodeInfo
}

const profile = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint:
      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: LayerLocality, weight: 4}%s]
      disabled: [{name: "*"}]
`

// defaults are those plugins of the default profile whose scores differ between these nodes.
const defaults = ", {name: TaintToleration, weight: 3}, {name: NodeResourcesFit, weight: 1}, {name: NodeResourcesBalancedAllocation, weight: 1}"

// newScheduler returns a framework with LayerLocality and further plugins.
func newScheduler(ctx context.Context, nodes []*v1.Node, pods []*v1.Pod, further string) (*theScheduler, error) {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(fmt.Appendf(nil, profile, further), nil, nil)
	if err != nil {
		return nil, err
	}
	client := fake.NewClientset()
	lists(client, nodes, pods)
	factory := scheduler.NewInformerFactory(client, 0)
	snapshot := schedulercache.NewSnapshot(pods, nodes)
	registry := plugins.NewInTreeRegistry()
	if err := registry.Register(layerlocality.Name, layerlocality.NewFactory().New); err != nil {
		return nil, err
	}
	s := &theScheduler{}
	s.framework, err = frameworkruntime.NewFramework(ctx, registry, &object.(*config.KubeSchedulerConfiguration).Profiles[0],
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithSnapshotSharedLister(snapshot))
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	s.nodes, err = snapshot.NodeInfos().List()
	return s, err
}

// score returns the weighted scores of the nodes: those of the other plugins, and that of
// LayerLocality.
func (s *theScheduler) score(ctx context.Context, pod *v1.Pod) (others, ours []int64, err error) {
	state := framework.NewCycleState()
	if _, status, _ := s.framework.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		return nil, nil, status.AsError()
	}
	if status := s.framework.RunPreScorePlugins(ctx, state, pod, s.nodes); !status.IsSuccess() {
		return nil, nil, status.AsError()
	}
	all, status := s.framework.RunScorePlugins(ctx, state, pod, s.nodes)
	if !status.IsSuccess() {
		return nil, nil, status.AsError()
	}
	others, ours = make([]int64, len(all)), make([]int64, len(all))
	for i := range all {
		for _, score := range all[i].Scores {
			if score.Name == layerlocality.Name {
				ours[i] = score.Score
			} else {
				others[i] += score.Score
			}
		}
	}
	// It gives its memory back, as in a scheduling cycle; nothing is placed.
	s.framework.RunReservePluginsReserve(ctx, state, pod, s.nodes[0].Node().Name)
	s.framework.RunReservePluginsUnreserve(ctx, state, pod, s.nodes[0].Node().Name)
	return others, ours, nil
}

//go:build e2e

package agents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	annotator "github.com/layer-locality/layer-locality/cmd/layer-extender/annotate"
	"github.com/layer-locality/layer-locality/cmd/layer-extender/prometheus"
	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// TestStated has annotations state what nodes use and how congested they are.
func TestStated(t *testing.T) {
	schedule(t, extended("safe-overload", "congestion"))
	use(t, "n1", .3, .3, .2)
	use(t, "n2", .3, .3, .2)
	use(t, "n3", .95, .5, .05)
	annotate(t, "n1", map[string]string{"congestion-factor": "60"})
	annotate(t, "n2", map[string]string{"congestion-factor": "10"})
	settle(t)
	if nodes := place(t, scenario.Stock, scenario.Pod{Name: "stated-1"}, scenario.Pod{Name: "stated-2"}); !slices.Equal(nodes, []string{"n2", "n2"}) {
		t.Errorf("n1 is congested and n3 overloaded: the pods went to %v", nodes)
	}
	annotate(t, "n2", map[string]string{"congestion-factor": "-3"}) // as if it were not stated
	settle(t)
	if nodes := place(t, scenario.Stock, scenario.Pod{Name: "stated-3"}); nodes[0] != "n2" {
		t.Errorf("n1 is congested, n2 states nonsense: the pod went to %s", nodes[0])
	}

	// All are overloaded: by memory, for the same reason.
	for _, node := range c.Nodes() {
		use(t, node.Name, .3, .95, .02)
	}
	settle(t)
	waiting := scenario.Pod{Name: "stated-4"}
	prepare(t)
	waiting.Image, waiting.Scheduler = image, scenario.Stock
	livetest.RemoveAtEnd(t, lab, waiting.Name)
	must(t, lab.Submit(t.Context(), waiting))
	const want = "0/3 nodes are available: 3 node(s) had a risk above 0.3 of using more than 0.9 of their memory."
	if text := complaint(t, waiting.Name); !strings.HasPrefix(text, want) {
		t.Errorf("FailedScheduling: %q, want %q", text, want)
	} else {
		t.Log(text)
	}
	// As a plugin, with the same words; and the pod goes on when a node has other statistics.
	schedule(t, plugins(only(scenario.Stock, "Safe")))
	again := scenario.Pod{Name: "stated-5", Image: image, Scheduler: scenario.Stock}
	livetest.RemoveAtEnd(t, lab, again.Name)
	must(t, lab.Submit(t.Context(), again))
	if text := complaint(t, again.Name); !strings.HasPrefix(text, want) {
		t.Errorf("FailedScheduling of the plugin: %q, want %q", text, want)
	}
	use(t, "n1", .3, .3, .02)
	placed, err := lab.Placed(t.Context(), waiting.Name, again.Name)
	must(t, err)
	if per := scenario.PerNode(placed); per["n1"] != 2 {
		t.Errorf("only n1 is not overloaded: the pods went to %v", per)
	}
}

// settle waits until layer-extender has seen what was annotated before.
func settle(t *testing.T) {
	t.Helper()
	for _, node := range c.Nodes() {
		annotateNow(t, node.Name)
	}
}

// annotateNow marks a node, and waits until the rating of nodes that layer-extender keeps has
// the statistics that the node states.
func annotateNow(t *testing.T, node string) {
	t.Helper()
	stamp := fmt.Sprint(time.Now().UnixNano() % 1_000_000_000)
	annotate(t, node, map[string]string{usage.Until: stamp}) // no time, so that it shows
	wait := func(invalid bool) {
		t.Helper()
		livetest.Eventually(t, time.Minute, "layer-extender has seen "+node, func(ctx context.Context) error {
			ratings, err := safe(ctx, addons.ExtenderURL(c), url.Values{})
			if err != nil {
				return err
			}
			if got := ratings[node].Resources["cpu"].Of == usage.Until; got != invalid {
				return fmt.Errorf("%s: %+v", node, ratings[node])
			}
			return nil
		})
	}
	wait(true)
	must(t, unannotate(t.Context(), node, usage.Until))
	wait(false)
}

// nodeRating is the answer of /debug/safe for a node.
type nodeRating struct {
	Node      string
	Rejected  bool
	Score     int64
	Resources map[string]struct {
		Mean, Deviation, Risk, Score float64
		Without, Of                  string
	}
}

// safe returns how nodes are rated, by name.
func safe(ctx context.Context, base string, query url.Values) (map[string]nodeRating, error) {
	var list []nodeRating
	if err := rating(ctx, base, "/debug/safe", query, &list); err != nil {
		return nil, err
	}
	ratings := map[string]nodeRating{}
	for _, each := range list {
		ratings[each.Node] = each
	}
	return ratings, nil
}

// TestPrometheus has a real Prometheus scrape the kubelets, and nodes annotated by what it returns.
func TestPrometheus(t *testing.T) {
	config, err := c.RESTConfig()
	must(t, err)
	configure(t, config)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	t.Cleanup(func() {
		for _, node := range c.Nodes() {
			if err := unannotate(context.Background(), node.Name, slices.Collect(maps.Keys(usage.State(nil, time.Now())))...); err != nil {
				t.Error(err)
			}
		}
	})
	annotated := func(label string) *annotator.Annotator {
		source, err := prometheus.New(prometheus.Config{Address: addons.PrometheusURL(c), Window: time.Minute, NodeLabel: label})
		must(t, err)
		return annotator.New(client, source, clock.RealClock{})
	}
	byNode := annotated("node")
	var ratings map[string]nodeRating
	livetest.Eventually(t, 3*time.Minute, "all nodes have statistics", func(ctx context.Context) (err error) {
		// Again and again, as the program does: a rate takes two scrapes.
		if _, err := byNode.Update(ctx); err != nil {
			return err
		}
		if ratings, err = safe(ctx, addons.ExtenderURL(c), url.Values{}); err != nil {
			return err
		}
		for _, node := range c.Nodes() {
			for _, of := range []string{"cpu", "memory"} {
				if r := ratings[node.Name].Resources[of]; r.Without != "" || r.Mean <= 0 {
					return fmt.Errorf("%s of %s: %+v", of, node.Name, r)
				}
			}
		}
		return nil
	})
	rows := [][]string{{"node", "CPU", "deviation", "memory", "deviation"}}
	for _, name := range slices.Sorted(maps.Keys(ratings)) {
		cpu, memory := ratings[name].Resources["cpu"], ratings[name].Resources["memory"]
		rows = append(rows, []string{name, fmt.Sprintf("%.3f", cpu.Mean), fmt.Sprintf("%.3f", cpu.Deviation), fmt.Sprintf("%.3f", memory.Mean), fmt.Sprintf("%.3f", memory.Deviation)})
	}
	livetest.Table(t, rows...)

	// Every node uses something of its memory: who accepts nothing finds no node, behind the extender and in
	// our scheduler.
	strict := filepath.Join(folder, "strict.yaml")
	must(t, os.WriteFile(strict, []byte("[{name: Safe, args: {utilizationPercent: 0}}]"), 0o600))
	restart(t, "--plugin-config="+strict)
	prepare(t)
	for name, settings := range map[string]cluster.Component{
		"measured-extender": extended("safe-overload"), "measured-plugin": plugins(configured(only(scenario.Stock, "Safe"), "Safe", map[string]any{"utilizationPercent": 0})),
	} {
		schedule(t, settings)
		pod := scenario.Pod{Name: name, Image: image, Scheduler: scenario.Stock}
		livetest.RemoveAtEnd(t, lab, pod.Name)
		must(t, lab.Submit(t.Context(), pod))
		if text := complaint(t, pod.Name); !strings.Contains(text, "3 node(s) had a risk above 0.3 of using more than 0 of their") {
			t.Errorf("%s: FailedScheduling: %s", name, text)
		}
	}

	// A label that fits no node: what nodes state stays, until its time is over.
	if written, err := annotated("instance").Update(t.Context()); written != 0 || err == nil || !strings.Contains(err.Error(), "nothing is measured") {
		t.Errorf("the label instance: %d nodes written, %v", written, err)
	}
	for _, node := range c.Nodes() {
		must(t, patchAnnotations(t.Context(), node.Name, map[string]any{usage.Until: time.Now().Add(-time.Second).Format(time.RFC3339)}))
	}
	_, err = lab.Placed(t.Context(), "measured-extender", "measured-plugin")
	must(t, err)
}

// configure has Prometheus scrape the kubelets every second, and waits until it has done so
// for some seconds.
func configure(t *testing.T, config *rest.Config) {
	t.Helper()
	certificate, key := filepath.Join(folder, "client.crt"), filepath.Join(folder, "client.key")
	must(t, os.WriteFile(certificate, config.CertData, 0o600))
	must(t, os.WriteFile(key, config.KeyData, 0o600))
	var targets []map[string]any
	for _, node := range c.Nodes() {
		targets = append(targets, map[string]any{"targets": []string{node.Address.String() + ":10250"}, "labels": map[string]any{"node": node.Name}})
	}
	must(t, addons.ConfigurePrometheus(t.Context(), c, folder, map[string]any{"scrape_configs": []any{map[string]any{
		"job_name": "kubelets", "scheme": "https", "metrics_path": "/metrics/resource", "scrape_interval": "1s", "scrape_timeout": "1s",
		"tls_config":     map[string]any{"cert_file": certificate, "key_file": key, "insecure_skip_verify": true},
		"static_configs": targets,
	}}}))
	livetest.Eventually(t, 2*time.Minute, "Prometheus has scraped all kubelets", func(ctx context.Context) error {
		kubelets, err := monitoring.Server(addons.PrometheusURL(c)).Query(ctx, `rate(node_cpu_usage_seconds_total[1m])`)
		if err == nil && len(kubelets) != len(c.Nodes()) {
			err = fmt.Errorf("%v", kubelets)
		}
		return err
	})
}

// mix are 30 pods of three sizes in a mixed order: l, m and s request shares of a node's CPU
// and memory. The small ones need much memory, so that a scheduler that balances both
// balances CPU less.
const mix = "SSSSSLMSMSMSSSLSSMSSSSLMLSSSSM"

var sizes = map[rune]struct{ cpu, memory float64 }{'L': {.25, .0125}, 'M': {.03, .009}, 'S': {.02, .06}}

func mixed(t *testing.T, name string) (pods []scenario.Pod) {
	cpu, memory := capacity(t)
	for i, size := range mix {
		pods = append(pods, scenario.Pod{
			Name:     fmt.Sprintf("%s-%d", name, i+1),
			MilliCPU: int64(sizes[size].cpu * float64(cpu)), Memory: int64(sizes[size].memory * float64(memory)),
		})
	}
	return pods
}

// packed is the answer of /debug/packing.
type packed struct {
	Objective                      string
	Value, NodesDiffer, PodsDiffer float64
	PodsCounted                    int
	Mean, Deviation                map[string]float64
	Nodes                          []struct {
		Node  string
		Score int64
		Use   map[string]float64
		Value *float64
	}
}

// TestPacking places 30 pods of three sizes with each objective, and with the default
// profile.
func TestPacking(t *testing.T) {
	livetest.Long(t, "the unit tests of packing")
	packing := func(name, objective string) map[string]any {
		return configured(only(name, "Packing"), "Packing", map[string]any{"objective": objective})
	}
	schedule(t, plugins(map[string]any{"schedulerName": scenario.Stock}, packing("bin-pack", "BinPack"), packing("load-balance", "LoadBalance"), packing("consolidate", "Consolidate")))
	used, deviation := map[string]int{}, map[string]float64{}
	rows := [][]string{{"profile", "nodes used", "CPU of n1 n2 n3", "deviation of CPU", "objective", "nodes differ", "pods differ"}}
	for _, name := range []string{"bin-pack: learning", "bin-pack", "consolidate", "load-balance", scenario.Stock} {
		scheduler, _, _ := strings.Cut(name, ":")
		pods := mixed(t, strings.ReplaceAll(name, ": ", "-"))
		nodes := place(t, scheduler, pods...)
		shares := map[string]float64{}
		for i, node := range nodes {
			shares[node] += sizes[rune(mix[i])].cpu
		}
		used[name], deviation[name] = len(shares), deviationOf(shares)
		row := []string{name, fmt.Sprint(len(shares)), fmt.Sprintf("%.2f %.2f %.2f", shares["n1"], shares["n2"], shares["n3"]), fmt.Sprintf("%.4f", deviation[name])}
		if scheduler != scenario.Stock {
			var p packed
			livetest.Eventually(t, time.Minute, name+": the debug page has all pods", func(ctx context.Context) error {
				if err := rating(ctx, c.SchedulerURL(), "/debug/packing", url.Values{"profile": {scheduler}}, &p); err != nil {
					return err
				}
				if math.Abs(p.Deviation["cpu"]-deviation[name]) > .005 {
					return fmt.Errorf("the deviation of CPU is %v, want %v", p.Deviation["cpu"], deviation[name])
				}
				return nil
			})
			want := map[string]float64{"bin-pack": math.Abs(p.NodesDiffer - p.PodsDiffer), "load-balance": p.Deviation["cpu"], "consolidate": consolidation(p)}[scheduler]
			if math.Abs(p.Value-want) > 1e-9 || len(p.Nodes) != len(c.Nodes()) || p.PodsCounted < len(mix) {
				t.Errorf("%s: %+v", name, p)
			}
			row = append(row, fmt.Sprintf("%s %.4f", p.Objective, p.Value), fmt.Sprintf("%.4f", p.NodesDiffer), fmt.Sprintf("%.4f", p.PodsDiffer))
		}
		rows = append(rows, row)
		drop(t, pods...)
	}
	livetest.Table(t, rows...)
	for _, name := range []string{"bin-pack", "consolidate"} {
		if used[name] >= used[scenario.Stock] {
			t.Errorf("%s uses %d nodes, the default profile %d", name, used[name], used[scenario.Stock])
		}
	}
	if deviation["load-balance"] >= deviation[scenario.Stock] {
		t.Errorf("the use of CPU deviates by %.4f with LoadBalance, by %.4f with the default profile", deviation["load-balance"], deviation[scenario.Stock])
	}
}

// consolidation returns the objective of Consolidate: how far nodes are from using all or
// nothing.
func consolidation(p packed) float64 {
	var squares float64
	for _, node := range p.Nodes {
		use, mean := node.Use["cpu"], p.Mean["cpu"]
		d := (mean - use) / mean
		if use > mean {
			d = (use - mean) / (1 - mean)
		}
		squares += d * d / float64(len(p.Nodes))
	}
	return 1 - math.Sqrt(squares)
}

// deviationOf returns the standard deviation of the shares of all nodes.
func deviationOf(shares map[string]float64) float64 {
	n := float64(len(c.Nodes()))
	var mean, squares float64
	for _, share := range shares {
		mean += share / n
	}
	for _, node := range c.Nodes() {
		squares += (shares[node.Name] - mean) * (shares[node.Name] - mean) / n
	}
	return math.Sqrt(squares)
}

// notExpected returns how many pods Packing does not expect any longer.
func notExpected(t *testing.T, ctx context.Context) int {
	t.Helper()
	ended, err := lab.MetricOf(ctx, addons.ExtenderURL(c), "layer_extender_expected_pods_total", "agent")
	must(t, err)
	return ended["packing"]
}

// TestSameNodes places 20 pods one by one by the same plugins in our kube-scheduler, and as
// agents behind a stock one.
func TestSameNodes(t *testing.T) {
	livetest.Long(t, "the unit tests of the agents, which call the plugins")
	use(t, "n1", .20, .31, .11)
	use(t, "n2", .26, .17, .07)
	use(t, "n3", .23, .22, .16)
	annotate(t, "n1", map[string]string{"congestion-factor": "13"})
	annotate(t, "n2", map[string]string{"congestion-factor": "29"})
	annotate(t, "n3", map[string]string{"congestion-factor": "21"})
	profile := func() map[string]any {
		return configured(only(scenario.Stock, "Safe", "Packing", "Congestion"), "Packing", map[string]any{"objective": "LoadBalance"})
	}
	balanced := filepath.Join(folder, "balanced.yaml")
	must(t, os.WriteFile(balanced, []byte("[{name: Packing, args: {objective: LoadBalance}}]"), 0o600))
	restart(t, "--plugin-config="+balanced)
	settle(t)
	var chosen [2][]string
	for i, settings := range []cluster.Component{plugins(profile()), extended("safe-overload", "packing", "congestion")} {
		schedule(t, settings)
		pods := mixed(t, fmt.Sprintf("same-%d", i))[:20]
		for _, pod := range pods {
			before := notExpected(t, t.Context())
			chosen[i] = append(chosen[i], place(t, scenario.Stock, pod)...)
			if i == 0 {
				continue // the agents are not asked
			}
			livetest.Eventually(t, time.Minute, "layer-extender has seen the binding of "+pod.Name, func(ctx context.Context) error {
				if n := notExpected(t, ctx); n == before {
					return fmt.Errorf("%d pods are no longer expected", n)
				}
				return nil
			})
		}
		drop(t, pods...)
	}
	t.Logf("plugins: %v\nagents:  %v", chosen[0], chosen[1])
	if !slices.Equal(chosen[0], chosen[1]) {
		t.Error("they choose other nodes")
	}
	for _, node := range c.Nodes() {
		if !slices.Contains(chosen[0], node.Name) {
			t.Errorf("%s has no pod: this shows little", node.Name)
		}
	}
}

// TestInstallation has an ancestor's installation at work: its policy, the variables of its
// agents, and annotations of its annotator.
func TestInstallation(t *testing.T) {
	const name = "my-scheduler"
	schedule(t, old.scheduler(name))
	// By the variables, half of what counts is the forecast, and 80 % are too much.
	cpu, memory := capacity(t)
	state := func(node string, mean, forecast float64) {
		t.Helper()
		annotate(t, node, map[string]string{
			"mean-free-memory": fmt.Sprintf("%.0f", mean*float64(memory)), "std-free-memory": fmt.Sprintf("%.0f", .02*float64(memory)), "forcasted-free-memory": fmt.Sprintf("%.0f", forecast*float64(memory)),
			"mean-free-cpu": fmt.Sprintf("%.0f", mean*float64(cpu)), "std-free-cpu": fmt.Sprintf("%.0f", .02*float64(cpu)), "forcasted-free-cpu": fmt.Sprintf("%.0f", forecast*float64(cpu)),
		})
	}
	state("n1", .35, .01) // .18 free: with the default variables, it would do
	state("n2", .70, .60)
	state("n3", .70, .60)
	// Both have the same risk, so the other agent decides between them.
	place(t, name, scenario.Pod{Name: "old-large", Node: "n3", MilliCPU: cpu / 2})
	settled := func(what, node string) {
		t.Helper()
		// Other machines get no answer but to probes: pods show what the agents have.
		attempt := 0
		livetest.Eventually(t, time.Minute, what, func(context.Context) error {
			attempt++
			pod := scenario.Pod{Name: fmt.Sprintf("old-%s-%d", node, attempt)}
			if nodes := place(t, name, pod); nodes[0] != node {
				return fmt.Errorf("the pod went to %v, want %s", nodes, node)
			}
			return nil
		})
	}
	settled("n1 is overloaded, n3 has requests", "n2")
	for _, container := range old.containers {
		log, err := os.ReadFile(c.Addon(container.Name).Log())
		must(t, err)
		// It sends whole Nodes, as its policy states, and each agent is asked.
		if !strings.Contains(string(log), "nodeCacheCapable: true") {
			t.Errorf("%s was not asked:\n%s", container.Name, log)
		}
		// SAFEPRINTTABLE.
		if rated := strings.Contains(string(log), "Rated nodes"); rated != (container.Name == old.containers[0].Name) {
			t.Errorf("%s logs how it rates: %t", container.Name, rated)
		}
		if strings.Contains(string(log), "is left out") {
			t.Errorf("%s:\n%s", container.Name, log)
		}
	}
	state("n2", .10, .10)
	state("n3", .10, .10)
	attempt := 0
	livetest.Eventually(t, time.Minute, "all nodes are overloaded", func(context.Context) error {
		attempt++ // a name of its own, for events stay
		waiting := scenario.Pod{Name: fmt.Sprintf("old-waiting-%d", attempt), Image: image, Scheduler: name}
		livetest.RemoveAtEnd(t, lab, waiting.Name)
		must(t, lab.Submit(t.Context(), waiting))
		text := complaint(t, waiting.Name)
		must(t, lab.Remove(t.Context(), waiting.Name))
		if !strings.Contains(text, "3 node(s) had a risk above 0.2 of using more than 0.8 of their") {
			return errors.New(text)
		}
		return nil
	})
}

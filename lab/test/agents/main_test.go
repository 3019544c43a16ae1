//go:build e2e

package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// maxScore is --max-score: answers are as fine as the scores of plugins.
	maxScore = 100
	// weight is that of an agent. Its answers count ten times.
	weight = 1
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
	// image is what the pods have.
	image string
	// folder has the files of add-ons.
	folder string
	// old is the ancestor's installation.
	old installation
)

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "agents"); err != nil {
		panic(err)
	}
	code, err := run(m)
	if err = errors.Join(err, os.RemoveAll(folder)); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	prometheus, err := addons.Prometheus(folder)
	if err != nil {
		return 0, err
	}
	if old, err = readInstallation("testdata/installation.yaml"); err != nil {
		return 0, err
	}
	config := cluster.Config{
		Name: livetest.ClusterName("agents"), Nodes: 3, Flavour: livetest.Flavour(),
		Scheduler: extended("safe-overload"),
		Addons:    append([]cluster.Addon{addons.Extender(extender()), prometheus}, old.addons()...),
	}
	return livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}), nil
}

// extender are the settings of layer-extender with all agents.
func extender(args ...string) cluster.Component {
	return cluster.Component{Args: append([]string{fmt.Sprintf("--max-score=%d", maxScore), "-v=2"}, args...)}
}

// only is a profile that scores with plugins alone, each with the weight 1, and has no other
// filter than upstream.
func only(name string, plugins ...string) map[string]any {
	enabled := []map[string]any{}
	for _, plugin := range plugins {
		enabled = append(enabled, map[string]any{"name": plugin, "weight": weight})
	}
	return map[string]any{"schedulerName": name, "plugins": map[string]any{
		"multiPoint": map[string]any{"enabled": enabled},
		// What is enabled at multiPoint stays.
		"score": map[string]any{"disabled": upstreamScores},
	}}
}

// upstreamScores are the score plugins of the default profile.
var upstreamScores = []map[string]any{
	{"name": "TaintToleration"}, {"name": "NodeAffinity"}, {"name": "PodTopologySpread"}, {"name": "InterPodAffinity"}, {"name": "DynamicResources"},
	{"name": "NodeResourcesFit"}, {"name": "VolumeBinding"}, {"name": "NodeResourcesBalancedAllocation"}, {"name": "ImageLocality"},
}

// configured adds arguments of a plugin to a profile.
func configured(profile map[string]any, plugin string, args map[string]any) map[string]any {
	configs, _ := profile["pluginConfig"].([]map[string]any)
	profile["pluginConfig"] = append(configs, map[string]any{"name": plugin, "args": args})
	return profile
}

// extended configures a stock kube-scheduler that scores by agents alone. safe-overload also
// filters.
func extended(agents ...string) cluster.Component {
	var extenders []map[string]any
	for _, agent := range agents {
		further := map[string]any{"httpTimeout": "5s", "ignorable": false}
		if agent == "safe-overload" {
			further["filterVerb"], further["preemptVerb"] = "predicates/"+agent, "preempt/"+agent
		}
		extenders = append(extenders, addons.ExtenderEntry(agent, weight, further))
	}
	return cluster.Component{Flavour: cluster.Stock, Config: map[string]any{"profiles": []map[string]any{only(scenario.Stock)}, "extenders": extenders}}
}

// plugins configures our kube-scheduler.
func plugins(profiles ...map[string]any) cluster.Component {
	return cluster.Component{Flavour: cluster.Patched, Config: map[string]any{"profiles": profiles}}
}

// schedule restarts the scheduler with other settings.
func schedule(t *testing.T, settings cluster.Component) {
	t.Helper()
	must(t, c.Scheduler().Restart(t.Context(), func(s *cluster.Component) { *s = settings }))
}

// restart restarts layer-extender with further arguments, which end with the test.
func restart(t *testing.T, args ...string) {
	t.Helper()
	again := func(ctx context.Context, args ...string) error {
		return c.Addon(addons.LayerExtender).Restart(ctx, func(s *cluster.Component) { *s = extender(args...) })
	}
	must(t, again(t.Context(), args...))
	t.Cleanup(func() {
		if err := again(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

var must = testkit.Must

// prepare pushes the image of pods.
func prepare(t *testing.T) {
	t.Helper()
	if image == "" {
		livetest.HubImage(t, c, "agents:v1", 2_000_000, 1)
		image = "agents:v1"
	}
}

// annotate gives a node annotations, until the end of the test.
func annotate(t *testing.T, node string, annotations map[string]string) {
	t.Helper()
	values, names := map[string]any{}, []string{}
	for name, value := range annotations {
		values[name], names = value, append(names, name)
	}
	must(t, patchAnnotations(t.Context(), node, values))
	t.Cleanup(func() {
		if err := unannotate(context.Background(), node, names...); err != nil {
			t.Error(err)
		}
	})
}

// unannotate removes annotations of a node.
func unannotate(ctx context.Context, node string, names ...string) error {
	values := map[string]any{}
	for _, name := range names {
		values[name] = nil
	}
	return patchAnnotations(ctx, node, values)
}

func patchAnnotations(ctx context.Context, node string, values map[string]any) error {
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}})
	if err != nil {
		return err
	}
	_, err = lab.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, text, metav1.PatchOptions{})
	return err
}

// capacity returns what pods may have of each node: millicores and bytes.
func capacity(t *testing.T) (cpu, memory int64) {
	t.Helper()
	node, err := lab.Client.CoreV1().Nodes().Get(t.Context(), c.Nodes()[0].Name, metav1.GetOptions{})
	must(t, err)
	return node.Status.Allocatable.Cpu().MilliValue(), node.Status.Allocatable.Memory().Value()
}

// use states by annotations which share of a node is used, and with which deviation.
func use(t *testing.T, node string, cpu, memory, deviation float64) {
	t.Helper()
	allCPU, allMemory := capacity(t)
	annotations := map[string]string{}
	for of, value := range map[string][2]float64{"cpu": {cpu, float64(allCPU)}, "memory": {memory, float64(allMemory)}} {
		annotations["mean-free-"+of] = fmt.Sprintf("%.0f", (1-value[0])*value[1])
		annotations["std-free-"+of] = fmt.Sprintf("%.0f", deviation*value[1])
	}
	annotate(t, node, annotations)
}

// place creates pods one by one, each when the one before has its node, and returns the nodes
// in order. The pods stay until they are dropped, at the end of the test at the latest.
func place(t *testing.T, scheduler string, pods ...scenario.Pod) (nodes []string) {
	t.Helper()
	prepare(t)
	for _, pod := range pods {
		pod.Image, pod.Scheduler = image, scheduler
		livetest.RemoveAtEnd(t, lab, pod.Name)
		must(t, lab.Submit(t.Context(), pod))
		placed, err := lab.Placed(t.Context(), pod.Name)
		must(t, err)
		nodes = append(nodes, placed[pod.Name])
	}
	return nodes
}

// drop deletes pods, and waits until nodes are free of them.
func drop(t *testing.T, pods ...scenario.Pod) {
	t.Helper()
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	must(t, lab.Drop(t.Context(), names...))
	must(t, lab.Remove(t.Context(), names...))
}

// complaint waits until a pod has an event FailedScheduling, and returns its note. Of a
// pod that has a node meanwhile, it returns which.
func complaint(t *testing.T, pod string) (text string) {
	t.Helper()
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		state, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node := state.Spec.NodeName; node != "" {
			text = fmt.Sprintf("pod %s went to %s", pod, node)
			return nil
		}
		events, err := lab.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling,involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return fmt.Errorf("pod %s has no event FailedScheduling", pod)
		}
		text = events.Items[len(events.Items)-1].Message
		return nil
	}))
	return text
}

// rating asks a program for a debug page, and reads what it has of the rating.
func rating(ctx context.Context, base, page string, query url.Values, into any) error {
	body, err := lab.Ask(ctx, base+page+"?"+query.Encode())
	if err != nil {
		return err
	}
	return json.Unmarshal(body, &struct{ Rating any }{into})
}

// installation is the part of an ancestor's installation that matters.
type installation struct {
	extenders  []map[string]any
	containers []corev1.Container
}

func readInstallation(file string) (i installation, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return i, err
	}
	configMap, deployment, ok := strings.Cut(string(text), "\n---\n")
	if !ok {
		return i, fmt.Errorf("%s: want a ConfigMap and a Deployment", file)
	}
	var policies corev1.ConfigMap
	var deployed appsv1.Deployment
	var policy struct {
		Extenders []map[string]any `json:"extenders"`
	}
	if err := errors.Join(yaml.Unmarshal([]byte(configMap), &policies), yaml.Unmarshal([]byte(deployment), &deployed)); err != nil {
		return i, fmt.Errorf("%s: %w", file, err)
	}
	if err := json.Unmarshal([]byte(policies.Data["policy.cfg"]), &policy); err != nil {
		return i, fmt.Errorf("%s: %w", file, err)
	}
	return installation{policy.Extenders, deployed.Spec.Template.Spec.Containers}, nil
}

// addons runs layer-extender for each container, with its variables and without flags but
// the kubeconfig, which stands for the pod's service account.
func (i *installation) addons() (all []cluster.Addon) {
	binary, err := filepath.Abs("../../../_build/bin/patched/layer-extender")
	if err != nil {
		panic(err)
	}
	identity := addons.Extender(cluster.Component{})
	for _, container := range i.containers {
		var env []string
		for _, variable := range container.Env {
			env = append(env, variable.Name+"="+variable.Value)
		}
		all = append(all, cluster.Addon{
			Name: container.Name, Settings: cluster.Component{Binary: binary, Env: env}, Args: []string{"--kubeconfig=$(KUBECONFIG)"},
			// What the ancestor's probes ask.
			Health: fmt.Sprintf("http://$(ADDRESS):%d/version", container.Ports[0].ContainerPort),
			User:   identity.User, Groups: identity.Groups,
		})
	}
	return all
}

// scheduler configures a stock kube-scheduler with the entries of the ancestor's policy. Only
// the spelling of enableHTTPS is another one.
func (i *installation) scheduler(name string) cluster.Component {
	var extenders []map[string]any
	for _, entry := range i.extenders {
		translated := map[string]any{}
		for key, value := range entry {
			if key == "enableHttps" {
				key = "enableHTTPS"
			}
			translated[key] = value
		}
		extenders = append(extenders, translated)
	}
	return cluster.Component{Flavour: cluster.Stock, Config: map[string]any{"profiles": []map[string]any{only(name)}, "extenders": extenders}}
}

//go:build imagelayers && bench

package perf

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/logs/json/register" // a log format of scheduler_perf's flags
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/ktesting"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/bench/fleet"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/congestion"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
	"github.com/layer-locality/layer-locality/scheduler/packing"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
	"github.com/layer-locality/layer-locality/scheduler/safe"
)

var (
	workload    = flag.String("workload", basic, basic+", "+withLayers+", "+withGroups+" or one of scheduler_perf's own, TOPIC/TEST CASE/WORKLOAD")
	profile     = flag.String("profile", "default", "name of the measured profile; default and extender have no plugin of ours")
	config      = flag.String("config", "", "file with the KubeSchedulerConfiguration of the profile")
	extender    = flag.String("extender", "", "layer-extender, which the profile asks; empty for none")
	nodes       = flag.Int("nodes", 5000, "nodes of the cluster")
	initialPods = flag.Int("initial-pods", 1000, "pods to place before the measurement")
	pods        = flag.Int("pods", 10000, "pods to measure with")
	promised    = flag.Int("slo-workloads", 0, "workloads that have the pods, and state an SLO; 0: pods state none")
)

const (
	// basic is scheduler_perf's SchedulingBasic: no node reports an image.
	basic = "SchedulingBasic"
	// withLayers has the same pods, but with images whose layers nodes report.
	withLayers = "SchedulingLayers"
	// withGroups has groups of such pods, each of one image, that are placed at once, in the rack that suits
	// them best.
	withGroups = "SchedulingGroups"
	groupPods  = 64
	racks      = 20
	// imagesPerNode is the maximum number of images that a kubelet reports.
	imagesPerNode = 50
)

// ours has the plugin of a profile that is ours.
var ours = map[string]string{
	"layerlocality": layerlocality.Name, "qosaware": qosaware.Name, "qosaware-slo": qosaware.Name,
	"safe": safe.Name, "packing": packing.Name, "congestion": congestion.Name,
}

// statistics are the profiles whose plugin reads what nodes use.
var statistics = []string{"safe", "packing", "congestion"}

//go:embed *.yaml
var files embed.FS

func TestMain(m *testing.M) {
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func BenchmarkPerfScheduling(b *testing.B) {
	enabled := map[string]bool{}
	registry := frameworkruntime.Registry{}
	for name, make := range map[string]frameworkruntime.PluginFactory{
		layerlocality.Name: layerlocality.NewFactory().New, qosaware.Name: qosaware.NewFactory().New,
		safe.Name: safe.NewFactory().New, packing.Name: packing.NewFactory().New, congestion.Name: congestion.New,
	} {
		registry[name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			enabled[name] = true
			return make(ctx, args, handle)
		}
	}
	var options []perf.SchedulerPerfOption
	image := func(string) string { return "registry.k8s.io/pause:3.10.2" }
	switch *workload {
	case basic:
		if slices.Contains(statistics, *profile) {
			options = append(options, perf.WithNodeUpdateFn(stateUse))
		}
	case withLayers, withGroups:
		images, source, err := dataset.FromEnv()
		if err != nil {
			b.Fatal(err)
		}
		// The pods use all images in turn, by names that a template can generate.
		for i := range images {
			images[i].Image = fmt.Sprintf("registry.example/bench/image-%d:v1", i)
		}
		image = func(number string) string {
			return fmt.Sprintf("registry.example/bench/image-{{Mod %s %d}}:v1", number, len(images))
		}
		b.Logf("%d images (%s)", len(images), source)
		options = append(options, perf.WithNodeUpdateFn(stateImages(fleet.Images(images))))
	default:
		if strings.Count(*workload, "/") < 2 {
			b.Fatalf("-workload=%s: want %s, %s, %s or TOPIC/TEST CASE/WORKLOAD", *workload, basic, withLayers, withGroups)
		}
	}
	if *extender != "" {
		options = append(options, perf.WithPrepareFn(func(tCtx ktesting.TContext) error { return startExtender(tCtx, *initialPods+*pods) }))
	}
	var file string
	if strings.Contains(*workload, "/") {
		file = upstreamCase(b)
	} else {
		file = testCase(b, image)
	}
	perf.RunBenchmarkPerfScheduling(b, file, *profile, registry, options...)
	if got := slices.Sorted(maps.Keys(enabled)); !slices.Equal(got, strings.Fields(ours[*profile])) {
		b.Fatalf("profile %s: plugins of ours: %q, want %q", *profile, got, ours[*profile])
	}
}

// upstreamCase writes one of scheduler_perf's own workloads with the profile of the flags, without its threshold, which
// would end it without figures, and returns the name of the file. Paths in it are relative to the folder of its topic.
func upstreamCase(b *testing.B) string {
	parts := strings.SplitN(*workload, "/", 3) // some names of workloads have slashes, too
	b.Chdir(filepath.Join(os.Getenv("TEST_SRCDIR"), os.Getenv("TEST_WORKSPACE"), "k8s.io/kubernetes/test/integration/scheduler_perf", parts[0]))
	text, err := os.ReadFile("performance-config.yaml")
	if err != nil {
		b.Fatal(err)
	}
	var cases []map[string]any
	if err := yaml.Unmarshal(text, &cases); err != nil {
		b.Fatal(err)
	}
	cases = slices.DeleteFunc(cases, func(c map[string]any) bool { return c["name"] != parts[1] })
	if len(cases) != 1 {
		b.Fatalf("-workload=%s: %d test cases, want 1", *workload, len(cases))
	}
	var workloads []any
	for _, w := range cases[0]["workloads"].([]any) {
		if w := w.(map[string]any); w["name"] == parts[2] {
			delete(w, "threshold")
			w["labels"] = []string{"performance"}
			workloads = append(workloads, w)
		}
	}
	cases[0]["workloads"], cases[0]["schedulerConfigPath"] = workloads, *config
	if text, err = yaml.Marshal(cases); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "workload.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		b.Fatal(err)
	}
	return file
}

// testCase writes the files that scheduler_perf reads, and returns the name of
// the file with the test case. image returns that of a pod for a number, which is an expression.
func testCase(b *testing.B, image func(number string) string) string {
	dir := b.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			b.Fatal(err)
		}
		return name
	}
	read := func(name string) string {
		data, err := files.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return string(data)
	}
	annotations := "{}"
	if *promised > 0 {
		annotations = fmt.Sprintf(`{slo: "0.9", controller: "workload-{{Mod .Index %d}}"}`, *promised)
	}
	pod := func(name, group, number string) string {
		filled := strings.NewReplacer("IMAGE", image(number), "ANNOTATIONS", annotations, "GROUP", group).Replace(read("pod.yaml"))
		return write(name, []byte(filled))
	}
	var labels []string
	for i := range racks {
		labels = append(labels, fmt.Sprint("rack-", i))
	}
	groups := 0
	if *workload == withGroups {
		groups = *pods / groupPods
	}
	ofGroup := fmt.Sprintf("(DivideInt .Index %d)", groupPods)
	var text strings.Builder
	err := template.Must(template.ParseFS(files, "workload.yaml")).Execute(&text, map[string]any{
		"Workload": *workload, "Nodes": *nodes, "InitialPods": *initialPods, "Pods": *pods,
		"SchedulerConfig": *config,
		"Pod":             pod("pod.yaml", "null", ".Index"),
		"Groups":          groups,
		"Group":           write("group.yaml", []byte(strings.ReplaceAll(read("group.yaml"), "PODS", strconv.Itoa(groupPods)))),
		"GroupPod":        pod("group-pod.yaml", "{podGroupName: 'group-{{"+ofGroup+"}}'}", ofGroup),
		"Racks":           strings.Join(labels, ", "),
	})
	if err != nil {
		b.Fatal(err)
	}
	return write("workload.yaml", []byte(text.String()))
}

// stateImages writes images into the status of all nodes, as kubelets do.
func stateImages(images []v1.ContainerImage) perf.NodeUpdateFn {
	return func(tCtx ktesting.TContext, _ *scheduler.Scheduler, _ *perf.Workload, list *v1.NodeList) error {
		errs := make([]error, len(list.Items))
		workqueue.ParallelizeUntil(tCtx, 16, len(list.Items), func(i int) {
			errs[i] = state(tCtx, &list.Items[i], fleet.Draw(rand.New(rand.NewPCG(uint64(i), 0)), images, imagesPerNode))
		})
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return context.Cause(tCtx)
	}
}

// stateUse writes annotations of all nodes: what they use, and how congested they are.
func stateUse(tCtx ktesting.TContext, _ *scheduler.Scheduler, _ *perf.Workload, list *v1.NodeList) error {
	errs := make([]error, len(list.Items))
	workqueue.ParallelizeUntil(tCtx, 16, len(list.Items), func(i int) {
		random, node := rand.New(rand.NewPCG(uint64(i), 1)), &list.Items[i]
		cpu, memory := float64(node.Status.Allocatable.Cpu().MilliValue()), float64(node.Status.Allocatable.Memory().Value())
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"mean-free-cpu":"%.0f","std-free-cpu":"%.0f","mean-free-memory":"%.0f","std-free-memory":"%.0f","congestion-factor":"%d"}}}`,
			cpu*(.5+random.Float64()/2), cpu*random.Float64()/5, memory*(.5+random.Float64()/2), memory*random.Float64()/5, random.IntN(100))
		_, errs[i] = tCtx.Client().CoreV1().Nodes().Patch(tCtx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	})
	return errors.Join(append(errs, context.Cause(tCtx))...)
}

func state(tCtx ktesting.TContext, node *v1.Node, images []v1.ContainerImage) error {
	node.Status.Images = images
	updated, err := tCtx.Client().CoreV1().Nodes().UpdateStatus(tCtx, node, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if !nodestatus.SameImages(node, updated) {
		return fmt.Errorf("the apiserver did not keep the layers that node %s states", node.Name)
	}
	return nil
}

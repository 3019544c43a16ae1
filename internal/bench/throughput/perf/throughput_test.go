//go:build imagelayers && bench

package perf

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/logs/json/register" // a log format of scheduler_perf's flags
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/ktesting"

	"github.com/layer-locality/layer-locality/internal/bench/fleet"
	"github.com/layer-locality/layer-locality/internal/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

var (
	workload    = flag.String("workload", basic, basic+" or "+withLayers)
	profile     = flag.String("profile", "default", "name of the measured profile; layerlocality has that plugin, the others do not")
	config      = flag.String("config", "", "file with the KubeSchedulerConfiguration of the profile")
	extender    = flag.String("extender", "", "layer-extender, which the profile asks; empty for none")
	nodes       = flag.Int("nodes", 5000, "nodes of the cluster")
	initialPods = flag.Int("initial-pods", 1000, "pods to place before the measurement")
	pods        = flag.Int("pods", 10000, "pods to measure with")
)

const (
	// basic is scheduler_perf's SchedulingBasic: no node reports an image.
	basic = "SchedulingBasic"
	// withLayers has the same pods, but with images whose layers nodes report.
	withLayers = "SchedulingLayers"
	// imagesPerNode is the maximum number of images that a kubelet reports.
	imagesPerNode = 50
)

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
	factory := layerlocality.NewFactory()
	enabled := false
	registry := frameworkruntime.Registry{
		layerlocality.Name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			enabled = true
			return factory.New(ctx, args, handle)
		},
	}
	var options []perf.SchedulerPerfOption
	image := "registry.k8s.io/pause:3.10.2"
	switch *workload {
	case basic:
	case withLayers:
		images, source, err := dataset.FromEnv()
		if err != nil {
			b.Fatal(err)
		}
		// The pods use all images in turn, by names that a template can generate.
		for i := range images {
			images[i].Image = fmt.Sprintf("registry.example/bench/image-%d:v1", i)
		}
		image = fmt.Sprintf("registry.example/bench/image-{{Mod .Index %d}}:v1", len(images))
		b.Logf("%d images (%s)", len(images), source)
		options = append(options, perf.WithNodeUpdateFn(stateImages(fleet.Images(images))))
	default:
		b.Fatalf("-workload=%s: want %s or %s", *workload, basic, withLayers)
	}
	if *extender != "" {
		options = append(options, perf.WithPrepareFn(func(tCtx ktesting.TContext) error { return startExtender(tCtx, *initialPods+*pods) }))
	}
	perf.RunBenchmarkPerfScheduling(b, testCase(b, image), *profile, registry, options...)
	if want := *profile == "layerlocality"; enabled != want {
		b.Fatalf("profile %s: %s was enabled: %t, want %t", *profile, layerlocality.Name, enabled, want)
	}
}

// testCase writes the files that scheduler_perf reads, and returns the name of
// the file with the test case.
func testCase(b *testing.B, image string) string {
	dir := b.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			b.Fatal(err)
		}
		return name
	}
	pod, err := files.ReadFile("pod.yaml")
	if err != nil {
		b.Fatal(err)
	}
	var text strings.Builder
	err = template.Must(template.ParseFS(files, "workload.yaml")).Execute(&text, map[string]any{
		"Workload": *workload, "Nodes": *nodes, "InitialPods": *initialPods, "Pods": *pods,
		"SchedulerConfig": *config,
		"Pod":             write("pod.yaml", []byte(strings.ReplaceAll(string(pod), "IMAGE", image))),
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

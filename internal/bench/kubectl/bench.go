// Package kubectl measures kubectl layers on a large cluster: the real program, and a real
// apiserver with as many objects. Nothing runs on the nodes.
package kubectl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/bench"
	"github.com/layer-locality/layer-locality/internal/controlplane"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Nodes, each with a NodeLayers of HeldImages images.
	Nodes      int `json:"nodes"`
	HeldImages int `json:"heldImages"`
	// Images are the ImageManifests, Pods those that are placed.
	Images int `json:"images"`
	Pods   int `json:"pods"`
	// Rounds of each command; the median counts.
	Rounds int `json:"rounds"`
	// Root of the repository; its _build/bin holds the programs.
	Root string `json:"-"`
}

// Run is a command and what it took.
type Run struct {
	Command string    `json:"command"`
	Seconds []float64 `json:"seconds"`
	// RSSMiB is the most that it had in memory.
	RSSMiB float64 `json:"rssMiB"`
}

// median returns the median of the rounds.
func (r *Run) median() float64 {
	s := slices.Sorted(slices.Values(r.Seconds))
	return s[len(s)/2]
}

// Result is everything that was measured.
type Result struct {
	Config Config `json:"config"`
	Runs   []Run  `json:"runs"`
}

// goals are seconds, by command.
var goals = map[string]float64{"nodes": 6, "node": 0.5, "plan": 8, "why": 0.5}

// maxRSS is the goal for memory, in MiB.
const maxRSS = 400

// Write implements bench.Result.
func (r *Result) Write(w io.Writer) error {
	line, most := fmt.Sprintf("kubectl_layers nodes=%d", r.Config.Nodes), 0.0
	for i := range r.Runs {
		run := &r.Runs[i]
		verdict := "met"
		if run.median() > goals[run.Command] {
			verdict = "missed"
		}
		if _, err := fmt.Fprintf(w, "%-6s %6.2f s (goal %g: %s), %4.0f MiB\n", run.Command, run.median(), goals[run.Command], verdict, run.RSSMiB); err != nil {
			return err
		}
		line += fmt.Sprintf(" %s_s=%.2f", run.Command, run.median())
		most = max(most, run.RSSMiB)
	}
	verdict := "met"
	if most > maxRSS {
		verdict = "missed"
	}
	_, err := fmt.Fprintf(w, "memory %4.0f MiB (goal %d: %s)\n%s rss_mib=%.0f\n", most, maxRSS, verdict, line, most)
	return err
}

// Measure runs the benchmark.
func Measure(ctx context.Context, config Config) (*Result, error) {
	plane, err := controlplane.StartWith(config.Root, controlplane.Settings{NoFsync: true})
	if err != nil {
		return nil, err
	}
	defer plane.Stop() //nolint:errcheck // it is over
	folder, err := os.MkdirTemp("", "bench-kubectl-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	objects, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, &config, objects); err != nil {
		return nil, err
	}
	result := &Result{Config: config}
	for _, args := range [][]string{{"nodes"}, {"node", nodeName(1)}, {"plan", "pod/" + podName(1)}} {
		run := Run{Command: args[0]}
		for range config.Rounds {
			seconds, rss, err := once(ctx, config.Root, append(args, "--kubeconfig", kubeconfig))
			if err != nil {
				return result, err
			}
			run.Seconds, run.RSSMiB = append(run.Seconds, seconds), max(run.RSSMiB, rss)
			config.Logf("%s: %.2f s, %.0f MiB", args[0], seconds, rss)
		}
		result.Runs = append(result.Runs, run)
	}
	return result, nil
}

// once runs the program.
func once(ctx context.Context, root string, args []string) (seconds, rss float64, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "_build/bin/patched/kubectl-layers"), args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("kubectl layers %v: %w: %s", args, err, errs.String())
	}
	seconds = time.Since(begin).Seconds()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		rss = float64(usage.Maxrss) / 1024
	}
	return seconds, rss, nil
}

func nodeName(n int) string { return fmt.Sprintf("node-%05d", n) }
func podName(n int) string  { return fmt.Sprintf("pod-%06d", n) }

func digest(kind string, n int) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, n)))
}

// image is a made-up image: ten layers, of which the lower ones are those of a hundredth and of
// a tenth of all images.
type image struct {
	name, digest string
	layers       []v1alpha1.ImageLayer
}

func images(n int) []image {
	all := make([]image, n)
	for i := range all {
		all[i] = image{name: fmt.Sprintf("registry.example.com/team-%d/app-%d:v1", i%50, i), digest: digest("manifest", i)}
		for l := range 10 {
			owner := i
			switch {
			case l < 5:
				owner = 1_000_000 + i%(max(1, n/100))
			case l < 8:
				owner = 2_000_000 + i%(max(1, n/10))
			}
			all[i].layers = append(all[i].layers, v1alpha1.ImageLayer{Digest: digest(fmt.Sprint("layer ", l), owner), Size: int64(1+l) * 3_000_000})
		}
	}
	return all
}

// parallel creates so many objects, several at a time.
func parallel(ctx context.Context, n int, create func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return create(ctx, i) })
	}
	return group.Wait()
}

func fill(ctx context.Context, config *Config, objects client.Client) error {
	all := images(config.Images)
	if err := parallel(ctx, len(all), func(ctx context.Context, i int) error {
		confirmed := metav1.Now()
		return objects.Create(ctx, &v1alpha1.ImageManifest{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(all[i].digest)},
			Spec:       v1alpha1.ImageManifestSpec{Digest: all[i].digest, Platform: "linux/amd64", Layers: all[i].layers},
			Status:     v1alpha1.ImageManifestStatus{References: []v1alpha1.ImageReference{{Name: all[i].name, Digest: all[i].digest, LastConfirmed: &confirmed}}},
		})
	}); err != nil {
		return err
	}
	config.Logf("%d ImageManifests", len(all))
	if err := parallel(ctx, config.Nodes, func(ctx context.Context, i int) error { return createNode(ctx, config, objects, all, i) }); err != nil {
		return err
	}
	config.Logf("%d Nodes with NodeLayers", config.Nodes)
	err := objects.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
	if err != nil {
		return err
	}
	if err := parallel(ctx, config.Pods, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: podName(i), Labels: map[string]string{"app": "bench"}}}
		pod.Spec.NodeName = nodeName(i % config.Nodes)
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: all[i%len(all)].name, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		}}}
		return objects.Create(ctx, pod)
	}); err != nil {
		return err
	}
	config.Logf("%d pods", config.Pods)
	return nil
}

func createNode(ctx context.Context, config *Config, objects client.Client, all []image, i int) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{"kubernetes.io/hostname": nodeName(i)}}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.3.1"}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}
	held := rand.New(rand.NewPCG(25, uint64(i))).Perm(len(all))[:min(config.HeldImages, len(all))] //nolint:gosec // chance, not secrets
	for _, n := range held[:min(50, len(held))] {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{all[n].name}, SizeBytes: 300_000_000})
	}
	status := node.Status
	if err := objects.Create(ctx, node); err != nil {
		return err
	}
	node.Status = status
	if err := objects.Status().Update(ctx, node); err != nil {
		return err
	}
	holds := &contents.Contents{Runtime: "containerd 2.3.1"}
	for _, n := range held {
		holds.Images = append(holds.Images, contents.Image{Names: []string{all[n].name, all[n].digest}, Layers: all[n].layers})
	}
	o := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		Spec:       *holds.Spec(),
	}
	o.Spec.RenewSeconds, o.Spec.RenewTime = 600, metav1.Now()
	return objects.Create(ctx, o)
}

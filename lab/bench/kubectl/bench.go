// Package kubectl measures kubectl layers on a large cluster: the real program, a real apiserver
// with as many objects, and a real kube-scheduler that placed the pod that why is about. Nothing
// runs on the nodes.
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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench"
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
	// Processors are the seconds of processors that the program itself took.
	Processors []float64 `json:"processors"`
	// RSSMiB is the most that it had in memory.
	RSSMiB float64 `json:"rssMiB"`
}

// median returns the median of rounds.
func median(rounds []float64) float64 {
	s := slices.Sorted(slices.Values(rounds))
	return s[len(s)/2]
}

// Result is everything that was measured.
type Result struct {
	Config Config `json:"config"`
	Runs   []Run  `json:"runs"`
}

// forgotten is why of a pod that no scheduler remembers: nodes are rated now, as for plan.
const forgotten = "why, not remembered"

// uncompressed is behind the name of a command that asks for answers without compression: kubectl's
// own option, for an apiserver that is near.
const uncompressed = ", uncompressed"

// alone is behind the name of a command that no scheduler is asked for, and wide is nodes with what takes all lists.
const (
	alone = "plan, alone"
	wide  = "nodes, wide"
)

// goals are seconds, by command; the last line has those that have one.
var goals = map[string]float64{"nodes": 2, "node": 0.5, "plan": 1, alone: 4, "why": 0.3}

// maxRSS is the goal for memory, in MiB.
const maxRSS = 200

// Write implements bench.Result.
func (r *Result) Write(w io.Writer) error {
	line, most := fmt.Sprintf("kubectl_layers nodes=%d", r.Config.Nodes), 0.0
	for i := range r.Runs {
		run := &r.Runs[i]
		verdict := "no goal"
		seconds := median(run.Seconds)
		if goal, ok := goals[run.Command]; ok {
			verdict = fmt.Sprintf("goal %g: met", goal)
			if seconds > goal {
				verdict = fmt.Sprintf("goal %g: missed", goal)
			}
			line += fmt.Sprintf(" %s_s=%.2f", strings.ReplaceAll(run.Command, ", ", "_"), seconds)
		}
		if _, err := fmt.Fprintf(w, "%-20s %6.2f s (%s), %5.2f s of processors, %4.0f MiB\n", run.Command, seconds, verdict, median(run.Processors), run.RSSMiB); err != nil {
			return err
		}
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
	measure := func(command, says string, args ...string) error {
		run := Run{Command: command}
		for range config.Rounds {
			took, err := once(ctx, config.Root, says, append(args, "--kubeconfig", kubeconfig))
			if err != nil {
				return err
			}
			run.Seconds, run.Processors, run.RSSMiB = append(run.Seconds, took.seconds), append(run.Processors, took.processors), max(run.RSSMiB, took.rss)
			config.Logf("%s: %.2f s, %.2f s of processors, %.0f MiB", command, took.seconds, took.processors, took.rss)
		}
		result.Runs = append(result.Runs, run)
		return nil
	}
	fits := fmt.Sprintf("fits on %d of %d nodes", config.Nodes, config.Nodes)
	for _, run := range [][]string{
		{"nodes", nodeName(1), "nodes"}, {wide, nodeName(1), "nodes", "-o", "wide"}, {"node", "known from layer-agent", "node", nodeName(1)}, {alone, fits, "plan", "pod/" + podName(1)},
		{wide + uncompressed, nodeName(1), "nodes", "-o", "wide", "--disable-compression"}, {alone + uncompressed, fits, "plan", "pod/" + podName(1), "--disable-compression"},
	} {
		if err := measure(run[0], run[1], run[2:]...); err != nil {
			return result, err
		}
	}
	// The scheduler has listed everything when it is ready. Then it rests.
	scheduler, err := plane.StartScheduler(config.Root, "patched", profile)
	if err != nil {
		return result, err
	}
	defer scheduler.Stop()
	if err := place(ctx, &config, objects); err != nil {
		return result, err
	}
	if err := measure("plan", "Rated by the scheduler", "plan", "pod/"+podName(1), "--scheduler-url", scheduler.URL); err != nil {
		return result, err
	}
	if err := measure("why", "When it was placed, ", "why", placed, "--scheduler-url", scheduler.URL); err != nil {
		return result, err
	}
	return result, measure(forgotten, "What follows is as of now", "why", podName(1), "--scheduler-url", scheduler.URL)
}

// profile is that of the scheduler.
const profile = `leaderElection: {leaderElect: false}
profiles:
- schedulerName: layer-locality
  plugins:
    multiPoint: {enabled: [{name: LayerLocality, weight: 4}], disabled: [{name: ImageLocality}]}
`

// placed is the pod that the scheduler places.
const placed = "placed"

// place has the scheduler place a pod, for which an event then states its pull as a kubelet's
// does, and installs what why needs.
func place(ctx context.Context, config *Config, objects client.Client) error {
	rights, err := kustomize.Build(filepath.Join(config.Root, "deploy/kubectl-layers"), nil)
	if err != nil {
		return err
	}
	for _, object := range rights {
		if err := objects.Create(ctx, object); err != nil {
			return err
		}
	}
	image := images(config.Images)[0].name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: placed}}
	pod.Spec.SchedulerName = "layer-locality"
	// The apiserver taints new nodes as not ready, and here no kubelet removes the taint.
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	if err := objects.Create(ctx, pod); err != nil {
		return err
	}
	if err := poll.Until(ctx, 100*time.Millisecond, 2*time.Minute, func(ctx context.Context) error {
		if err := objects.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("the pod has no node: %+v", pod.Status.Conditions)
		}
		return nil
	}); err != nil {
		return err
	}
	return objects.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: "pulled-"}, Type: corev1.EventTypeNormal, Reason: "Pulled",
		Message:        fmt.Sprintf("Successfully pulled image %q in 1.5s (2.25s including waiting). Image size: 165000000 bytes.", image),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, FirstTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "kubelet"},
	})
}

// used is what a command took: seconds, those of processors, and MiB of memory at the most.
type used struct{ seconds, processors, rss float64 }

// once runs the program, whose answer has to have a text.
func once(ctx context.Context, root, want string, args []string) (took used, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "_build/bin/patched/kubectl-layers"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return took, fmt.Errorf("kubectl layers %v: %w: %s", args, err, errs.String())
	}
	took.seconds = time.Since(begin).Seconds()
	took.processors = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if !strings.Contains(out.String(), want) {
		return took, fmt.Errorf("kubectl layers %v prints %.2000s, want %q", args, out.String(), want)
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		took.rss = float64(usage.Maxrss) / 1024
	}
	return took, nil
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

// One pod of so many waits for its image; the others run.
const waitsOf = 100

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
		if err := objects.Create(ctx, pod); err != nil || i%waitsOf == 0 {
			return err
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: pod.Spec.Containers[0].Image, ImageID: all[i%len(all)].digest, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}}
		return objects.Status().Update(ctx, pod)
	}); err != nil {
		return err
	}
	config.Logf("%d pods, of which %d wait for their image", config.Pods, (config.Pods+waitsOf-1)/waitsOf)
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
	// Admission taints a new Node as not ready, which no controller undoes here.
	if err := objects.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))); err != nil {
		return err
	}
	holds := &contents.Contents{Runtime: "containerd 2.3.1"}
	for _, n := range held {
		holds.Images = append(holds.Images, contents.Image{Names: []string{all[n].name, all[n].digest}, Layers: all[n].layers})
	}
	o := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		Spec:       *holds.Spec(0, v1alpha1.MaxNodeListBytes),
	}
	o.Spec.RenewSeconds, o.Spec.RenewTime = 600, metav1.Now()
	return objects.Create(ctx, o)
}

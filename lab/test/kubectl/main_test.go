//go:build integration

package kubectl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	kubectllayers "github.com/layer-locality/layer-locality/deploy/kubectl-layers"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

const root = "../../.."

var (
	plane      *controlplane.ControlPlane
	objects    client.Client
	core       *kubernetes.Clientset
	kubeconfig string
	// schedulerURL is the secure port of a kube-scheduler with the profile layer-locality.
	schedulerURL string
	now          = time.Now().Truncate(time.Second)
)

func TestMain(m *testing.M) {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	ctrl.SetLogger(klog.NewKlogr())
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "kubectl-layers-")
		if err != nil {
			log.Print(err)
			return 1
		}
		defer os.RemoveAll(folder)
		if plane, err = controlplane.StartWith(root, controlplane.Settings{FeatureGates: "NodeStatusImageLayers=true", NoFsync: true}); err != nil {
			log.Print(err)
			return 1
		}
		defer func() {
			if err := plane.Stop(); err != nil {
				log.Print(err)
			}
		}()
		stop, err := start(folder)
		if err != nil {
			log.Print(err)
			return 1
		}
		defer stop()
		return m.Run()
	}())
}

// start makes the cluster and runs the scheduler.
func start(folder string) (stop func(), err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if objects, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if core, err = kubernetes.NewForConfig(plane.Config); err != nil {
		return nil, err
	}
	kubeconfig = filepath.Join(folder, "kubeconfig")
	if err := os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	if err := fill(context.Background()); err != nil {
		return nil, err
	}
	return runScheduler()
}

// runScheduler runs kube-scheduler with two profiles: layer-locality, in which layers score, and
// overruled, in which the affinity of nodes counts more.
func runScheduler() (stop func(), err error) {
	scheduler, err := plane.StartScheduler(root, "patched", `leaderElection: {leaderElect: true, resourceName: layer-locality-scheduler, resourceNamespace: kube-system}
profiles:
- schedulerName: layer-locality
  plugins:
    multiPoint: {enabled: [{name: LayerLocality, weight: 10}], disabled: [{name: ImageLocality}]}
- schedulerName: overruled
  plugins:
    multiPoint: {enabled: [{name: LayerLocality, weight: 1}, {name: NodeAffinity, weight: 100}], disabled: [{name: ImageLocality}, {name: NodeAffinity}]}
`)
	if err != nil {
		return nil, err
	}
	schedulerURL = scheduler.URL
	return scheduler.Stop, nil
}

const (
	mb = 1_000_000
)

// digest returns the digest that stands for a name.
func digest(name string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))) }

// picture is an image: its layers with sizes, the base first.
type picture struct {
	name   string
	layers []v1alpha1.ImageLayer
}

func layer(name string, size int64) v1alpha1.ImageLayer {
	return v1alpha1.ImageLayer{Digest: digest(name), Size: size}
}

// pictures are the images that there are: every third is built on each base.
func pictures() (all []picture) {
	for n := range 9 {
		base := fmt.Sprint("base-", n%3)
		all = append(all, picture{fmt.Sprintf("registry.example.com/team/app-%d:v1", n), []v1alpha1.ImageLayer{
			layer(base, 60*mb), layer(base+"-tools", 30*mb), layer(fmt.Sprint("app-", n), int64(n+1)*mb),
		}})
	}
	return all
}

func (p *picture) digest() string { return digest("manifest " + p.name) }

func (p *picture) bytes() (sum int64) {
	for _, l := range p.layers {
		sum += l.Size
	}
	return sum
}

// The nodes, each known in another way.
const (
	byAgent, byKubelet, joined, byNames, staleAgent, empty = "by-agent", "by-kubelet", "joined", "by-names", "stale-agent", "empty"
)

// fill makes the cluster's objects.
func fill(ctx context.Context) error {
	images := pictures()
	held := map[string][]picture{byAgent: images[:4], byKubelet: images[2:6], joined: images[5:8], byNames: {{name: "registry.example.com/other/thing:v1"}}, staleAgent: nil, empty: nil}
	for name, of := range held {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kind": name}}}
		if err := objects.Create(ctx, node); err != nil {
			return err
		}
		if err := objects.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))); err != nil {
			return err
		}
		if err := objects.Status().Patch(ctx, node, client.RawPatch(types.MergePatchType, statusOf(name, of))); err != nil {
			return err
		}
		if name == byAgent || name == staleAgent {
			if err := objects.Create(ctx, nodeLayers(node, of, name == staleAgent)); err != nil {
				return err
			}
		}
	}
	for _, p := range images {
		if err := objects.Create(ctx, manifest(p)); err != nil {
			return err
		}
	}
	if err := objects.Create(ctx, unresolved()); err != nil {
		return err
	}
	for _, text := range [][]byte{kubectllayers.Viewer, kubectllayers.SchedulerReader, kubectllayers.Policy} {
		if err := apply(ctx, text); err != nil {
			return err
		}
	}
	return objects.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
}

// statusOf is the status of a node: its images with layers, with digests, or by name only.
func statusOf(name string, held []picture) []byte {
	images := []map[string]any{}
	for _, p := range held {
		image := map[string]any{"names": []string{p.name}, "sizeBytes": 2 * p.bytes()}
		switch name {
		case byAgent:
			continue // what an agent reports counts alone
		case byKubelet:
			var layers []map[string]any
			for _, l := range p.layers {
				layers = append(layers, map[string]any{"digest": l.Digest, "sizeBytes": l.Size})
			}
			image["layers"] = layers
		case joined:
			image["names"] = []string{p.name, strings.TrimSuffix(p.name, ":v1") + "@" + p.digest()}
		case byNames:
			image["sizeBytes"] = 50 * mb
		}
		images = append(images, image)
	}
	condition := map[string]any{"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now.Add(-time.Minute).UTC().Format(time.RFC3339)}
	text, err := json.Marshal(map[string]any{"status": map[string]any{
		"capacity":    map[string]string{"cpu": "64", "memory": "256Gi", "pods": "500"},
		"allocatable": map[string]string{"cpu": "64", "memory": "256Gi", "pods": "500"},
		"nodeInfo": map[string]string{
			"operatingSystem": "linux", "architecture": "amd64", "containerRuntimeVersion": "cri-o://1.36.3\x1b[31m", "machineID": "", "systemUUID": "",
			"bootID": "", "kernelVersion": "", "osImage": "", "kubeletVersion": "", "kubeProxyVersion": "",
		},
		"images": images, "conditions": []any{condition},
	}})
	if err != nil {
		panic(err)
	}
	return text
}

func nodeLayers(node *corev1.Node, held []picture, stale bool) *v1alpha1.NodeLayers {
	holds := &contents.Contents{Runtime: "containerd 2.3.1"}
	for _, p := range held {
		holds.Images = append(holds.Images, contents.Image{Names: []string{p.name, p.digest()}, Layers: p.layers})
	}
	o := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		Spec:       *holds.Spec(0, v1alpha1.MaxNodeListBytes),
	}
	// As if some of it had not fitted.
	o.Spec.TotalImages, o.Spec.TotalLayers, o.Spec.TotalBytes = int32(len(held))+2, 40, 1<<30
	o.Spec.RenewSeconds, o.Spec.RenewTime = 600, metav1.NewTime(now.Add(-30*time.Second))
	if stale {
		o.Spec.RenewTime = metav1.NewTime(now.Add(-24 * time.Hour))
	}
	if !stale {
		o.Spec.Images = append(o.Spec.Images, "4000 registry.example.com/invalid:v1") // there is no such layer
	}
	return o
}

func manifest(p picture) *v1alpha1.ImageManifest {
	confirmed := metav1.NewTime(now.Add(-5 * time.Minute))
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(p.digest())},
		Spec:       v1alpha1.ImageManifestSpec{Digest: p.digest(), Platform: "linux/amd64", Size: p.bytes(), Layers: p.layers},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: p.name, Digest: p.digest(), LastConfirmed: &confirmed}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, LastTransitionTime: confirmed}},
		},
	}
}

// unresolved is an image that a registry does not give, with a message that a terminal must not
// get.
func unresolved() *v1alpha1.ImageManifest {
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: "unresolved-0123"},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: "registry.example.com/team/secret:v1"}},
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionResolved, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnauthorized, LastTransitionTime: metav1.NewTime(now),
				Message: "\x1b[2J\u202Ethe registry wants credentials " + strings.Repeat("x", 20_000),
			}},
		},
	}
}

// apply creates the objects of a file.
func apply(ctx context.Context, text []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := objects.Create(ctx, o); err != nil {
			return err
		}
	}
}

// result is what a run of the program gave.
type result struct {
	out, err string
	code     int
}

// layers runs the program with the kubeconfig of the administrator.
func layers(t testing.TB, args ...string) result {
	t.Helper()
	return layersIn(t, nil, append([]string{"--kubeconfig", kubeconfig}, args...)...)
}

func layersIn(t testing.TB, in io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "_build/bin/patched/kubectl-layers"), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/nonexistent"}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: scripts/build.sh patched kubectl-layers makes it", err)
	}
	for _, text := range []string{out.String(), errs.String()} {
		for _, r := range text {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				t.Errorf("%v: a terminal gets %U", args, r)
				break
			}
		}
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// answers runs the program with -o json and reads its answer.
func answers(t testing.TB, into any, args ...string) {
	t.Helper()
	r := layers(t, append(args, "-o", "json")...)
	if r.code != 0 {
		t.Fatalf("%v: %+v", args, r)
	}
	document := struct {
		APIVersion, Kind string
		Answer           any
	}{Answer: into}
	if err := json.Unmarshal([]byte(r.out), &document); err != nil || document.APIVersion != "kubectl.layerlocality.io/v1" || document.Kind == "" {
		t.Fatalf("%v: %v: %s", args, err, r.out)
	}
}

var must = testkit.Must

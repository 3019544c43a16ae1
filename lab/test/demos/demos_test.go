//go:build e2e

package demos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/schedulerconfig"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/demos/console"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const root = "../../.."

var c *cluster.Cluster

func TestMain(m *testing.M) {
	profiles, err := schedulerconfig.Read(filepath.Join(root, "lab/demos/scheduler.yaml"))
	if err != nil {
		panic(err)
	}
	config := cluster.Config{
		Name: livetest.ClusterName("demos-test"), Nodes: 3, Flavour: cluster.Patched,
		Scheduler: cluster.Component{Config: profiles, Args: []string{scenario.LogScores}},
		// Ten times as often as usual, so that texts wait less.
		Kubelet: cluster.Component{Config: map[string]any{"nodeStatusUpdateFrequency": "1s"}},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) { c = started }))
}

var must = testkit.Must

// environment has kubectl talk to the cluster, and keep what it learns of it in the cluster's
// folder, which goes with it, and not in ~/.kube.
func environment() []string {
	return []string{"KUBECONFIG=" + c.Kubeconfig(), "KUBECACHEDIR=" + learned()}
}

func learned() string { return filepath.Join(c.Dir(), "kubectl-cache") }

// bash runs a script in the root of the repository, and returns what it prints.
func bash(ctx context.Context, script string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = root, append(append(os.Environ(), environment()...), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// prepare does what cluster.sh does with a cluster that is up, once.
func prepare(t *testing.T) {
	t.Helper()
	if out, err := prepared(); err != nil {
		t.Fatalf("lab/demos/cluster.sh prepare: %v\n%s", err, out)
	}
}

var prepared = sync.OnceValues(func() (string, error) {
	return bash(context.Background(), "lab/demos/cluster.sh prepare "+c.Registry().Address)
})

// TestTexts runs each text, and checks that it has removed what it made.
func TestTexts(t *testing.T) {
	prepare(t)
	if _, err := os.Stat(learned()); err != nil {
		t.Errorf("kubectl keeps what it learns elsewhere: %v", err)
	}
	texts, err := filepath.Glob(filepath.Join(root, "lab/demos/*/README.md"))
	must(t, err)
	if len(texts) < 2 {
		t.Fatalf("only the texts %v", texts)
	}
	// A text that was run leaves a cluster on which it works again.
	if os.Getenv("FULL") != "" {
		texts = append(texts, texts...)
	} else {
		texts = append(texts, texts[0])
	}
	for _, text := range texts {
		t.Run(filepath.Base(filepath.Dir(text)), func(t *testing.T) {
			before := observe(t)
			var printed bytes.Buffer
			file, err := filepath.Rel(root, text)
			must(t, err)
			begin := time.Now()
			err = console.Run(t.Context(), text, console.Options{Dir: root, Env: environment(), Print: &printed})
			t.Logf("%s, %.0f s\n%s", file, time.Since(begin).Seconds(), &printed)
			must(t, err)
			if after := observe(t); !reflect.DeepEqual(after, before) {
				t.Errorf("the cluster was\n%v\nand is\n%v", before, after)
			}
		})
	}
}

// TestCleanup ends a text before it has removed what it made, and has cleanup.sh do that.
func TestCleanup(t *testing.T) {
	prepare(t)
	before := observe(t)
	must(t, console.Run(t.Context(), filepath.Join(root, "lab/demos/image-locality/README.md"), console.Options{Dir: root, Env: environment(), Until: "4. The same images with LayerLocality"}))
	if reflect.DeepEqual(observe(t), before) {
		t.Error("nothing is left of the text: this shows nothing")
	}
	pid := c.Scheduler().PID()
	if out, err := bash(t.Context(), "lab/demos/cleanup.sh"); err != nil {
		t.Fatalf("lab/demos/cleanup.sh: %v\n%s", err, out)
	}
	if after := observe(t); !reflect.DeepEqual(after, before) || c.Scheduler().PID() == pid {
		t.Errorf("the cluster was\n%v\nand is\n%v; scheduler %d", before, after, pid)
	}
}

// observe returns what a text must leave as it was: pods, labels and taints of nodes, and
// the images on them.
func observe(t *testing.T) map[string]string {
	t.Helper()
	client, err := c.Client()
	must(t, err)
	state := map[string]string{}
	pods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, pod := range pods.Items {
		state["pod "+pod.Namespace+"/"+pod.Name] = pod.Spec.NodeName
	}
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, node := range nodes.Items {
		labels := slices.Sorted(maps.Keys(node.Labels))
		state["node "+node.Name] = fmt.Sprint(labels, node.Spec.Taints, node.Spec.Unschedulable)
		images, err := livetest.Crictl(t.Context(), c.Node(node.Name))
		must(t, err)
		var names []string
		for _, image := range images {
			for _, name := range image.GetRepoTags() {
				// That of the pods' sandboxes comes with the first pod, and stays.
				if !strings.Contains(name, "/pause:") {
					names = append(names, name)
				}
			}
		}
		slices.Sort(names)
		state["images of "+node.Name] = fmt.Sprint(names)
	}
	return state
}

// TestWrongCluster: env.sh prints what a cluster lacks and how to get it.
func TestWrongCluster(t *testing.T) {
	prepare(t)
	before := observe(t)
	const source = ". lab/demos/env.sh"
	refused := func(t *testing.T, want string, env ...string) {
		t.Helper()
		out, err := bash(t.Context(), source, env...)
		if exit := new(exec.ExitError); !errors.As(err, &exit) || !strings.Contains(out, want) || strings.Count(strings.TrimSpace(out), "\n") > 0 {
			t.Errorf("%v: %s\nwant one line with %q", err, out, want)
		}
	}
	t.Run("none", func(t *testing.T) {
		refused(t, "kubectl has no current context: make a cluster with 'lab/demos/cluster.sh up'", "KUBECONFIG="+os.DevNull)
	})
	t.Run("another kind of cluster", func(t *testing.T) {
		copied := filepath.Join(t.TempDir(), "kubeconfig")
		content, err := os.ReadFile(c.Kubeconfig())
		must(t, err)
		must(t, os.WriteFile(copied, content, 0o600))
		refused(t, "is neither a kind cluster nor one of lab/demos/cluster.sh", "KUBECONFIG="+copied)
	})
	t.Run("no answer", func(t *testing.T) {
		dir := t.TempDir()
		content, err := os.ReadFile(c.Kubeconfig())
		must(t, err)
		address := c.Address().String()
		must(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), bytes.ReplaceAll(content, []byte(address), []byte("127.0.0.1:1")), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "cluster.json"), nil, 0o600))
		out, err := bash(t.Context(), source, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
		if err == nil || !strings.Contains(out, "does not answer") {
			t.Errorf("%v: %s", err, out)
		}
	})
	client, err := c.Client()
	must(t, err)
	patch := func(t *testing.T, body string, subresources ...string) {
		t.Helper()
		_, err := client.CoreV1().Nodes().Patch(t.Context(), "n3", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		must(t, err)
	}
	t.Run("no control plane", func(t *testing.T) {
		patch(t, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":null}}}`)
		refused(t, "want a control plane and two workers, not the nodes n1, n2, n3")
		patch(t, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	})
	t.Run("containerd", func(t *testing.T) {
		node, err := client.CoreV1().Nodes().Get(t.Context(), "n3", metav1.GetOptions{})
		must(t, err)
		runtime := node.Status.NodeInfo.ContainerRuntimeVersion
		// It would state the truth again before env.sh looks.
		kubelet := c.Node("n3").Kubelet()
		must(t, kubelet.Stop(t.Context()))
		patch(t, `{"status":{"nodeInfo":{"containerRuntimeVersion":"containerd://2.1.0"}}}`, "status")
		refused(t, "nodes run containerd://2.1.0, not CRI-O: make a cluster of our node image")
		patch(t, fmt.Sprintf(`{"status":{"nodeInfo":{"containerRuntimeVersion":%q}}}`, runtime), "status")
		must(t, kubelet.Start(t.Context()))
		// It may be NotReady for a moment, which is a taint.
		livetest.Eventually(t, time.Minute, "the node is as before", func(ctx context.Context) error {
			now, err := client.CoreV1().Nodes().Get(ctx, "n3", metav1.GetOptions{})
			if err == nil && !reflect.DeepEqual(now.Spec.Taints, node.Spec.Taints) {
				err = fmt.Errorf("taints %v", now.Spec.Taints)
			}
			return err
		})
	})
	settings, err := c.Scheduler().Settings()
	must(t, err)
	restart := func(t *testing.T, change func(*cluster.Component)) {
		t.Helper()
		must(t, c.Scheduler().Restart(t.Context(), change))
		t.Cleanup(func() {
			if err := c.Scheduler().Restart(context.Background(), func(s *cluster.Component) { *s = settings }); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("no profile", func(t *testing.T) {
		restart(t, func(s *cluster.Component) {
			s.Config = scenario.Schedulers(scenario.Only("tour", "ImageLocality")).Config
		})
		refused(t, "kube-scheduler has no profile 'image-locality', only default-scheduler layer-locality tour: ")
	})
	t.Run("no scores in the log", func(t *testing.T) {
		restart(t, func(s *cluster.Component) { s.Args = nil })
		refused(t, "does not log scores, for lack of --vmodule=schedule_one=10")
	})
	if after := observe(t); !reflect.DeepEqual(after, before) {
		t.Errorf("the cluster was\n%v\nand is\n%v", before, after)
	}
	if out, err := bash(t.Context(), source); err != nil || out != "local cluster: control plane n3, workers A = n1 and B = n2\n" {
		t.Errorf("the right cluster: %v: %s", err, out)
	}
}

// TestSchedulerConfigIsRefused: `localcluster up` names the file and what is wrong with it, and
// starts nothing.
func TestSchedulerConfigIsRefused(t *testing.T) {
	prepare(t)
	dir := filepath.Join(t.TempDir(), "cluster")
	out, err := bash(t.Context(), "_out/demos/localcluster --dir "+dir+" up --scheduler-config lab/demos/scheduler-tour/policy-2021.yaml")
	const want = `--scheduler-config: lab/demos/scheduler-tour/policy-2021.yaml: no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta2": want a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1`
	if err == nil || !strings.Contains(out, want) {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made in %s: %v", dir, err)
	}
}

//go:build e2e

package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/demos/console"
	"github.com/layer-locality/layer-locality/lab/test/deploy/kubeadm"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const controlPlane = "node-role.kubernetes.io/control-plane"

// testExtender installs layer-extender in several ways, for a stock kube-scheduler.
func testExtender(t *testing.T, image string) {
	stock := stockScheduler(t)
	t.Run("control-plane", func(t *testing.T) { testControlPlane(t, image, stock) })
	t.Run("side-car", func(t *testing.T) { testSideCar(t, image, stock) })
	t.Run("agents", func(t *testing.T) { testAgents(t, image, stock) })
}

// testControlPlane installs layer-extender on a control-plane node whose kube-scheduler is
// configured as docs/extender.md describes it for kubeadm. Then it uninstalls it.
func testControlPlane(t *testing.T, image, stock string) {
	begin := time.Now()
	config := read(t, deployed+"/extender/distributions/kubeadm/kubeadm.yaml")
	manifest, _, err := kubeadm.Scheduler(config, "")
	must(t, err)
	node := staticPod(t, string(manifest), stock, map[string][]byte{
		"layer-extender/scheduler.yaml": read(t, deployed+"/extender/distributions/kubeadm/scheduler.yaml"),
	})
	asControlPlane(t, node)
	replacesStock(t, node.Name)

	t.Run("installed", func(t *testing.T) {
		apply(t, render(t, filepath.Join(deployed, "extender"), map[string]any{
			"images": []map[string]string{kustomize.Image(kustomize.Shipped+"layer-extender", image)},
		}), "no-lease-of-"+extender)
		livetest.Eventually(t, 3*time.Minute, "a pod on the control-plane node, and on no other", func(ctx context.Context) error {
			running, err := replicas(ctx, extender)
			if err == nil && (len(running) != 1 || running[0].Spec.NodeName != node.Name) {
				err = fmt.Errorf("%d are ready", len(running))
			}
			return err
		})
		if answer := documented(t, node, "deploy/extender/README.md", "curl -s http://127.0.0.1:5401/readyz"); answer != "ok\n" {
			t.Errorf("readyz: %q", answer)
		}
		held := heldImage(t, "extended", node, func(ctx context.Context, reference string) ([]byte, error) {
			return node.Exec(ctx, "curl", "-sS", "http://127.0.0.1:5401/debug/layerlocality?image="+reference)
		})
		const pods = 5
		// This node has the schedulers' requests: without the image, it would be the other.
		follow(t, "extended", pods, corev1.DefaultSchedulerName, held, node.Name, corev1.DefaultSchedulerName+"-"+node.Name)
		metric := documented(t, node, "docs/extender.md", "curl -s http://127.0.0.1:5401/metrics | grep layer_extender_requests_total")
		answers := 0
		if found := regexp.MustCompile(`(?m)^layer_extender_requests_total\{agent="layers",code="200",verb="priorities"\} (\d+)$`).FindStringSubmatch(metric); found != nil {
			answers, err = strconv.Atoi(found[1])
			must(t, err)
		}
		if answers < pods {
			t.Errorf("%d answers for %d pods: %s", answers, pods, metric)
		}
		if answer := documented(t, node, "docs/extender.md", "curl -s 'http://127.0.0.1:5401/debug/layerlocality?image=nginx'"); !strings.Contains(answer, `"docker.io/library/nginx:latest"`) {
			t.Errorf("debug endpoint: %q", answer)
		}
		if asked, refused := requests(t, begin); len(refused) > 0 || !asked["/nodes:list"] && !asked["/nodes:watch"] {
			t.Errorf("asked %v, refused %q", asked, refused)
		}
	})
	// Whether layer-extender comes or goes first does not matter: pods are placed without it.
	create(t, "without", of(corev1.DefaultSchedulerName, c.Registry().Address+"/pause:1"))
	placed(t, "without", corev1.DefaultSchedulerName)
}

// testSideCar installs a second scheduler with the stock kube-scheduler, and layer-extender in
// the same pods.
func testSideCar(t *testing.T, image, stock string) {
	begin := time.Now()
	apply(t, render(t, filepath.Join(deployed, "extender", "side-car"), map[string]any{
		"images": []map[string]string{
			kustomize.Image(kustomize.Shipped+"layer-extender", image),
			kustomize.Image("registry.k8s.io/kube-scheduler", stock),
		},
	}), name)
	running, holder := elected(t, name, name)
	for path, want := range map[string]string{"/livez": "200", "/version": "200", "/metrics": "401", "/debug/safe": "401"} {
		status, err := c.Node(running[0].Spec.NodeName).Exec(t.Context(), "curl", "-s", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "http://"+running[0].Status.PodIP+":5401"+path)
		must(t, err)
		if string(status) != want {
			t.Errorf("%s on the pod's IP: %s, want %s", path, status, want)
		}
	}
	node := c.Nodes()[1]
	held := heldImage(t, "beside", node, nil)
	// Without the image, they would be spread.
	follow(t, "beside", 6, scheduler, held, node.Name, scheduler+"-"+holder)
	if _, refused := requests(t, begin); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// testAgents follows deploy/extender/agents/README.md with each of its folders, in a copy that has the images of this test.
func testAgents(t *testing.T, image, stock string) {
	copied, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	deploy := filepath.Join(copied, "deploy")
	must(t, os.CopyFS(deploy, os.DirFS(deployed)))
	pin := exec.CommandContext(t.Context(), filepath.Join(deployed, "images", "pin.sh"), deploy)
	pin.Stdin = strings.NewReader(image + "\n")
	if out, err := pin.CombinedOutput(); err != nil {
		t.Fatalf("pin.sh: %v: %s", err, out)
	}
	sideCar := filepath.Join(deploy, "extender/side-car/deployment.yaml")
	text := regexp.MustCompile(`registry\.k8s\.io/kube-scheduler:\S+`).ReplaceAll(read(t, sideCar), []byte(stock))
	must(t, os.WriteFile(sideCar, text, 0o600))
	livetest.HubImage(t, c, "nginx:latest", 2_000_000, 1)
	programs, err := filepath.Abs("../../../_build/bin/stock")
	must(t, err)
	env := []string{"KUBECONFIG=" + c.Kubeconfig(), "KUBECACHEDIR=" + t.TempDir(), "PATH=" + programs + ":" + os.Getenv("PATH")}
	const choice = "$ agents=safe "
	readme := string(read(t, filepath.Join(deployed, "extender/agents/README.md")))
	if strings.Count(readme, choice) != 1 {
		t.Fatalf("the text has no %q", choice)
	}
	configs, err := filepath.Glob(filepath.Join(deployed, "extender/agents/*/config.yaml"))
	must(t, err)
	if len(configs) != 6 {
		t.Errorf("folders %v", configs)
	}
	answered := regexp.MustCompile(`"Scored nodes" agent="([a-z-]+)" verb="priorities" pod="default/test-pod"`)
	for _, config := range configs {
		folder := filepath.Base(filepath.Dir(config))
		t.Run(folder, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "README.md")
			must(t, os.WriteFile(file, []byte(strings.Replace(readme, choice, "$ agents="+folder+" ", 1)), 0o600))
			var printed bytes.Buffer
			err := console.Run(t.Context(), file, console.Options{Dir: copied, Env: env, Print: &printed})
			t.Logf("%s", &printed)
			must(t, err)
			agents := map[string]bool{}
			for _, line := range answered.FindAllStringSubmatch(printed.String(), -1) {
				agents[line[1]] = true
			}
			if want := strings.Count(string(read(t, config)), "prioritizeVerb:"); len(agents) != want {
				t.Errorf("%v scored nodes, want %d agents", agents, want)
			}
		})
	}
}

// follow makes pods of an image that one node has, until a scheduler places all of them there. It waits 200 ms for
// layer-extender, as shipped; a busy machine is late once in a while, and then a pod goes where there is most room.
func follow(t *testing.T, name string, pods int, scheduler, image, node, placedBy string) {
	t.Helper()
	attempt := 0
	livetest.Eventually(t, 3*time.Minute, "all pods are where their image is", func(context.Context) error {
		attempt++
		for _, podName := range scenario.Names(fmt.Sprintf("%s-%d", name, attempt), pods) {
			create(t, podName, of(scheduler, image))
			on, by := placed(t, podName, scheduler)
			if by != placedBy {
				t.Errorf("pod %s was placed by %s, not by %s", podName, by, placedBy)
			}
			if on != node {
				return fmt.Errorf("pod %s is on %s, the image is on %s", podName, on, node)
			}
		}
		return nil
	})
}

// stockScheduler pushes an image with the unmodified kube-scheduler, and returns its name
// with digest.
func stockScheduler(t *testing.T) string {
	t.Helper()
	const program = "/usr/local/bin/kube-scheduler"
	binary := read(t, filepath.Join(filepath.Dir(deployed), "_build/bin/stock/kube-scheduler"))
	image, err := images.Build(images.Image{
		Entrypoint: []string{"/go-runner"}, // as upstream's image: manifests name the program
		Layers:     []images.Layer{{Name: "kube-scheduler", Files: map[string][]byte{program: binary}}},
	})
	must(t, err)
	file, err := image.ConfigFile()
	must(t, err)
	config := file.Config
	config.Env = []string{"PATH=" + filepath.Dir(program)}
	image, err = mutate.Config(image, config)
	must(t, err)
	pushed, err := images.Push(t.Context(), c.Registry().Address+"/upstream/kube-scheduler:stock", image)
	must(t, err)
	return pushed.ByDigest
}

// asControlPlane makes a node one of the control plane, as kubeadm does, until the end of the
// test.
func asControlPlane(t *testing.T, node *cluster.Node) {
	t.Helper()
	patch := func(ctx context.Context, label, taints string) error {
		text := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}, "spec": {"taints": %s}}`, controlPlane, label, taints)
		_, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	must(t, patch(t.Context(), `""`, fmt.Sprintf(`[{"key": %q, "effect": "NoSchedule"}]`, controlPlane)))
	t.Cleanup(func() {
		if err := patch(context.Background(), "null", "null"); err != nil {
			t.Error(err)
		}
	})
}

// heldImage makes a node pull a large image, and returns its name once the node is known to
// have it: rate returns how all nodes are rated for it; nil if nobody can be asked, then the
// Node has to list it.
func heldImage(t *testing.T, imageName string, node *cluster.Node, rate func(ctx context.Context, reference string) ([]byte, error)) string {
	t.Helper()
	pushed := livetest.Push(t, c.Registry().Address+"/"+imageName+":1", images.Image{
		Layers: []images.Layer{{Name: imageName, Size: 80_000_000}},
	})
	_, err := livetest.Pull(t.Context(), node, pushed.Reference)
	must(t, err)
	livetest.Eventually(t, 3*time.Minute, node.Name+" is known to have the image", func(ctx context.Context) error {
		if rate == nil {
			list, err := nodeimages.Get(ctx, client, node.Name)
			if _, ok := livetest.FindNode(list, pushed.Reference); err == nil && !ok {
				err = errors.New("the Node does not state it")
			}
			return err
		}
		text, err := rate(ctx, pushed.Reference)
		if err != nil {
			return err
		}
		var ratings scenario.Ratings
		if err := json.Unmarshal(text, &ratings); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		if rating, _ := ratings.Node(node.Name); rating.TotalBytes == 0 || rating.MissingBytes > 0 {
			return fmt.Errorf("%+v", rating)
		}
		return nil
	})
	return pushed.Reference
}

// of returns the changes that make a pod one of a scheduler and an image, for any node.
func of(schedulerName, image string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.SchedulerName = schedulerName
		pod.Spec.Tolerations = []corev1.Toleration{{Key: controlPlane, Operator: corev1.TolerationOpExists}}
		pod.Spec.Containers[0].Image = image
	}
}

// documented runs a command on a node that a document has, word for word, and returns what it
// prints.
func documented(t *testing.T, node *cluster.Node, document, command string) string {
	t.Helper()
	if text := read(t, filepath.Join(filepath.Dir(deployed), document)); !strings.Contains(string(text), "\n# "+command+"\n") {
		t.Errorf("%s has no command %q", document, command)
	}
	out, err := node.Exec(t.Context(), "sh", "-c", command)
	must(t, err)
	return string(out)
}

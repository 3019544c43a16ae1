package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/cluster/render"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/terminal"
)

var ofAgent = edition{
	intro: `Nothing is replaced: stock nodes with containerd and CRI-O, a stock kubelet, apiserver and scheduler. Pods of a
DaemonSet, layer-agent, publish what each node holds; kube-scheduler with the plugin is a Deployment beside the
cluster's own. Links have %d Mbit/s.

  n1  containerd, which keeps the blobs of layers
  n2  containerd, which drops them after unpacking
  n3  CRI-O
  n4  CRI-O, empty but for the scheduler's pod`,
	nodes:   "four nodes",
	summary: "stock nodes report what they hold, and pods start where layers are",
}

const (
	manyImages     = 60
	placedPods     = 10
	agentLayer     = 20_000_000
	labelled       = "team-a"
	schedulerLabel = "layerlocality.io/scheduler"
)

// agentDemo shows a cluster on which nothing may be replaced.
type agentDemo struct {
	c   *cluster.Cluster
	lab *scenario.Lab
	api client.Client
	// token may read the scheduler's debug endpoint; empty until it is needed.
	token string
}

func runAgent(ctx context.Context, logDir, binDir string) error {
	return ofAgent.play(ctx, cluster.Config{
		LogDir: logDir, BinDir: binDir, Nodes: 4, Flavour: cluster.Stock,
		ContainerRuntimes: map[string]cluster.ContainerRuntime{"n1": cluster.Containerd, "n2": cluster.Containerd},
		PerNode: func(node string, runtime, _ *cluster.Component) {
			if node == "n2" {
				runtime.Config = render.DropUnpackedBlobs(runtime.Config)
			}
		},
		Addons: []cluster.Addon{addons.Resolver(cluster.Component{})},
	}, func(lab *scenario.Lab) error {
		d := &agentDemo{c: lab.Cluster, lab: lab}
		for _, step := range []func(context.Context) error{d.install, d.many, d.ancestor, d.neverPulled, d.byNamespace, d.questions} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// install installs what a user applies: the agents, one DaemonSet for each runtime, and the
// second scheduler.
func (d *agentDemo) install(ctx context.Context) error {
	config, err := d.c.RESTConfig()
	if err != nil {
		return err
	}
	scheme := kruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	if d.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	// As in most clusters, a node for what manages it: the scheduler's pod prefers that, and would
	// make any other one busier than the rest.
	patch := []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	if _, err := d.lab.Client.CoreV1().Nodes().Patch(ctx, "n4", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	scheduler, err := scenario.PushProgram(ctx, d.c, ".", "kube-scheduler")
	if err != nil {
		return err
	}
	agent, err := scenario.PushProgram(ctx, d.c, ".", scenario.Agent)
	if err != nil {
		return err
	}
	agents, err := d.lab.Agents(ctx, ".", agent, "--spread=1s") // a demo waits less
	if err != nil {
		return err
	}
	second, err := scenario.SchedulerObjects(".", scheduler)
	if err != nil {
		return err
	}
	byNamespace, err := kustomize.Build(filepath.Join("deploy", "scheduler", "by-namespace"), nil)
	if err != nil {
		return err
	}
	if err := d.lab.Apply(ctx, slices.Concat(agents, second, byNamespace)...); err != nil {
		return err
	}
	say("applied deploy/agent/mixed and deploy/scheduler (second-scheduler, by-namespace): waiting for their pods")
	for _, app := range []struct {
		name string
		pods int
	}{{scenario.Agent, 4}, {scenario.SecondScheduler, 1}} {
		if err := d.lab.AppReady(ctx, app.name, app.pods); err != nil {
			return err
		}
	}
	return d.show(ctx)
}

// show prints what "kubectl get nodelayers" prints.
func (d *agentDemo) show(ctx context.Context) error {
	var table metav1.Table
	err := d.lab.Client.Discovery().RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.String(), v1alpha1.NodeLayersResource.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Into(&table)
	if err != nil {
		return err
	}
	var rows [][]string
	header := []string{}
	for _, column := range table.ColumnDefinitions {
		header = append(header, strings.ToUpper(column.Name))
	}
	rows = append(rows, header)
	for _, row := range table.Rows {
		var cells []string
		for _, cell := range row.Cells {
			cells = append(cells, fmt.Sprint(cell))
		}
		rows = append(rows, cells)
	}
	fmt.Fprintln(terminal.Stdout, "\n$ kubectl get nodelayers")
	printRows(rows)
	fmt.Fprintln(terminal.Stdout)
	return nil
}

// holds waits until the NodeLayers of a node name an image, and a moment more: until the
// scheduler has read that.
func (d *agentDemo) holds(ctx context.Context, node string, image *images.Pushed) error {
	err := scenario.Poll(ctx, func(ctx context.Context) error {
		object := &v1alpha1.NodeLayers{}
		if err := d.api.Get(ctx, client.ObjectKey{Name: node}, object); err != nil {
			return err
		}
		if !slices.ContainsFunc(object.Spec.Images, func(text string) bool { return strings.Contains(text, image.Digest.String()) }) {
			return fmt.Errorf("the NodeLayers of %s do not name %s", node, image.Reference)
		}
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

// pull has a node pull an image.
func (d *agentDemo) pull(ctx context.Context, node string, image *images.Pushed) error {
	_, err := d.c.Node(node).Exec(ctx, "crictl", "pull", image.Reference)
	return err
}

// many has a node hold more images than its NodeStatus can name.
func (d *agentDemo) many(ctx context.Context) error {
	const node = "n3"
	group, pulls := errgroup.WithContext(ctx)
	group.SetLimit(4)
	var lastOne *images.Pushed
	for i := range manyImages {
		built, err := images.Build(images.Image{Entrypoint: []string{"/none"}, Layers: []images.Layer{{Name: fmt.Sprint("many-", i), Size: 1000}}})
		if err != nil {
			return err
		}
		pushed, err := images.Push(ctx, fmt.Sprintf("%s/many-%d:v1", d.c.Registry().Address, i), built)
		if err != nil {
			return err
		}
		lastOne = pushed
		group.Go(func() error { return d.pull(pulls, node, pushed) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := d.holds(ctx, node, lastOne); err != nil {
		return err
	}
	object := &v1alpha1.NodeLayers{}
	if err := d.api.Get(ctx, client.ObjectKey{Name: node}, object); err != nil {
		return err
	}
	status, err := nodeimages.Get(ctx, d.lab.Client, node)
	if err != nil {
		return err
	}
	say("%s has pulled %d images: its NodeLayers list %d, its NodeStatus lists %d, and never more than 50", node, manyImages, len(object.Spec.Images), len(status))
	if len(object.Spec.Images) < manyImages || len(status) > 50 {
		return fmt.Errorf("NodeLayers list %d images, want at least %d", len(object.Spec.Images), manyImages)
	}
	return d.show(ctx)
}

// ancestor starts pods of an image that shares two of three layers with one that a node has:
// by our scheduler, and by the cluster's own.
func (d *agentDemo) ancestor(ctx context.Context) error {
	holders := []string{"n1", "n2", "n3"}
	families := map[string]scenario.Family{}
	group, pulls := errgroup.WithContext(ctx)
	for _, node := range holders {
		family, err := scenario.PushFamily(ctx, d.c, "app-"+node, agentLayer)
		if err != nil {
			return err
		}
		families[node] = family
		group.Go(func() error {
			if err := d.pull(pulls, node, family.One); err != nil {
				return err
			}
			return d.holds(pulls, node, family.One)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	// What no node has pulled is known from the registry, as soon as a workload names it.
	var others []string
	for _, node := range holders {
		others = append(others, families[node].Two.Reference)
	}
	if err := d.lab.Announce(ctx, scenario.Pod{Name: "others", Image: others[0]}, others[1:]...); err != nil {
		return err
	}
	if err := d.lab.Resolved(ctx, others...); err != nil {
		return err
	}
	say("each of %s has pulled an image; of another one, two of three layers are the same", strings.Join(holders, ", "))
	if err := d.explain(ctx, families["n2"].Two); err != nil {
		return err
	}
	rows := [][]string{{"by", "pods", "where the layers are", "pulled", "in"}}
	for _, scheduler := range []string{scenario.Layers, scenario.Stock} {
		there, bytes, seconds := 0, int64(0), 0.0
		for i := range placedPods {
			holder := holders[i%len(holders)]
			start, err := d.lab.Try(ctx, scenario.Pod{Name: fmt.Sprintf("pod-%s-%d", scheduler, i+1), Image: families[holder].Two.Reference, Scheduler: scheduler}, families[holder].Two)
			if err != nil {
				return err
			}
			if start.Node == holder {
				there++
			} else if scheduler == scenario.Layers {
				if err := d.explain(ctx, families[holder].Two); err != nil {
					return err
				}
				return fmt.Errorf("%s sent a pod of %s to %s and not to %s, which has two of its layers", scheduler, families[holder].Two.Reference, start.Node, holder)
			}
			bytes, seconds = bytes+start.Bytes, seconds+start.Pull.Seconds()
		}
		say("by %s: %d of %d pods are where the layers are", scheduler, there, placedPods)
		rows = append(rows, []string{scheduler, fmt.Sprint(placedPods), fmt.Sprint(there), fmt.Sprintf("%.1f MB", float64(bytes)/1e6), fmt.Sprintf("%.1f s", seconds)})
	}
	fmt.Fprintln(terminal.Stdout)
	printRows(rows)
	// Its containerd drops blobs a little after each pull; by now the agent has seen that.
	if err := d.chains(ctx, "n2"); err != nil {
		return err
	}
	return d.show(ctx)
}

// chains waits until the NodeLayers of a node state that it uses layers in chains.
func (d *agentDemo) chains(ctx context.Context, node string) error {
	return scenario.Poll(ctx, func(ctx context.Context) error {
		object := &v1alpha1.NodeLayers{}
		err := d.api.Get(ctx, client.ObjectKey{Name: node}, object)
		if err == nil && object.Spec.Reuse != v1alpha1.ReuseInChains {
			err = fmt.Errorf("the NodeLayers of %s have reuse: %s, want %s: its containerd drops the blobs of layers", node, object.Spec.Reuse, v1alpha1.ReuseInChains)
		}
		return err
	})
}

// explain prints the answer of the Deployment's debug endpoint for an image.
func (d *agentDemo) explain(ctx context.Context, image *images.Pushed) error {
	if d.token == "" {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "demo-debug-reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: scenario.SecondScheduler + "-debug-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: "default"}},
		}
		if _, err := d.lab.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return err
		}
		made, err := d.lab.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		d.token = made.Status.Token
	}
	pods, err := d.lab.Client.CoreV1().Pods(scenario.AgentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + scenario.SecondScheduler})
	if err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return errors.New("the scheduler has no pod")
	}
	pod := pods.Items[0]
	query := url.Values{"image": {image.Reference}, "profile": {scenario.Layers}}.Encode()
	out, err := d.c.Node(pod.Spec.NodeName).Exec(ctx, "curl", "--silent", "--show-error", "--fail", "--insecure", "--max-time", "10", "--noproxy", "*",
		"--header", "Authorization: Bearer "+d.token, "https://"+pod.Status.PodIP+":10259/debug/layerlocality?"+query)
	if err != nil {
		return err
	}
	var ratings scenario.Ratings
	if err := json.Unmarshal(out, &ratings); err != nil {
		return err
	}
	fmt.Fprintf(terminal.Stdout, "\nkube-scheduler# /debug/layerlocality?image=%s\n", image.Reference)
	printRatings(&ratings)
	fmt.Fprintln(terminal.Stdout)
	return nil
}

// announced pushes an image on agentBase, which a workload without pods names, and waits until
// layer-resolver has explained it.
func (d *agentDemo) announced(ctx context.Context, name string) (*images.Pushed, error) {
	image, err := scenario.PushOnBase(ctx, d.c, name+":v1", agentBase, ownBytes)
	if err != nil {
		return nil, err
	}
	if err := d.lab.Announce(ctx, scenario.Pod{Name: name, Image: image.Reference}); err != nil {
		return nil, err
	}
	return image, d.lab.Resolved(ctx, image.Reference)
}

// agentBase is what images of neverPulled and questions are on.
var agentBase = images.Layer{Name: "agent-base", Size: baseBytes}

// neverPulled starts a pod of an image that nobody has pulled, on a base that a node has.
func (d *agentDemo) neverPulled(ctx context.Context) error {
	const node = "n2"
	first, err := scenario.PushOnBase(ctx, d.c, "agent-first:v1", agentBase, ownBytes)
	if err != nil {
		return err
	}
	if err := d.pull(ctx, node, first); err != nil {
		return err
	}
	if err := d.holds(ctx, node, first); err != nil {
		return err
	}
	image, err := d.announced(ctx, "agent-new")
	if err != nil {
		return err
	}
	start, err := d.lab.Start(ctx, scenario.Pod{Name: "agent-new", Image: image.Reference, Scheduler: scenario.Layers}, image)
	if err != nil {
		return err
	}
	say("%s has a base of %.0f MB; a pod of an image on it that nobody has pulled runs on %s and pulls %.1f MB in %.1f s", node, float64(baseBytes)/1e6, start.Node, float64(start.Bytes)/1e6, start.Pull.Seconds())
	if start.Node != node {
		return fmt.Errorf("the base is on %s", node)
	}
	return nil
}

// byNamespace labels a namespace: its pods are our scheduler's, without naming it.
func (d *agentDemo) byNamespace(ctx context.Context) error {
	_, err := d.lab.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: labelled, Labels: map[string]string{schedulerLabel: scenario.Layers}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	var pod *corev1.Pod
	err = scenario.Poll(ctx, func(ctx context.Context) (err error) {
		no := false
		pod, err = d.lab.Client.CoreV1().Pods(labelled).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"},
			Spec:       corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "main", Image: d.c.Registry().Address + "/pause:1"}}},
		}, metav1.CreateOptions{})
		if err == nil && pod.Spec.SchedulerName != scenario.Layers {
			err = errors.New("the policy does not work yet: the pod is for " + pod.Spec.SchedulerName)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := d.c.WaitPodRunning(ctx, labelled, pod.Name); err != nil {
		return err
	}
	say("namespace %s has the label %s=%s: its pods, which name no scheduler, are placed by it", labelled, schedulerLabel, scenario.Layers)
	return nil
}

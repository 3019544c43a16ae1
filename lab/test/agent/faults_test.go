//go:build e2e

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// state reads from the scheduler's metrics how many agents work (fresh), and how many do not.
func state(ctx context.Context) (map[string]int, error) {
	return lab.MetricOf(ctx, c.SchedulerURL(), "scheduler_layerlocality_node_layers", "state")
}

func expectState(t *testing.T, within time.Duration, fresh, stale int) {
	t.Helper()
	livetest.Eventually(t, within, fmt.Sprintf("%d agents are fresh, %d stale", fresh, stale), func(ctx context.Context) error {
		got, err := state(ctx)
		if err == nil && (got["fresh"] != fresh || got["stale"] != stale) {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
}

// TestAgentsEnd: an agent that is killed comes back; where agents are gone, NodeStatus counts
// after three periods, until they are back.
func TestAgentsEnd(t *testing.T) {
	image := push(t, "ends:v1", images.Layer{Name: "ends", Size: 5_000_000})
	pull(t, image, "n2")
	publishes(t, "n2", image)
	by := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			ratings, err := lab.Rate(ctx, image.Reference)
			if err != nil {
				return err
			}
			rating, _ := ratings.Node("n2")
			if len(rating.Has) != 1 || rating.Has[0].By != want {
				return fmt.Errorf("known by %+v, want %s", rating.Has, want)
			}
			return nil
		}
	}
	livetest.Eventually(t, seen, "the scheduler has the layers", by("layers"))

	// kill -9 of both processes: the kubelet starts them again, and they go on.
	before := restarts(t, "n2")
	_, err := c.Node("n2").Exec(t.Context(), "pkill", "-KILL", "-x", "layer-agent")
	must(t, err)
	livetest.Eventually(t, 2*time.Minute, "both containers were started again", func(context.Context) error {
		for container, count := range restarts(t, "n2") {
			if count <= before[container] {
				return fmt.Errorf("%s was started again %d times, as before", container, count)
			}
		}
		return nil
	})
	agents(t, len(c.Nodes()))
	expectState(t, seen, len(c.Nodes()), 0)
	after := push(t, "ends-after:v1", images.Layer{Name: "ends-after", Size: 5_000_000})
	pull(t, after, "n2")
	publishes(t, "n2", after)

	keepAgents(t, "none")
	t.Cleanup(func() { keepAgents(t, "") })
	agents(t, 0)
	expectState(t, 3*renew+seen, 0, len(c.Nodes()))
	livetest.Eventually(t, seen, "NodeStatus counts", by("name"))
	keepAgents(t, "")
	agents(t, len(c.Nodes()))
	expectState(t, 2*time.Minute, len(c.Nodes()), 0)
	livetest.Eventually(t, seen, "the scheduler has the layers again", by("layers"))
}

// restarts returns how often the containers of a node's agent were started again.
func restarts(t *testing.T, node string) map[string]int32 {
	t.Helper()
	list, err := lab.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labelled, FieldSelector: "spec.nodeName=" + node})
	must(t, err)
	counts := map[string]int32{}
	for _, pod := range list.Items {
		for _, status := range pod.Status.ContainerStatuses {
			counts[status.Name] = status.RestartCount
		}
	}
	if len(counts) != 2 {
		t.Fatalf("%d containers of agents on %s, want 2", len(counts), node)
	}
	return counts
}

// TestNodeComesBack: a Node is deleted and made again under its name, while its agent runs. The
// NodeLayers are those of the new one.
func TestNodeComesBack(t *testing.T) {
	nodes := lab.Client.CoreV1().Nodes()
	before, err := nodes.Get(t.Context(), "n2", metav1.GetOptions{})
	must(t, err)
	must(t, nodes.Delete(t.Context(), "n2", metav1.DeleteOptions{}))
	must(t, c.Node("n2").Kubelet().Restart(t.Context()))
	comesBack(t, before)
}

// comesBack waits until a Node is there again under its name, and returns the NodeLayers that it owns.
func comesBack(t *testing.T, before *corev1.Node) (object *v1alpha1.NodeLayers) {
	t.Helper()
	livetest.Eventually(t, time.Minute, "the new Node has the label that the old one had", lab.LabelRuntimes)
	livetest.Eventually(t, 3*time.Minute, "NodeLayers of the new Node", func(ctx context.Context) error {
		node, err := lab.Client.CoreV1().Nodes().Get(ctx, before.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if object, err = nodeLayers(ctx, node.Name); err != nil {
			return err
		}
		if node.UID == before.UID || len(object.OwnerReferences) != 1 || object.OwnerReferences[0].UID != node.UID {
			return fmt.Errorf("the Node is %s, was %s; the owners are %+v", node.UID, before.UID, object.OwnerReferences)
		}
		return nil
	})
	agents(t, len(c.Nodes()))
	expectState(t, seen, len(c.Nodes()), 0)
	return object
}

// TestNodeIsRemoved: a Node whose agent and kubelet are gone is deleted. The garbage collector
// removes its NodeLayers; when the Node comes back, another one is made.
func TestNodeIsRemoved(t *testing.T) {
	livetest.Long(t, "TestNodeComesBack")
	nodes, kubelet := lab.Client.CoreV1().Nodes(), c.Node("n2").Kubelet()
	before, err := nodes.Get(t.Context(), "n2", metav1.GetOptions{})
	must(t, err)
	object, err := nodeLayers(t.Context(), before.Name)
	must(t, err)
	unlabel(t, before.Name)
	agents(t, len(c.Nodes())-1)
	must(t, kubelet.Stop(t.Context()))
	t.Cleanup(func() {
		if kubelet.PID() == 0 {
			must(t, kubelet.Start(context.WithoutCancel(t.Context())))
		}
	})
	must(t, nodes.Delete(t.Context(), before.Name, metav1.DeleteOptions{}))
	livetest.Eventually(t, 2*time.Minute, "the NodeLayers are removed", func(ctx context.Context) error {
		if _, err := nodeLayers(ctx, before.Name); !apierrors.IsNotFound(err) {
			return cmp.Or(err, errors.New("they are there"))
		}
		return nil
	})
	expectState(t, seen, len(c.Nodes())-1, 0)
	must(t, kubelet.Start(t.Context()))
	if after := comesBack(t, before); after.UID == object.UID {
		t.Errorf("the NodeLayers are %s, as before", after.UID)
	}
}

// unlabel takes the label from a node without which no DaemonSet has a pod there.
func unlabel(t *testing.T, node string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, scenario.RuntimeLabel)
	_, err := lab.Client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// TestEvicted: all agents are evicted, as when nodes are drained. Others make the NodeLayers anew.
func TestEvicted(t *testing.T) {
	evicted := map[types.UID]bool{}
	var nodes []string
	for _, pod := range agents(t, len(c.Nodes())) {
		nodes = append(nodes, pod.Spec.NodeName)
		must(t, lab.Client.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name}}))
		evicted[pod.UID] = true
	}
	livetest.Eventually(t, 3*time.Minute, "each node has another agent", func(context.Context) error {
		for _, pod := range agents(t, len(c.Nodes())) {
			if evicted[pod.UID] {
				return fmt.Errorf("%s on %s is still there", pod.Name, pod.Spec.NodeName)
			}
		}
		return nil
	})
	image := push(t, "evicted:v1", images.Layer{Name: "evicted", Size: 2_000_000})
	pull(t, image, nodes...)
	for _, node := range nodes {
		publishes(t, node, image)
	}
	expectState(t, seen, len(c.Nodes()), 0)
}

// TestTwiceOnANode: two agents of one node both write what it holds. Neither takes back what the other
// one wrote, and each writes as often as it would alone.
func TestTwiceOnANode(t *testing.T) {
	livetest.Long(t, "the unit tests of agent/publish")
	const node = "n2"
	const renewals = 5
	sets := lab.Client.AppsV1().DaemonSets(namespace)
	list, err := sets.List(t.Context(), metav1.ListOptions{LabelSelector: labelled + "," + scenario.RuntimeLabel + "=cri-o"})
	must(t, err)
	if len(list.Items) != 1 {
		t.Fatalf("%d DaemonSets for nodes with CRI-O", len(list.Items))
	}
	second := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "second-agent"}, Spec: list.Items[0].Spec}
	labels := map[string]string{"test": "second-agent"}
	second.Spec.Selector, second.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	second.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	_, err = sets.Create(t.Context(), second, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, sets.Delete(context.Background(), second.Name, metav1.DeleteOptions{}))
	})
	livetest.Eventually(t, 2*time.Minute, "the second agent is ready", func(ctx context.Context) error {
		set, err := sets.Get(ctx, second.Name, metav1.GetOptions{})
		if err == nil && set.Status.NumberReady != 1 {
			err = fmt.Errorf("%+v", set.Status)
		}
		return err
	})
	image := push(t, "twice:v1", images.Layer{Name: "twice", Size: 2_000_000})
	pull(t, image, node)
	publishes(t, node, image)

	// From now on, nothing changes on the node.
	object, err := nodeLayers(t.Context(), node)
	must(t, err)
	watch, err := objects.Watch(t.Context(), &v1alpha1.NodeLayersList{}, &client.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node), Raw: &metav1.ListOptions{ResourceVersion: object.ResourceVersion}})
	must(t, err)
	defer watch.Stop()
	from := time.Now()
	livetest.Eventually(t, 3*time.Minute, "both have written", func(context.Context) error {
		written, conflicts := map[string]int{}, 0
		log, err := auditlog.Read(c.AuditLog())
		if err != nil {
			return err
		}
		to := time.Now()
		for _, event := range log.Between(from, to) {
			if event.Verb != "update" || event.ObjectRef.Name != node || event.ResponseStatus == nil {
				continue
			}
			switch event.ResponseStatus.Code {
			case http.StatusOK:
				written[fmt.Sprint(event.User.Extra["authentication.kubernetes.io/pod-name"])]++
			case http.StatusConflict:
				conflicts++
			default:
				t.Errorf("%s: %+v", event.RequestURI, event.ResponseStatus)
			}
		}
		most, total := int(to.Sub(from)/renew)+2, 0
		for pod, n := range written {
			if total += n; n > most {
				return poll.Permanent(fmt.Errorf("%s has written %d times in %s", pod, n, to.Sub(from)))
			}
		}
		if conflicts > total+2 {
			return poll.Permanent(fmt.Errorf("%d conflicts beside %d writes", conflicts, total))
		}
		if len(written) != 2 || slices.Min(slices.Collect(maps.Values(written))) < renewals {
			return fmt.Errorf("written: %v", written)
		}
		t.Logf("in %s each has written so often: %v, conflicts: %d", to.Sub(from).Round(time.Second), written, conflicts)
		return nil
	})
	for range 2 * renewals {
		event, ok := <-watch.ResultChan()
		if !ok {
			t.Fatal("the watch has ended")
		}
		now, ok := event.Object.(*v1alpha1.NodeLayers)
		if !ok {
			t.Fatalf("%s: %+v", event.Type, event.Object)
		}
		if now.Spec.RenewTime = object.Spec.RenewTime; !equality.Semantic.DeepEqual(now.Spec, object.Spec) {
			t.Fatalf("one wrote %+v, another one %+v", object.Spec, now.Spec)
		}
	}
	expectState(t, seen, len(c.Nodes()), 0)
}

// TestRuntimeIsKilled in the middle of a pull, by SIGKILL: NodeLayers state what the node holds, which
// is nothing of that image. What the scheduler then calls missing of another image with the same
// base is what the registry sends. Of the image that was cut off, a runtime may have kept parts: CRI-O
// whole layers, containerd every byte.
func TestRuntimeIsKilled(t *testing.T) {
	nodes := []string{"n4"}
	if os.Getenv("FULL") != "" {
		nodes = runtimes()
	}
	for _, node := range nodes {
		t.Run(c.Node(node).Runtime().Name(), func(t *testing.T) { testRuntimeIsKilled(t, c.Node(node)) })
	}
}

func testRuntimeIsKilled(t *testing.T, node *cluster.Node) {
	name := "killed-" + node.Name
	layer := func(what string, size int64) images.Layer { return images.Layer{Name: name + what, Size: size} }
	image := func(what string, layers ...images.Layer) *images.Pushed {
		t.Helper()
		return pushImage(t, name+"-"+what+":v1", images.Image{Entrypoint: []string{"/none"}, Layers: layers})
	}
	base := layer("base", 3_000_000)
	there, other := image("there", base), image("other", base, layer("other", 2_000_000))
	half := image("half", base, layer("first", 1_200_000), layer("second", 24_000_000))
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: name, Image: half.Reference}, other.Reference))
	t.Cleanup(func() {
		must(t, lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	must(t, lab.Resolved(t.Context(), half.Reference, other.Reference))
	pull(t, there, node.Name)
	publishes(t, node.Name, there)

	must(t, node.SetBandwidth(16_000_000))
	t.Cleanup(func() { must(t, node.SetBandwidth(0)) })
	before, err := node.Received(t.Context())
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := livetest.Pull(t.Context(), node, half.Reference)
		ended <- err
	}()
	livetest.Eventually(t, time.Minute, "the pull is under way", func(ctx context.Context) error {
		now, err := node.Received(ctx)
		if err == nil && now < before+8_000_000 {
			err = fmt.Errorf("%d bytes came", now-before)
		}
		return err
	})
	must(t, node.Runtime().Kill(t.Context()))
	if err := <-ended; err == nil {
		t.Fatal("the pull had ended before")
	}
	must(t, node.SetBandwidth(0))
	after, err := node.Received(t.Context())
	must(t, err)
	must(t, node.Runtime().Start(t.Context()))

	rows := [][]string{{"image", "called missing", "pulled"}}
	// again pulls an image of which the runtime may have kept so many bytes.
	again := func(image *images.Pushed, kept int64) {
		t.Helper()
		must(t, lab.Known(t.Context(), image.Reference))
		must(t, lab.Present(t.Context(), image.Reference, node.Name, base.Size))
		ratings, err := lab.Rate(t.Context(), image.Reference)
		must(t, err)
		rating, _ := ratings.Node(node.Name)
		missing, repository := rating.MissingBytes, scenario.Repository(image)
		before, err := scenario.Pulled(c, repository)
		must(t, err)
		pull(t, image, node.Name)
		pulled, err := scenario.Pulled(c, repository)
		must(t, err)
		sent := pulled[node.Name] - before[node.Name]
		rows = append(rows, []string{repository, livetest.Megabytes(missing), livetest.Megabytes(sent)})
		if sent > missing+missing/100 || sent < missing-missing/100-kept {
			t.Errorf("the scheduler called %d bytes of %s missing, and %d came before; the registry sent %d", missing, repository, kept, sent)
		}
		publishes(t, node.Name, image)
	}
	again(other, 0)
	// This is younger than the restart: it has the other image.
	object, err := nodeLayers(t.Context(), node.Name)
	must(t, err)
	if _, err := livetest.FromNodeLayers(&object.Spec, half.Reference); err == nil {
		t.Errorf("%s is listed", half.Reference)
	}
	for _, part := range half.Layers[1:] {
		if slices.ContainsFunc(object.Spec.Layers, func(text string) bool { return strings.HasPrefix(text, part.Digest.String()) }) {
			t.Errorf("layer %s of %s is listed", part.Digest, half.Reference)
		}
	}
	again(half, after-before)
	livetest.Table(t, rows...)
}

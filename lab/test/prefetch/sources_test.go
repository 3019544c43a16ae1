//go:build e2e

package prefetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// restart starts a component with other settings until the test ends.
func restart(t *testing.T, process *cluster.Process, change func(*cluster.Component)) {
	t.Helper()
	before, err := process.Settings()
	must(t, err)
	t.Cleanup(func() {
		if err := process.Restart(context.Background(), func(s *cluster.Component) { *s = before }); err != nil {
			t.Error(err)
		}
	})
	must(t, process.Restart(t.Context(), change))
}

// from has layer-prefetcher use one source alone, until the test ends.
func from(t *testing.T, source string) {
	t.Helper()
	restart(t, c.Addon(addons.LayerPrefetcher), func(s *cluster.Component) { s.Args = []string{"--sources=" + source} })
}

// run makes a Deployment whose pods run on some nodes only, and waits for them.
func run(t *testing.T, name, image string, policy corev1.PullPolicy, nodes ...string) {
	t.Helper()
	deployment := scenario.Deployment(name, int32(len(nodes)), scenario.Pod{Image: image, PullPolicy: policy})
	deployment.Spec.Template.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
		}}}},
	}
	deployment.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: deployment.Spec.Selector,
	}}
	livetest.WithdrawAtEnd(t, lab, name)
	_, err := lab.Client.AppsV1().Deployments(deployment.Namespace).Create(t.Context(), deployment, metav1.CreateOptions{})
	must(t, err)
	rolledOut(t, name)
}

// rolledOut waits until all pods of a Deployment are of its template, and ready.
func rolledOut(t *testing.T, name string) {
	t.Helper()
	livetest.Eventually(t, within, name+" is rolled out", func(ctx context.Context) error {
		d, err := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas || s.UpdatedReplicas != s.ReadyReplicas || s.Replicas != s.ReadyReplicas {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// TestMovedTag: with either runtime, the node of a pod with policy Always pulls what its tag has moved to. The tag there stays what it was,
// until a restart of the pod gets the new one and pulls nothing.
func TestMovedTag(t *testing.T) {
	from(t, "tag")
	restart(t, c.Addon(addons.LayerResolver), func(s *cluster.Component) { s.Args = append(s.Args, "--tag-ttl=10s") })
	for _, node := range []string{"n1", withContainerd} {
		t.Run(string(c.Node(node).ContainerRuntime()), func(t *testing.T) {
			name := "moving-" + node
			push := func(own string) *images.Pushed {
				t.Helper()
				image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "moving-base", Size: baseBytes}, {Name: name + own, Size: ownBytes}}})
				must(t, err)
				pushed, err := images.Push(t.Context(), c.Registry().Address+"/"+name+":latest", image)
				must(t, err)
				return pushed
			}
			first := push("first")
			run(t, name, first.Reference, corev1.PullAlways, node)
			must(t, lab.Resolved(t.Context(), first.Reference))
			before, err := scenario.Pulled(c, name)
			must(t, err)
			was, err := livetest.Status(t.Context(), c.Node(node), first.Reference)
			must(t, err)

			push("second")
			object := complete(t, "the node has what the tag points to", func(p *v1alpha1.ImagePrefetch) bool {
				return p.Labels[v1alpha1.PrefetchSourceLabel] == "tag" && p.Spec.Workload.Name == name
			})
			if s := object.Status; s.NodesReady != 1 || s.Nodes[0].Name != node || s.BytesMoved < ownBytes || s.BytesMoved > ownBytes+tolerance || !strings.Contains(s.Images[0], name+"@sha256:") {
				t.Errorf("status %+v", s)
			}
			ahead, err := scenario.Pulled(c, name)
			must(t, err)
			if ahead[node] < before[node]+ownBytes || ahead.Total()-ahead[node] != before.Total()-before[node] {
				t.Errorf("before %s, ahead %s: want the image's own %d bytes on %s", before, ahead, ownBytes, node)
			}
			is, err := livetest.Status(t.Context(), c.Node(node), first.Reference)
			must(t, err)
			if was.GetId() == "" || is.GetId() != was.GetId() {
				t.Errorf("the tag means %s on the node, and %s before", is.GetId(), was.GetId())
			}

			_, err = lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Patch(t.Context(), name, types.StrategicMergePatchType,
				[]byte(`{"spec":{"template":{"metadata":{"annotations":{"restarted":"yes"}}}}}`), metav1.PatchOptions{})
			must(t, err)
			rolledOut(t, name)
			after, err := scenario.Pulled(c, name)
			must(t, err)
			if after.Total() > ahead.Total()+tolerance { // a manifest
				t.Errorf("the restart pulled: %s, %s before", after, ahead)
			}
			if is, err = livetest.Status(t.Context(), c.Node(node), first.Reference); err != nil || is.GetId() == was.GetId() {
				t.Errorf("after the restart the tag means what it meant before, %s, error %v", is.GetId(), err)
			}
		})
	}
}

// leave ends a node's kubelet and deletes the Node, until the result lets it register anew: a node that is new, and has what it had.
func leave(t *testing.T, name string) (join func()) {
	t.Helper()
	kubelet := c.Node(name).Kubelet()
	join = func() {
		ctx := context.Background()
		must(t, kubelet.Start(ctx))
		must(t, c.WaitNodeReady(ctx, name))
	}
	must(t, kubelet.Stop(t.Context()))
	t.Cleanup(func() {
		if kubelet.PID() == 0 {
			join()
		}
	})
	must(t, lab.Client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	return join
}

// TestNewNode: a node that is new pulls what pods on half of the others run, and nothing else. A pod then starts there without pulling.
func TestNewNode(t *testing.T) {
	const joins = "n3"
	join := leave(t, joins)
	base := images.Layer{Name: "pool-base", Size: baseBytes}
	everywhere, err := scenario.PushOnBase(t.Context(), c, "everywhere:v1", base, ownBytes)
	must(t, err)
	seldom, err := scenario.PushOnBase(t.Context(), c, "seldom:v1", base, ownBytes)
	must(t, err)
	run(t, "everywhere", everywhere.Reference, "", "n1", "n2", withContainerd)
	run(t, "seldom", seldom.Reference, "", "n1")
	must(t, lab.Resolved(t.Context(), everywhere.Reference, seldom.Reference))
	from(t, "node")
	join()
	object := complete(t, "the new node has what half of the others run", func(p *v1alpha1.ImagePrefetch) bool {
		return p.Spec.Workload != nil && p.Spec.Workload.Name == "everywhere" && p.Spec.NodeSelector != nil && p.Spec.NodeSelector.MatchLabels[corev1.LabelHostname] == joins
	})
	if s := object.Status; s.NodesReady != 1 || s.Nodes[0].Name != joins || s.BytesMoved < baseBytes+ownBytes || s.BytesMoved > baseBytes+ownBytes+tolerance {
		t.Errorf("status %+v", s)
	}
	all, err := prefetches(t.Context())
	must(t, err)
	for _, p := range all {
		if p.Spec.Workload != nil && p.Spec.Workload.Name == "seldom" {
			t.Errorf("a node pulls what one of the others runs: %+v", p)
		}
	}
	before, err := scenario.Pulled(c, "everywhere")
	must(t, err)
	livetest.RemoveAtEnd(t, lab, "on-new-node")
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "on-new-node", Image: everywhere.Reference, Node: joins}))
	must(t, lab.Ready(t.Context(), "on-new-node"))
	after, err := scenario.Pulled(c, "everywhere")
	must(t, err)
	if !maps.Equal(before, after) {
		t.Errorf("the pod pulled: %s, %s before", after, before)
	}
}

// object applies an ImagePrefetch of one image.
func object(t *testing.T, name, image, selector string) {
	t.Helper()
	must(t, c.Apply(t.Context(), metav1.NamespaceDefault, fmt.Appendf(nil,
		"{apiVersion: layerlocality.io/v1alpha1, kind: ImagePrefetch, metadata: {name: %s}, spec: {images: [%q], nodeSelector: %s}}", name, image, selector)))
}

// TestLostNode: a node that is gone in the middle of its pull is waited for no longer, and its pod does not stay; nor is anything lost when
// the controller is killed meanwhile.
func TestLostNode(t *testing.T) {
	const lost = "n3"
	image, err := scenario.PushOnBase(t.Context(), c, "lost:v1", images.Layer{Name: "lost-base", Size: baseBytes}, ownBytes)
	must(t, err)
	must(t, c.Node(lost).SetBandwidth(bandwidth/200)) // it takes minutes
	t.Cleanup(func() { must(t, c.Node(lost).SetBandwidth(bandwidth)) })
	object(t, "lost", image.Reference, "{}")
	livetest.Eventually(t, within, "all nodes but one have the image, which one pulls", func(ctx context.Context) error {
		all, err := prefetches(ctx)
		if err != nil {
			return err
		}
		pods, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.PrefetchPodLabel})
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Name == "lost" && p.Status.NodesReady == nodes-1 && len(pods.Items) == 1 && pods.Items[0].Spec.NodeName == lost {
				return nil
			}
		}
		return fmt.Errorf("%d pods; %+v", len(pods.Items), all)
	})
	must(t, c.Addon(addons.LayerPrefetcher).Kill(t.Context()))
	leave(t, lost)
	must(t, c.Addon(addons.LayerPrefetcher).Start(t.Context()))
	found := complete(t, "the others are all", func(p *v1alpha1.ImagePrefetch) bool { return p.Name == "lost" })
	must(t, c.Node(lost).SetBandwidth(bandwidth))
	if s := found.Status; s.NodesWanted != nodes-1 || s.NodesReady != nodes-1 || s.NodesFailed != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestFullDisk: a node under disk pressure pulls nothing, and does once it has room; no pod there is evicted for it.
func TestFullDisk(t *testing.T) {
	const full = "n2"
	image, err := scenario.PushOnBase(t.Context(), c, "full:v1", images.Layer{Name: "full-base", Size: baseBytes}, ownBytes)
	must(t, err)
	settings, err := c.Node(full).Kubelet().Settings()
	must(t, err)
	restart(t, c.Node(full).Kubelet(), func(s *cluster.Component) {
		s.Config = maps.Clone(s.Config)
		s.Config["evictionHard"] = map[string]string{"nodefs.available": "99%"}
	})
	pressure := func(want corev1.ConditionStatus) {
		t.Helper()
		livetest.Eventually(t, within, "DiskPressure of "+full+" is "+string(want), func(ctx context.Context) error {
			node, err := lab.Client.CoreV1().Nodes().Get(ctx, full, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeDiskPressure && condition.Status == want {
					return nil
				}
			}
			return errors.New("it is not")
		})
	}
	pressure(corev1.ConditionTrue)
	object(t, "full", image.Reference, "{matchLabels: {kubernetes.io/hostname: "+full+"}}")
	livetest.Eventually(t, within, "the object waits", func(ctx context.Context) error {
		all, err := prefetches(ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Name == "full" && len(p.Status.Conditions) == 1 && p.Status.Conditions[0].Reason == v1alpha1.ReasonWaiting && strings.Contains(p.Status.Conditions[0].Message, "no node suits") {
				return nil
			}
		}
		return fmt.Errorf("%+v", all)
	})
	if pulled, err := scenario.Pulled(c, "full"); err != nil || pulled.Total() != 0 {
		t.Errorf("nodes pulled %s, error %v", pulled, err)
	}
	must(t, c.Node(full).Kubelet().Restart(t.Context(), func(s *cluster.Component) { *s = settings }))
	pressure(corev1.ConditionFalse)
	found := complete(t, "the node has the image", func(p *v1alpha1.ImagePrefetch) bool { return p.Name == "full" })
	if s := found.Status; s.NodesReady != 1 || s.NodesFailed != 0 || s.BytesMoved < baseBytes+ownBytes {
		t.Errorf("status %+v", s)
	}
}

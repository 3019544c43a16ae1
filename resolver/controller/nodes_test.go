package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/registry/manifest"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

func TestNodes(t *testing.T) {
	const used = "registry.example.com"
	allowed := emptyPolicy(t)
	n := newNodes(allowed, true)
	if !n.set("a", nodeFacts{platform: "linux/amd64"}) || n.set("a", nodeFacts{platform: "linux/amd64"}) {
		t.Error("a node is a change once")
	}
	if !n.set("c", nodeFacts{platform: "linux/arm64"}) || !n.set("c", nodeFacts{platform: "linux/amd64"}) ||
		!n.set("c", nodeFacts{platform: "linux/amd64", registries: []string{"registry.example.org"}}) {
		t.Error("another platform or registry of a node is a change")
	}
	n.remove("c")
	if got := n.update(); got.platform || got.registries != nil {
		t.Errorf("%+v are new, although the cluster had them before", got)
	}
	n.set("b", nodeFacts{platform: "linux/arm64"})
	n.set("new", nodeFacts{}) // it says nothing about itself yet
	if got := n.update(); !got.platform || got.registries != nil || got.inUse(used+"/x:1") {
		t.Errorf("%+v, want a platform and no registry", got)
	}
	if got := n.clusterPlatforms(); !slices.Equal(got, both) {
		t.Errorf("platforms %q", got)
	}
	if err := allowed.Registry(used); err == nil {
		t.Error("allowed, although no node uses it")
	}
	n.set("new", nodeFacts{registries: []string{used}})
	if got := n.update(); got.platform || !got.inUse(used+"/x:1") || !got.inUse(used+":443/x:1") || got.inUse("other.example.com/x:1") || got.inUse(used+":5000/x:1") {
		t.Errorf("%+v, want the registry", got)
	}
	if err := allowed.Registry(used); err != nil {
		t.Errorf("a node uses it: %v", err)
	}
	n.remove("new")
	n.remove("b")
	if got := n.update(); got.platform || got.registries != nil {
		t.Errorf("%+v are new, although nodes only went", got)
	}
	if err := allowed.Registry(used); err == nil {
		t.Error("allowed, although no node uses it any more")
	}

	n = newNodes(nil, true) // registries in use do not count
	n.update()
	n.set("a", nodeFacts{platform: "linux/amd64", registries: []string{used}})
	if got := n.update(); !got.platform || got.registries != nil {
		t.Errorf("%+v, want no registries", got)
	}
}

// The informer tells of nodes: a new platform is looked for, and a heartbeat is nothing.
func TestNodeEvents(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	s.must(s.Resolved(t.Context(), "reg/x:1", &registry.Resolution{Digest: hash("f"), Index: true, Manifests: twoPlatforms().Manifests[:1]}, amd64))
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	keys := queued(t, r)
	handler := r.nodeHandler()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "arm"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64"}
	handler.OnAdd(node, false)
	if got := next(keys); got != "reg/x:1" {
		t.Errorf("a new platform: %s is asked for", got)
	}
	handler.OnUpdate(node, node)
	other := node.DeepCopy()
	other.Status.NodeInfo.Architecture = "s390x"
	handler.OnUpdate(node, other)
	if got := next(keys); got != "reg/x:1" {
		t.Errorf("a node of a platform that nobody had: %s is asked for", got)
	}
	if len(keys) != 0 {
		t.Errorf("%s is asked for again after a heartbeat", <-keys)
	}
	handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: other})
	if got := r.nodes.clusterPlatforms(); !slices.Equal(got, amd64) {
		t.Errorf("platforms %q, want that of the node that is left", got)
	}
}

// Nodes of another platform join: images that were not built for the other
// nodes may be built for these.
func TestRetryForNewPlatform(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	missing, refused := one("reg/x:1"), one("reg/y:1")
	r.usage.Set(imagesFor("w", "ns", missing.Key, refused.Key))
	r.attempts.failed(missing, attempt{}, v1alpha1.ReasonPlatformNotFound, "none", 0)
	r.attempts.failed(refused, attempt{}, v1alpha1.ReasonUnauthorized, "401", 0)
	addNodes(r, both...)
	if next := due(r.snapshot(missing)); next.task != resolve {
		t.Errorf("task %d after %v", next.task, next.after)
	}
	if next := due(r.snapshot(refused)); next.task != nothing {
		t.Errorf("refused for another reason: task %d", next.task)
	}
}

// Nodes that invent platforms cause a bounded number of questions for each image.
func TestPlatformsAreBounded(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	var platforms []string
	for i := range 2 * v1alpha1.MaxPlatforms {
		platforms = append(platforms, fmt.Sprintf("linux/invented%03d", i))
	}
	addNodes(r, platforms...)
	if n := len(r.nodes.clusterPlatforms()); n != v1alpha1.MaxPlatforms {
		t.Errorf("images are resolved for %d platforms, want %d", n, v1alpha1.MaxPlatforms)
	}
}

// A thousand workloads with their own pull secrets cause a bounded number of reads.
func TestPullsAreBounded(t *testing.T) {
	read := map[string]bool{}
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil }}
	r, _, _ := newTestResolver(t, f, func(_ *Options, d *dependencies) {
		d.secrets = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				read[key.Namespace] = true
				return errors.New("no")
			},
		})
	})
	for i := range 1000 {
		r.usage.Set(imagesFor(fmt.Sprint("w", i), fmt.Sprint("ns", i), "reg/x:1"))
	}
	r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	if len(read) != 8 {
		t.Errorf("secrets of %d workloads were read, want 8", len(read))
	}
}

// Running containers tell which registries are in use, beyond the 50 images that a Node
// names.
func TestRegistriesOfRunningPods(t *testing.T) {
	allowed := emptyPolicy(t)
	r, _, _ := newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) { o.Policy, o.InUse = allowed, true })
	id := "sha256:" + fmt.Sprintf("%064x", 1)
	pod := func(running bool, imageID string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "reg/x:1"}}}}
		status := corev1.ContainerStatus{ImageID: imageID}
		if running {
			status.State.Running = &corev1.ContainerStateRunning{}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
		return p
	}
	handler := r.workloadHandler(&kinds[0])
	kept := func(p *corev1.Pod) any {
		short, err := cached(p)
		if err != nil {
			t.Fatal(err)
		}
		return short
	}
	for _, c := range []struct {
		imageID string
		running bool
		host    string
	}{
		{"registry.example.com/x@" + id, true, "registry.example.com"},
		{"docker-pullable://registry.example.com/x@" + id, true, "registry.example.com"},
		{"registry.example.com/x@" + id, false, ""},
		{id, true, ""},
		{"registry.example.com/x:1", true, ""}, // as the pod says, not the runtime
		{"", true, ""},
		{"x@" + id, true, "docker.io"},
	} {
		for _, running := range []bool{false, true} { // when it is first seen
			if running {
				handler.OnAdd(kept(pod(c.running, c.imageID)), true)
			} else {
				handler.OnAdd(kept(pod(false, "")), false)
				handler.OnUpdate(kept(pod(false, "")), kept(pod(c.running, c.imageID)))
			}
			for _, host := range []string{"registry.example.com", "docker.io"} {
				if err := allowed.Registry(host); (err == nil) != (host == c.host) {
					t.Errorf("%q, running %t: %s: %v", c.imageID, c.running, host, err)
				}
			}
			handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: kept(pod(c.running, c.imageID))})
			if err := allowed.Registry("registry.example.com"); err == nil || len(r.nodes.pods) > 0 {
				t.Errorf("%q: in use after the pod has gone", c.imageID)
			}
		}
	}
}

// The policy learns the networks of pods and services, and what was denied is asked for as
// soon as one is no longer the cluster's; not whenever a node comes with another one.
func TestNetworksOfTheCluster(t *testing.T) {
	allowed := emptyPolicy(t)
	r, _, _ := newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) { o.Policy = allowed })
	denied := one("reg/x:1")
	r.usage.Set(imagesFor("w", "ns", denied.Key))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"198.18.0.0/24", "2600:aaaa::/64", "nonsense"}}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
	short, err := cached(node)
	if err != nil {
		t.Fatal(err)
	}
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"2600:bbbb::/108"}}}
	r.nodeHandler().OnAdd(short, false)
	r.serviceHandler().OnAdd(services, false)
	for addr, want := range map[string]bool{"2600:aaaa::1": false, "2600:bbbb::1": false, "2600:cccc::1": true} {
		if err := allowed.Address(netip.MustParseAddr(addr)); (err == nil) != want {
			t.Errorf("%s: %v, want allowed: %t", addr, err, want)
		}
	}
	r.attempts.failed(denied, attempt{}, v1alpha1.ReasonDenied, "a pod", 0)
	more := services.DeepCopy()
	more.Name, more.Spec.CIDRs = "more", []string{"2600:dddd::/108"}
	r.serviceHandler().OnAdd(more, false)
	if next := due(r.snapshot(denied)); next.task != nothing {
		t.Errorf("task %d, although more is denied than before", next.task)
	}
	r.serviceHandler().OnDelete(services)
	if next := due(r.snapshot(denied)); next.task != resolve {
		t.Errorf("task %d after %v, although the network is no longer the cluster's", next.task, next.after)
	}
	if err := allowed.Address(netip.MustParseAddr("2600:bbbb::1")); err != nil {
		t.Error(err)
	}
}

// The container runtime of most nodes of a platform decides what an index is asked for.
func TestRuntimes(t *testing.T) {
	n := newNodes(nil, false)
	for name, version := range map[string]string{"a": "cri-o://1.36.3", "b": "containerd://2.1.0", "c": "containerd://2.1.0", "d": ""} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: version}
		if name == "d" {
			node.Status.NodeInfo.Architecture = "arm64"
		}
		short, err := cached(node)
		if err != nil {
			t.Fatal(err)
		}
		n.set(name, nodeFacts{platform: workloads.PlatformOf(short.(*corev1.Node)), foreign: workloads.HasForeignRuntime(short.(*corev1.Node))})
	}
	n.update()
	if got := n.asked(n.clusterPlatforms()); !slices.Equal(got, []string{"linux/amd64" + manifest.Containerd, "linux/arm64"}) {
		t.Errorf("asked for %q", got)
	}
	n.remove("c")
	n.update()
	if got := n.asked(n.clusterPlatforms()); !slices.Equal(got, both) || !slices.Equal(n.clusterPlatforms(), both) {
		t.Errorf("asked for %q: of as many nodes, CRI-O's counts", got)
	}
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

func TestNodes(t *testing.T) {
	const used = "registry.example.com"
	allowed := emptyPolicy(t)
	n := newNodes(allowed)
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
	if got := n.update(); got.platform || !got.inUse(used+"/x:1") || got.inUse("other.example.com/x:1") {
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

	n = newNodes(nil) // registries in use do not count
	n.update()
	n.set("a", nodeFacts{platform: "linux/amd64", registries: []string{used}})
	if got := n.update(); !got.platform || got.registries != nil {
		t.Errorf("%+v, want no registries", got)
	}
}

// The informer tells of nodes: a new platform is looked for, and a heartbeat is nothing.
func TestNodeEvents(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	s.wrote(s.resolved(t.Context(), "reg/x:1", &registry.Resolution{Digest: hash("f"), Index: true, Manifests: twoPlatforms().Manifests[:1]}, amd64))
	r.usage.set(claimFor("w", "ns", "reg/x:1"))
	keys := queued(t, r)
	next := func() string {
		select {
		case key := <-keys:
			return key
		case <-time.After(10 * time.Second):
			return "nothing"
		}
	}
	handler := r.nodeHandler()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "arm"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64"}
	handler.OnAdd(node, false)
	if got := next(); got != "reg/x:1" {
		t.Errorf("a new platform: %s is asked for", got)
	}
	handler.OnUpdate(node, node)
	other := node.DeepCopy()
	other.Status.NodeInfo.Architecture = "s390x"
	handler.OnUpdate(node, other)
	if got := next(); got != "reg/x:1" {
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
	r.usage.set(claimFor("w", "ns", missing.key, refused.key))
	r.attempts.failed(missing, attempt{}, v1alpha1.ReasonPlatformNotFound, "none", 0)
	r.attempts.failed(refused, attempt{}, v1alpha1.ReasonUnauthorized, "401", 0)
	addNodes(r, both...)
	if next := r.due(missing); next.task != resolve {
		t.Errorf("task %d after %v", next.task, next.after)
	}
	if next := r.due(refused); next.task != nothing {
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
		r.usage.set(claimFor(fmt.Sprint("w", i), fmt.Sprint("ns", i), "reg/x:1"))
	}
	r.work(t.Context(), &queue{}, "reg/x:1")
	if len(read) != maxPulls || maxPulls > 8 {
		t.Errorf("secrets of %d workloads were read, want 8", len(read))
	}
}

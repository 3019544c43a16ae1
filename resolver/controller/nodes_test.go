package controller

import (
	"slices"
	"testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func TestNodes(t *testing.T) {
	const used = "registry.example.com"
	allowed := emptyPolicy(t)
	n := newNodes(allowed)
	if !n.set("a", nodeFacts{platform: "linux/amd64"}) || n.set("a", nodeFacts{platform: "linux/amd64"}) {
		t.Error("a node is a change once")
	}
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

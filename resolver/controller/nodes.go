package controller

import (
	"maps"
	"slices"
	"sync"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// nodes knows which platforms the nodes of the cluster have, and which registries
// their images come from.
type nodes struct {
	// policy gets the registries in use. It is nil if they are not allowed for
	// being in use.
	policy *policy.Policy

	mu     sync.Mutex
	byName map[string]nodeFacts
	// platforms and registries of all nodes, sorted, as of the last update.
	platforms, registries []string
	// known is set once there was an update.
	known bool
}

// nodeFacts are what a node says about itself.
type nodeFacts struct {
	// platform is os/architecture; empty if the node does not say it yet.
	platform   string
	registries []string
}

// newNodes returns nodes that tell a policy which registries are in use. The
// policy may be nil.
func newNodes(policy *policy.Policy) *nodes {
	return &nodes{policy: policy, byName: map[string]nodeFacts{}}
}

// set stores what a node says, and reports whether that has changed.
func (n *nodes) set(name string, facts nodeFacts) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, known := n.byName[name]
	n.byName[name] = facts
	return !known || old.platform != facts.platform || !slices.Equal(old.registries, facts.registries)
}

// remove forgets a node.
func (n *nodes) remove(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byName, name)
}

// arrivals are what nodes have that no node had before.
type arrivals struct {
	// platform is set if there is a new platform.
	platform bool
	// registries that count as in use, sorted, if one of them is new; else nil.
	registries []string
}

// inUse reports whether a reference belongs to a registry in use. It is always
// false if none of these is new.
func (a arrivals) inUse(reference string) bool {
	_, found := slices.BinarySearch(a.registries, imageOf(reference).registry())
	return found
}

// update looks at all nodes together and returns what is new. The first call
// returns nothing new: the cluster had its nodes before this process started.
func (n *nodes) update() arrivals {
	platforms, registries := map[string]bool{}, map[string]bool{}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range n.byName {
		if node.platform != "" {
			platforms[node.platform] = true
		}
		for _, host := range node.registries {
			registries[host] = true
		}
	}
	first, oldPlatforms, oldRegistries := !n.known, n.platforms, n.registries
	n.known = true
	n.platforms, n.registries = slices.Sorted(maps.Keys(platforms)), slices.Sorted(maps.Keys(registries))
	n.platforms = n.platforms[:min(len(n.platforms), v1alpha1.MaxPlatforms)]
	if n.policy != nil {
		// Called with the mutex held: of two updates, the policy has to keep the
		// later one.
		n.policy.SetInUse(n.registries)
	}
	if first {
		return arrivals{}
	}
	arrived := arrivals{platform: anyNew(n.platforms, oldPlatforms)}
	if n.policy != nil && anyNew(n.registries, oldRegistries) {
		arrived.registries = n.registries
	}
	return arrived
}

// anyNew reports whether now has an element that before does not have.
func anyNew(now, before []string) bool {
	return slices.ContainsFunc(now, func(s string) bool { return !slices.Contains(before, s) })
}

// clusterPlatforms returns the platforms that images are resolved for, sorted.
func (n *nodes) clusterPlatforms() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.platforms
}

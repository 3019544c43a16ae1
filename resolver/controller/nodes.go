package controller

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry/manifest"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// nodes has which platforms the nodes of the cluster have, which registries
// their images come from, and the networks inside the cluster.
type nodes struct {
	// policy gets the registries in use and the cluster's networks; nil for none.
	policy *policy.Policy
	// inUse is set if registries are allowed for being in use.
	inUse bool

	mu     sync.Mutex
	byName map[string]nodeFacts
	// pods has how many running containers have their image from a registry. A Node names
	// 50 images only.
	pods map[string]int
	// services are the networks of services, by the object that names them.
	services map[string][]netip.Prefix
	// networks of pods and services, sorted, as of the last update.
	networks []netip.Prefix
	// foreign are the platforms most of whose nodes have another runtime than CRI-O.
	foreign map[string]bool
	// platforms and registries of all nodes, sorted, as of the last update.
	platforms, registries []string
	// known is set once there was an update.
	known bool
}

// nodeFacts are what a node states about itself.
type nodeFacts struct {
	// platform is os/architecture; empty if the node does not say it yet.
	platform   string
	registries []string
	// networks of its pods.
	networks []netip.Prefix
	// foreign is set if its container runtime is not CRI-O.
	foreign bool
}

func (f *nodeFacts) equal(other *nodeFacts) bool {
	return f.platform == other.platform && f.foreign == other.foreign &&
		slices.Equal(f.registries, other.registries) && slices.Equal(f.networks, other.networks)
}

// newNodes returns nodes that give a policy which networks are the cluster's and, with
// inUse, which registries are in use. The policy may be nil.
func newNodes(policy *policy.Policy, inUse bool) *nodes {
	return &nodes{
		policy: policy, inUse: inUse && policy != nil,
		byName: map[string]nodeFacts{}, pods: map[string]int{}, services: map[string][]netip.Prefix{},
	}
}

// set stores what a node states, and reports whether that has changed.
func (n *nodes) set(name string, facts nodeFacts) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, known := n.byName[name]
	n.byName[name] = facts
	return !known || !old.equal(&facts)
}

// setPod replaces the registries that the images of a pod's running containers come from.
// It reports whether a registry came into use, or out of it.
func (n *nodes) setPod(before, after []string) (changed bool) {
	if slices.Equal(before, after) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, registry := range after {
		n.pods[registry]++
		changed = changed || n.pods[registry] == 1
	}
	for _, registry := range before {
		if n.pods[registry]--; n.pods[registry] <= 0 {
			delete(n.pods, registry)
			changed = true
		}
	}
	return changed
}

// setServices replaces the networks of services that an object names; nil if it is gone.
func (n *nodes) setServices(name string, networks []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if networks == nil {
		delete(n.services, name)
		return
	}
	n.services[name] = networks
}

// remove forgets a node.
func (n *nodes) remove(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byName, name)
}

// clusterChanges is what has changed so that an image may be known that was not.
type clusterChanges struct {
	// platform is set if there is a new platform.
	platform bool
	// networks is set if one is no longer the cluster's: what was denied may be allowed.
	networks bool
	// registries that count as in use, sorted, if one of them is new; else nil.
	registries []string
}

// inUse reports whether a reference belongs to a registry in use. It is always
// false if none of these is new.
func (c clusterChanges) inUse(reference string) bool {
	_, found := slices.BinarySearch(c.registries, policy.Canonical(usage.ImageOf(reference).Registry()))
	return found
}

// update looks at all nodes together and returns what is new. The first call
// returns nothing new: the cluster had its nodes before this process started.
func (n *nodes) update() clusterChanges {
	n.mu.Lock()
	defer n.mu.Unlock()
	first, oldPlatforms, oldRegistries, oldNetworks := !n.known, n.platforms, n.registries, n.networks
	n.known = true
	n.sumLocked()
	if n.policy != nil {
		// Called with the mutex held: of two updates, the policy has to keep the
		// later one.
		n.policy.SetCluster(n.networks)
		if n.inUse {
			n.policy.SetInUse(n.registries)
		}
	}
	if first {
		return clusterChanges{}
	}
	changes := clusterChanges{platform: anyNew(n.platforms, oldPlatforms), networks: anyNew(oldNetworks, n.networks)}
	if n.inUse && anyNew(n.registries, oldRegistries) {
		changes.registries = n.registries
	}
	return changes
}

// sumLocked computes what all nodes have together.
func (n *nodes) sumLocked() {
	platforms, registries, networks := map[string]int{}, map[string]bool{}, map[netip.Prefix]bool{}
	for _, node := range n.byName {
		if node.platform != "" && len(node.platform) <= v1alpha1.MaxPlatformLength { // as the kubelet states it
			platforms[node.platform] += map[bool]int{false: -1, true: 1}[node.foreign]
		}
		for _, host := range node.registries {
			registries[policy.Canonical(host)] = true
		}
		for _, network := range node.networks {
			networks[network] = true
		}
	}
	for host := range n.pods {
		registries[policy.Canonical(host)] = true
	}
	for _, services := range n.services {
		for _, network := range services {
			networks[network] = true
		}
	}
	n.platforms, n.registries = slices.Sorted(maps.Keys(platforms)), slices.Sorted(maps.Keys(registries))
	n.platforms = n.platforms[:min(len(n.platforms), v1alpha1.MaxPlatforms)]
	n.networks = slices.SortedFunc(maps.Keys(networks), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	n.foreign = map[string]bool{}
	for platform, more := range platforms {
		n.foreign[platform] = more > 0
	}
}

// anyNew reports whether now has an element that before does not have.
func anyNew[T comparable](now, before []T) bool {
	return slices.ContainsFunc(now, func(s T) bool { return !slices.Contains(before, s) })
}

// clusterPlatforms returns the platforms that images are resolved for, sorted.
func (n *nodes) clusterPlatforms() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.platforms
}

// asked returns platforms as registries are asked for them: with the runtime whose
// choice counts where an index has several manifests for one. If the nodes of a platform
// have several runtimes, that of most of them.
func (n *nodes) asked(platforms []string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := slices.Clone(platforms)
	for i, platform := range asked {
		if n.foreign[platform] {
			asked[i] = platform + manifest.Containerd
		}
	}
	return asked
}

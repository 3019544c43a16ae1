package suite

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// Scenario is a kind of workload.
type Scenario struct {
	Name string
	// Text describes what happens.
	Text string
	Plan func(r *rand.Rand, d *Data) (*workload.Plan, error)
}

// Size changes a workload; zero values change nothing.
type Size struct {
	// Nodes is the number of nodes. The number of pods and the load per node stay
	// the same: with more nodes, pods come faster.
	Nodes int
	// Pods is the number of pods that come one after another.
	Pods int
	// Share is the share of the pods that come one after another, and of the tags
	// that are rolled out, that is played.
	Share float64
	// Disk is how much unpacked images may take on a node, in bytes.
	Disk int64
	// Link of a node, in bytes per second.
	Link float64
}

func (s Size) cluster(c *workload.Cluster) {
	if s.Nodes > 0 {
		c.Nodes = s.Nodes
	}
	if s.Disk > 0 {
		c.Node.Disk = s.Disk
	}
	if s.Link > 0 {
		c.Node.Link = s.Link
	}
}

func (s Size) arrivals(a *workload.Arrivals) {
	s.cluster(&a.Cluster)
	if s.Pods > 0 {
		a.Pods = s.Pods
	}
	a.Pods = s.share(a.Pods)
}

func (s Size) share(n int) int {
	if s.Share == 0 {
		return n
	}
	return int(math.Ceil(s.Share * float64(n)))
}

func arrivals(name, text string, a workload.Arrivals, size Size) Scenario {
	size.arrivals(&a)
	return Scenario{name, text, func(r *rand.Rand, d *Data) (*workload.Plan, error) { return a.Plan(r, d.Images) }}
}

func rolling(name, text string, w workload.Rolling, size Size) Scenario {
	size.cluster(&w.Cluster)
	w.Tags = size.share(w.Tags)
	return Scenario{name, text, func(r *rand.Rand, d *Data) (*workload.Plan, error) { return w.Plan(r, d.History) }}
}

// late is what the names of scenarios end with that begin with a history.
const late = "-late"

// Scenarios returns all scenarios, changed by size.
func Scenarios(size Size) []Scenario {
	var all []Scenario
	for _, s := range []float64{0, 0.6, 1, 1.4} {
		all = append(all, arrivals(fmt.Sprintf("zipf-%g", s),
			fmt.Sprintf("single pods come and go; images by Zipf's law, exponent %g", s), workload.Zipf(s), size))
	}
	sets := workload.Zipf(1)
	sets.ReplicaSets = true
	large := workload.Zipf(1)
	large.Nodes, large.Pods = 50, 5000
	largeSets := large
	largeSets.ReplicaSets = true
	all = append(all,
		arrivals("replicasets", "as zipf-1, pods of one image are a ReplicaSet, which topology spread acts on", sets, size),
		arrivals("nodes-50", "as zipf-1, with 5,000 pods on 50 nodes", large, size),
		arrivals("nodes-50-replicasets", "as replicasets, with 5,000 pods on 50 nodes", largeSets, size),
		arrivals("busy", "as zipf-1, with 85 % of the CPU requested", workload.Busy(), size),
		arrivals("joins", "as zipf-1, while empty nodes join", workload.Joining(), size),
	)
	for _, pods := range []int{30, 50} {
		b := workload.Bursts(pods)
		size.arrivals(&b.Before)
		all = append(all, Scenario{
			fmt.Sprintf("burst-%d", pods), fmt.Sprintf("%d pods of an unknown image at once, ten times, on 20 nodes", pods),
			func(r *rand.Rand, d *Data) (*workload.Plan, error) { return b.Plan(r, d.Images) },
		})
	}
	for _, pods := range []int{30, 50} {
		b := workload.LateBursts(pods)
		size.arrivals(&b.Before)
		all = append(all, Scenario{
			fmt.Sprintf("burst-%d%s", pods, late), fmt.Sprintf("as burst-%d, after 4,000 other pods; only the bursts count", pods),
			func(r *rand.Rand, d *Data) (*workload.Plan, error) { return b.Plan(r, d.Images) },
		})
	}
	sets50 := workload.Bursts(50)
	sets50.ReplicaSets = true
	size.arrivals(&sets50.Before)
	all = append(all, Scenario{
		"burst-50-replicasets", "as burst-50, the pods of a burst are a ReplicaSet, which topology spread acts on",
		func(r *rand.Rand, d *Data) (*workload.Plan, error) { return sets50.Plan(r, d.Images) },
	})
	groups := workload.Groups()
	size.arrivals(&groups.Before)
	all = append(all, Scenario{
		"groups" + late, "16 pods of an unknown image at once, ten times, each time in one of five racks with 8 nodes, after 4,000 other pods; only the groups count",
		func(r *rand.Rand, d *Data) (*workload.Plan, error) { return groups.Plan(r, d.Images) },
	})
	sandboxes := workload.DefaultSandboxes()
	size.cluster(&sandboxes.Cluster)
	sandboxes.Minutes = size.share(sandboxes.Minutes)
	all = append(all, Scenario{
		"sandbox", "bursts of 50 to 200 short pods a minute, each image used for 8 of them; images of a benchmark for coding agents",
		func(r *rand.Rand, _ *Data) (*workload.Plan, error) { return sandboxes.Plan(r) },
	})
	service := workload.Service()
	size.arrivals(&service.Others)
	all = append(all, Scenario{
		"scale-out", "one service grows from 1 to 40 replicas among other pods",
		func(r *rand.Rand, d *Data) (*workload.Plan, error) { return service.Plan(r, d.Images) },
	})
	for _, replicas := range []int{1, 2, 4} {
		all = append(all, rolling(fmt.Sprintf("rolling-%d", replicas),
			fmt.Sprintf("rolling updates as tags moved, replicas: %d", replicas), workload.Updates(replicas, false), size))
	}
	for _, replicas := range []int{2, 4} {
		all = append(all, rolling(fmt.Sprintf("rolling-%d-apart", replicas),
			fmt.Sprintf("as rolling-%d, no two replicas on one node", replicas), workload.Updates(replicas, true), size))
	}
	for _, workers := range []int{3, 4, 5} {
		all = append(all, arrivals(fmt.Sprintf("lrscheduler-%d", workers),
			fmt.Sprintf("LRScheduler's evaluation: 20 pods on %d nodes at 30 Mbit/s", workers), workload.LRScheduler(workers), size))
	}
	return all
}

// Find returns the scenarios with the given names, in the order of the names.
func Find(names []string, size Size) ([]Scenario, error) {
	all := Scenarios(size)
	var found []Scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
		if i < 0 {
			var known []string
			for _, s := range all {
				known = append(known, s.Name)
			}
			return nil, fmt.Errorf("scenario %q: want one of %s", name, strings.Join(known, ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

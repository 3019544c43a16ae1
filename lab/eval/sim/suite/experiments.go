package suite

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// Extent is how much of each experiment is played.
type Extent string

const (
	// Full is for conclusions.
	Full Extent = "full"
	// Small is a look within a minute: fewer scenarios, points and pods.
	Small Extent = "small"
)

// Extents returns all extents.
func Extents() []Extent { return []Extent{Small, Full} }

// ourPolicy is the name of the policy that experiments vary, balanceArgument the name
// of its argument that trades bytes for balance.
const (
	ourPolicy       = "layerlocality"
	balanceArgument = "loadPenalty"
)

// mainPolicies are the policies of most experiments.
var mainPolicies = []string{"default", "image-name", "lrscheduler", ourPolicy, "greedy"}

// Experiments returns the questions, in the order in which they are answered. The
// caller fills in their commands.
func Experiments(extent Extent) []Experiment {
	all := []Experiment{
		policies(extent), frontier(extent), balance(extent), arguments(extent),
		long(extent), told(extent), bursts(extent), alternatives(extent),
		sharing(extent), zipf(extent), bandwidth(extent), nodes(extent), disk(extent),
		lag(extent), manifestDelay(extent), pulls(extent), joins(extent),
	}
	if extent == Small {
		for i := range all {
			all[i].Text += " This is the small size: a fifth of the pods, fewer scenarios and points."
		}
	}
	return all
}

// FindExperiments returns the experiments with the given names, in the order of
// Experiments; without names, all.
func FindExperiments(names []string, extent Extent) ([]Experiment, error) {
	if !slices.Contains(Extents(), extent) {
		return nil, fmt.Errorf("size %q: want one of %v", extent, Extents())
	}
	all := Experiments(extent)
	var known []string
	for _, e := range all {
		known = append(known, e.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("experiment %q: want one of %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(all, func(e Experiment) bool { return !slices.Contains(names, e.Name) }), nil
}

// size returns how the extent changes a workload.
func (x Extent) size() Size {
	if x == Small {
		return Size{Share: 0.2}
	}
	return Size{}
}

// pick returns few for Small, otherwise all.
func pick[T any](x Extent, few, all []T) []T {
	if x == Small {
		return few
	}
	return all
}

func policies(x Extent) Experiment {
	var names, scenarios []string
	for _, p := range sim.Policies() {
		names = append(names, p.Name)
	}
	for _, s := range Scenarios(Size{}) {
		if !strings.HasSuffix(s.Name, late) { // they have an experiment of their own
			scenarios = append(scenarios, s.Name)
		}
	}
	few := []string{"zipf-1", "replicasets", "joins", "burst-30", "scale-out", "rolling-1", "rolling-4-apart"}
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "policies", Title: "What does each policy save, and at what cost?",
			Text: "All policies in all scenarios that begin with empty nodes. The command layersim list describes them.",
		},
		Cases: cases(pick(x, few, scenarios), x.size(), named(names...)),
	}
}

func frontier(x Extent) Experiment {
	e := Experiment{Experiment: evaluation.Experiment{
		Name: "frontier", Title: "What does a saving cost in balance?",
		Text: "Policies with different weights beside the plugins of the default profile, as recommended otherwise. A higher weight saves more bytes, and spreads pods less evenly.",
		Axis: "weight",
	}}
	scenarios := pick(x, []string{"zipf-1"}, []string{"zipf-1", "replicasets"})
	return tuned(e, x, scenarios, "weight", []string{"image-name", "lrscheduler", ourPolicy}, pick(x, []float64{1, 4, 16}, []float64{1, 2, 4, 8, 16}))
}

func balance(x Extent) Experiment {
	e := Experiment{Experiment: evaluation.Experiment{
		Name: "frontier-balance", Title: "How much balance does " + balanceArgument + " buy?",
		Text: "LayerLocality takes points from nodes that are busier than others: " + balanceArgument + " is how many for each percent of CPU.",
		Axis: balanceArgument,
	}}
	scenarios := pick(x, []string{"zipf-1"}, []string{"zipf-1", "replicasets", "rolling-1"})
	return tuned(e, x, scenarios, balanceArgument, []string{ourPolicy}, pick(x, []float64{0, 3, 12}, []float64{0, 1, 2, 3, 4, 6, 12}))
}

// tuned plays policies with values of a setting, and those without the setting once.
func tuned(e Experiment, x Extent, scenarios []string, setting string, policies []string, values []float64) Experiment {
	e.Cases = slices.Concat(
		cases(scenarios, x.size(), named("default", "greedy")),
		vary(values, func(value float64) []Case {
			var set []sim.Policy
			for _, name := range policies {
				p := policy(fmt.Sprintf("%s:%s=%g", name, setting, value))
				p.Name = name
				set = append(set, p)
			}
			return cases(scenarios, x.size(), set)
		}))
	return e
}

func arguments(x Extent) Experiment {
	names := []string{"default", ourPolicy}
	for _, setting := range []string{
		"maxWaitingPods=0", "linkPenalty=0", balanceArgument + "=0",
		"minImageBytes=1", "minImageBytes=10000000", "minImageBytes=1000000000",
	} {
		names = append(names, ourPolicy+":"+setting)
	}
	names = append(names, "layerlocality-no-wait", "layerlocality-no-resolver")
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "arguments", Title: "What is each part of LayerLocality worth?",
			Text: "One argument at a time differs from its default: 0 switches layers on their way (maxWaitingPods), the queue of a link (linkPenalty) or balance (" + balanceArgument + ") off.",
		},
		Cases: cases(pick(x, []string{"zipf-1", "burst-30"}, []string{"zipf-1", "replicasets", "rolling-1", "burst-50"}), x.size(), named(names...)),
	}
}

func long(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "long", Title: "What if nodes live long?",
			Text: "With more pods, the cold start counts less, disks fill up, and nodes have more images than they report.",
			Axis: "pods",
		},
		Cases: vary(pick(x, []float64{1000, 4000}, []float64{1000, 4000, 12000}), func(pods float64) []Case {
			size := x.size()
			size.Pods = int(pods)
			return cases([]string{"zipf-1"}, size, named(mainPolicies...))
		}),
	}
}

// told compares what nodes report. All of them join downloads, and all policies count on it, so
// that there is no other difference.
func told(x Extent) Experiment {
	var all []sim.Policy
	for _, p := range []struct{ name, settings string }{
		{"names", "nodes=names"}, {"names joined", "nodes=joined"}, {"agent", "nodes=agent"},
		{"agent, Chain", "nodes=agent:reuse=chain"}, {ourPolicy, "nodes=patched"},
	} {
		set := policy(ourPolicy + ":joinsDownloads=true:" + p.settings)
		set.Name = p.name
		all = append(all, set)
	}
	chains := policy("default:reuse=chain")
	chains.Name = "default, Chain"
	all = append(named("default"), append(all, chains)...)
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "told", Title: "What must nodes report?",
			Text: "LayerLocality with layer-resolver on nodes that name images, whose names ImageManifests explain (joined), that have an agent, and patched ones. Chain: nodes use a layer again only above the same layers. On larger disks nodes hold more images than a NodeStatus lists. All nodes join downloads.",
			Axis: "GB a node",
		},
		Cases: vary([]float64{20, 100}, func(gigabytes float64) []Case {
			size := x.size()
			size.Pods, size.Disk = 4000, int64(gigabytes*1e9)
			return adjust(cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "nodes-50"}), size, all),
				func(m *sim.Model) { m.Joins = sim.JoinLayers })
		}),
	}
}

func bursts(x Extent) Experiment {
	var all []Case
	for _, before := range []string{"default", ourPolicy} {
		for _, c := range cases(pick(x, []string{"burst-50" + late}, []string{"burst-30" + late, "burst-50" + late, "groups" + late}), x.size(), after(before, named(mainPolicies...))) {
			c.Scenario.Name += " after " + before
			all = append(all, c)
		}
	}
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "bursts", Title: "Are bursts late on nodes that were filled by layers?",
			Text: "One policy places 4,000 pods, then another one places bursts of pods with an unknown image; only these count. After the default profile every node has the popular layers, after LayerLocality few nodes have each.",
		},
		Cases: all,
	}
}

// after lets another policy place the pods of the history.
func after(before string, policies []sim.Policy) []sim.Policy {
	history := policy(before)
	for i := range policies {
		if policies[i].Name != before {
			policies[i].History = &history
		}
	}
	return policies
}

func alternatives(x Extent) Experiment {
	all := named("default", ourPolicy)
	for _, delivery := range []sim.Delivery{sim.FromPeers, sim.Ahead, sim.Lazily} {
		for _, p := range named("default", ourPolicy) {
			if p.Delivery = delivery; p.Name == ourPolicy {
				p.Name = delivery.String() + "+" + ourPolicy
			} else {
				p.Name = delivery.String()
			}
			all = append(all, p)
		}
	}
	thin := x.size()
	thin.Link = 30 * workload.Mbit
	slow := cases([]string{"zipf-1"}, thin, all)
	slow[0].Scenario.Name += " at 30 Mbit/s"
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "alternatives", Title: "What if images come to nodes in another way?",
			Text: "Alone, which is with the default profile, and with LayerLocality. peers: layers that another node has come from there at 10 Gbit/s, as with Spegel. ahead: every node pulls each image 10 minutes before its first use, as with Kruise's ImagePullJob. lazy: pods start with 6.4 % of what is missing, and the rest follows, as with eStargz or SOCI.",
		},
		Cases: append(cases(pick(x, []string{"zipf-1", "burst-50"}, []string{"zipf-1", "nodes-50", "burst-50", "rolling-2", "sandbox"}), x.size(), all), slow...),
	}
}

func sharing(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "sharing", Title: "How much must images have in common?",
			Text: "Scenario zipf-1 with generated images, of whose bytes a given share is in layers of more than one image. A data set that was given does not count here.",
			Axis: "share of the bytes",
		},
		Cases: vary(pick(x, []float64{0, 0.7}, []float64{0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9}), func(share float64) []Case {
			images := sync.OnceValue(func() *Data { return &Data{Images: generate(share)} })
			found := cases([]string{"zipf-1"}, x.size(), named(mainPolicies...))
			for i := range found {
				plan := found[i].Scenario.Plan
				found[i].Scenario.Plan = func(r *rand.Rand, _ *Data) (*workload.Plan, error) { return plan(r, images()) }
			}
			return found
		}),
	}
}

func zipf(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "zipf", Title: "Must some images be popular?",
			Text: "Single pods come and go, as in zipf-1. With exponent 0 all images are as popular; with 1 the most popular one has twice the pods of the second, and three times those of the third.",
			Axis: "Zipf exponent",
		},
		Cases: vary([]float64{0, 0.6, 1, 1.4}, func(exponent float64) []Case {
			found := cases([]string{fmt.Sprintf("zipf-%g", exponent)}, x.size(), named(mainPolicies...))
			found[0].Scenario.Name = "zipf"
			return found
		}),
	}
}

func bandwidth(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "bandwidth", Title: "Do fast links make it pointless?",
			Text: "Nodes have links of different bandwidth.",
			Axis: "Mbit/s",
		},
		Cases: vary(pick(x, []float64{30, 1000}, []float64{10, 30, 100, 300, 1000}), func(mbit float64) []Case {
			size := x.size()
			size.Link = mbit * workload.Mbit
			return cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "burst-50"}), size, named(mainPolicies...))
		}),
	}
}

func nodes(x Extent) Experiment {
	const least = 3
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "nodes", Title: "Is it for small clusters, or for large ones?",
			Text: fmt.Sprintf("The same pods at the same times on more and more nodes: those of zipf-1 that request half of the CPU of %d. Above 1,000 nodes with %d seeds only.", least, fewSeeds),
			Axis: "nodes",
		},
		Cases: vary(pick(x, []float64{least, 30}, []float64{least, 10, 30, 100, 300, 1000, 5000}), func(n float64) []Case {
			size := x.size()
			size.Nodes = least
			found := cases([]string{"zipf-1"}, size, named(mainPolicies...))
			found[0].Scenario = spread(found[0].Scenario, int(n))
			if n > 1000 {
				found[0].Seeds = fewSeeds
			}
			return found
		}),
	}
}

// spread puts a scenario on another number of nodes. Unlike with Size.Nodes, nothing
// else changes.
func spread(s Scenario, nodes int) Scenario {
	plan := s.Plan
	s.Plan = func(r *rand.Rand, d *Data) (*workload.Plan, error) {
		p, err := plan(r, d)
		if err != nil {
			return nil, err
		}
		node := p.Nodes[0]
		p.Nodes = nil
		for i := range nodes {
			node.Name = fmt.Sprintf("node-%04d", i+1)
			p.Nodes = append(p.Nodes, node)
		}
		return p, nil
	}
	return s
}

// fewSeeds is the number of seeds for cases that take minutes each.
const fewSeeds = 2

func disk(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "disk", Title: "How large must disks be?",
			Text: "Nodes have different space for unpacked images. Where it is short, the kubelet removes images, and with them what others share.",
			Axis: "GB a node",
		},
		Cases: vary(pick(x, []float64{5, 20}, []float64{5, 10, 20, 50}), func(gigabytes float64) []Case {
			size := x.size()
			size.Disk = int64(gigabytes * 1e9)
			return cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "rolling-1"}), size, named(mainPolicies...))
		}),
	}
}

func lag(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "lag", Title: "What if nodes report late?",
			Text: "A kubelet lists its images each so many seconds, and reports them up to 10 s later.",
			Axis: "seconds",
		},
		Cases: vary(pick(x, []float64{0, 120}, []float64{0, 30, 60, 120, 300}), func(seconds float64) []Case {
			return adjust(cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "rolling-1"}), x.size(), named(mainPolicies...)),
				func(m *sim.Model) { m.ImageRefresh = duration(seconds) })
		}),
	}
}

func manifestDelay(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "manifest-delay", Title: "What if layer-resolver is slow?",
			Text: "From the first use of an image to its ImageManifest it takes so many seconds. Pods of unknown images wait for it for at most 1 s, or (no-wait) do not.",
			Axis: "seconds",
		},
		Cases: vary(pick(x, []float64{0, 20}, []float64{0, 0.2, 0.5, 0.9, 2, 10}), func(seconds float64) []Case {
			return adjust(cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "rolling-1"}), x.size(),
				named("default", "layerlocality-no-resolver", "layerlocality-no-wait", ourPolicy)),
				func(m *sim.Model) { m.ManifestDelay = duration(seconds) })
		}),
	}
}

func pulls(x Extent) Experiment {
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "pulls", Title: "Do pulls one after another change it?",
			Text: "A node pulls so many images at once: 1 is serializeImagePulls, the default of the kubelet. More share its link.",
			Axis: "pulls at once",
		},
		Cases: vary(pick(x, []float64{1, 10}, []float64{1, 2, 5, 10}), func(n float64) []Case {
			return adjust(cases(pick(x, []string{"zipf-1"}, []string{"zipf-1", "burst-50"}), x.size(), named(mainPolicies...)),
				func(m *sim.Model) { m.Pulls = int(n) })
		}),
	}
}

func joins(x Extent) Experiment {
	const thin = 10 * workload.Mbit
	joining := append(slices.Clone(mainPolicies), ourPolicy+":joinsDownloads=true")
	var all []Case
	add := func(how string, policies []string, change func(*sim.Model)) {
		slow := x.size()
		slow.Link = thin
		usual := cases(pick(x, []string{"burst-50"}, []string{"zipf-1", "burst-50", "rolling-2"}), x.size(), named(policies...))
		late := cases([]string{"zipf-1"}, slow, named(policies...))
		late[0].Scenario.Name += " at 10 Mbit/s"
		for _, c := range append(usual, late...) {
			c.Scenario.Name += ", " + how
			change(&c.Model)
			all = append(all, c)
		}
	}
	add("in series", joining, func(m *sim.Model) { m.Pulls, m.Joins = 1, sim.JoinNothing })
	add("apart", append(slices.Clone(mainPolicies), ourPolicy+":maxWaitingPods=0"), func(m *sim.Model) { m.Joins = sim.JoinNothing })
	add("images joined", mainPolicies, func(m *sim.Model) { m.Joins = sim.JoinImages })
	add("layers joined", joining, func(m *sim.Model) { m.Joins = sim.JoinLayers })
	return Experiment{
		Experiment: evaluation.Experiment{
			Name: "joins", Title: "What if pulls share more, or less?",
			Text: "In series: one pull at a time, the default of the kubelet. Apart: ten at a time, each pod for itself, as with CRI-O 1.36. Images joined: pods with one image share its pull. Layers joined: all pulls share downloads, as with containerd.",
		},
		Cases: all,
	}
}

// cases returns one case per scenario, each with all given policies.
func cases(scenarios []string, size Size, policies []sim.Policy) []Case {
	found, err := Find(scenarios, size)
	if err != nil {
		panic(err) // the names are in this file
	}
	all := make([]Case, len(found))
	for i, s := range found {
		all[i] = Case{Scenario: s, Policies: policies, Model: sim.DefaultModel()}
	}
	return all
}

// vary returns the cases for each value of X.
func vary(values []float64, at func(x float64) []Case) []Case {
	var all []Case
	for _, x := range values {
		for _, c := range at(x) {
			c.X = x
			all = append(all, c)
		}
	}
	return all
}

// adjust changes how nodes behave.
func adjust(cases []Case, change func(*sim.Model)) []Case {
	for i := range cases {
		change(&cases[i].Model)
	}
	return cases
}

// named returns the policies with the given names, with settings as ParsePolicy reads
// them.
func named(names ...string) []sim.Policy {
	all := make([]sim.Policy, len(names))
	for i, name := range names {
		all[i] = policy(name)
	}
	return all
}

func policy(text string) sim.Policy {
	p, err := sim.ParsePolicy(text)
	if err != nil {
		panic(err) // the names are in this file
	}
	return p
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

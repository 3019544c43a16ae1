package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/prototype"
	"github.com/layer-locality/layer-locality/lab/eval/sim/kubescheduler"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
)

// Policy is a way to place pods.
type Policy struct {
	Name string
	// Text describes it in a few words.
	Text string
	// Score is the plugin that scores in addition to the default profile; empty
	// means none.
	Score string
	// Weight of Score.
	Weight int
	// WithImageLocality means that Score is added to ImageLocality and does not
	// replace it.
	WithImageLocality bool
	// Steps, if not 0, rounds the scores of LayerLocality as layer-extender does with
	// --max-score; the best one adds as much as it does with Weight.
	Steps int64
	// Args of Score: "name: value, ...".
	Args string
	// Manifests is how early the layers of an image that no node has are known.
	Manifests Manifests
	// Wait is how long a pod is held for its manifest at most (waitForManifest).
	Wait time.Duration
	// Live means that the content of nodes is known at once, not only when they
	// report it.
	Live bool
	// Nodes is how nodes state what they hold.
	Nodes Nodes
	// InChains means that nodes use a layer again only above the same layers.
	InChains bool
	// Clairvoyant means no scores: it has all data and takes the node that has
	// least to pull.
	Clairvoyant bool
	// Percent is the percentageOfNodesToScore; 0 means that kube-scheduler decides.
	Percent int
	// Delivery is how images come to nodes.
	Delivery Delivery
	// History is the policy that places pods up to workload.Plan.History; nil means the
	// same one. Its Delivery does not count.
	History *Policy
}

// Manifests is how early a policy has the layers of an image that no node has.
type Manifests int

const (
	// Never means not before a node has it.
	Never Manifests = iota
	// OnUse means Model.ManifestDelay after its first use, as with
	// layer-resolver.
	OnUse
	// Always means that the registry's whole catalog is known.
	Always
)

// Nodes is how nodes state what they hold.
type Nodes int

const (
	// Patched nodes state the layers of images in NodeStatus.
	Patched Nodes = iota
	// Named nodes are stock: they name images by tag and digest.
	Named
	// Joined nodes are the same, and ImageManifests explain what they name.
	Joined
	// Agents run on stock nodes and write NodeLayers: all images with their layers, soon after a
	// change. ImageManifests explain what nodes name until then.
	Agents
)

var nodesNames = []string{"patched", "names", "joined", "agent"}

// String returns the name that ParsePolicy takes.
func (n Nodes) String() string { return nodesNames[n] }

func parseNodes(name string) (Nodes, error) {
	i := slices.Index(nodesNames, name)
	if i < 0 {
		return 0, fmt.Errorf("%q: want one of %s", name, strings.Join(nodesNames, ", "))
	}
	return Nodes(i), nil
}

// parseReuse returns Policy.InChains.
func parseReuse(name string) (inChains bool, err error) {
	if name != "digest" && name != "chain" {
		return false, fmt.Errorf("%q: want digest or chain", name)
	}
	return name == "chain", nil
}

// The plugins that score.
const (
	imageLocality = "ImageLocality"
	imageName     = "ImageName"
	lrScheduler   = "LRScheduler"
	prototypeName = prototype.Name
)

// The weight and waitForManifest that are recommended for LayerLocality.
const (
	recommendedWeight = 4
	recommendedWait   = time.Second
)

// allNodes is for policies that cannot choose where kube-scheduler begins. It makes
// a difference for 100 nodes and more.
const allNodes = 100

// Policies returns the policies that are compared.
func Policies() []Policy {
	ours := Policy{
		Name: "layerlocality", Text: "LayerLocality with layer-resolver, which pods of unknown images wait for",
		Score: layerlocality.Name, Weight: recommendedWeight, Manifests: OnUse, Wait: recommendedWait,
	}
	noWait, noResolver, stockNodes := ours, ours, ours
	stockNodes.Name, stockNodes.Text, stockNodes.Nodes = "layerlocality-stock-nodes", "the same on stock nodes, which name images by digest and state no layers", Joined
	noWait.Name, noWait.Text, noWait.Wait = "layerlocality-no-wait", "the same, no pod waits (waitForManifest: 0)", 0
	noResolver.Name, noResolver.Text = "layerlocality-no-resolver", "LayerLocality without layer-resolver"
	noResolver.Manifests, noResolver.Wait = Never, 0
	return []Policy{
		{Name: "default", Text: "kube-scheduler's default profile"},
		{Name: "imagelocality-full", Text: "the same with ImageLocality at weight 100", Score: imageLocality, Weight: 100, Percent: allNodes},
		{Name: "image-name", Text: "images by name, without the thresholds of ImageLocality", Score: imageName, Weight: recommendedWeight, Percent: allNodes},
		{Name: "prototype", Text: "the formula of the prototype of 2022", Score: prototypeName, Weight: recommendedWeight, Percent: allNodes},
		{
			Name: "lrscheduler", Text: "LRScheduler's formula with all manifests, on what nodes report",
			Score: lrScheduler, Weight: 2, WithImageLocality: true, Manifests: Always, Percent: allNodes,
		},
		{
			Name: "lrscheduler-live", Text: "the same, but nodes are asked for each pod, as its code does",
			Score: lrScheduler, Weight: 2, WithImageLocality: true, Manifests: Always, Live: true, Percent: allNodes,
		},
		noResolver, noWait, stockNodes, ours,
		{Name: "greedy", Text: "the node that has least to pull, all-knowing", Manifests: Always, Clairvoyant: true, Percent: allNodes},
	}
}

// ParsePolicy reads "NAME[:KEY=VALUE...]": a policy with other settings. Keys are images
// (a Delivery), reuse (of layers by nodes: digest or chain), history (the name of a policy), weight,
// percent (of nodes to score), wait, steps (a number by which 100 times the weight can be divided),
// nodes (a Nodes), and the arguments of LayerLocality.
func ParsePolicy(text string) (Policy, error) {
	name, settings, _ := strings.Cut(text, ":")
	all := Policies()
	i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return Policy{}, fmt.Errorf("policy %q: want one of %s", name, strings.Join(names, ", "))
	}
	p := all[i]
	p.Name = text
	var args []string
	for setting := range strings.SplitSeq(settings, ":") {
		key, value, ok := strings.Cut(setting, "=")
		var err error
		switch {
		case settings == "":
		case !ok:
			err = fmt.Errorf("%q: want KEY=VALUE", setting)
		case key == "images":
			p.Delivery, err = parseDelivery(value)
		case key == "reuse":
			p.InChains, err = parseReuse(value)
		case key == "history":
			var before Policy
			before, err = ParsePolicy(value)
			p.History = &before
		case p.Score == "":
			err = fmt.Errorf("%q: %s has no settings but images, reuse and history", setting, name)
		case key == "weight":
			p.Weight, err = strconv.Atoi(value)
		case key == "percent":
			p.Percent, err = strconv.Atoi(value)
		case key == "wait":
			p.Wait, err = time.ParseDuration(value)
		case p.Score != layerlocality.Name:
			err = fmt.Errorf("%q: %s has only a weight", setting, name)
		case key == "nodes":
			p.Nodes, err = parseNodes(value)
		case key == "steps":
			p.Steps, err = strconv.ParseInt(value, 10, 64)
			if err == nil && (p.Steps < 1 || p.Steps > 100) {
				err = fmt.Errorf("%q: want 1 to 100", setting)
			}
		default:
			args = append(args, key+": "+value)
		}
		if err != nil {
			return Policy{}, fmt.Errorf("policy %q: %w", text, err)
		}
	}
	if p.Steps > 0 && int64(100*p.Weight)%p.Steps != 0 {
		return Policy{}, fmt.Errorf("policy %q: %d steps do not divide 100 times the weight of %d", text, p.Steps, p.Weight)
	}
	if p.History != nil && (p.Nodes != Patched || p.History.Nodes != Patched) {
		return Policy{}, fmt.Errorf("policy %q: stock nodes have no history: their resolver and agents do not outlive a scheduler", text)
	}
	if p.History != nil && p.History.InChains != p.InChains {
		return Policy{}, fmt.Errorf("policy %q: nodes do not change how they use layers again: want the same reuse in its history", text)
	}
	p.Args = strings.Join(args, ", ")
	return p, nil
}

// weight returns the weight of the plugin: with Steps, its best score is that number and not
// 100.
func (p *Policy) weight() int {
	if p.Steps > 0 {
		return 100 * p.Weight / int(p.Steps)
	}
	return p.Weight
}

// configuration returns the one that kube-scheduler would get, with scores of racks for pod groups or without.
func (p *Policy) configuration(racks bool) string {
	var b strings.Builder
	b.WriteString("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: default-scheduler\n")
	if p.Percent > 0 {
		fmt.Fprintf(&b, "  percentageOfNodesToScore: %d\n", p.Percent)
	}
	var plugins []string
	if p.Score != "" {
		disabled := "{name: ImageLocality}"
		if p.WithImageLocality {
			disabled = ""
		}
		plugins = append(plugins, fmt.Sprintf("multiPoint: {disabled: [%s], enabled: [{name: %s, weight: %d}]}", disabled, p.Score, p.weight()))
	}
	if racks {
		enabled := fmt.Sprintf("{name: %s, weight: 1}", kubescheduler.PlacementFit)
		if p.Score == layerlocality.Name {
			enabled += fmt.Sprintf(", {name: %s, weight: %d}", p.Score, p.weight())
		}
		plugins = append(plugins, fmt.Sprintf("placementScore: {disabled: [{name: '*'}], enabled: [%s]}", enabled))
	}
	if len(plugins) > 0 {
		fmt.Fprintf(&b, "  plugins: {%s}\n", strings.Join(plugins, ", "))
	}
	if p.Args != "" {
		fmt.Fprintf(&b, "  pluginConfig: [{name: %s, args: {%s}}]\n", p.Score, p.Args)
	}
	return b.String()
}

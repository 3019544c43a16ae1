package page

import (
	"slices"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// baseline is the policy that all others are compared with.
const baseline = "default"

// policy is how a policy looks on the whole page.
type policy struct {
	Name string
	// About is a description in a few words.
	About string
	// Bound means that it is not a usable policy, but the best that is possible.
	Bound bool
	// Strong marks the policy of this project.
	Strong bool
}

// known policies, in the order in which they are shown.
var known = []policy{
	{Name: baseline, About: "kube-scheduler's default profile"},
	{Name: "imagelocality-full", About: "the default profile with ImageLocality at full weight"},
	{Name: "image-name", About: "100 points for a node that has the image, by name, without ImageLocality's thresholds"},
	{Name: "prototype", About: "the formula of the prototype of 2022"},
	{Name: "lrscheduler", About: "LRScheduler's formula, given all manifests"},
	{Name: "layerlocality-no-resolver", About: "LayerLocality with only the images that some node holds"},
	{Name: "layerlocality", About: "LayerLocality with layer-resolver, for which pods of unknown images wait", Strong: true},
	{Name: "greedy", About: "a bound: places each pod where the fewest bytes are missing, with all data", Bound: true},
	{Name: "lrscheduler-live", About: "lrscheduler that asks every node for each pod, as its code does"},
	{Name: "layerlocality-no-wait", About: "LayerLocality with layer-resolver, for which no pod waits"},
	{Name: "layerlocality-stock-nodes", About: "LayerLocality with layer-resolver, on stock nodes that name images by digest and state no layers"},
}

// policiesOf lists the policies of the report: first the known ones, then the
// others in the order of the report.
func policiesOf(report *evaluation.Report) []policy {
	all := slices.Clone(known)
	ran := map[string]bool{}
	for _, experiment := range report.Experiments {
		for _, run := range experiment.Runs {
			if !ran[run.Policy] && !slices.ContainsFunc(known, func(p policy) bool { return p.Name == run.Policy }) {
				all = append(all, policy{Name: run.Policy})
			}
			ran[run.Policy] = true
		}
	}
	return slices.DeleteFunc(all, func(p policy) bool { return !ran[p.Name] })
}

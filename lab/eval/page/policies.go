package page

import "github.com/layer-locality/layer-locality/lab/eval/evaluation"

// baseline is the policy that all others are compared with.
const baseline = "default"

// policy is how a policy looks on the whole page.
type policy struct {
	Name string `json:"name"`
	// About is a description in a few words.
	About string `json:"-"`
	// Slot selects its colour and symbol, which are in page.css and page.js.
	Slot int `json:"slot"`
	// Bound means that it is not a usable policy, but the best that is possible.
	Bound bool `json:"bound"`
	// Strong marks the policy of this project.
	Strong bool `json:"strong"`
}

// known policies, in the order in which they are shown; the index is the slot.
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

// slots is the number of slots; page.css and page.js have as many. Unknown
// policies share the slots after the known ones.
const slots = 18

// policiesOf lists the policies of the report: first the known ones, then the
// others in the order of the report.
func policiesOf(report *evaluation.Report) []policy {
	var all []policy
	ran := map[string]bool{}
	index := map[string]bool{}
	for i, p := range known {
		p.Slot = i
		all = append(all, p)
		index[p.Name] = true
	}
	for _, experiment := range report.Experiments {
		for _, run := range experiment.Runs {
			ran[run.Policy] = true
			if !index[run.Policy] {
				index[run.Policy] = true
				slot := len(known) + (len(all)-len(known))%(slots-len(known))
				all = append(all, policy{Name: run.Policy, Slot: slot})
			}
		}
	}
	list := []policy{}
	for _, p := range all {
		if ran[p.Name] {
			list = append(list, p)
		}
	}
	return list
}

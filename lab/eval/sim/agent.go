package sim

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// agentRenew is in the objects. Renewals bring nothing new and are left out.
const agentRenew = 10 * time.Minute

// agent is the layer-agent of a machine. What it writes is made by the code of layer-agent, and
// read by that of the plugin.
type agent struct {
	m        *machine
	inChains bool
	to       *nodelayers.Fed
	fail     func(error)
	// next is the earliest time of the next write, due means that there will be one.
	next time.Duration
	due  bool
}

// newAgent starts an agent that writes for the first time after a delay.
func newAgent(m *machine, after time.Duration, inChains bool, to *nodelayers.Fed, fail func(error)) *agent {
	a := &agent{m: m, inChains: inChains, to: to, fail: fail, due: true}
	m.q.at(m.q.now+after, a.write)
	return a
}

// changed has the agent write what the machine holds, unless that is about to happen. Without an
// agent it does nothing.
func (a *agent) changed() {
	if a == nil || a.due {
		return
	}
	a.due = true
	a.m.q.at(max(a.m.q.now+a.m.model.AgentSettle, a.next), a.write)
}

func (a *agent) write() {
	q := a.m.q
	a.due, a.next = false, q.now+a.m.model.AgentSpacing
	spec := a.contents().Spec(a.m.model.MinLayerBytes, v1alpha1.MaxNodeListBytes)
	spec.RenewSeconds, spec.RenewTime = int32(agentRenew/time.Second), metav1.NewTime(q.Now())
	a.fail(a.to.Set(&v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: a.m.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: a.m.Name, UID: types.UID(a.m.Name),
		}}},
		Spec: *spec,
	}, q.Now()))
}

// contents returns what the machine holds. Like its Node, it does not state whether downloads are
// joined.
func (a *agent) contents() *contents.Contents {
	c := &contents.Contents{InChains: a.inChains}
	for i, held := range a.m.images {
		image := contents.Image{Names: append([]string{i.digest()}, held.names...)}
		for _, b := range i.layers {
			image.Layers = append(image.Layers, v1alpha1.ImageLayer{Digest: b.digest, Size: b.size})
		}
		c.Images = append(c.Images, image)
	}
	return c
}

package sim

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// TestAdvisedBases: what `kubectl layers advise` predicts for common bases is what the nodes pull less when the images
// are built on them.
func TestAdvisedBases(t *testing.T) {
	needsLayers(t)
	images, source, err := dataset.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	arrivals := workload.Zipf(1)
	arrivals.Use, arrivals.Node.Disk, arrivals.Pods = 0, 1e13, 400
	plan, err := arrivals.Plan(rand.New(rand.NewPCG(55, 3)), images)
	if err != nil {
		t.Fatal(err)
	}
	before := begin(t, "default", plan, nil)
	pulled := before.playAll(t, nil).PulledBytes
	advice := before.advise(t, plan.Images)

	var predicted int64
	var rebased int
	after := *plan
	after.Images = slices.Clone(plan.Images)
	for _, a := range advice {
		if a.Kind != inventory.CommonBase {
			continue
		}
		predicted += a.SavedBytes
		from := func(i dataset.Image) int {
			return slices.IndexFunc(a.Bases, func(b inventory.AdvisedBase) bool { return b.Lowest == i.Layers[0].Digest })
		}
		target := slices.IndexFunc(plan.Images, func(i dataset.Image) bool { return from(i) == 0 && before.holds(i) })
		proposed := plan.Images[target].Layers[:a.Bases[0].Layers]
		for n, i := range plan.Images {
			if base := from(i); base > 0 {
				rebased++
				after.Images[n].Layers = slices.Concat(proposed, i.Layers[min(len(i.Layers), a.Bases[base].Layers):])
			}
		}
	}
	if rebased == 0 {
		t.Fatalf("nothing is advised for the images of %s", source)
	}
	saved := pulled - begin(t, "default", &after, nil).playAll(t, nil).PulledBytes
	t.Logf("%s: %d images on other bases; predicted %.2f GB of %.2f GB, simulated %.2f GB", source, rebased, float64(predicted)/1e9, float64(pulled)/1e9, float64(saved)/1e9)
	if ratio := float64(saved) / float64(predicted); ratio < 0.9 || ratio > 1.1 {
		t.Errorf("the nodes pulled %d bytes less, predicted %d: %.3f", saved, predicted, ratio)
	}
}

// holds reports whether a machine holds the image.
func (r *run) holds(i dataset.Image) bool {
	return slices.ContainsFunc(r.order, func(m *machine) bool { return m.images[r.images[i.Image]] != nil })
}

// advise returns the advice about what the machines hold.
func (r *run) advise(t *testing.T, images []dataset.Image) []inventory.Advice {
	t.Helper()
	c := &collect.Cluster{Agents: map[string]collect.Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), Now: time.Now(), AllNodes: true}
	for _, m := range r.order {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: types.UID(m.Name)}}
		node.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "cri-o://1.36.3"}
		c.Nodes = append(c.Nodes, node)
		o := &v1alpha1.NodeLayers{
			ObjectMeta: metav1.ObjectMeta{Name: m.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.Name, UID: node.UID}}},
			Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.NewTime(c.Now)},
		}
		for i, held := range m.images {
			entry := v1alpha1.NodeImage{Names: held.names}
			for _, b := range i.layers {
				text := v1alpha1.ImageLayer{Digest: b.digest, Size: b.size}.String()
				place := slices.Index(o.Spec.Layers, text)
				if place < 0 {
					place = len(o.Spec.Layers)
					o.Spec.Layers = append(o.Spec.Layers, text)
				}
				entry.Layers = append(entry.Layers, place)
			}
			o.Spec.Images = append(o.Spec.Images, entry.String())
		}
		if err := c.Reports.Add(o, c.Now); err != nil {
			t.Fatal(err)
		}
		c.Agents[m.Name] = collect.Agent{Reuse: o.Spec.Reuse, RenewTime: c.Now}
	}
	confirmed := metav1.NewTime(c.Now)
	for _, i := range images {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(i.Image)))
		m := &v1alpha1.ImageManifest{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(digest)},
			Spec:       v1alpha1.ImageManifestSpec{Digest: digest, Platform: "linux/amd64"},
			Status: v1alpha1.ImageManifestStatus{
				References: []v1alpha1.ImageReference{{Name: i.Image, Digest: digest, LastConfirmed: &confirmed}},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved}},
			},
		}
		for _, l := range i.Layers {
			m.Spec.Layers = append(m.Spec.Layers, v1alpha1.ImageLayer{Digest: l.Digest, Size: l.Size})
			m.Spec.Size += l.Size
		}
		c.Records = append(c.Records, collect.Record{Name: m.Name, Digest: digest, Platform: m.Spec.Platform, References: m.Status.References})
		if err := c.Manifests.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	known, err := inventory.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return known.Advise()
}

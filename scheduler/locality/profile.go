package locality

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Profile rates the nodes of a Tracker with the arguments of one scheduler profile.
type Profile struct {
	// Name is the scheduler name of its pods.
	Name string
	// Args must not be changed.
	Args *config.LayerLocalityArgs

	tracker *Tracker
	table   *imageref.Table
	scorer  scorer
	rules   index.Rules
}

func newProfile(tracker *Tracker, name string, args *config.LayerLocalityArgs) *Profile {
	return &Profile{
		Name: name, Args: args, tracker: tracker, table: newTable(args), scorer: newScorer(args),
		rules: index.Rules{MaxWaiting: args.MaxWaitingPods, UnknownBytes: args.UnknownImageBytes, JoinsDownloads: args.JoinsDownloads},
	}
}

// newTable returns the Table that the arguments describe.
func newTable(args *config.LayerLocalityArgs) *imageref.Table {
	short := &imageref.ShortNames{Aliases: make(map[string]string, len(args.ShortNames)), Search: args.UnqualifiedRegistries}
	for _, s := range args.ShortNames {
		short.Aliases[s.Name] = s.Repository
	}
	table := imageref.NewTable(short)
	for _, m := range args.Mirrors {
		table.AddMirror(m.Prefix, m.Locations...)
	}
	return table
}

// Names returns the names that an image in a pod may have on a node; none if the
// name is not valid.
func (p *Profile) Names(image string) []imageref.Canonical { return p.table.Candidates(image) }

// Wanted returns the images of pods, each once, with their layers from sources.
func (p *Profile) Wanted(pods ...*v1.Pod) []index.Wanted {
	if len(pods) == 1 {
		return p.wanted(imageref.OfPod(&pods[0].Spec))
	}
	var images []imageref.PodImage
	for _, pod := range pods {
		for _, image := range imageref.OfPod(&pod.Spec) {
			images = imageref.Append(images, image.Name, image.PullPolicy)
		}
	}
	return p.wanted(images)
}

func (p *Profile) wanted(of []imageref.PodImage) (images []index.Wanted) {
	for _, image := range of {
		names := p.Names(image.Name)
		if len(names) == 0 {
			continue
		}
		always := image.PullPolicy == v1.PullAlways
		// The same image may be written in two ways.
		if i := slices.IndexFunc(images, func(w index.Wanted) bool { return slices.Equal(w.Names, names) }); i >= 0 {
			images[i].PullAlways = images[i].PullAlways || always
		} else {
			images = append(images, index.Wanted{Names: names, PullAlways: always, Manifests: p.tracker.manifests(names)})
		}
	}
	return images
}

// Signature returns what the scores depend on in the images of a pod: two pods with
// the same signature get the same scores.
func (p *Profile) Signature(pod *v1.Pod) []string {
	var signature []string
	for _, image := range imageref.OfPod(&pod.Spec) {
		parts := []string{string(image.PullPolicy)}
		for _, name := range p.Names(image.Name) {
			parts = append(parts, string(name))
		}
		if len(parts) > 1 {
			signature = append(signature, strings.Join(parts, " "))
		}
	}
	slices.Sort(signature)
	return slices.Compact(signature)
}

// UnknownImages returns the images of a pod that are awaited (see Awaits). It is
// empty if waiting would not help: a pod of a DaemonSet has no choice of nodes, an image
// that must not be pulled stays where it is, and a pod with scheduling gates waits anyway.
func (p *Profile) UnknownImages(pod *v1.Pod) (images []string) {
	if owner := metav1.GetControllerOfNoCopy(pod); len(pod.Spec.SchedulingGates) > 0 || owner != nil && owner.Kind == "DaemonSet" {
		return nil
	}
	for _, image := range imageref.PulledByPod(&pod.Spec) {
		if p.Awaits(image.Name) {
			images = append(images, image.Name)
		}
	}
	return images
}

// Awaits reports whether nothing is known about an image, and a source may still get its
// layers.
func (p *Profile) Awaits(image string) bool {
	names := p.Names(image)
	return len(names) > 0 && p.tracker.awaits(names)
}

// Answered reports whether a source that is worth waiting for has an answer about an image,
// even a negative one.
func (p *Profile) Answered(image string) bool {
	names := p.Names(image)
	return p.tracker.anyAwaited(func(s AwaitedSource) bool { return s.Answered(names) })
}

// OnAnswer has f called soon after a source that is worth waiting for has new answers. f must
// return at once.
func (p *Profile) OnAnswer(f func()) {
	for _, source := range p.tracker.sources {
		if s, ok := source.(AwaitedSource); ok {
			s.OnAnswer(f)
		}
	}
}

// JoinsDownloads reports whether a node is taken to download a layer once although several
// images need it.
func (p *Profile) JoinsDownloads(node *v1.Node) bool {
	return ptr.Deref(p.tracker.joins(node), p.Args.JoinsDownloads)
}

// Measure computes what every node has of the images. It writes the result into m,
// whose memory it uses again. Layers for which enough pods wait on a node
// (maxWaitingPods) do not count as arriving there.
func (p *Profile) Measure(images []index.Wanted, m *index.Measurement) {
	now := p.tracker.clock.Now()
	p.tracker.index.Measure(images, p.rules, now, m)
	if m.Outdated() {
		p.tracker.index.ResolveReservations(images, p.rules)
		p.tracker.index.Measure(images, p.rules, now, m)
	}
}

// AddDelay adds to what is known about the queues of nodes that a pod may go to.
func (p *Profile) AddDelay(all *Delays, bytes index.NodeBytes) { p.scorer.addDelay(all, bytes) }

// Points rates a node. load is the points for its load (see Balance), all the queues of the
// nodes that the pod may go to.
func (p *Profile) Points(bytes index.NodeBytes, load float64, all Delays) Points {
	return p.scorer.points(bytes, load, all)
}

// Reserve notes that a pod is being placed on a node, which then pulls what it
// lacks. It returns the compressed bytes of known layers that the node would not
// have pulled without this pod.
func (p *Profile) Reserve(pod *v1.Pod, node string) (missing int64) {
	now := p.tracker.clock.Now()
	return p.tracker.index.Reserve(pod.UID, node, p.Wanted(pod), p.rules, now, now.Add(p.Args.ArrivalTimeout.Duration))
}

// Release undoes Reserve: the pod does not come.
func (p *Profile) Release(pod types.UID) { p.tracker.index.Release(pod) }

package layerlocality

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/feasible"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/debugpage"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// DebugPath is where the scheduler serves the DebugHandler.
const DebugPath = "/debug/layerlocality"

// Rating is the answer of the debug endpoint.
type Rating struct {
	// Profile is the profile whose arguments were used.
	Profile string `json:"profile"`
	Pod     string `json:"pod,omitempty"`
	// Held is why the pod waits (waitForManifest, RequireAnnotation).
	Held   string        `json:"held,omitempty"`
	Images []ImageRating `json:"images"`
	// Nodes are all nodes, the best first.
	Nodes []NodeRating `json:"nodes"`
	Note  string       `json:"note"`
}

// ImageRating is what is known about an image.
type ImageRating struct {
	// Names are the names under which the image was looked for.
	Names []imageref.Canonical `json:"names"`
	// Known is layers, name, arriving or unknown.
	Known index.Known `json:"known"`
	// From is where its layers are known from: a source of images, such as
	// ImageManifests, or the nodes that report it.
	From string `json:"from,omitempty"`
	// Pull is Always if nodes ask the registry although they have the image.
	Pull v1.PullPolicy `json:"pull,omitempty"`
}

// NodeRating is how a node was rated. Sizes are compressed bytes.
type NodeRating struct {
	Node          string `json:"node"`
	Score         int64  `json:"score"`
	TotalBytes    int64  `json:"totalBytes"`
	PresentBytes  int64  `json:"presentBytes"`
	ArrivingBytes int64  `json:"arrivingBytes"`
	// CrowdedBytes are arriving, but enough pods wait for them already.
	CrowdedBytes int64 `json:"crowdedBytes,omitempty"`
	MissingBytes int64 `json:"missingBytes"`
	// PendingBytes is what the link of the node still has to pull, for any pod.
	PendingBytes int64 `json:"pendingBytes"`
	// JoinsDownloads is whether a layer on its way counts for pods with other images, too.
	JoinsDownloads bool `json:"joinsDownloads"`
	// LoadPercent is what is requested of the node, of CPU or memory, whichever is more.
	LoadPercent float64 `json:"loadPercent"`
	// WithoutRequest is the number of containers without a CPU request.
	WithoutRequest float64 `json:"withoutRequest"`
	// Has are the images of the pod that the node has, and what that is known from; Images
	// counts all images of the node by the latter. layers: the node states them. manifest:
	// the node names the image, and an ImageManifest has its layers. name: the node names
	// it, and nothing else is known. use: pods use it there, or did, and the node does not
	// list it.
	Has    []NodeImage                 `json:"has,omitempty"`
	Images map[locality.Provenance]int `json:"images,omitempty"`
	Points locality.Points             `json:"points"`
	Why    string                      `json:"why"`
	// RuledOut is why the pod cannot run there; see the package feasible for what is looked at.
	RuledOut []string `json:"ruledOut,omitempty"`
}

const debugNote = "All nodes are rated, also those that are ruled out, of which the mean load is, too. Filters of volumes, affinity of pods and topology are not applied."

// DebugHandler answers requests with ?image=NAME (also several times),
// ?pod=NAMESPACE/NAME or ?spec=JSON, a PodSpec, optionally with &profile=SCHEDULER, with a Rating. Requests with
// ?placements=NAMESPACE/NAME get what is remembered of placing that pod, a placements.Answer;
// those with ?savings get what all placements saved, placements.Savings. Of requests with ?spec, one is answered at a time.
func (f *Factory) DebugHandler() http.Handler {
	describing := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !debugpage.Gets(w, r) {
			return
		}
		query := r.URL.Query()
		images, podName, profile := query["image"], query.Get("pod"), query.Get("profile")
		placed, spec := query.Get("placements"), query.Get("spec")
		if asked(len(images) > 0, podName != "", spec != "", placed != "", query.Has("savings")) != 1 {
			http.Error(w, "ask with one of ?image=NAME, ?pod=NAMESPACE/NAME, ?spec=JSON, ?placements=NAMESPACE/NAME and ?savings", http.StatusBadRequest)
			return
		}
		if f.profile("") == nil {
			http.Error(w, "no profile of this scheduler enables "+Name, http.StatusNotFound)
			return
		}
		if placed != "" {
			namespace, name, ok := strings.Cut(placed, "/")
			if !ok {
				http.Error(w, fmt.Sprintf("pod %q: want NAMESPACE/NAME", placed), http.StatusBadRequest)
				return
			}
			write(w, f.placements.Of(namespace, name))
			return
		}
		if query.Has("savings") {
			write(w, f.placements.Savings())
			return
		}
		if profile != "" && f.profile(profile) == nil {
			http.Error(w, fmt.Sprintf("no profile %q that enables %s", profile, Name), http.StatusNotFound)
			return
		}
		pl := f.profile(profile)

		pod := &v1.Pod{}
		for _, image := range images {
			if len(pl.profile.Names(image)) == 0 {
				http.Error(w, fmt.Sprintf("%q is not a valid image reference", image), http.StatusBadRequest)
				return
			}
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Image: image})
		}
		if podName != "" {
			namespace, name, ok := strings.Cut(podName, "/")
			if !ok {
				http.Error(w, fmt.Sprintf("pod %q: want NAMESPACE/NAME", podName), http.StatusBadRequest)
				return
			}
			var err error
			if pod, err = pl.pods.Pods(namespace).Get(name); apierrors.IsNotFound(err) {
				http.Error(w, fmt.Sprintf("no pod %s that is not finished", podName), http.StatusNotFound)
				return
			} else if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		if spec != "" {
			select {
			case describing <- struct{}{}:
				defer func() { <-describing }()
			case <-r.Context().Done():
				return // nobody waits for the answer
			case <-time.After(describedWait):
				http.Error(w, "other described pods are being rated: ask again", http.StatusTooManyRequests)
				return
			}
			if err := readSpec(spec, &pod.Spec); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		// A pod whose profile is not here is rated by the first profile.
		if own := f.profile(pod.Spec.SchedulerName); profile == "" && own != nil {
			pl = own
		}
		rating, err := pl.rate(r.Context(), pod)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		rating.Pod = podName
		if pod.Spec.NodeName != "" {
			rating.Note += fmt.Sprintf(" The pod is on %s already: what it brought there counts as arriving or present.", pod.Spec.NodeName)
		}
		rating.Profile = pl.profile.Name
		if pl.gate != nil {
			rating.Held = pl.gate.reason(pod.UID)
		}
		if pl.requirements != nil && rating.Held == "" {
			rating.Held = pl.requirements.reason(pod)
		}
		write(w, rating)
	})
}

// asked returns how many of the questions were asked.
func asked(questions ...bool) (n int) {
	for _, question := range questions {
		if question {
			n++
		}
	}
	return n
}

func write(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(answer) // the client went away
}

// Bounds of a PodSpec in a request: each node is compared with each toleration and each part of the node affinity.
const (
	maxSpec  = 64 << 10 // bytes of JSON
	maxTerms = 100
)

// describedWait is how long such a request waits for its turn.
const describedWait = 2 * time.Second

// readSpec reads a PodSpec in JSON, which is untrusted.
func readSpec(text string, into *v1.PodSpec) error {
	if len(text) > maxSpec {
		return fmt.Errorf("spec: %d bytes, want %d at most", len(text), maxSpec)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("spec: want a PodSpec in JSON: %.200s", err.Error())
	}
	terms := 0
	if a := into.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			terms += 1 + len(term.MatchExpressions) + len(term.MatchFields)
		}
	}
	for what, n := range map[string]int{"tolerations": len(into.Tolerations), "terms and requirements of node affinity": terms} {
		if n > maxTerms {
			return fmt.Errorf("spec: %d %s, want %d at most", n, what, maxTerms)
		}
	}
	for _, image := range imageref.OfPod(into) {
		if _, err := imageref.Parse(image.Name); err != nil {
			return fmt.Errorf("%q is not a valid image reference", image.Name)
		}
	}
	return nil
}

// rate rates all nodes for a pod.
func (pl *LayerLocality) rate(ctx context.Context, pod *v1.Pod) (*Rating, error) {
	images := pl.profile.Wanted(pod)
	var m index.Measurement
	pl.profile.Measure(images, &m)
	infos, balance, err := pl.loads(pod, m.MeanTotal())
	if err != nil {
		return nil, err
	}

	rating := &Rating{Note: debugNote, Images: []ImageRating{}, Nodes: []NodeRating{}}
	for i, image := range images {
		r := ImageRating{Names: image.Names, Known: m.Images[i]}
		switch {
		case image.Manifests != nil:
			r.From = "source"
		case r.Known == index.ByLayers || r.Known == index.ByName:
			r.From = "nodes"
		}
		if image.PullAlways {
			r.Pull = v1.PullAlways
		}
		rating.Images = append(rating.Images, r)
	}
	var delays locality.Delays
	for node := range m.Nodes() {
		bytes, _ := m.Node(node)
		pl.profile.AddDelay(&delays, bytes)
	}
	filter := feasible.New(klog.Background(), pod)
	for _, node := range slices.Sorted(m.Nodes()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		bytes, _ := m.Node(node)
		info := infos[node]
		if info == nil {
			continue // deleted a moment ago
		}
		load := loadOf(info)
		p := pl.profile.Points(bytes, balance.LoadPoints(load), delays)
		rating.Nodes = append(rating.Nodes, NodeRating{
			Node: node, Score: p.Score(), Points: p, LoadPercent: math.Round(100*float64(load.Percent)) / 100, WithoutRequest: float64(load.WithoutRequest),
			TotalBytes: bytes.Total, PresentBytes: bytes.Present, ArrivingBytes: bytes.Arriving,
			CrowdedBytes: bytes.Crowded, MissingBytes: bytes.Missing(), PendingBytes: bytes.Pending, JoinsDownloads: pl.profile.JoinsDownloads(info.Node()),
			Has: pl.imagesOn(node, images), Images: pl.tracker.ImagesOf(node), Why: pl.why(bytes, p),
			RuledOut: filter.RuleOut(info.Node(), used(info.GetRequested()), int64(len(info.GetPods()))),
		})
	}
	slices.SortStableFunc(rating.Nodes, func(a, b NodeRating) int { return cmp.Compare(b.Score, a.Score) })
	return rating, nil
}

// used returns what the pods of a node request.
func used(r fwk.Resource) feasible.Amounts {
	a := feasible.Amounts{v1.ResourceCPU: r.GetMilliCPU(), v1.ResourceMemory: r.GetMemory(), v1.ResourceEphemeralStorage: r.GetEphemeralStorage()}
	maps.Copy(a, r.GetScalarResources())
	return a
}

// loads returns all nodes with the pods on them, and how much load costs the pod, whose images have
// so many bytes. The pod itself does not count.
func (pl *LayerLocality) loads(pod *v1.Pod, images float64) (map[string]fwk.NodeInfo, locality.Balance, error) {
	nodes, err := debugpage.NodeInfos(pl.nodes, pl.pods, pod.UID)
	if err != nil {
		return nil, locality.Balance{}, err
	}
	infos, all := map[string]fwk.NodeInfo{}, locality.Loads{}
	for _, info := range nodes {
		infos[info.Node().Name] = info
		all.Add(loadOf(info))
	}
	return infos, all.BalanceFor(locality.RequestOf(pod), images, pl.profile.Args), nil
}

// why explains in words how a score comes about.
func (pl *LayerLocality) why(b index.NodeBytes, p locality.Points) string {
	if b.Total == 0 {
		return "nothing is known about the images, or nothing has to be pulled for them"
	}
	reasons := []string{fmt.Sprintf("%s of %s present", megabytes(b.Present), megabytes(b.Total))}
	if b.Arriving > 0 {
		reasons = append(reasons, megabytes(b.Arriving)+" arriving for other pods")
	}
	if b.Crowded > 0 {
		reasons = append(reasons, fmt.Sprintf("%s arriving, for which %d pods wait already (maxWaitingPods)", megabytes(b.Crowded), pl.profile.Args.MaxWaitingPods))
	}
	if b.Total < pl.profile.Args.MinImageBytes {
		reasons = append(reasons, fmt.Sprintf("less than %s (minImageBytes), so it counts in proportion", megabytes(pl.profile.Args.MinImageBytes)))
	}
	if p.Link < 0 {
		reasons = append(reasons, megabytes(b.Pending)+" to pull first")
	}
	if p.Load < 0 {
		reasons = append(reasons, fmt.Sprintf("busier than the mean: %.1f points", -p.Load))
	}
	return strings.Join(reasons, "; ")
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

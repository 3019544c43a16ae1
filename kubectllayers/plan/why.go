package plan

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/scheduler/placements"
	"github.com/layer-locality/layer-locality/terminal"
)

// Why is why a pod is on its node, as far as layers are concerned: from what the scheduler
// remembers of that decision, and from what the kubelet did. Sizes are compressed bytes.
type Why struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// Node is empty if the pod has none.
	Node      string `json:"node"`
	Scheduler string `json:"scheduler"`
	// Ended is how the pod ended, Succeeded or Failed; missing if it did not.
	Ended string `json:"ended,omitempty"`
	// Decision is what the scheduler remembers; missing if it does not. Then Now is how nodes
	// are rated at this moment.
	Decision *placements.Placement `json:"decision,omitempty"`
	Now      *Now                  `json:"now,omitempty"`
	// Forgotten is why there is no Decision.
	Forgotten string `json:"forgotten,omitempty"`
	Pulls     []Pull `json:"pulls"`
	// SavedBytes is what the mean node lacked, less what the chosen one did; missing if that is
	// not known.
	SavedBytes *float64 `json:"savedBytes,omitempty"`
	// Words are all this in sentences.
	Words []string `json:"words"`
}

// Now is how nodes are rated for a pod that is on one of them already.
type Now struct {
	// PulledBytes is an estimate of what the pod pulled: of the images of which its kubelet has an
	// event, the layers that no other image on the node has, each once. Missing if there is no event,
	// or if the node does not name one of them.
	PulledBytes *int64 `json:"pulledBytes,omitempty"`
	// Best is another node that the pod fits on that lacks least, and MeanMissingBytes what those
	// lack on average.
	Best             *Node   `json:"best,omitempty"`
	OtherNodes       int     `json:"otherNodes"`
	MeanMissingBytes float64 `json:"meanMissingBytes"`
}

// Pull is what an event of the kubelet has about an image.
type Pull struct {
	Image string `json:"image"`
	// Present means that the image was there.
	Present bool `json:"present"`
	// Seconds the pull took, and with what it waited for other pulls.
	Seconds            float64   `json:"seconds"`
	SecondsWithWaiting float64   `json:"secondsWithWaiting"`
	At                 time.Time `json:"at,omitzero"`
}

// The messages of the kubelet (pkg/kubelet/images/image_manager.go of Kubernetes).
var (
	pulled  = regexp.MustCompile(`^Successfully pulled image "([^"]+)" in ([0-9a-zµ.]{1,32})(?: \(([0-9a-zµ.]{1,32}) including waiting\))?`)
	present = regexp.MustCompile(`^Container image "([^"]+)" already present on machine`)
)

// maxMessage is more than such a message has; maxEvents is how many events of a pod are read, in
// lists of eventsChunk: its kubelet counts an event that it repeats, so it has a few.
const (
	maxMessage  = 4096
	eventsChunk = 500
	maxEvents   = 4 * eventsChunk
)

// ParsePull reads an event's message; ok is false if it is not about a pull.
func ParsePull(message string) (pull Pull, ok bool) {
	if len(message) > maxMessage {
		message = message[:maxMessage]
	}
	if m := present.FindStringSubmatch(message); m != nil {
		return Pull{Image: terminal.Line(m[1], 300), Present: true}, true
	}
	m := pulled.FindStringSubmatch(message)
	if m == nil {
		return Pull{}, false
	}
	took, err := time.ParseDuration(m[2])
	if err != nil || took < 0 {
		return Pull{}, false
	}
	pull = Pull{Image: terminal.Line(m[1], 300), Seconds: took.Seconds(), SecondsWithWaiting: took.Seconds()}
	if waited, err := time.ParseDuration(m[3]); err == nil && waited >= took {
		pull.SecondsWithWaiting = waited.Seconds()
	}
	return pull, true
}

// Pulls returns what the events of the kubelet have about the images of a pod, in the order of time. An image
// that was pulled is not also present, as for a container that started again. all is
// false if the pod has more events than are read.
func Pulls(ctx context.Context, client kubernetes.Interface, pod *v1.Pod) (pulls []Pull, all bool, err error) {
	pulls = []Pull{}
	options := metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(pod.UID), "involvedObject.kind": "Pod", "reason": "Pulled"}.String(), Limit: eventsChunk,
	}
	var events []v1.Event
	for {
		list, err := client.CoreV1().Events(pod.Namespace).List(ctx, options)
		if err != nil {
			return pulls, false, err
		}
		events = append(events, list.Items...)
		if options.Continue = list.Continue; options.Continue == "" || len(events) >= maxEvents {
			break
		}
	}
	slices.SortStableFunc(events, func(a, b v1.Event) int { return timeOf(&a).Compare(timeOf(&b)) })
	for i := range events {
		pull, ok := ParsePull(events[i].Message)
		if !ok || slices.ContainsFunc(pulls, func(p Pull) bool { return p.Image == pull.Image && (pull.Present || !p.Present) }) {
			continue
		}
		pull.At = timeOf(&events[i])
		pulls = append(pulls, pull)
	}
	return pulls, options.Continue == "", nil
}

func timeOf(e *v1.Event) time.Time {
	if !e.EventTime.IsZero() {
		return e.EventTime.Time
	}
	return e.FirstTimestamp.Time
}

// Remembered makes an answer of what the scheduler remembers.
func Remembered(pod *v1.Pod, decision placements.Placement, pulls []Pull) *Why {
	clean(&decision)
	a := newWhy(pod, pulls)
	a.Decision = &decision
	chosen := decision.Chosen
	if chosen.TotalBytes == 0 {
		a.addf("Nothing was known about its images (%s).", orUnknown(decision.Known))
	} else {
		a.addf("When it was placed, %s had %s of its %s, %s on their way, and lacked %s; score %d of 100.", chosen.Node,
			output.Bytes(float64(chosen.PresentBytes)), output.Bytes(float64(chosen.TotalBytes)), output.Bytes(float64(chosen.ArrivingBytes)), output.Bytes(float64(chosen.MissingBytes)), chosen.Score)
	}
	if decision.HeldMilliseconds > 0 {
		a.addf("Before, it was held %s for the layers of its images.", output.Seconds(float64(decision.HeldMilliseconds)/1000))
	}
	switch mean := decision.Mean; {
	case mean == nil && decision.FeasibleNodes == 1:
		a.addf("kube-scheduler chose from this node alone: no other fitted, or it was tried first, because it was nominated or opportunistic batching named it.")
	case mean == nil:
		a.addf("Layers were not asked about: no image of the pod has a valid name, or it was placed with others in one step.")
	default:
		saved := mean.MissingBytes - float64(chosen.MissingBytes)
		a.SavedBytes = &saved
		a.addf("The mean of the %s that it fitted on lacked %s: %s.", output.Count(int(decision.FeasibleNodes), "node"), output.Bytes(mean.MissingBytes), savedWords(saved))
	}
	switch best := decision.Best; {
	case best == nil && decision.Mean != nil && chosen.TotalBytes > 0:
		a.addf("No node scored more than 0, so other plugins chose.")
	case best != nil && best.Node != chosen.Node:
		a.addf("Other plugins overruled layers: %s scored %d against %d, and lacked %s.", best.Node, best.Score, chosen.Score, output.Bytes(float64(best.MissingBytes)))
	case best != nil:
		a.addf("No other node scored more.")
	}
	if decision.Known == "unknown" || decision.Known == "arriving" {
		a.addf("Not all of its images were known (%s): bytes are those of the others.", decision.Known)
	}
	a.addPulls()
	return a
}

func orUnknown(k placements.Known) string {
	if k == "" {
		return "unknown"
	}
	return string(k)
}

func savedWords(saved float64) string {
	if saved >= 0 {
		return output.Bytes(saved) + " saved"
	}
	return output.Bytes(-saved) + " more than the mean"
}

// clean cleans the texts of what a scheduler answered.
func clean(p *placements.Placement) {
	line := func(s *string) { *s = terminal.Line(*s, 253) }
	line(&p.Namespace)
	line(&p.Name)
	line(&p.Profile)
	line(&p.Chosen.Node)
	p.Known = placements.Known(terminal.Line(string(p.Known), 20))
	if p.Best != nil {
		best := *p.Best
		line(&best.Node)
		p.Best = &best
	}
}

// Rated makes an answer of how nodes are rated now. forgotten is why the scheduler does not
// remember.
func Rated(ctx context.Context, cluster *collect.Cluster, pod *v1.Pod, pulls []Pull, forgotten string) (*Why, error) {
	a := newWhy(pod, pulls)
	a.Forgotten = forgotten
	rated := pod.DeepCopy()
	rated.Spec.NodeName = "" // the filters find where else it fits
	p, err := Of(ctx, cluster, &collect.Target{Kind: "pod", Namespace: pod.Namespace, Name: pod.Name, Pod: rated})
	if err != nil {
		return nil, err
	}
	known, err := inventory.New(ctx, cluster)
	if err != nil {
		return nil, err
	}
	now := &Now{PulledBytes: pulledBytes(known, pod, pulls)}
	a.Now = now
	var sum float64
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if len(n.RuledOut) > 0 || n.Node == pod.Spec.NodeName {
			continue
		}
		if now.Best == nil {
			now.Best = n
		}
		now.OtherNodes++
		sum += float64(n.MissingBytes)
	}
	now.MeanMissingBytes = sum / float64(max(1, now.OtherNodes))
	a.addf("%s What follows is as of now, not as of then.", forgotten)
	if now.PulledBytes != nil {
		a.addf("It pulled about %s: of the images that were pulled, the layers that no other image on %s has.", output.Bytes(float64(*now.PulledBytes)), a.Node)
	}
	if now.Best == nil {
		a.addf("It fits on no other node.")
	} else {
		a.addf("Of %s that it fits on, %s lacks least, %s; the mean lacks %s.", output.Count(now.OtherNodes, "other node"), now.Best.Node, output.Bytes(float64(now.Best.MissingBytes)), output.Bytes(now.MeanMissingBytes))
		if now.PulledBytes != nil {
			saved := float64(*now.PulledBytes - now.Best.MissingBytes)
			if saved > 0 {
				a.addf("There it would have saved %s.", output.Bytes(saved))
			} else {
				a.addf("There it would have saved nothing.")
			}
		}
	}
	a.addPulls()
	return a, nil
}

// pulledBytes returns what a pod pulled, by events and by what the node has now;
// nil if there is no event, or if an image is gone or not reported yet.
func pulledBytes(known *inventory.Inventory, pod *v1.Pod, pulls []Pull) *int64 {
	if len(pulls) == 0 {
		return nil
	}
	var images []string
	for _, pull := range pulls {
		if !pull.Present {
			images = append(images, pull.Image)
		}
	}
	bytes, ok := known.Freed(pod.Spec.NodeName, images)
	if !ok {
		return nil
	}
	return &bytes
}

// Ended returns how a pod ended, empty if it did not.
func Ended(pod *v1.Pod) string {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return string(pod.Status.Phase)
	}
	return ""
}

func newWhy(pod *v1.Pod, pulls []Pull) *Why {
	a := &Why{
		Namespace: pod.Namespace, Pod: pod.Name, Node: terminal.Line(pod.Spec.NodeName, 253), Scheduler: terminal.Line(pod.Spec.SchedulerName, 253),
		Ended: Ended(pod), Pulls: pulls, Words: []string{},
	}
	switch {
	case a.Node == "":
		a.addf("Pod %s/%s %s.", a.Namespace, a.Pod, noNode(pod))
	case a.Ended != "":
		a.addf("Pod %s/%s was on %s, placed by %s, and has ended (%s).", a.Namespace, a.Pod, a.Node, a.Scheduler, a.Ended)
	default:
		a.addf("Pod %s/%s is on %s, placed by %s.", a.Namespace, a.Pod, a.Node, a.Scheduler)
	}
	return a
}

func (a *Why) addf(format string, args ...any) {
	a.Words = append(a.Words, fmt.Sprintf(format, args...))
}

func (a *Why) addPulls() {
	if len(a.Pulls) == 0 {
		a.addf("No event states what its kubelet pulled (events are kept for an hour by default).")
		return
	}
	for _, p := range a.Pulls {
		if p.Present {
			a.addf("Its kubelet found %s there.", p.Image)
			continue
		}
		waited := ""
		if p.SecondsWithWaiting > p.Seconds {
			waited = fmt.Sprintf(", %s with waiting for other pulls", output.Seconds(p.SecondsWithWaiting))
		}
		a.addf("Its kubelet pulled %s in %s%s.", p.Image, output.Seconds(p.Seconds), waited)
	}
}

// Forgotten makes an answer of a pod of which nothing is remembered while nodes cannot be rated.
func Forgotten(pod *v1.Pod, pulls []Pull, forgotten string) *Why {
	a := newWhy(pod, pulls)
	a.Forgotten = forgotten
	a.addf("%s", forgotten)
	a.addPulls()
	return a
}

// Unplaced makes an answer of a pod that has no node.
func Unplaced(pod *v1.Pod) *Why { return newWhy(pod, []Pull{}) }

// ErrUnplaced is the error of a question about a pod that has no node.
func ErrUnplaced(pod *v1.Pod) error {
	return fmt.Errorf("pod %s/%s %s", pod.Namespace, pod.Name, noNode(pod))
}

// noNode states that a pod has no node, and what helps.
func noNode(pod *v1.Pod) string {
	if ended := Ended(pod); ended != "" {
		return fmt.Sprintf("has ended (%s) and never had a node: kubectl layers plan pod/%s shows what nodes have for one like it", ended, pod.Name)
	}
	reason := ""
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Message != "" {
			reason = " (" + terminal.Line(strings.TrimSuffix(c.Message, "."), 200) + ")"
		}
	}
	return fmt.Sprintf("has no node yet%s: kubectl layers plan pod/%s shows what nodes have for it", reason, pod.Name)
}

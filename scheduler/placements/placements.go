// Package placements has where pods were placed and why, as far as layers are concerned: the
// state of a scheduler when it decided is not in the cluster afterwards. It has the ring that
// the plugin writes into, and the answers that the debug endpoint gives. Readers import it, too:
// it does not depend on kube-scheduler.
package placements

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"k8s.io/apimachinery/pkg/types"
)

// Weights are what a node had of a pod's images when the pod was placed, in compressed bytes,
// and what the plugin made of it.
type Weights struct {
	Node string `json:"node"`
	// Score is that of the plugin LayerLocality, 0 to 100.
	Score int64 `json:"score"`
	// TotalBytes is the size of the union of the layers of the pod's images that were known.
	TotalBytes   int64 `json:"totalBytes"`
	PresentBytes int64 `json:"presentBytes"`
	// ArrivingBytes were on their way because of other pods, also those for which enough pods
	// waited already.
	ArrivingBytes int64 `json:"arrivingBytes"`
	MissingBytes  int64 `json:"missingBytes"`
	// PendingBytes is what the link of the node still had to pull, for any pod.
	PendingBytes int64 `json:"pendingBytes"`
}

// Mean is what the feasible nodes had on average.
type Mean struct {
	Score        float64 `json:"score"`
	MissingBytes float64 `json:"missingBytes"`
}

// Known is the least that was known about any image of a pod. Its values are those of
// index.Known.
type Known string

// Placement is a pod that was placed.
type Placement struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Profile   string    `json:"profile"`
	// Time is when the node was chosen.
	Time time.Time `json:"time"`
	// HeldMilliseconds is how long the pod was kept out of the scheduling queue
	// (waitForManifest).
	HeldMilliseconds int64 `json:"heldMilliseconds,omitempty"`
	Known            Known `json:"known,omitempty"`
	// FeasibleNodes is from how many nodes the scheduler chose: 1 also if it tried that one first and
	// looked at no other, as with a node that is nominated or that opportunistic batching names. 0 if
	// the plugin was not asked.
	FeasibleNodes int32   `json:"feasibleNodes"`
	Chosen        Weights `json:"chosen"`
	// Best is the feasible node with the highest score, the chosen one if that has it too;
	// missing if no node scored more than 0.
	Best *Weights `json:"best,omitempty"`
	// Mean is missing if the scheduler did not choose from several nodes.
	Mean *Mean `json:"mean,omitempty"`
}

// Answer is the answer of the debug endpoint about the placements of a pod.
type Answer struct {
	// Since is when the memory begins: when this scheduler started, or when it placed the
	// oldest pod that it remembers.
	Since time.Time `json:"since"`
	// Remembered is how many placements there are, of all pods.
	Remembered int `json:"remembered"`
	// Placements of the pod, the newest first.
	Placements []Placement `json:"placements"`
}

// Saved is what the placements of a profile saved, in compressed bytes of images whose layers
// were known. Pods for which the scheduler chose from one node do not count.
type Saved struct {
	Profile string `json:"profile"`
	Pods    int64  `json:"pods"`
	// MissingBytes is what the chosen nodes lacked, MeanMissingBytes what the feasible nodes
	// lacked on average: what pods placed anywhere they fit would have pulled.
	MissingBytes     int64   `json:"missingBytes"`
	MeanMissingBytes float64 `json:"meanMissingBytes"`
}

// Savings is the answer of the debug endpoint about all placements since the scheduler started.
type Savings struct {
	Since    time.Time `json:"since"`
	Profiles []Saved   `json:"profiles"`
}

// Most and MaxBytes are what a Memory keeps at most.
const (
	Most     = 10_000
	MaxBytes = 4 << 20
)

// record is a Placement in less memory: texts are those of the pod and the node, numbers are
// no larger than needed.
type record struct {
	namespace, name    string
	uid                types.UID
	kind               *kind
	node, best         string
	time               int64 // Unix, in nanoseconds
	chosen, ofBest     bytes
	meanMissing        float64
	meanScore          float32
	gated              int32 // milliseconds
	feasible           int32
	score, bestScore   uint8
	hasBest, undone, _ bool
}

// kind is what many placements have in common.
type kind struct {
	profile string
	known   Known
}

type bytes struct{ total, present, arriving, missing, pending int64 }

// texts is what the texts of a record take if nothing else has them any longer. The best node
// mostly is the chosen one, whose text it has.
func (r *record) texts() int {
	sum := taken(r.namespace) + taken(r.name) + taken(string(r.uid)) + taken(r.node)
	if r.best != r.node {
		sum += taken(r.best)
	}
	return sum
}

// taken is what a text takes at most. Go allocates up to 256 bytes in multiples of 8 or 16, and
// texts here have at most 253.
func taken(text string) int { return (len(text) + 15) / 16 * 16 }

// maxTexts is what the ring leaves to texts, besides a little for the rest of a Memory; maxText is
// that of one record.
const (
	maxTexts = MaxBytes - Most*int(unsafe.Sizeof(record{})) - 32<<10
	maxText  = 3*256 + 64 + 48
)

// Memory has the last placements of a scheduler. It is safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	start time.Time
	// ring has the records; the next one is written at next. It is allocated with the first.
	ring        []record
	next, count int
	texts       int
	kinds       map[kind]*kind
	saved       map[string]*Saved
}

// New returns an empty Memory of a scheduler that starts now.
func New(now time.Time) *Memory {
	return &Memory{start: now, kinds: map[kind]*kind{}, saved: map[string]*Saved{}}
}

// Add remembers a placement, and forgets the oldest ones that there is no room for. A nil Memory
// remembers nothing.
func (m *Memory) Add(p Placement) {
	if m == nil {
		return
	}
	r := record{
		namespace: p.Namespace, name: p.Name, uid: p.UID, time: p.Time.UnixNano(),
		node: p.Chosen.Node, chosen: p.Chosen.bytes(), score: uint8(p.Chosen.Score), //nolint:gosec // at most 100
		gated: int32(min(p.HeldMilliseconds, 1<<31-1)), feasible: p.FeasibleNodes, //nolint:gosec // bounded
	}
	if p.Best != nil {
		r.hasBest, r.best, r.ofBest, r.bestScore = true, p.Best.Node, p.Best.bytes(), uint8(p.Best.Score) //nolint:gosec // at most 100
		if r.best == r.node {
			r.best = r.node // and not the same text a second time
		}
	}
	if p.Mean != nil {
		r.meanMissing, r.meanScore = p.Mean.MissingBytes, float32(p.Mean.Score)
	} else {
		r.meanMissing = -1
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.kind = m.kindLocked(kind{p.Profile, p.Known})
	if p.Mean != nil {
		s := m.saved[p.Profile]
		if s == nil {
			s = &Saved{Profile: p.Profile}
			m.saved[p.Profile] = s
		}
		s.Pods++
		s.MissingBytes += p.Chosen.MissingBytes
		s.MeanMissingBytes += p.Mean.MissingBytes
	}
	if m.ring == nil {
		m.ring = make([]record, Most)
	}
	for m.count == Most || m.count > 0 && m.texts+r.texts() > maxTexts {
		m.forgetLocked()
	}
	m.ring[m.next] = r
	m.next = (m.next + 1) % Most
	m.count++
	m.texts += r.texts()
}

// kindLocked returns the one copy of a kind.
func (m *Memory) kindLocked(k kind) *kind {
	known := m.kinds[k]
	if known == nil {
		known = &kind{k.profile, k.known}
		m.kinds[k] = known
	}
	return known
}

func (w *Weights) bytes() bytes {
	return bytes{w.TotalBytes, w.PresentBytes, w.ArrivingBytes, w.MissingBytes, w.PendingBytes}
}

func (b bytes) weights(node string, score uint8) Weights {
	return Weights{Node: node, Score: int64(score), TotalBytes: b.total, PresentBytes: b.present, ArrivingBytes: b.arriving, MissingBytes: b.missing, PendingBytes: b.pending}
}

// forgetLocked drops the oldest record.
func (m *Memory) forgetLocked() {
	oldest := &m.ring[(m.next-m.count+Most)%Most]
	m.texts -= oldest.texts()
	*oldest = record{}
	m.count--
}

// Undo notes that a pod was not bound to its node after all.
func (m *Memory) Undo(pod types.UID) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.newestLocked {
		if r.uid == pod {
			r.undone = true
			return
		}
	}
}

// newestLocked yields the records, the newest first.
func (m *Memory) newestLocked(yield func(*record) bool) {
	for i := range m.count {
		if !yield(&m.ring[(m.next-1-i+2*Most)%Most]) {
			return
		}
	}
}

// Of returns what is remembered of the pods of a name, the newest placement first. A pod that
// was not bound is left out.
func (m *Memory) Of(namespace, name string) Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	answer := Answer{Since: m.start, Remembered: m.count, Placements: []Placement{}}
	// A Memory with less room than one more placement may take may have forgotten some.
	if m.count > 0 && (m.count == Most || m.texts > maxTexts-maxText) {
		answer.Since = time.Unix(0, m.ring[(m.next-m.count+Most)%Most].time)
	}
	for r := range m.newestLocked {
		if r.name == name && r.namespace == namespace && !r.undone {
			answer.Placements = append(answer.Placements, r.placement())
		}
	}
	return answer
}

func (r *record) placement() Placement {
	p := Placement{
		Namespace: r.namespace, Name: r.name, UID: r.uid, Profile: r.kind.profile, Time: time.Unix(0, r.time), Known: r.kind.known,
		HeldMilliseconds: int64(r.gated), FeasibleNodes: r.feasible, Chosen: r.chosen.weights(r.node, r.score),
	}
	if r.hasBest {
		best := r.ofBest.weights(r.best, r.bestScore)
		p.Best = &best
	}
	if r.meanMissing >= 0 {
		p.Mean = &Mean{float64(r.meanScore), r.meanMissing}
	}
	return p
}

// Savings returns what was saved since the scheduler started, by profile. Pods that were not
// bound count, as in the metric.
func (m *Memory) Savings() Savings {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Savings{Since: m.start, Profiles: []Saved{}}
	for _, saved := range slices.SortedFunc(maps.Values(m.saved), func(a, b *Saved) int { return strings.Compare(a.Profile, b.Profile) }) {
		s.Profiles = append(s.Profiles, *saved)
	}
	return s
}

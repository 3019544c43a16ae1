// Package handler answers the requests of kube-scheduler's HTTP extender protocol
// (k8s.io/kube-scheduler/extender/v1).
package handler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/metrics"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
)

// Prefix begins the paths of verbs: it is the path of an extender's urlPrefix.
const Prefix = "/scheduler/"

// The verbs, as paths have them.
const (
	Priorities = "priorities"
	Predicates = "predicates"
	Preempt    = "preempt"
)

var verbs = []string{Priorities, Predicates, Preempt}

// serves reports whether an agent has a verb.
func serves(a *agent.Agent, verb string) bool {
	switch verb {
	case Priorities:
		return a.Scores()
	case Predicates, Preempt:
		return a.Filters()
	}
	return false
}

const (
	// MaxBody is how many bytes a request may have.
	MaxBody = 4 << 20
	// DefaultMaxScore is the best score of the protocol.
	DefaultMaxScore = 10
	// LimitMaxScore is the largest best score that makes sense: agents score from 0 to 100.
	LimitMaxScore = 100
)

const (
	// maxWaiting is how many bytes of requests are in memory at once: what was read of those
	// that are not answered yet. A scheduler has one request at a time, of 150 kB with 5,000
	// names. It counts bytes, not requests, so that slow clients keep nobody out.
	maxWaiting = 32 << 20
	// maxWorking is how many requests are decoded at once, and wait for their agent.
	maxWorking = 4
	// maxObjects is how many objects and lists the JSON of a request may have: as structs,
	// those that are empty take hundreds of times their text. 4 MiB of Nodes have 40,000.
	maxObjects = 100_000
)

// clientGone is how a request is counted whose client went away before the answer.
const clientGone = 499

// Handler answers verbs of agents.
type Handler struct {
	logger   klog.Logger
	agents   map[string]*agent.Agent // by all names
	broken   map[string]error        // why agents do not run, by all names
	names    []string                // "priorities/layers", ...
	maxScore int64
	warned   sync.Map // names of agents that were asked with whole Nodes
	waiting  atomic.Int64
	working  chan struct{}
}

// New returns a Handler for the paths below Prefix. broken has why agents do not run, by all of their
// names. maxScore is the answer for a score of 100, from 1 to LimitMaxScore.
func New(logger klog.Logger, agents []*agent.Agent, broken map[string]error, maxScore int64) (*Handler, error) {
	if maxScore < 1 || maxScore > LimitMaxScore {
		return nil, fmt.Errorf("the best score %d: want 1 to %d", maxScore, LimitMaxScore)
	}
	h := &Handler{logger: logger, agents: map[string]*agent.Agent{}, broken: broken, maxScore: maxScore, working: make(chan struct{}, maxWorking)}
	for _, a := range agents {
		for _, verb := range verbs {
			if !serves(a, verb) {
				continue
			}
			metrics.Requests.WithLabelValues(a.Name, verb, strconv.Itoa(http.StatusOK)) // begin at 0
			for _, name := range a.Names() {
				h.names = append(h.names, verb+"/"+name)
			}
		}
		for _, name := range a.Names() {
			h.agents[name] = a
		}
	}
	slices.Sort(h.names)
	return h, nil
}

// Round returns the score of the protocol for an agent's score from 0 to 100: half a step
// is rounded up.
func Round(score, maxScore int64) int64 {
	return (score*maxScore + fwk.MaxScore/2) / fwk.MaxScore
}

// RoundDown is Round for agents whose scores are rounded down.
func RoundDown(score, maxScore int64) int64 { return score * maxScore / fwk.MaxScore }

// problem is an answer that is not 200.
type problem struct {
	code int
	text string
}

func (p *problem) Error() string { return p.text }

func bad(format string, args ...any) *problem {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// unknown is the label of a request whose agent or verb there is not. Who asks must not be
// able to make up labels.
const unknown = "unknown"

// Refused counts a request that no agent answers.
func (h *Handler) Refused(r *http.Request, code int) {
	verb, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, Prefix), "/")
	if a := h.agents[name]; a != nil {
		name = a.Name
	} else if h.broken[name] == nil { // it is one of ours, by any of its names
		name = unknown
	}
	if !slices.Contains(verbs, verb) {
		verb = unknown
	}
	metrics.Requests.WithLabelValues(name, verb, strconv.Itoa(code)).Inc()
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, Prefix), "/")
	a := h.agents[name]
	if err := h.broken[name]; err != nil {
		http.Error(w, "the agent does not run: "+err.Error(), http.StatusServiceUnavailable)
		h.Refused(r, http.StatusServiceUnavailable)
		return
	}
	if a == nil || !serves(a, verb) {
		http.Error(w, "no such verb; there are: "+strings.Join(h.names, ", "), http.StatusNotFound)
		h.Refused(r, http.StatusNotFound)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		h.Refused(r, http.StatusMethodNotAllowed)
		return
	}
	began := time.Now()
	answer, err := h.answer(w, r, a, verb, &began)
	code := http.StatusOK
	var p *problem
	switch {
	case errors.As(err, &p):
		code = p.code
		http.Error(w, p.text, code)
	case r.Context().Err() != nil: // nobody reads an answer
		code = clientGone
	case err == nil:
		// With its length, so that a client that reads to the end of the JSON value, and no
		// further, can use the connection again.
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer) // the client went away
	default:
		code = http.StatusInternalServerError
		h.logger.Error(err, "An agent failed", "agent", a.Name, "verb", verb)
		http.Error(w, fmt.Sprintf("agent %s: %v", a.Name, err), code)
	}
	metrics.Requests.WithLabelValues(a.Name, verb, strconv.Itoa(code)).Inc()
	if code == http.StatusOK {
		metrics.Seconds.WithLabelValues(a.Name, verb).Observe(time.Since(began).Seconds())
	}
}

// answer returns the body of an answer. began is set when the request has been read.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, a *agent.Agent, verb string, began *time.Time) (answer []byte, err error) {
	defer func() {
		if value := recover(); value != nil {
			metrics.Panics.WithLabelValues(a.Name).Inc()
			h.logger.Error(fmt.Errorf("panic: %v", value), "An agent panicked", "agent", a.Name, "verb", verb, "stack", string(debug.Stack()))
			answer, err = nil, &problem{http.StatusInternalServerError, fmt.Sprintf("agent %s panicked: its log has more", a.Name)}
		}
	}()
	if !a.HasSynced() {
		return nil, &problem{http.StatusServiceUnavailable, "not all nodes and pods are known yet"}
	}
	// Read as a whole before anything is locked: a slow client keeps nobody waiting.
	body, release, err := h.read(w, r)
	defer release()
	if err != nil {
		return nil, err
	}
	select {
	case h.working <- struct{}{}:
		defer func() { <-h.working }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	*began = time.Now()
	if objects := bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("[")); objects > maxObjects {
		return nil, &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has %d objects and lists, more than %d: set nodeCacheCapable: true for this extender, so that kube-scheduler sends names and not whole objects", objects, maxObjects)}
	}
	logger := h.logger.WithValues("agent", a.Name, "verb", verb)
	if verb == Preempt {
		return h.preempt(klog.NewContext(r.Context(), logger), a, body)
	}
	args, names, err := decode(body)
	if err != nil {
		return nil, err
	}
	if args.NodeNames == nil {
		h.warn(a, verb)
	}
	ctx := klog.NewContext(r.Context(), logger.WithValues("pod", klog.KObj(args.Pod)))
	if verb == Predicates {
		return h.filter(ctx, a, args, names)
	}
	return h.prioritize(ctx, a, args.Pod, names)
}

// read reads the body of a request, which counts as waiting until release is called.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	size := min(max(r.ContentLength, 0), 256<<10) // what is claimed, within reason
	var counted int64
	release = func() { h.waiting.Add(-counted) }
	reader := http.MaxBytesReader(w, r.Body, MaxBody)
	for {
		if len(body) == cap(body) {
			body = slices.Grow(body, max(512, len(body), int(size)+1))
			more := int64(cap(body)) - counted
			counted += more
			if h.waiting.Add(more) > maxWaiting {
				return nil, release, &problem{http.StatusServiceUnavailable, "too many large requests at once"}
			}
		}
		n, err := reader.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var large *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			return body, release, nil
		case errors.As(err, &large):
			return nil, release, &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes: set nodeCacheCapable: true for this extender, so that kube-scheduler sends names and not whole objects", MaxBody)}
		case err != nil:
			return nil, release, bad("the request ends early: %v", err)
		}
	}
}

// decode reads a request, and returns the names of the nodes, each once.
func decode(body []byte) (*extenderv1.ExtenderArgs, []string, error) {
	args := &extenderv1.ExtenderArgs{}
	if err := json.Unmarshal(body, args); err != nil {
		return nil, nil, bad("the request is no ExtenderArgs in JSON: %v", err)
	}
	if args.Pod == nil {
		return nil, nil, bad("the request has no Pod")
	}
	var names []string
	switch {
	case args.NodeNames != nil:
		names = *args.NodeNames
	case args.Nodes != nil:
		for i := range args.Nodes.Items {
			names = append(names, args.Nodes.Items[i].Name)
		}
	default:
		return nil, nil, bad("the request has neither NodeNames nor Nodes")
	}
	return args, once(names), nil
}

// once returns the names without those that come again.
func once(names []string) []string {
	seen := make(map[string]struct{}, len(names))
	unique := names[:0:0]
	for i, name := range names {
		before := len(seen)
		seen[name] = struct{}{}
		switch {
		case len(seen) == before && unique == nil:
			unique = slices.Clone(names[:i])
		case len(seen) > before && unique != nil:
			unique = append(unique, name)
		}
	}
	if unique == nil {
		return names
	}
	return unique
}

// warn notes that whole Nodes were sent.
func (h *Handler) warn(a *agent.Agent, verb string) {
	metrics.WithNodes.WithLabelValues(a.Name, verb).Inc()
	if _, again := h.warned.LoadOrStore(a.Name, true); !again {
		h.logger.Info("kube-scheduler sends whole Nodes with each pod, which layer-extender ignores: set nodeCacheCapable: true for this extender", "agent", a.Name, "verb", verb)
	}
}

func (h *Handler) prioritize(ctx context.Context, a *agent.Agent, pod *v1.Pod, names []string) ([]byte, error) {
	scores, err := a.Score(ctx, pod, names)
	if err != nil {
		return nil, err
	}
	for i, score := range scores.Of {
		scores.Of[i] = a.Round(score)
	}
	// Of equal nodes, chance would decide. One step more for the node on which the pod is
	// expected, so that the layers it brings are expected where it goes: the pods behind it
	// come before its binding shows.
	if scores.Tied && scores.Of[scores.Best] < h.maxScore {
		scores.Of[scores.Best]++
	}
	decisions.LogScores(klog.FromContext(ctx), len(names), func(i int) (string, int64) { return names[i], scores.Of[i] })
	list := make(extenderv1.HostPriorityList, len(names))
	for i, name := range names {
		list[i] = extenderv1.HostPriority{Host: name, Score: scores.Of[i]}
	}
	return json.Marshal(list)
}

func (h *Handler) filter(ctx context.Context, a *agent.Agent, args *extenderv1.ExtenderArgs, names []string) ([]byte, error) {
	rejections, err := a.Filter(ctx, args.Pod, names)
	if err != nil {
		return nil, err
	}
	logRejections(klog.FromContext(ctx), "Refused nodes", "Filtered nodes", names, rejections)
	result := extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{}}
	passes := []string{}
	for i, name := range names {
		switch rejection := rejections[i]; {
		case rejection.Reason == "":
			passes = append(passes, name)
		case rejection.Unresolvable: // no preemption there
			result.FailedAndUnresolvableNodes[name] = rejection.Reason
		default:
			result.FailedNodes[name] = rejection.Reason
		}
	}
	if args.NodeNames != nil {
		result.NodeNames = &passes
		return json.Marshal(result)
	}
	result.Nodes = &v1.NodeList{Items: []v1.Node{}}
	passing := sets.New(passes...)
	for _, node := range args.Nodes.Items {
		if passing.Has(node.Name) {
			result.Nodes.Items = append(result.Nodes.Items, node)
		}
	}
	return json.Marshal(result)
}

// preempt returns the candidates of a scheduler that would remove victims, without the nodes that the
// agent's filter refuses although they have left: there, they would leave in vain.
func (h *Handler) preempt(ctx context.Context, a *agent.Agent, body []byte) ([]byte, error) {
	var args extenderv1.ExtenderPreemptionArgs
	if err := json.Unmarshal(body, &args); err != nil {
		return nil, bad("the request is no ExtenderPreemptionArgs in JSON: %v", err)
	}
	if args.Pod == nil {
		return nil, bad("the request has no Pod")
	}
	candidates := args.NodeNameToMetaVictims
	if candidates == nil {
		if args.NodeNameToVictims == nil {
			return nil, bad("the request has neither NodeNameToMetaVictims nor NodeNameToVictims")
		}
		h.warn(a, Preempt)
		candidates = metaVictims(args.NodeNameToVictims)
	}
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(args.Pod))
	ctx = klog.NewContext(ctx, logger)
	names := slices.Sorted(maps.Keys(candidates))
	victims := make([]sets.Set[types.UID], len(names))
	for i, name := range names {
		victims[i] = sets.New[types.UID]()
		if candidates[name] == nil {
			continue
		}
		for _, pod := range candidates[name].Pods {
			if pod != nil {
				victims[i].Insert(types.UID(pod.UID))
			}
		}
	}
	rejections, err := a.FilterWithout(ctx, args.Pod, names, victims)
	if err != nil {
		return nil, err
	}
	logRejections(logger, "Refused nodes for preemption: removing the victims would not help", "Filtered nodes for preemption", names, rejections)
	for i, name := range names {
		if rejections[i].Reason != "" {
			delete(candidates, name)
		}
	}
	return json.Marshal(extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: candidates})
}

// logRejections logs what a filter answers: how many nodes it refuses, by reason, if any; the first of
// those that it does not refuse; each node.
func logRejections(logger klog.Logger, refused, filtered string, names []string, rejections []agent.Rejection) {
	logger = logger.WithCallDepth(1)
	if !logger.V(decisions.Refusals).Enabled() {
		return
	}
	const most = 5 // as of scores
	reasons, pass, first := map[string]int{}, 0, []string{}
	for i, name := range names {
		if why := rejections[i].Reason; why != "" {
			reasons[why]++
			continue
		}
		if pass++; len(first) < most {
			first = append(first, name)
		}
	}
	if len(reasons) > 0 {
		logger.V(decisions.Refusals).Info(refused, "nodes", len(names), "refused", len(names)-pass, "reasons", reasons)
	}
	logger.V(decisions.Pods).Info(filtered, "nodes", len(names), "pass", pass, "first", first)
	if each := logger.V(decisions.Nodes); each.Enabled() {
		for i, name := range names {
			each.Info("Filtered a node", "node", klog.KRef("", name), "pass", rejections[i].Reason == "", "reason", rejections[i].Reason)
		}
	}
}

// metaVictims returns whom a scheduler without names of nodes would remove, as the answer has them.
func metaVictims(of map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	all := map[string]*extenderv1.MetaVictims{}
	for name, victims := range of {
		meta := &extenderv1.MetaVictims{}
		if victims != nil {
			meta.NumPDBViolations = victims.NumPDBViolations
			for _, pod := range victims.Pods {
				if pod != nil {
					meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(pod.UID)})
				}
			}
		}
		all[name] = meta
	}
	return all
}

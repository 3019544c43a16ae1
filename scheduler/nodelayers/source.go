// Package nodelayers is the scheduler's side of layer-agent. Its Source reports the images of
// nodes from NodeLayers objects, in place of their NodeStatus. It does not depend on
// kube-scheduler.
package nodelayers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/internal/intern"
	"github.com/layer-locality/layer-locality/scheduler/internal/objects"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Name is the name of the source.
const Name = "NodeLayers"

const (
	// stalePeriods is after how many periods (renewSeconds) without renewal an agent counts
	// as gone.
	stalePeriods = 3
	// sweep is how often that is looked at.
	sweep = 15 * time.Second
	// maxNodes bounds how many objects are taken over: the nodes of the largest clusters.
	maxNodes = 20_000
)

// Source reports the NodeLayers of nodes.
type Source struct {
	client  rest.Interface
	strings intern.Strings
	// tried is set once the objects have been listed, or cannot be; see RequireSync.
	tried       atomic.Bool
	requireSync bool

	// mu is held during calls of the sink.
	mu    sync.Mutex
	sink  locality.NodeSink
	nodes map[string]*node
	// watching means that the objects are those of the apiserver, give or take an event.
	watching bool
	stats    Stats
}

// Stats count objects.
type Stats struct {
	// Fresh and Stale are nodes whose agent renews its report, and those whose agent does not.
	Fresh, Stale int
	// Refused are objects that are about no Node, and lines in objects that are not valid;
	// each as often as it came.
	Refused int64
}

// node is what is remembered of an object.
type node struct {
	report locality.NodeReport // without images
	// renewTime is that of the object; seen is when it was first seen, on this machine's
	// clock: clocks of nodes may be wrong.
	renewTime, seen time.Time
	// lasts is how long the report counts without another renewTime.
	lasts time.Duration
}

// NewSource returns a source that watches the NodeLayers of a cluster once it is started. It
// reports nothing as long as there are none, or the resource or the permission to read it is
// missing.
func NewSource(config *rest.Config) (*Source, error) {
	if config == nil {
		return nil, errors.New("NodeLayers: no client configuration")
	}
	client, err := objects.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("NodeLayers: %w", err)
	}
	return &Source{client: client, nodes: map[string]*node{}}, nil
}

// RequireSync has HasSynced be false until the objects were listed, unless there is no such
// resource or it may not be read. It is for a host that can put off questions.
func (s *Source) RequireSync() *Source {
	s.requireSync = true
	return s
}

// Name implements locality.NodeSource.
func (*Source) Name() string { return Name }

// HasSynced implements locality.Syncer.
func (s *Source) HasSynced() bool { return s.tried.Load() }

// Start implements locality.NodeSource.
func (s *Source) Start(ctx context.Context, sink locality.NodeSink) (locality.Syncer, error) {
	s.sink = sink
	register(s.Stats, func() Ages { return s.ages(time.Now()) })
	resource := v1alpha1.NodeLayersResource
	logger := objects.Logger(ctx, resource)
	go objects.Followed{
		Client: s.client, Resource: resource, Example: &v1alpha1.NodeLayers{}, Store: &store{Source: s, logger: logger},
		Cannot: "Cannot watch NodeLayers: NodeStatus counts. The scheduler tries again; to use layer-agent, install it and let the scheduler list and watch NodeLayers",
		Failed: func(err error) (watched bool) {
			if !s.requireSync || objects.None(err) {
				s.tried.Store(true)
			}
			return s.setWatching(false)
		},
	}.Follow(ctx)
	go wait.UntilWithContext(ctx, func(context.Context) { s.expire(logger, time.Now()) }, sweep)
	return s, nil
}

// setWatching notes whether the objects can be watched. It returns whether that has changed.
func (s *Source) setWatching(watching bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.watching != watching
	s.watching = watching
	return changed
}

// Stats returns how many nodes there are, and what was refused.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	for _, n := range s.nodes {
		if n.report.Fresh {
			stats.Fresh++
		} else {
			stats.Stale++
		}
	}
	return stats
}

// Ages are for how long NodeLayers have not been renewed: on the clock of this machine, since
// their renewTime was first seen. A process that begins counts from then, unless an agent was gone
// before.
type Ages struct {
	// Of all, half are not older than Median, 99 of 100 not older than P99, and none is older than
	// Oldest.
	Median, P99, Oldest time.Duration
}

// ages returns the Ages at a time; zero if there are no objects.
func (s *Source) ages(now time.Time) Ages {
	s.mu.Lock()
	all := make([]time.Duration, 0, len(s.nodes))
	for _, n := range s.nodes {
		all = append(all, max(0, now.Sub(n.seen)))
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return Ages{}
	}
	slices.Sort(all)
	// The smallest that is not exceeded by so many of 100 (nearest rank).
	rank := func(percent int) time.Duration { return all[(len(all)*percent+99)/100-1] }
	return Ages{Median: rank(50), P99: rank(99), Oldest: rank(100)}
}

// errFull: an object is left out because there are too many.
var errFull = fmt.Errorf("there are %d NodeLayers already", maxNodes)

// apply takes over an object as the apiserver has it. The error names what is left out.
func (s *Source) apply(object *v1alpha1.NodeLayers, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid, err := ownerOf(object)
	if err != nil {
		s.stats.Refused++
		s.forgetLocked(object.Name)
		return err
	}
	old := s.nodes[object.Name]
	if old == nil && len(s.nodes) >= maxNodes {
		s.stats.Refused++
		return errFull
	}
	report, refused := convert(&object.Spec)
	s.stats.Refused += int64(refused)
	report.UID = uid
	n := &node{
		renewTime: object.Spec.RenewTime.Time, seen: now,
		lasts: Lasts(object.Spec.RenewSeconds),
	}
	switch {
	case old != nil && old.report.UID == uid && old.renewTime.Equal(n.renewTime):
		n.seen = old.seen
	case old == nil && now.Sub(n.renewTime) > n.lasts:
		n.seen = n.renewTime // of an agent that was gone before this process began; otherwise it renews it soon
	}
	report.Fresh = n.fresh(now)
	n.report = report
	n.report.Images = nil
	s.nodes[object.Name] = n
	if !report.Fresh {
		report.Images = nil
	}
	s.sink.SetReport(Name, object.Name, &report)
	if refused > 0 {
		return fmt.Errorf("%d lines are not valid", refused)
	}
	return nil
}

// Lasts returns how long a report counts without another renewTime, of an agent that renews it every so many seconds.
func Lasts(renewSeconds int32) time.Duration {
	return stalePeriods * time.Duration(max(1, renewSeconds)) * time.Second
}

func (n *node) fresh(now time.Time) bool { return now.Sub(n.seen) <= n.lasts }

// delete takes over that an object is gone.
func (s *Source) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(name)
}

func (s *Source) forgetLocked(name string) {
	if s.nodes[name] != nil {
		delete(s.nodes, name)
		s.sink.SetReport(Name, name, nil)
	}
}

// names returns the names of all objects.
func (s *Source) names() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool, len(s.nodes))
	for name := range s.nodes {
		names[name] = true
	}
	return names
}

// expire lets the NodeStatus of nodes count again whose agent has not renewed its report for
// too long.
func (s *Source) expire(logger klog.Logger, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count, example := 0, ""
	for name, n := range s.nodes {
		if !n.report.Fresh || n.fresh(now) {
			continue
		}
		n.report.Fresh = false
		report := n.report
		s.sink.SetReport(Name, name, &report)
		count, example = count+1, name
	}
	if count > 0 {
		logger.Info("NodeLayers are not renewed: NodeStatus of these nodes counts until their layer-agent renews them", "nodes", count, "oneOfThem", example)
	}
}

// ownerOf returns the UID of the Node that an object is about.
func ownerOf(object *v1alpha1.NodeLayers) (types.UID, error) {
	if len(object.OwnerReferences) != 1 {
		return "", fmt.Errorf("%d owners, want one: the Node", len(object.OwnerReferences))
	}
	owner := object.OwnerReferences[0]
	if owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != object.Name || owner.UID == "" {
		return "", fmt.Errorf("its owner is %.20s %.20s %.253q, want the Node of its name", owner.APIVersion, owner.Kind, owner.Name)
	}
	return owner.UID, nil
}

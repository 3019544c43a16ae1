// Package publish writes what a reader hands over into the NodeLayers of its node.
package publish

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// minBytes is where the limit stops to be halved when an apiserver takes no more. enlarge is
	// when it is as before again: what refused large bodies may do so no more.
	minBytes = 4 << 10
	enlarge  = time.Hour
	// settle is for how long changes are collected before they are written, since the reader
	// noticed the first one.
	settle = time.Second
	// spacing is the time between two writes.
	spacing = handover.Spacing
	// alive is for how long a reader counts as alive that hands over nothing: longer than some
	// readings that fail. For as long, writes may fail while the publisher counts as ready.
	alive = 5 * time.Minute
	// firstRetry and lastRetry are the pauses after a failure, the least and the most also of what
	// the apiserver asks for.
	firstRetry, lastRetry = time.Second, 5 * time.Minute
	// requestTimeout is for one request.
	requestTimeout = 30 * time.Second
	// poll is how often the handover is looked at although nothing seems to have changed.
	poll = 15 * time.Second
)

// Why something is written.
const (
	changed = "change"
	renewed = "renewal"
)

// Options of a Publisher.
type Options struct {
	// Config reaches the apiserver. Its own credentials are not used.
	Config *rest.Config
	// Token returns the token to write with, which names the Node to write for. Tokens are
	// replaced from time to time.
	Token func() (string, error)
	// From has what the reader found.
	From *handover.Reader
	// Renew is how often the object is written at least.
	Renew time.Duration
	// Spread is the time in which the agents of a cluster make their first writes.
	Spread     time.Duration
	Registerer prometheus.Registerer
}

// Publisher writes the NodeLayers of a node.
type Publisher struct {
	Options
	client  *Client
	metrics *metrics
	began   time.Time
	// look is how often the folder is looked at without an event.
	look time.Duration

	// Only Run uses these. report is what the node holds; nil until there is one. pending is
	// since when it has not been written; zero if it has. noticed is when the reader noticed the
	// first of the changes since; zero if that is not known.
	report           *handover.Report
	pending, noticed time.Time
	// peer is where the node serves layers; nil if it does not.
	peer *v1alpha1.NodePeer
	// last is the last write, notBefore the earliest time of the next one, retry the pause
	// after another failure.
	last, notBefore time.Time
	retry           time.Duration
	// version of the object that was written last; empty if that is not known, or if there is none.
	version string
	// limit is what the lists may take now, reduced when it was last made smaller.
	limit   int
	reduced time.Time
	silent  bool

	mu sync.Mutex
	// read is when the runtime was last read, on the clock of this process, which nobody sets
	// back; readThere is the same time on the reader's clock.
	read, readThere time.Time
	written         bool
	// failing is since when writes fail, and why the last one did; zero if they do not.
	failing time.Time
	failure error
}

// New returns a Publisher.
func New(o Options) (*Publisher, error) {
	client, err := NewClient(o.Config)
	if err != nil {
		return nil, err
	}
	p := &Publisher{Options: o, client: client, limit: v1alpha1.MaxNodeListBytes, retry: firstRetry, began: time.Now(), look: poll}
	p.metrics = newMetrics(o.Registerer, p.readAge)
	return p, nil
}

// readAge returns for how many seconds the runtime has not been read; -1 if it never was.
func (p *Publisher) readAge() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read.IsZero() {
		return -1
	}
	return time.Since(p.read).Seconds()
}

// Ready returns why the node's NodeLayers are not what the node holds; nil if they are, give
// or take a write.
func (p *Publisher) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.written:
		return errors.New("nothing has been written yet")
	case time.Since(p.read) > alive:
		return fmt.Errorf("the runtime has not been read since %s", p.read.Format(time.RFC3339))
	case !p.failing.IsZero() && time.Since(p.failing) > alive:
		return fmt.Errorf("nothing could be written since %s: %w", p.failing.Format(time.RFC3339), p.failure)
	}
	return nil
}

// Run writes until the context is done.
func (p *Publisher) Run(ctx context.Context) error {
	events, stop := p.watch(ctx)
	defer stop()
	return p.run(ctx, events)
}

// run is Run with the events that follow a handover.
func (p *Publisher) run(ctx context.Context, events <-chan struct{}) error {
	p.notBefore = time.Now().Add(time.Duration(rand.Int64N(int64(max(1, p.Spread))))) //nolint:gosec // no secret
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case <-timer.C:
		}
		p.take(ctx)
		now := time.Now()
		if why, at := p.due(now); why != "" && !now.Before(at) {
			p.write(ctx, why, now)
		}
		next := p.look
		if why, at := p.due(time.Now()); why != "" {
			next = min(next, max(time.Until(at), 0)+10*time.Millisecond)
		}
		timer.Reset(next)
	}
}

// watch returns an event for what is handed over. Without inotify, that is seen a little later.
func (p *Publisher) watch(ctx context.Context) (events <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(p.From.Folder()); err == nil {
			handedOver := make(chan struct{}, 1)
			go follow(watcher.Events, watcher.Errors, handedOver)
			return handedOver, func() { _ = watcher.Close() }
		}
		_ = watcher.Close()
	}
	klog.FromContext(ctx).Error(err, "Cannot watch the folder of the reader: the publisher reads it at intervals", "every", p.look)
	return nil, func() {}
}

// follow turns what a watcher sends into one event that waits, until it is closed. Errors, too: a
// watcher whose errors nobody takes sends nothing more, and what was lost may be an event.
func follow(events <-chan fsnotify.Event, errors <-chan error, handedOver chan<- struct{}) {
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case _, ok := <-errors:
			if !ok {
				return
			}
		}
		select {
		case handedOver <- struct{}{}:
		default:
		}
	}
}

// take takes what was handed over.
func (p *Publisher) take(ctx context.Context) {
	logger := klog.FromContext(ctx)
	state, err := p.From.State()
	if err != nil {
		p.metrics.errors.WithLabelValues(inHandover, stateFailed).Inc()
		logger.Error(err, "Cannot read the state of the reader")
	}
	if state != nil {
		p.metrics.read(state)
	}
	report, err := p.From.Report()
	switch {
	case err != nil:
		p.metrics.errors.WithLabelValues(inHandover, reportFailed).Inc()
		logger.Error(err, "Cannot read what the reader found")
		return // as if nothing had been handed over: the report grows old
	case report != nil:
		first := p.report == nil
		p.report = report
		if p.pending.IsZero() {
			// The reader has collected for a part of that time. Clocks may be set meanwhile.
			now := time.Now()
			p.pending, p.noticed = now.Add(-min(max(now.Sub(report.Changed), 0), settle)), report.Changed
			if first && report.Changed.Before(p.began) {
				p.noticed = time.Time{} // the process before this one may have written it
			}
		}
	}
	if state != nil {
		p.noteRead(state.Read, time.Now())
	}
	p.takePeer(ctx)
}

// takePeer takes where the node serves layers. What is not valid there keeps nothing else from being written.
func (p *Publisher) takePeer(ctx context.Context) {
	peer, err := p.From.Peer()
	if err != nil {
		p.metrics.errors.WithLabelValues(inHandover, reportFailed).Inc()
		klog.FromContext(ctx).Error(err, "Cannot read where this node serves layers: other nodes do not learn it")
		peer = nil
	}
	if !reflect.DeepEqual(peer, p.peer) {
		if p.peer = peer; p.pending.IsZero() {
			p.pending, p.noticed = time.Now(), time.Time{}
		}
	}
}

// noteRead notes when the runtime was last read, on the reader's clock. Only the first time it
// is taken as it is, for a reader that may be gone since long; later, what counts is that it
// changes: the clock of the node may be set.
func (p *Publisher) noteRead(there, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case there.IsZero() || there.Equal(p.readThere):
		return
	case p.readThere.IsZero() && there.Before(now):
		p.read = there
	default:
		p.read = now
	}
	p.readThere = there
}

// due returns why the object is to be written next, and when; nothing if the reader is silent:
// then others have to see that nobody renews it.
func (p *Publisher) due(now time.Time) (why string, at time.Time) {
	if silent := p.readAge() < 0 || p.readAge() > alive.Seconds(); p.report == nil || silent {
		if silent && !p.silent && p.report != nil {
			klog.Background().Info("The reader has not read the runtime for too long: nothing is written until it does", "limit", alive)
		}
		p.silent = silent
		return "", now
	}
	p.silent = false
	if !p.pending.IsZero() {
		return changed, latest(p.pending.Add(settle), p.last.Add(spacing), p.notBefore)
	}
	return renewed, latest(p.last.Add(p.Renew), p.notBefore)
}

func latest(times ...time.Time) (t time.Time) {
	for _, other := range times {
		if other.After(t) {
			t = other
		}
	}
	return t
}

// write writes the object once, and notes what that means for the next time.
func (p *Publisher) write(ctx context.Context, why string, now time.Time) {
	if now.Sub(p.reduced) >= enlarge {
		p.limit = v1alpha1.MaxNodeListBytes
	}
	spec, err := contents.Smaller(p.report.Spec, p.limit)
	if err != nil {
		err = fmt.Errorf("%s: %w", untrusted, err)
	} else {
		err = p.put(ctx, spec)
	}
	if err != nil {
		if ctx.Err() == nil {
			p.failed(ctx, err, now)
		}
		return
	}
	left := max(0, int(spec.TotalImages)-len(spec.Images))
	p.metrics.wrote(spec, left)
	p.metrics.writes.WithLabelValues(why).Inc()
	if why == changed && !p.noticed.IsZero() {
		p.metrics.delay.Observe(max(0, time.Since(p.noticed).Seconds())) // clocks may be set back
	}
	p.pending, p.last, p.notBefore, p.retry = time.Time{}, now, time.Time{}, firstRetry
	p.mu.Lock()
	p.written = true
	p.failing, p.failure = time.Time{}, nil
	p.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Written", "why", why, "images", len(spec.Images), "layers", len(spec.Layers), "leftOut", left)
}

// untrusted begins errors that only a reader that was taken over can bring about.
const untrusted = "what the reader handed over is not valid in a NodeLayers"

// put writes the object of the node, whichever way it takes.
func (p *Publisher) put(ctx context.Context, spec *v1alpha1.NodeLayersSpec) error {
	// One token for all of it, and not the one that client-go keeps for a while: the apiserver
	// compares it with the owner.
	token, err := p.Token()
	if err != nil {
		return err
	}
	identity, err := IdentityOf(token)
	if err != nil {
		return err
	}
	spec.Peer = p.peer
	spec.RenewSeconds, spec.RenewTime = int32(p.Renew/time.Second), metav1.Now() //nolint:gosec // at most a day
	object := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{
			Name:            identity.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: identity.Name, UID: identity.UID}},
		},
		Spec: *spec,
	}
	if err := object.Validate().ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", untrusted, err)
	}
	if object.ResourceVersion = p.version; p.version != "" {
		version, err := p.client.Update(ctx, object, token)
		if err == nil {
			p.version = version
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		object.ResourceVersion, p.version = "", "" // somebody deleted it, or changed it
	}
	// Only who may read can update an object of another's: this one goes, and comes again.
	version, err := p.client.Create(ctx, object, token)
	if apierrors.IsAlreadyExists(err) {
		if err = p.client.Delete(ctx, object.Name, token); err == nil || apierrors.IsNotFound(err) {
			version, err = p.client.Create(ctx, object, token)
		}
	}
	if err == nil {
		p.version = version
	}
	return err
}

// failed counts a failure and decides when to try again: when the apiserver suggests, otherwise
// later each time.
func (p *Publisher) failed(ctx context.Context, err error, now time.Time) {
	p.metrics.errors.WithLabelValues(inWrite, string(apierrors.ReasonForError(err))).Inc()
	p.mu.Lock()
	if p.failure = err; p.failing.IsZero() {
		p.failing = now
	}
	p.mu.Unlock()
	pause := p.retry
	p.retry = min(2*p.retry, lastRetry)
	switch seconds, named := apierrors.SuggestsClientDelay(err); {
	case apierrors.IsRequestEntityTooLargeError(err) && p.limit > minBytes:
		p.limit, p.reduced, pause = max(p.limit/2, minBytes), now, 0
	case named && seconds > 0:
		pause = min(max(time.Duration(seconds)*time.Second, firstRetry), lastRetry)
	}
	// Not all agents at the same time.
	p.notBefore = now.Add(pause + time.Duration(rand.Int64N(int64(pause/4)+1))) //nolint:gosec // no secret
	klog.FromContext(ctx).Error(err, "Cannot write the NodeLayers of this node; trying again", "in", pause, "hint", hint(err))
}

// hint returns what to do about an error.
func hint(err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "is the CustomResourceDefinition of deploy/agent installed?"
	case apierrors.IsForbidden(err):
		return "the policy of deploy/agent lets an agent write for its own Node only, and its ClusterRole create, update and delete nodelayers"
	case apierrors.IsAlreadyExists(err):
		return "the object of this node is being deleted and does not go: a finalizer, which somebody has added, keeps it"
	case apierrors.IsRequestEntityTooLargeError(err):
		return "something before the apiserver takes no bodies of a few KiB: raise its limit"
	case apierrors.IsInvalid(err):
		return "is the CustomResourceDefinition older than the agent?"
	}
	return ""
}

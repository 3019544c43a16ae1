package qosaware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	statusutil "k8s.io/kubernetes/pkg/util/pod"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// host is what all profiles of a scheduler share.
type host struct {
	// profiles has the names of those that enable the plugin.
	profiles     sync.Map
	args         *config.QosAwareArgs
	informers    informers.SharedInformerFactory
	handle       fwk.Handle
	pods         corelisters.PodLister
	ledger       *ledger.Ledger
	keys         *keys
	rules        rules
	limit        *limit
	rounds       rounds
	attempts     attempts
	store        *store // nil if nothing is kept
	metrics      *pluginMetrics
	terminations *terminations
	conditions   chan condition
	// placing means that this scheduler places pods: one that waits to lead follows them, too.
	placing atomic.Bool
	// stop ends everything that goes on; stopped is closed when what is known has been saved.
	stop    context.CancelFunc
	stopped chan struct{}
}

// Bounds of what is done at once.
const (
	// maxActivated is how many urgent pods are tried again at once, at most.
	maxActivated = 100
	// retryShare is which part of its time the scheduler may spend on them.
	retryShare = .1
	// syncTimeout is for how long a scheduler that starts waits for all pods and owners before
	// it preempts for SLOs.
	syncTimeout = time.Minute
	// askRate is how often a second the API server is asked for the account, and askBurst how
	// often at once.
	askRate, askBurst = 50, 100
)

// newHost starts what profiles share: it ends with the context, or by close.
func newHost(ctx context.Context, args *config.QosAwareArgs, handle fwk.Handle, debug http.Handler) (*host, error) {
	ctx, stop := context.WithCancel(ctx)
	h := &host{
		stop: stop, stopped: make(chan struct{}),
		args: args, informers: handle.SharedInformerFactory(), handle: handle, pods: handle.SharedInformerFactory().Core().V1().Pods().Lister(),
		rules: newRules(args), limit: &limit{most: int(args.MaxPreemptionsPerMinute)},
	}
	var err error
	defer func() {
		if err != nil {
			stop()
		}
	}()
	client, err := newClient(handle)
	if err != nil {
		return nil, err
	}
	owners := newOwners(handle)
	h.ledger = ledger.New(ledger.Config{Args: args, Owners: owners.get, Clock: clock.RealClock{}})
	h.terminations = newTerminations(client, h.ledger.Finish)
	h.metrics = registerMetrics(h.ledger)
	h.conditions = make(chan condition, maxTold)
	h.keys = &keys{
		rules: h.rules, respectPriority: args.RespectPriority, states: ledger.NewReader(args).States,
		judge: h.judgeQueued, now: h.ledger.Now, byID: map[types.UID]*queueEntry{},
	}
	if args.StateConfigMap != "" {
		h.store = &store{client: client, name: args.StateConfigMap, ledger: h.ledger, count: func(result string) { h.metrics.writes.WithLabelValues(result).Inc() }}
		h.store.load(ctx, true)
	}
	h.keys.incomplete.Store(true)
	pods, err := h.follow()
	if err != nil {
		return nil, err
	}
	synced, err := owners.start(ctx, h.ownerAdded)
	if err != nil {
		return nil, err
	}
	go h.complete(ctx, append(synced, pods.HasSynced)...)
	go h.run(ctx)
	go h.keep(ctx)
	go h.terminations.run(ctx)
	go writeConditions(ctx, client, h.conditions)
	if args.DebugBindAddress != "" {
		go serve(ctx, args.DebugBindAddress, debug)
	}
	return h, nil
}

// judgeQueued judges a pod for its key in the queue. A pod there is not being bound: if a
// binding had begun, it failed. Profiles without Reserve get no other notice of that.
func (h *host) judgeQueued(pod *v1.Pod, now time.Time) (ledger.Judgement, bool) {
	h.ledger.Unreserved(pod.UID)
	return h.ledger.Judge(pod, now)
}

// follow has the Ledger follow the pods.
func (h *host) follow() (cache.ResourceEventHandlerRegistration, error) {
	return h.informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { h.observe(nil, object) },
		UpdateFunc: func(old, object any) {
			before, _ := old.(*v1.Pod)
			h.observe(before, object)
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if pod, ok := object.(*v1.Pod); ok {
				h.remove(pod)
			}
		},
	})
}

// remove notes that a pod is gone from the informer.
func (h *host) remove(pod *v1.Pod) {
	switch {
	case !h.ledger.Remove(pod):
	case !h.terminations.add(terminatedPod{pod.Namespace, pod.Name, pod.UID}):
		h.ledger.Finish(pod.UID, false)
	}
}

// complete waits until the Ledger has all pods and their owners, or until syncTimeout ends:
// without the right to Deployments or Jobs these never come.
func (h *host) complete(ctx context.Context, synced ...cache.InformerSynced) {
	timeout, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(timeout.Done(), synced...) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(nil, "Not all pods and their owners are listed yet: promises are kept for those that are", "plugin", Name, "after", syncTimeout)
	}
	h.keys.incomplete.Store(false)
}

// judgeRunning judges a pod for a preemption: nobody is preempted for an SLO by an account of
// which a part is missing.
func (h *host) judgeRunning(pod *v1.Pod, now time.Time) (ledger.Judgement, bool) {
	if h.keys.incomplete.Load() {
		return ledger.Judgement{}, false
	}
	return h.ledger.Judge(pod, now)
}

// observe takes a pod into the Ledger. New annotations that are wrong get an event.
func (h *host) observe(before *v1.Pod, object any) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return
	}
	if before != nil && before.UID != pod.UID { // the deletion was not seen
		h.remove(before)
	}
	err := h.ledger.Observe(pod)
	if !h.placing.Load() || before != nil && before.UID == pod.UID && ledger.SameStatement(before, pod) {
		return
	}
	h.warn(pod, err)
}

// warn writes an event for a pod of the profiles that enable the plugin: which of its
// annotations count as none.
func (h *host) warn(pod *v1.Pod, err error) {
	if err != nil && h.serves(pod) {
		h.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeWarning, "InvalidSLO", "Scheduling", "%s", err.Error())
	}
}

// begins notes that this scheduler places pods: from now on it writes events about wrong
// annotations, first about those of pods that wait. The scheduler before it wrote those about
// pods that have a node.
func (h *host) begins() {
	if h.placing.Load() || h.placing.Swap(true) {
		return
	}
	reader := ledger.NewReader(h.args)
	pods, _ := h.pods.List(labels.Everything()) // of an informer: no error
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			_, err := reader.Read(pod)
			h.warn(pod, err)
		}
	}
}

// ownerAdded observes pods again whose owner is known now.
func (h *host) ownerAdded(uid types.UID) {
	for _, name := range h.ledger.Orphans(uid) {
		pod, err := h.pods.Pods(name.Namespace).Get(name.Name)
		if err != nil {
			continue
		}
		_ = h.ledger.Observe(pod) // it is not new: no event
		// Its deletion may have been handled in between. The lister shows it before its handlers run.
		if now, err := h.pods.Pods(name.Namespace).Get(name.Name); err != nil || now.UID != pod.UID {
			h.remove(pod)
		}
	}
}

// close ends what goes on, and waits until what is known has been saved: a process that ends
// would not.
func (h *host) close() error {
	h.stop()
	select {
	case <-h.stopped:
		return nil
	case <-time.After(2 * stateTimeout): // as long as the two requests may take that can be under way
		return errors.New("the state was not saved in time: a restart counts what workloads got without what was last")
	}
}

// keep saves the state, if it is to be saved.
func (h *host) keep(ctx context.Context) {
	defer close(h.stopped)
	if h.store != nil {
		h.store.run(ctx)
	}
}

// run does what has to be done from time to time.
func (h *host) run(ctx context.Context) {
	ticker := time.NewTicker(h.args.ReconsiderEvery.Duration)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.ledger.Admit()
			h.tell(klog.FromContext(ctx))
			h.reconsider(klog.FromContext(ctx))
			h.keys.sweep(h.waits)
			h.ledger.Forget()
		}
	}
}

// maxTold is how many owners get an event at once about what is promised to them.
const maxTold = 100

// tell writes an event and a condition for the owners of workloads whose SLO is not admitted, or is again, and logs both.
func (h *host) tell(logger klog.Logger) {
	if !h.placing.Load() {
		return
	}
	a := h.ledger.Admission()
	for _, d := range h.ledger.Untold(maxTold) {
		pod, err := h.pods.Pods(d.Pod.Namespace).Get(d.Pod.Name)
		if err != nil || !h.serves(pod) {
			continue
		}
		message, kind := "Admitted an SLO again", v1.EventTypeNormal
		c := condition{pod, v1.PodCondition{Type: AdmittedCondition, Status: v1.ConditionTrue, Reason: "SLOAdmitted"}}
		c.Message = fmt.Sprintf("The SLO %g of %s %s is kept from now on.", d.SLO, d.Workload.Kind, d.Workload)
		if d.Refused {
			message, kind = "Refused an SLO", v1.EventTypeWarning
			c.Status, c.Reason = v1.ConditionFalse, "SLONotAdmitted"
			c.Message = fmt.Sprintf("The SLO %g of %s %s is not kept at present: SLOs here add up to %.1f places, and pods with SLOs were seen to have %.0f. Its pods are served as if they stated none, and make room for others.",
				d.SLO, d.Workload.Kind, d.Workload, a.Stated, a.Places)
		}
		h.handle.EventRecorder().Eventf(pod, nil, kind, c.Reason, "Scheduling", "%s", c.Message)
		select {
		case h.conditions <- c:
		default: // the API server does not take them; the event has the same
		}
		logger.V(decisions.Refusals).Info(message, "plugin", Name, "kind", d.Workload.Kind, "workload", d.Workload.String(), "slo", d.SLO, "stated", a.Stated, "places", a.Places)
	}
}

// AdmittedCondition is the type of the condition of a pod that reports whether the SLO of its workload is kept. It is on
// one pod of a workload whose SLO was not at some time.
const AdmittedCondition v1.PodConditionType = "layerlocality.io/SLOAdmitted"

// condition is one to write.
type condition struct {
	pod *v1.Pod
	v1.PodCondition
}

// writeConditions writes conditions, one after the other, until the context is done.
func writeConditions(ctx context.Context, client clientset.Interface, conditions <-chan condition) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-conditions:
			status := c.pod.Status.DeepCopy()
			if !podutil.UpdatePodCondition(status, &c.PodCondition) {
				continue
			}
			timed, cancel := context.WithTimeout(ctx, stateTimeout)
			// With the UID: another pod of that name does not get it.
			_, _, _, err := statusutil.PatchPodStatus(timed, client, c.pod.Namespace, c.pod.Name, c.pod.UID, c.pod.Status, *status)
			cancel()
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot write a condition of a pod; its event has the same", "plugin", Name, "pod", klog.KObj(c.pod), "condition", c.Type)
			}
		}
	}
}

// reconsider has urgent pods tried again, because that an SLO is about to be broken is no
// event in the cluster; so is that a pod has its turn.
func (h *host) reconsider(logger klog.Logger) {
	pods := map[string]*v1.Pod{}
	var waiting []*v1.Pod
	wanted := func(j *ledger.Judgement) bool { return h.rules.urgent(j) || h.rules.turn(j) }
	for _, name := range h.ledger.Waiting(wanted, h.rules.compare) {
		if pod, err := h.pods.Pods(name.Namespace).Get(name.Name); err == nil && h.mayBeTried(pod) {
			waiting = append(waiting, pod)
		}
	}
	for _, pod := range h.rounds.next(waiting, h.attempts.affordable(h.args.ReconsiderEvery.Duration)) {
		pods[klog.KObj(pod).String()] = pod
	}
	if len(pods) > 0 {
		h.handle.Activate(logger, pods)
	}
}

// waits reports whether a pod exists and has no node.
func (h *host) waits(uid types.UID, name types.NamespacedName) bool {
	pod, err := h.pods.Pods(name.Namespace).Get(name.Name)
	return err == nil && pod.UID == uid && pod.Spec.NodeName == ""
}

// mayBeTried reports whether this scheduler could place a pod.
func (h *host) mayBeTried(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 && h.serves(pod)
}

// serves reports whether a pod is one of the profiles that enable the plugin.
func (h *host) serves(pod *v1.Pod) bool {
	_, ok := h.profiles.Load(pod.Spec.SchedulerName)
	return ok
}

// attempts know what it costs to try a pod that fits nowhere: on many nodes with pods of which any
// might be preempted, up to a second.
type attempts struct{ mean atomic.Int64 }

// took notes what an attempt took. The last ten or so count.
func (a *attempts) took(d time.Duration) {
	if mean := a.mean.Load(); mean > 0 {
		d = time.Duration(mean) + (d-time.Duration(mean))/10
	}
	a.mean.Store(int64(d))
}

// affordable returns how many attempts may be made in an interval: what takes a tenth of it, and
// one at least.
func (a *attempts) affordable(interval time.Duration) int {
	each := max(1, a.mean.Load())
	return int(max(1, min(maxActivated, int64(float64(interval)*retryShare)/each)))
}

// rounds has everybody's turn come: those that fit nowhere would otherwise be tried again and
// again, and nobody after them.
type rounds struct {
	// tried are those whose turn it was in this round.
	tried map[types.UID]struct{}
}

// next returns the first ones of a list whose turn has not come yet, at most so many; when it
// has come for all, a round begins anew.
func (r *rounds) next(waiting []*v1.Pod, most int) []*v1.Pod {
	var chosen []*v1.Pod
	take := func(skip map[types.UID]struct{}) {
		for _, pod := range waiting {
			if _, skipped := skip[pod.UID]; !skipped && len(chosen) < most {
				chosen = append(chosen, pod)
			}
		}
	}
	take(r.tried)
	if r.tried == nil || len(chosen) < most { // the first round, or one is complete
		r.tried = map[types.UID]struct{}{}
		for _, pod := range chosen {
			r.tried[pod.UID] = struct{}{}
		}
		take(r.tried)
	}
	for _, pod := range chosen {
		r.tried[pod.UID] = struct{}{}
	}
	return chosen
}

// newClient returns a client with a rate of its own: however many pods of Jobs end, and however
// often the state is saved, what places pods does not wait for the answers.
func newClient(handle fwk.Handle) (clientset.Interface, error) {
	config := handle.KubeConfig()
	if config == nil { // a host that has only a client
		return handle.ClientSet(), nil
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.RateLimiter = askRate, askBurst, nil
	return clientset.NewForConfig(config)
}

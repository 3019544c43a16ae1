package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/kubescheduler"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// patience is how long after the last event of a plan pods may still start.
const patience = time.Hour

// Run plays a plan with a policy. The same arguments give the same result, except
// for Metrics.Seconds.
func Run(ctx context.Context, plan *workload.Plan, policy Policy, model Model, seed uint64) (evaluation.Metrics, error) {
	if err := nodestatus.NeedLayers(); err != nil {
		return evaluation.Metrics{}, err
	}
	if err := plan.Validate(); err != nil {
		return evaluation.Metrics{}, fmt.Errorf("plan: %w", err)
	}
	started := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := prepare(ctx, plan, policy, model, seed)
	if err != nil {
		return evaluation.Metrics{}, fmt.Errorf("policy %s: %w", policy.Name, err)
	}
	for r.step() {
		if err := ctx.Err(); err != nil {
			return evaluation.Metrics{}, err
		}
	}
	if r.err != nil {
		return evaluation.Metrics{}, fmt.Errorf("policy %s at %s: %w", policy.Name, r.q.now, r.err)
	}
	m := r.metrics()
	m.Seconds = time.Since(started).Seconds()
	return m, nil
}

// prepare returns a run that is ready to begin.
func prepare(ctx context.Context, plan *workload.Plan, policy Policy, model Model, seed uint64) (*run, error) {
	r := &run{
		model: model, delivery: policy.Delivery, q: &queue{}, images: intern(plan.Images, policy.InChains),
		machines: map[string]*machine{}, objects: map[string]*v1.Node{}, deployments: map[string]*deployment{},
		known: map[string]time.Duration{}, sets: map[string]bool{}, groups: map[string][]*pod{},
		racks: slices.ContainsFunc(plan.Nodes, func(n workload.Node) bool { return n.Rack != "" }),
	}
	if r.delivery == FromPeers {
		r.lan = &lan{q: r.q, link: model.PeerLink}
	}
	random := rand.New(rand.NewPCG(seed, 1))
	first := policy
	if plan.History > 0 && policy.History != nil {
		first = *policy.History
	}
	if err := r.startScheduler(ctx, first, random); err != nil {
		return nil, err
	}
	for _, node := range plan.Nodes {
		r.join(node)
	}
	if plan.History > 0 {
		r.later(plan.History, func() {
			if policy.History != nil {
				r.fail(r.replaceScheduler(ctx, policy, random))
			}
			r.count(plan)
		})
	} else {
		r.count(plan)
	}
	for i := range plan.Events {
		r.later(plan.Events[i].At, func() { r.play(&plan.Events[i]) })
	}
	switch r.delivery {
	case Ahead:
		r.planAhead(plan)
	case Template, Tag:
		r.planPrefetches(plan)
	}
	return r, nil
}

// later has something done that the run must not end without.
func (r *run) later(at time.Duration, do func()) {
	r.ahead++
	r.end = max(r.end, at+patience)
	r.q.at(at, func() {
		r.ahead--
		do()
	})
}

// startScheduler starts one with a policy. It has no nodes or pods yet.
func (r *run) startScheduler(ctx context.Context, policy Policy, random *rand.Rand) (err error) {
	r.policy = policy
	if r.scheduler, err = kubescheduler.Start(ctx, policy.configuration(r.racks), r.plugins(), random); err == nil && policy.Clairvoyant {
		r.scheduler.Choose = r.leastMissing(random)
	}
	return err
}

// step runs the next event; false if the run is over.
func (r *run) step() bool {
	return r.err == nil && (r.ahead > 0 || r.unsettled > 0 || r.pullsAhead()) && r.q.now <= r.end && r.q.next()
}

// intern returns the images by their references. References of the same layers
// stand for the same image, and equal layers are the same blob; in chains, equal layers above
// the same layers.
func intern(references []dataset.Image, inChains bool) map[string]*image {
	blobs := map[string]*blob{}
	images := map[string]*image{}
	byName := make(map[string]*image, len(references))
	for _, from := range references {
		i := &image{id: len(images)}
		var key strings.Builder
		for _, l := range from.Layers {
			if slices.ContainsFunc(i.layers, func(b *blob) bool { return b.digest == l.Digest }) {
				continue
			}
			key.WriteString(l.Digest + "\n")
			known := l.Digest
			if inChains {
				known = key.String()
			}
			b := blobs[known]
			if b == nil {
				b = &blob{l.Digest, l.Size}
				blobs[known] = b
			}
			i.layers = append(i.layers, b)
			i.size += b.size
		}
		if images[key.String()] == nil {
			images[key.String()] = i
		}
		byName[from.Image] = images[key.String()]
	}
	return byName
}

// run is the state of one simulation.
type run struct {
	model Model
	// policy is that of the scheduler that runs.
	policy    Policy
	stock     *nodeManifests  // nil unless ImageManifests explain what nodes name
	agents    *nodelayers.Fed // nil unless agents report what nodes hold
	delivery  Delivery
	lan       *lan
	q         *queue
	scheduler *kubescheduler.Scheduler
	images    map[string]*image

	machines map[string]*machine
	// order has the machines in the order in which they came.
	order       []*machine
	objects     map[string]*v1.Node
	deployments map[string]*deployment
	// sets are the ReplicaSets that exist.
	sets map[string]bool
	// racks means that nodes stand in racks; groups are pod groups whose pods gather.
	racks  bool
	groups map[string][]*pod
	// pending are pods that fit on no node, the oldest first.
	pending []*pod
	// known is the time from which an ImageManifest describes a name.
	known map[string]time.Duration
	// ahead counts future events of the plan and checks of deployments; unsettled
	// counts pods that have not started.
	ahead, unsettled int
	// prefetches counts pods that pull ahead, prefetching those of them that still do.
	prefetches, prefetching int

	end time.Duration
	err error

	created int
	// from is the time from which metrics count, before how many pods came earlier, distinct
	// the bytes of evaluation.Metrics.
	from     time.Duration
	before   int
	distinct int64
	startups []float64
	// ofNew are those of the firstPods pods of each node that joined.
	ofNew []float64
	// balance covers the moments after placements; loads is memory for it.
	balance evaluation.Balance
	loads   []evaluation.Load
}

// pod is a pod of the simulated cluster.
type pod struct {
	object *v1.Pod
	// name is the reference of its image.
	name     string
	image    *image
	created  time.Duration
	lifetime time.Duration
	milliCPU int64
	machine  *machine
	running  bool
	gone     bool
	first    bool // one of the firstPods pods of a node that joined
	of       *deployment
	group    string
}

type deployment struct {
	workload.Deployment
	pods []*pod
}

// firstPods is how many pods of a node that joins are its first ones.
const firstPods = 10

// fail ends the run.
func (r *run) fail(err error) {
	if err != nil && r.err == nil {
		r.err = err
	}
}

func (r *run) play(e *workload.Event) {
	switch {
	case e.Pod != nil:
		p := r.newPod(e.Pod.Image, e.Pod.App, e.Pod.MilliCPU, e.Pod.Memory, false, "")
		p.lifetime, p.group = e.Pod.Lifetime, e.Pod.Group
		r.arrive(p)
	case e.Deploy != nil:
		d := r.deployments[e.Deploy.Name]
		if d == nil {
			d = &deployment{}
			r.deployments[e.Deploy.Name] = d
		}
		d.Deployment = *e.Deploy
		r.use(d.Image) // templates are resolved before the pods exist
		r.reconcile(d)
	case e.Join != nil:
		r.join(*e.Join)
		m := r.machines[e.Join.Name]
		m.first = firstPods
		if r.delivery == NewNode {
			r.prefetchNew(m)
		}
		r.retry()
	}
}

func (r *run) join(spec workload.Node) {
	h := fnv.New64a()
	h.Write([]byte(spec.Name))
	phase := float64(h.Sum64()%10007) / 10007
	m := newMachine(spec, &r.model, r.q, phase, r.report)
	m.delivery, m.lan = r.delivery, r.lan
	if r.lan != nil {
		r.lan.nodes = append(r.lan.nodes, m)
	}
	for _, name := range spec.Holds {
		m.hold(r.images[name], name)
	}
	r.machines[spec.Name] = m
	r.order = append(r.order, m)
	m.namesOnly = r.policy.Nodes != Patched
	m.listed = m.list()
	node := nodeObject(m)
	r.useListed(m)
	r.objects[spec.Name] = node
	r.fail(r.scheduler.Nodes.Set(nil, node))
	if r.agents != nil {
		m.agent = newAgent(m, time.Duration(phase*float64(r.model.AgentSpread)), r.policy.InChains, r.agents, r.fail)
	}
}

// report delivers a NodeStatus.
func (r *run) report(m *machine) {
	old := r.objects[m.Name]
	node := old.DeepCopy()
	node.Status.Images = statusImages(m)
	r.objects[m.Name] = node
	r.useListed(m)
	r.fail(r.scheduler.Nodes.Set(old, node))
}

// useListed has the resolver look for what a stock node lists, too.
func (r *run) useListed(m *machine) {
	if r.stock != nil {
		for _, i := range m.listed {
			r.use(i.names[0])
		}
	}
}

// use notes that an image is used: from now on the resolver looks for it.
func (r *run) use(name string) {
	if _, ok := r.known[name]; !ok {
		r.known[name] = r.q.now + r.model.ManifestDelay
		r.stock.learn(r.images[name], name)
	}
}

// hasManifest reports whether the policy has the layers of an image that no node has.
func (r *run) hasManifest(name string) bool {
	at, used := r.known[name]
	return r.policy.Manifests == Always || r.policy.Manifests == OnUse && used && at <= r.q.now
}

// gateTick is how often LayerLocality checks whether the pods that it holds may
// pass.
const gateTick = 100 * time.Millisecond

// arrive schedules a new pod, at once or when it is no longer held.
func (r *run) arrive(p *pod) {
	r.created++
	r.unsettled++
	r.use(p.name)
	if wait := min(r.known[p.name]-r.q.now, r.policy.Wait); wait > 0 && r.policy.Manifests == OnUse {
		wait = (wait + gateTick - 1) / gateTick * gateTick
		r.q.at(r.q.now+wait, func() { r.place(p) })
		return
	}
	r.place(p)
}

// place schedules a pod, or keeps it for later.
func (r *run) place(p *pod) {
	if p.gone || r.err != nil {
		return
	}
	if p.group != "" {
		r.gather(p)
		return
	}
	if !r.try(p) {
		r.pending = append(r.pending, p)
	}
}

// retry tries the pods again that fitted on no node.
func (r *run) retry() {
	if len(r.pending) == 0 {
		return
	}
	pending := r.pending
	r.pending = nil
	var left []*pod
	for _, p := range pending {
		if !p.gone && !r.try(p) {
			left = append(left, p)
		}
	}
	r.pending = append(left, r.pending...)
}

func (r *run) try(p *pod) bool {
	name, err := r.scheduler.Schedule(p.object)
	r.fail(err)
	if err != nil || name == "" {
		return false
	}
	r.bind(p, name)
	return true
}

// bind notes that a pod was placed, and has its node pull.
func (r *run) bind(p *pod, name string) {
	bound := p.object.DeepCopy()
	bound.Spec.NodeName = name
	p.object = bound
	p.machine = r.machines[name]
	p.machine.requests += p.milliCPU
	p.machine.pods++
	if p.first = p.machine.first > 0; p.first {
		p.machine.first--
	}
	r.fail(r.scheduler.Pods.Set(nil, bound))
	r.sample()
	p.machine.use(p.image, p.name, func() {
		r.q.at(r.q.now+r.model.PodStart, func() { r.start(p) })
	})
}

// start notes that the container of a pod runs.
func (r *run) start(p *pod) {
	if p.gone {
		p.machine.release(p.image)
		return
	}
	p.running = true
	r.unsettled--
	if p.created >= r.from {
		r.startups = append(r.startups, (r.q.now - p.created).Seconds())
		if p.first {
			r.ofNew = append(r.ofNew, (r.q.now - p.created).Seconds())
		}
	}
	running := runs(p.object, p.name)
	r.fail(r.scheduler.Pods.Set(p.object, running))
	p.object = running
	if p.lifetime > 0 {
		r.q.at(r.q.now+p.lifetime, func() { r.remove(p) })
	}
	if p.of != nil {
		// Run this after all other events of this moment: a start may come while
		// the deployment is being checked.
		r.ahead++
		r.q.at(r.q.now, func() {
			r.ahead--
			r.reconcile(p.of)
		})
	}
}

// runs returns a pod whose container runs.
func runs(pod *v1.Pod, image string) *v1.Pod {
	running := pod.DeepCopy()
	running.Status.Phase = v1.PodRunning
	running.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", Image: image, ImageID: image}}
	return running
}

// remove deletes a pod.
func (r *run) remove(p *pod) {
	if p.gone {
		return
	}
	p.gone = true
	if !p.running {
		r.unsettled--
	}
	if p.machine != nil {
		if p.running {
			p.machine.release(p.image)
		}
		p.machine.requests -= p.milliCPU
		p.machine.pods--
		r.fail(r.scheduler.Pods.Drop(p.object))
	}
	if p.of != nil {
		p.of.pods = slices.DeleteFunc(p.of.pods, func(other *pod) bool { return other == p })
	}
	r.pending = slices.DeleteFunc(r.pending, func(other *pod) bool { return other == p })
	r.q.at(r.q.now, r.retry)
}

// reconcile does what the controllers of Deployments and ReplicaSets do next.
func (r *run) reconcile(d *deployment) {
	var current, old []*pod
	ready := 0
	for _, p := range d.pods {
		if p.name == d.Image {
			current = append(current, p)
		} else {
			old = append(old, p)
		}
		if p.running {
			ready++
		}
	}
	surge := 0
	if len(old) > 0 {
		surge = 1
	}
	for _, p := range slices.Clone(old) {
		// Never let too few run; pods that do not run are of no use.
		if !p.running || ready > d.Replicas {
			if p.running {
				ready--
			}
			r.remove(p)
			old = old[1:]
		}
	}
	for len(current) > d.Replicas {
		last := current[len(current)-1]
		current = current[:len(current)-1]
		r.remove(last)
	}
	for len(current) < d.Replicas && len(current)+len(old) < d.Replicas+surge {
		p := r.newPod(d.Image, d.Name, d.MilliCPU, d.Memory, d.Apart, d.Image)
		p.of = d
		d.pods = append(d.pods, p)
		current = append(current, p)
		r.arrive(p)
	}
}

// leastMissing chooses greedily with all data: it takes the node that has
// least to pull, in a tie the one with the least CPU requested.
func (r *run) leastMissing(random *rand.Rand) func(*v1.Pod, []fwk.NodeInfo) int {
	return func(pod *v1.Pod, nodes []fwk.NodeInfo) int {
		name := pod.Spec.Containers[0].Image
		best, least, load, equal := 0, int64(math.MaxInt64), 0.0, 0
		for i, n := range nodes {
			missing := r.machines[n.Node().Name].missing(r.images[name], name)
			share := float64(n.GetRequested().GetMilliCPU()) / float64(max(1, n.GetAllocatable().GetMilliCPU()))
			switch {
			case missing < least || missing == least && share < load:
				best, least, load, equal = i, missing, share, 1
			case missing == least && share == load:
				if equal++; random.IntN(equal) == 0 {
					best = i
				}
			}
		}
		return best
	}
}

// sample records the balance.
func (r *run) sample() {
	r.loads = r.loads[:0]
	for _, m := range r.order {
		r.loads = append(r.loads, evaluation.Load{CPU: float64(m.requests) / float64(m.MilliCPU), Pods: m.pods})
	}
	r.balance.Add(r.loads)
}

func (r *run) metrics() evaluation.Metrics {
	m := evaluation.Metrics{Pods: r.created - r.before, DistinctBytes: r.distinct}
	for _, p := range r.pending {
		if p.created >= r.from {
			m.Unschedulable++
		}
	}
	m.Unstarted = m.Pods - m.Unschedulable - len(r.startups)
	for _, machine := range r.order {
		m.PulledBytes += machine.pulled
		m.PeerBytes += machine.fromPeers
		m.RemovedBytes += machine.removed
		m.DiskBytes += machine.used
	}
	m.SetBalance(r.balance)
	m.SetStartups(r.startups)
	for _, s := range r.ofNew {
		m.StartupNew += s / float64(len(r.ofNew))
	}
	return m
}

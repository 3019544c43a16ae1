// Package prefetch measures on a real cluster what layer-prefetcher is worth for two rolling updates: how soon each new pod is
// ready, and what nodes pull for that. No two new pods run on one node. kube-scheduler's default profile, the recommended one, and
// that one with layer-prefetcher take turns, each time on nodes without images.
package prefetch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Rounds is how often each side rolls.
	Rounds int `json:"rounds"`
	// Nodes, each with a link of Bandwidth bits per second, and as many Replicas as the Deployment has.
	Nodes     int    `json:"nodes"`
	Bandwidth uint64 `json:"bandwidth"`
	Replicas  int32  `json:"replicas"`
	// BaseBytes are in all versions of the image, OwnBytes in one.
	BaseBytes int64 `json:"baseBytes"`
	OwnBytes  int64 `json:"ownBytes"`
	// Lead is how long a moved tag is known before the pods restart.
	Lead time.Duration `json:"lead"`
	// LogDir gets the logs of the clusters' components, in a folder for each run.
	LogDir string `json:"-"`
}

// Side is one of the compared sides.
type Side string

// The sides.
const (
	Stock    Side = "default"
	Ours     Side = "layerlocality"
	Prefetch Side = "prefetch"
)

// Sides are all of them, in the order of the first round.
var Sides = []Side{Stock, Ours, Prefetch}

// Update is how pods get another version, and the source of layer-prefetcher that it is for.
type Update string

// The updates.
const (
	// MovedTag: the image's tag moves, Lead later the pods restart.
	MovedTag Update = "tag"
	// NewTemplate: the template names another image.
	NewTemplate Update = "template"
)

// Updates are all of them, in their order on a cluster.
var Updates = []Update{MovedTag, NewTemplate}

// Turn is one rolling update.
type Turn struct {
	Round  int    `json:"round"`
	Side   Side   `json:"side"`
	Update Update `json:"update"`
	// Startups are the seconds from when each new pod was there until it was ready.
	Startups []float64 `json:"startups"`
	// Nodes has the bytes that each node pulled for the update.
	Nodes scenario.Bytes `json:"nodes"`
	// MovedBytes came ahead, of which pods used UsedBytes.
	MovedBytes int64 `json:"movedBytes"`
	UsedBytes  int64 `json:"usedBytes"`
}

// Result is everything that was measured.
type Result struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	Runs    []Turn    `json:"runs"`
}

const (
	app = "rolling"
	// version is the annotation of a pod that has the update which made it.
	version = "version"
	// within is how long all pods of a version have to become ready.
	within = 10 * time.Minute
)

// Run rolls on clusters that it starts and removes, one after the other.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Rounds < 1 || c.Nodes < 2 || c.Replicas < 2 || int(c.Replicas) > c.Nodes || c.Bandwidth == 0 || c.OwnBytes < 1 {
		return nil, fmt.Errorf("%d rounds, %d nodes, %d replicas, %d bits per second, %d bytes: want at least one of each, and two replicas on as many nodes", c.Rounds, c.Nodes, c.Replicas, c.Bandwidth, c.OwnBytes)
	}
	result := &Result{Config: c, Started: time.Now().UTC().Truncate(time.Second)}
	for round := range c.Rounds {
		for _, side := range bench.InTurns(round, Sides) {
			turns, err := c.run(ctx, round+1, side)
			if err != nil {
				return result, fmt.Errorf("round %d, %s: %w; see %s", round+1, side, err, c.LogDir)
			}
			result.Runs = append(result.Runs, turns...)
		}
	}
	return result, nil
}

// run makes all updates on a new cluster.
func (c *Config) run(ctx context.Context, round int, side Side) (turns []Turn, err error) {
	logDir, err := filepath.Abs(filepath.Join(c.LogDir, fmt.Sprintf("%d-%s", round, side)))
	if err != nil {
		return nil, err
	}
	resolver := addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*", "--tag-ttl=10s"}})
	profile, more := scenario.Recommended(scenario.Layers, nil), []cluster.Addon{resolver}
	switch side {
	case Stock:
		profile, more = map[string]any{"schedulerName": scenario.Stock}, nil
	case Prefetch:
		more = append(more, addons.Prefetcher(cluster.Component{Args: []string{"--sources=tag,template"}}))
	}
	c.Logf("round %d, %s: starting %d nodes", round, side, c.Nodes)
	lab, running, stop, err := scenario.StartCluster(ctx, cluster.Config{
		Name: "bench-prefetch", LogDir: logDir, Nodes: c.Nodes, Bandwidth: c.Bandwidth, Flavour: cluster.Patched,
		Scheduler: cluster.Component{Config: map[string]any{"profiles": []map[string]any{profile}}}, Addons: more,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	push := func(tag, own string) (*images.Pushed, error) {
		image, err := images.Build(images.Image{Layers: []images.Layer{{Name: app + "-base", Size: c.BaseBytes}, {Name: app + own, Size: c.OwnBytes}}})
		if err != nil {
			return nil, err
		}
		return images.Push(ctx, running.Registry().Address+"/"+app+":"+tag, image)
	}
	const moving = "moving"
	image, err := push(moving, "first")
	if err != nil {
		return nil, err
	}
	deployment := deploymentOf(c.Replicas, scenario.Pod{Image: image.Reference, Scheduler: profile["schedulerName"].(string), PullPolicy: corev1.PullAlways})
	deployments := lab.Client.AppsV1().Deployments(deployment.Namespace)
	if _, err := c.ready(ctx, lab, "", func() error {
		_, err := deployments.Create(ctx, deployment, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	for _, update := range Updates {
		before, err := scenario.Pulled(running, app)
		if err != nil {
			return nil, err
		}
		switch update {
		case MovedTag:
			known := func(image *images.Pushed) error {
				if side == Stock {
					return nil
				}
				return confirmed(ctx, lab, image)
			}
			if err := known(image); err != nil { // otherwise the tag has not moved for those who see it now
				return nil, err
			}
			if image, err = push(moving, "moved"); err != nil {
				return nil, err
			}
			if err := known(image); err != nil {
				return nil, err
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(c.Lead):
			}
		case NewTemplate:
			if image, err = push("next", "next"); err != nil {
				return nil, err
			}
		}
		turn := Turn{Round: round, Side: side, Update: update, Nodes: scenario.Bytes{}}
		turn.Startups, err = c.ready(ctx, lab, update, func() error {
			patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{%q:%q}},"spec":{"containers":[{"name":%q,"image":%q}]}}}}`,
				version, update, deployment.Spec.Template.Spec.Containers[0].Name, image.Reference)
			_, err := deployments.Patch(ctx, app, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", update, err)
		}
		if side == Prefetch {
			if err := turn.prefetched(ctx, lab); err != nil {
				return nil, err
			}
		}
		after, err := scenario.Pulled(running, app)
		if err != nil {
			return nil, err
		}
		for node, bytes := range after {
			turn.Nodes[node] = bytes - before[node]
		}
		c.Logf("round %d, %s, %s: %.1f s, %.0f MB", round, side, update, mean(turn.Startups), float64(turn.Nodes.Total())/1e6)
		turns = append(turns, turn)
	}
	return turns, nil
}

// deploymentOf returns one of whose pods of one version no two run on one node while others are free.
func deploymentOf(replicas int32, pod scenario.Pod) *appsv1.Deployment {
	deployment := scenario.Deployment(app, replicas, pod)
	deployment.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: deployment.Spec.Selector, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
	return deployment
}

// confirmed waits until layer-resolver has found that an image is what its tag points to.
func confirmed(ctx context.Context, lab *scenario.Lab, image *images.Pushed) error {
	return scenario.Poll(ctx, func(ctx context.Context) error {
		manifest, err := lab.Manifest(ctx, image.Reference)
		if err == nil && (manifest == nil || manifest.Spec.Digest != image.Digest.String()) {
			err = fmt.Errorf("layer-resolver has not confirmed that %s is %s", image.Reference, image.Digest)
		}
		return err
	})
}

// ready does something, and waits until as many pods as there are replicas are ready that an update made, and no others are left. It
// returns for how many seconds each of them was not.
func (c *Config) ready(ctx context.Context, lab *scenario.Lab, update Update, begin func() error) (seconds []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	pods, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	if err := begin(); err != nil {
		pods.Stop()
		return nil, err
	}
	seen, done, others := map[types.UID]time.Time{}, map[types.UID]bool{}, map[types.UID]bool{}
	isReady := func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }
	_, err = watchtools.UntilWithoutRetry(ctx, pods, func(event watch.Event) (bool, error) {
		if event.Type == watch.Error {
			return false, apierrors.FromObject(event.Object)
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return false, nil
		}
		switch ofUpdate := pod.Annotations[version] == string(update); {
		case !ofUpdate && event.Type == watch.Deleted:
			delete(others, pod.UID)
		case !ofUpdate:
			others[pod.UID] = true
		case seen[pod.UID].IsZero():
			seen[pod.UID] = time.Now()
		case !done[pod.UID] && slices.ContainsFunc(pod.Status.Conditions, isReady):
			done[pod.UID] = true
			seconds = append(seconds, time.Since(seen[pod.UID]).Seconds())
		}
		return len(seconds) == int(c.Replicas) && len(others) == 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods were ready, %d others were left: %w", len(seconds), c.Replicas, len(others), err)
	}
	return seconds, nil
}

// prefetched waits until layer-prefetcher has done what it began for the update, and takes over what came of that.
func (t *Turn) prefetched(ctx context.Context, lab *scenario.Lab) error {
	return scenario.Poll(ctx, func(ctx context.Context) error {
		var list v1alpha1.ImagePrefetchList
		if err := lab.Objects.List(ctx, &list, client.MatchingLabels{v1alpha1.PrefetchSourceLabel: string(t.Update)}); err != nil {
			return err
		}
		t.MovedBytes, t.UsedBytes = 0, 0
		for i := range list.Items {
			o := &list.Items[i]
			if o.Status.CompletionTime == nil {
				return fmt.Errorf("%s goes on: %+v", o.Name, o.Status)
			}
			t.MovedBytes += o.Status.BytesMoved
			t.UsedBytes += o.Status.BytesSaved
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("layer-prefetcher has made no ImagePrefetch of the source %q", t.Update)
		}
		return nil
	})
}

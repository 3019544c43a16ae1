// Package prefetch measures on a real cluster what layer-prefetcher is worth for a rolling update: how soon each new pod is
// ready, and what nodes pull for that. kube-scheduler's default profile, the recommended one, and that one with layer-prefetcher
// take turns, each time on nodes without images.
package prefetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

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
	// BaseBytes are in both versions of the image, OwnBytes in one.
	BaseBytes int64 `json:"baseBytes"`
	OwnBytes  int64 `json:"ownBytes"`
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

// Turn is one rolling update.
type Turn struct {
	Round int  `json:"round"`
	Side  Side `json:"side"`
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
	// within is how long all pods of a version have to become ready.
	within = 10 * time.Minute
)

// Run rolls on clusters that it starts and removes, one after the other.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Rounds < 1 || c.Nodes < 1 || c.Replicas < 1 || c.Bandwidth == 0 || c.OwnBytes < 1 {
		return nil, fmt.Errorf("%d rounds, %d nodes, %d replicas, %d bits per second, %d bytes: want at least one of each", c.Rounds, c.Nodes, c.Replicas, c.Bandwidth, c.OwnBytes)
	}
	result := &Result{Config: c, Started: time.Now().UTC().Truncate(time.Second)}
	for round := range c.Rounds {
		for _, side := range bench.InTurns(round, Sides) {
			turn, err := c.run(ctx, round+1, side)
			if err != nil {
				return result, fmt.Errorf("round %d, %s: %w", round+1, side, err)
			}
			result.Runs = append(result.Runs, *turn)
		}
	}
	return result, nil
}

func (c *Config) run(ctx context.Context, round int, side Side) (_ *Turn, err error) {
	logDir, err := filepath.Abs(filepath.Join(c.LogDir, fmt.Sprintf("%d-%s", round, side)))
	if err != nil {
		return nil, err
	}
	profile, more := scenario.Recommended(scenario.Layers, nil), []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}})}
	switch side {
	case Stock:
		profile, more = map[string]any{"schedulerName": scenario.Stock}, nil
	case Prefetch:
		more = append(more, addons.Prefetcher(cluster.Component{Args: []string{"--sources=template"}}))
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
	var versions [2]*images.Pushed
	for i := range versions {
		if versions[i], err = scenario.PushOnBase(ctx, running, fmt.Sprintf("%s:v%d", app, i+1), images.Layer{Name: app + "-base", Size: c.BaseBytes}, c.OwnBytes); err != nil {
			return nil, err
		}
	}
	deployment := scenario.Deployment(app, c.Replicas, scenario.Pod{Image: versions[0].Reference, Scheduler: profile["schedulerName"].(string)})
	if _, err := c.ready(ctx, lab, versions[0].Reference, func() error {
		_, err := lab.Client.AppsV1().Deployments(deployment.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	before, err := scenario.Pulled(running, app)
	if err != nil {
		return nil, err
	}
	turn := &Turn{Round: round, Side: side, Nodes: scenario.Bytes{}}
	turn.Startups, err = c.ready(ctx, lab, versions[1].Reference, func() error {
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":%q,"image":%q}]}}}}`, deployment.Spec.Template.Spec.Containers[0].Name, versions[1].Reference)
		_, err := lab.Client.AppsV1().Deployments(deployment.Namespace).Patch(ctx, app, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; see %s", err, logDir)
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
	c.Logf("round %d, %s: %.1f s, %.0f MB", round, side, mean(turn.Startups), float64(turn.Nodes.Total())/1e6)
	return turn, nil
}

// ready does something, and waits until as many pods as there are replicas are ready with an image. It returns for how many seconds each
// of them was not.
func (c *Config) ready(ctx context.Context, lab *scenario.Lab, image string, begin func() error) (seconds []float64, err error) {
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
	seen, done := map[types.UID]time.Time{}, map[types.UID]bool{}
	_, err = watchtools.UntilWithoutRetry(ctx, pods, func(event watch.Event) (bool, error) {
		if event.Type == watch.Error {
			return false, apierrors.FromObject(event.Object)
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || pod.Spec.Containers[0].Image != image {
			return false, nil
		}
		if seen[pod.UID].IsZero() {
			seen[pod.UID] = time.Now()
		}
		isReady := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
		if isReady && !done[pod.UID] {
			done[pod.UID] = true
			seconds = append(seconds, time.Since(seen[pod.UID]).Seconds())
		}
		return len(seconds) == int(c.Replicas), nil
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods were ready with %s: %w", len(seconds), c.Replicas, image, err)
	}
	return seconds, nil
}

// prefetched waits until layer-prefetcher has done what it began, and takes over what came of that.
func (t *Turn) prefetched(ctx context.Context, lab *scenario.Lab) error {
	return scenario.Poll(ctx, func(ctx context.Context) error {
		text, err := lab.Client.CoreV1().RESTClient().Get().AbsPath("/apis/layerlocality.io/v1alpha1/imageprefetches").DoRaw(ctx)
		if err != nil {
			return err
		}
		var list v1alpha1.ImagePrefetchList
		if err := json.Unmarshal(text, &list); err != nil {
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
		return nil
	})
}

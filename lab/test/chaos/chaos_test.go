//go:build e2e

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	root = "../../.."
	// The last node is stock: its layers are known from layer-agent alone.
	nodes, stockNode = 3, "n3"
	// speed of the nodes' links in bits a second.
	speed = 200_000_000
	// storage of each node for images, in bytes; high is the percentage at which the kubelet collects.
	storage, high, low = 800 << 20, 85, 65
	// The images of pods: few enough that a kubelet lists all.
	count, bases = 24, 4
	// settled is how long pods and index may take when nothing is broken any more: pulls are tried again after five minutes.
	settled = 10 * time.Minute
)

var must = testkit.Must

// chaos is a run.
type chaos struct {
	t       *testing.T
	c       *cluster.Cluster
	lab     *scenario.Lab
	images  []string
	seconds int64
	seed    uint64
	began   time.Time
	violations
	outages
	pods   map[string]*pod
	podsMu sync.Mutex
}

// setting returns a number from the environment.
func setting(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 1 {
		t.Fatalf("%s=%s: want a number above 0", name, text)
	}
	return value
}

func TestChaos(t *testing.T) {
	seconds := setting(t, "CHAOS_SECONDS", 3600)
	total := setting(t, "CHAOS_PODS", max(2, 2000*seconds/3600))
	bound := time.Duration(setting(t, "CHAOS_BOUND", 10)) * time.Second
	seed := uint64(setting(t, "CHAOS_SEED", time.Now().UnixNano()%1_000_000+1))
	t.Logf("CHAOS_SEED=%d CHAOS_SECONDS=%d CHAOS_PODS=%d CHAOS_BOUND=%.0f", seed, seconds, total, bound.Seconds())
	x := &chaos{t: t, seconds: seconds, seed: seed, pods: map[string]*pod{}, violations: violations{logf: t.Logf}}
	x.start()

	x.began = time.Now()
	end := x.began.Add(time.Duration(seconds) * time.Second)
	during, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	f, o := newFaults(x), newObserver(x)
	var work, watch sync.WaitGroup
	work.Go(func() { x.create(during, total) })
	work.Go(func() { f.run(during) })
	watch.Go(func() { x.follow(watching) })
	watch.Go(func() { f.keepRunning(watching) })
	watch.Go(func() { o.run(watching, end) })
	work.Wait()
	x.left()
	stop()
	watch.Wait()
	o.same(t.Context())

	text := x.waited(bound) + o.reports() + o.memories(time.Duration(seconds)*time.Second)
	text = fmt.Sprintf("seed %d\nfaults: %v\nended by themselves: %v\n%s", seed, f.caused, f.ended, text)
	for _, each := range x.list {
		text += "violation: " + each + "\n"
		t.Error(each)
	}
	text += fmt.Sprintf("chaos violations=%d seconds=%d\n", len(x.list), seconds)
	must(t, os.WriteFile(filepath.Join(root, "_out", "test", "chaos.txt"), []byte(text), 0o600))
	t.Log("\n" + text)
}

// start starts a cluster with all that this repository has, and pushes the images.
func (x *chaos) start() {
	t, ctx := x.t, x.t.Context()
	logs, err := filepath.Abs(filepath.Join(root, "_out", "test", "logs", "chaos"))
	must(t, err)
	must(t, os.RemoveAll(logs))
	x.c = livetest.StartFor(t, cluster.Config{
		Name: "chaos", LogDir: logs, Nodes: nodes, Flavour: cluster.Patched, Bandwidth: speed, Logf: t.Logf,
		Scheduler: scenario.Schedulers(),
		Kubelet:   cluster.Component{Config: map[string]any{"imageGCHighThresholdPercent": high, "imageGCLowThresholdPercent": low, "imageMinimumGCAge": "10s"}},
		Addons:    []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}})},
		PerNode: func(node string, runtime, kubelet *cluster.Component) {
			if node == stockNode {
				runtime.Flavour, kubelet.Flavour = cluster.Stock, cluster.Stock
			}
		},
	})
	for _, node := range x.c.Nodes() {
		must(t, node.Kubelet().Stop(ctx))
		must(t, scenario.SmallStorage(ctx, node, storage))
		must(t, node.Kubelet().Start(ctx))
		must(t, x.c.WaitNodeReady(ctx, node.Name))
	}
	x.lab, err = scenario.NewLab(x.c)
	must(t, err)
	agent, err := scenario.PushProgram(ctx, x.c, root, scenario.Agent)
	must(t, err)
	agents, err := x.lab.Agents(ctx, root, agent, "--renew=10s", "--spread=1s")
	must(t, err)
	must(t, x.lab.Apply(ctx, agents...))
	must(t, x.lab.AppReady(ctx, scenario.Agent, nodes))
	for i, name := range scenario.Names("chaos", count) {
		base := images.Layer{Name: fmt.Sprint("chaos-base-", i%bases), Size: 8 << 20}
		image, err := scenario.PushOnBase(ctx, x.c, name+":v1", base, int64(2+i%bases)<<20)
		must(t, err)
		x.images = append(x.images, image.Reference)
	}
	must(t, x.lab.Announce(ctx, scenario.Pod{Name: "chaos", Image: x.images[0]}, x.images[1:]...))
	must(t, x.lab.Resolved(ctx, x.images...))
}

// random returns a source of what a part of the run decides, the same for a seed whatever other parts do.
func (x *chaos) random(part uint64) *rand.Rand { return rand.New(rand.NewPCG(x.seed, part)) }

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pod is one that was created.
type pod struct {
	waits
	life time.Duration
	gone bool
}

// schedulers are the two profiles that are compared, by the letter in the names of their pods.
var schedulers = map[string]string{"l": scenario.Layers, "s": scenario.Stock}

// create creates pods, in pairs, which wait for an apiserver that is away.
func (x *chaos) create(ctx context.Context, total int64) {
	random, pairs := x.random(1), total/2
	for n := range pairs {
		sleep(ctx, time.Until(x.began.Add(time.Duration(x.seconds)*time.Second*time.Duration(n)/time.Duration(pairs))))
		image, life, order := x.images[random.IntN(len(x.images))], time.Duration(20+random.IntN(40))*time.Second, []string{"l", "s"}
		if random.IntN(2) == 0 {
			order = []string{"s", "l"}
		}
		for _, letter := range order {
			name := fmt.Sprint(letter, n)
			err := poll.Until(ctx, time.Second, settled, func(ctx context.Context) error {
				err := x.lab.Submit(ctx, scenario.Pod{Name: name, Image: image, Scheduler: schedulers[letter]})
				if apierrors.IsAlreadyExists(err) {
					return nil
				}
				return err
			})
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				x.add(name, "%s was not created: %v", name, err)
				return
			}
			x.podsMu.Lock()
			x.pods[name] = &pod{life: life}
			x.podsMu.Unlock()
		}
	}
}

// follow notes when pods are placed and ready, and deletes those that have lived.
func (x *chaos) follow(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, 2*time.Second) {
		list, err := x.lab.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // no apiserver
		}
		there := map[string]bool{}
		x.podsMu.Lock()
		var old []string
		for _, object := range list.Items {
			there[object.Name] = true
			known := x.pods[object.Name]
			if known == nil {
				continue
			}
			known.created = object.CreationTimestamp.Time
			for _, condition := range object.Status.Conditions {
				switch {
				case condition.Status != corev1.ConditionTrue:
				case condition.Type == corev1.PodScheduled && known.scheduled.IsZero():
					known.scheduled = condition.LastTransitionTime.Time
				case condition.Type == corev1.PodReady && known.ready.IsZero():
					known.ready = condition.LastTransitionTime.Time
				}
			}
			if object.DeletionTimestamp == nil && !known.ready.IsZero() && time.Since(known.ready) > known.life {
				old = append(old, object.Name)
			}
		}
		for name, known := range x.pods {
			known.gone = !there[name] && !known.created.IsZero()
		}
		x.podsMu.Unlock()
		for _, name := range old {
			_ = x.lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, *metav1.NewDeleteOptions(1)) // tried again
		}
	}
}

// left waits until all pods have been ready and are gone, now that nothing is broken.
func (x *chaos) left() {
	err := poll.Until(x.t.Context(), time.Second, settled, func(context.Context) error {
		x.podsMu.Lock()
		defer x.podsMu.Unlock()
		var left []string
		for name, known := range x.pods {
			if !known.gone {
				left = append(left, fmt.Sprintf("%s (placed %t, ready %t)", name, !known.scheduled.IsZero(), !known.ready.IsZero()))
			}
		}
		if len(left) > 0 {
			return errors.New(strings.Join(left, ", "))
		}
		return nil
	})
	if err != nil {
		x.add("left", "pods are left: %v", err)
	}
}

// controlPlane is what a pod cannot be placed without.
var controlPlane = []string{"control etcd", "control kube-apiserver", "control kube-scheduler"}

// waited compares how long pods took, and returns a table.
func (x *chaos) waited(bound time.Duration) string {
	placed, ready := map[string][]float64{}, map[string][]float64{}
	for name, p := range x.pods {
		if !p.scheduled.IsZero() {
			placed[name[:1]] = append(placed[name[:1]], p.scheduled.Sub(p.created).Seconds())
		}
		if !p.ready.IsZero() {
			ready[name[:1]] = append(ready[name[:1]], p.ready.Sub(p.created).Seconds())
		}
		counterpart := x.pods["s"+name[1:]]
		if name[0] != 'l' || counterpart == nil {
			continue
		}
		if late := p.late(counterpart.waits, bound, &x.outages, controlPlane...); late > 0 {
			x.add("late "+name, "%s was placed %s later than its counterpart, and the bound", name, late)
		}
	}
	text := "seconds until pods were placed, and ready:\nprofile         pods  median  99 %   most  median  99 %   most\n"
	for _, letter := range []string{"s", "l"} {
		text += fmt.Sprintf("%-17s %4d", schedulers[letter], len(ready[letter]))
		for _, times := range [][]float64{placed[letter], ready[letter]} {
			for _, percent := range []int{50, 99, 100} {
				text += fmt.Sprintf(" %6.1f", timing.Percentile(times, percent))
			}
		}
		text += "\n"
	}
	return text
}

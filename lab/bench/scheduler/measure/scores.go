package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
)

// score is the cost of scoring nodes for one pod.
type score struct {
	// Image is the kind of the pod's images, by how many nodes have them: popular,
	// usual, rare, unknown. Share is the share of nodes that have an image, on
	// average over the images.
	Image string  `json:"image"`
	Share float64 `json:"share"`
	// Containers of the pod, each with a different image.
	Containers int `json:"containers"`
	// Scored is the number of nodes to score.
	Scored        int  `json:"scored"`
	LayerLocality cost `json:"layerLocality"`
	ImageLocality cost `json:"imageLocality"`
	Prototype     cost `json:"prototype"`

	pod *v1.Pod
}

// cost is the cost for one pod. All values are medians.
type cost struct {
	// Micros is the processor time in microseconds for PreFilter, PreScore, Score of one
	// node after another, and Reserve.
	Micros float64 `json:"micros"`
	// Allocations and Bytes are what that allocates.
	Allocations float64 `json:"allocations"`
	Bytes       float64 `json:"bytes"`
	// FrameworkMicros is the elapsed time for the same through the framework, which
	// scores nodes in parallel.
	FrameworkMicros float64 `json:"frameworkMicros"`
}

func (s *score) ratio() float64 { return s.LayerLocality.Micros / s.ImageLocality.Micros }

func (s *score) String() string {
	return fmt.Sprintf("score image=%s share=%.3f containers=%d scored=%d"+
		" layerlocality_us=%.1f imagelocality_us=%.1f prototype_us=%.1f ratio=%.2f"+
		" layerlocality_allocs=%.0f imagelocality_allocs=%.0f prototype_allocs=%.0f"+
		" layerlocality_bytes=%.0f imagelocality_bytes=%.0f prototype_bytes=%.0f"+
		" layerlocality_framework_us=%.1f imagelocality_framework_us=%.1f prototype_framework_us=%.1f",
		s.Image, s.Share, s.Containers, s.Scored,
		s.LayerLocality.Micros, s.ImageLocality.Micros, s.Prototype.Micros, s.ratio(),
		s.LayerLocality.Allocations, s.ImageLocality.Allocations, s.Prototype.Allocations,
		s.LayerLocality.Bytes, s.ImageLocality.Bytes, s.Prototype.Bytes,
		s.LayerLocality.FrameworkMicros, s.ImageLocality.FrameworkMicros, s.Prototype.FrameworkMicros)
}

// measureScores measures all cases. The first is the one of the last output
// line: all nodes scored, for a pod with one container and an image of the
// first kind.
func (c *cluster) measureScores(ctx context.Context, kinds []string, rounds int) ([]score, error) {
	var scores []score
	for _, name := range kinds {
		kind, err := c.kind(name)
		if err != nil {
			return nil, err
		}
		for _, containers := range []int{1, 3} {
			for _, scored := range []int{len(c.nodes), len(c.nodes) / 10} {
				scores = append(scores, score{
					Image: kind.name, Share: kind.share(containers, len(c.nodes)),
					Containers: containers, Scored: scored, pod: podOf(kind.images(containers)...),
				})
			}
		}
	}
	for i := range scores {
		s := &scores[i]
		if i == 0 && s.Share > 0 {
			if err := c.check(ctx, s.pod); err != nil {
				return nil, err
			}
		}
		costs, err := c.measure(ctx, s.pod, c.nodes[:s.Scored], rounds)
		if err != nil {
			return nil, err
		}
		s.LayerLocality, s.ImageLocality, s.Prototype = costs[0], costs[1], costs[2]
		fmt.Println(s)
	}
	return scores, nil
}

// kind is a kind of images.
type kind struct {
	name string
	// held are images with the number of nodes that have them, best match first.
	held []heldImage
}

type heldImage struct {
	name  string
	nodes int
}

func (k kind) images(n int) []string {
	var names []string
	for _, h := range k.held[:n] {
		names = append(names, h.name)
	}
	return names
}

func (k kind) share(n, nodes int) float64 {
	sum := 0
	for _, h := range k.held[:n] {
		sum += h.nodes
	}
	return float64(sum) / float64(n*nodes)
}

// kind returns three images or more. Popular images are on nearly half of the
// nodes, usual ones on a tenth, rare ones on as few as possible.
func (c *cluster) kind(name string) (kind, error) {
	share := 0.0
	switch name {
	case "popular":
		share = 0.5
	case "usual":
		share = 0.1
	case "rare":
	case "unknown":
		return kind{name, []heldImage{{"registry.example/nobody/a:v1", 0}, {"registry.example/nobody/b:v1", 0}, {"registry.example/nobody/c:v1", 0}}}, nil
	default:
		return kind{}, fmt.Errorf("-kinds: no kind %q of images: popular, usual, rare, unknown", name)
	}
	count := map[string]int{}
	for _, info := range c.nodes {
		for _, image := range info.Node().Status.Images {
			count[image.Names[1]]++ // the name with the tag, as pods use it
		}
	}
	held := make([]heldImage, 0, len(count))
	for image, nodes := range count {
		held = append(held, heldImage{image, nodes})
	}
	if len(held) < 3 {
		return kind{}, fmt.Errorf("%d images on all nodes: want at least 3", len(held))
	}
	distance := func(h heldImage) float64 { return math.Abs(float64(h.nodes) - share*float64(len(c.nodes))) }
	slices.SortFunc(held, func(a, b heldImage) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a.name, b.name))
	})
	return kind{name, held}, nil
}

// A plugin that takes more than slow microseconds for a pod is measured in no
// more than enough rounds: the prototype takes seconds for some pods.
const (
	slow   = 100_000
	enough = 3
)

// measure measures all plugins in turn. Each round begins with a different one.
func (c *cluster) measure(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, rounds int) ([]cost, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	direct := make([][]cost, len(c.plugins))
	parallel := make([][]float64, len(c.plugins))
	for round := range rounds {
		for i := range c.plugins {
			turn := (i + round) % len(c.plugins)
			p := c.plugins[turn]
			if n := len(direct[turn]); n == enough && direct[turn][n-1].Micros > slow {
				continue
			}
			m, err := measured(timing.Thread, func() error { return p.place(ctx, pod, nodes, nil) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			direct[turn] = append(direct[turn], m)
			if m, err = measured(timing.Wall, func() error { return p.placeParallel(ctx, pod, nodes) }); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			parallel[turn] = append(parallel[turn], m.Micros)
		}
	}
	costs := make([]cost, len(c.plugins))
	for i := range costs {
		of := func(field func(cost) float64) float64 {
			values := make([]float64, len(direct[i]))
			for j, m := range direct[i] {
				values[j] = field(m)
			}
			return timing.Median(values)
		}
		costs[i] = cost{
			Micros:          of(func(c cost) float64 { return c.Micros }),
			Allocations:     of(func(c cost) float64 { return c.Allocations }),
			Bytes:           of(func(c cost) float64 { return c.Bytes }),
			FrameworkMicros: timing.Median(parallel[i]),
		}
	}
	return costs, nil
}

// atLeast is the minimum duration of one measurement.
const atLeast = 20 * time.Millisecond

// measured runs f often enough to measure it, and divides by the number of
// runs.
func measured(now func() time.Duration, f func() error) (cost, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0.0
	start := now()
	var elapsed time.Duration
	for elapsed < atLeast {
		if err := f(); err != nil {
			return cost{}, err
		}
		n++
		elapsed = now() - start
	}
	runtime.ReadMemStats(&after)
	return cost{
		Micros:      timing.Micros(elapsed) / n,
		Allocations: float64(after.Mallocs-before.Mallocs) / n,
		Bytes:       float64(after.TotalAlloc-before.TotalAlloc) / n,
	}, nil
}

// place calls a score plugin for one pod as the framework does, but without the
// framework's machinery. That includes Reserve, which frees what PreScore
// allocated, and Unreserve, so that the next pod finds the same cluster. Scores
// are stored in the slice, unless it is nil.
func (p *plugin) place(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, scores []int64) error {
	state := framework.NewCycleState()
	skip := false
	if p.preFilter != nil {
		if _, status := p.preFilter.PreFilter(ctx, state, pod, nodes); !status.IsSkip() && !status.IsSuccess() {
			return status.AsError()
		}
	}
	if p.preScore != nil {
		status := p.preScore.PreScore(ctx, state, pod, nodes)
		if skip = status.IsSkip(); !skip && !status.IsSuccess() {
			return status.AsError()
		}
	}
	for i, node := range nodes {
		if skip {
			break
		}
		s, status := p.score.Score(ctx, state, pod, node)
		if !status.IsSuccess() {
			return status.AsError()
		}
		if scores != nil {
			scores[i] = s
		}
	}
	if p.reserve != nil {
		node := nodes[0].Node().Name
		p.reserve.Reserve(ctx, state, pod, node)
		p.reserve.Unreserve(ctx, state, pod, node)
	}
	return nil
}

func (p *plugin) placeParallel(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo) error {
	state := framework.NewCycleState()
	if _, status, _ := p.framework.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		return status.AsError()
	}
	if status := p.framework.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return status.AsError()
	}
	if _, status := p.framework.RunScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return status.AsError()
	}
	node := nodes[0].Node().Name
	if status := p.framework.RunReservePluginsReserve(ctx, state, pod, node); !status.IsSuccess() {
		return status.AsError()
	}
	p.framework.RunReservePluginsUnreserve(ctx, state, pod, node)
	return nil
}

// check fails unless the plugins work: nodes with the image must get more
// points than others.
func (c *cluster) check(ctx context.Context, pod *v1.Pod) error {
	image := pod.Spec.Containers[0].Image
	for _, p := range c.plugins {
		scores := make([]int64, len(c.nodes))
		if err := p.place(ctx, pod, c.nodes, scores); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		var sum, n [2]float64 // without and with the image
		for i, info := range c.nodes {
			with := 0
			for _, stated := range info.Node().Status.Images {
				if slices.Contains(stated.Names, image) {
					with = 1
				}
			}
			sum[with] += float64(scores[i])
			n[with]++
		}
		if n[0] > 0 && n[1] > 0 && sum[1]/n[1] <= sum[0]/n[0] {
			return fmt.Errorf("%s gives nodes with %s %.1f points on average and nodes without %.1f: nothing to measure",
				p.name, image, sum[1]/n[1], sum[0]/n[0])
		}
	}
	return nil
}

// profile writes CPU profiles of all plugins except the prototype. Each places
// a pod with a popular image for some seconds, with all and with a tenth of the
// nodes.
func (c *cluster) profile(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	popular, err := c.kind("popular")
	if err != nil {
		return err
	}
	pod := podOf(popular.images(1)...)
	for _, p := range c.plugins[:2] {
		for _, scored := range []int{len(c.nodes), len(c.nodes) / 10} {
			file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", p.name, scored)))
			if err != nil {
				return err
			}
			if err := pprof.StartCPUProfile(file); err != nil {
				return err
			}
			for start := time.Now(); time.Since(start) < 5*time.Second && err == nil; {
				err = p.place(ctx, pod, c.nodes[:scored], nil)
			}
			pprof.StopCPUProfile()
			if err := errors.Join(err, file.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

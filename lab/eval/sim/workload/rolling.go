package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Rolling is one Deployment for each of some tags. Whenever a tag moves, the new
// version is rolled out. Deployments refer to a version by its ID, so each move is
// another reference.
type Rolling struct {
	Cluster
	// Tags is how many tags are drawn from those that existed when the window
	// begins and moved at least MinMoves times in it. No two have the same image at
	// the start, because most tags of an image are just other names.
	Tags     int
	MinMoves int
	// Window is how much of the history is played; which part is random.
	Window time.Duration
	// MaxGap limits the time between two releases. A release is all moves of one
	// moment in the history.
	MaxGap time.Duration
	// Together is the time between two moves of one release, which have the same
	// second in the history.
	Together time.Duration
	// Replicas of each Deployment. Apart means that no two of them run on one node.
	Replicas int
	Apart    bool
	// Use is the share of the CPU of all nodes that the Deployments request. Sizes
	// are drawn and then scaled to it.
	Use   float64
	Sizes []Size
}

// Updates are 150 tags with at least 3 moves in 90 days, on DefaultCluster: a
// release every 2 minutes, 5 seconds between its moves. Half of the CPU is
// requested.
func Updates(replicas int, apart bool) Rolling {
	return Rolling{
		Cluster: DefaultCluster(), Tags: 150, MinMoves: 3, Window: 90 * 24 * time.Hour,
		MaxGap: 2 * time.Minute, Together: 5 * time.Second,
		Replicas: replicas, Apart: apart, Use: 0.5, Sizes: DefaultSizes(),
	}
}

// Plan draws the workload. It fails if too few tags move.
func (w Rolling) Plan(r *rand.Rand, history dataset.History) (*Plan, error) {
	switch {
	case w.Tags <= 0 || w.Replicas <= 0 || w.Nodes <= 0:
		return nil, fmt.Errorf("%d tags, %d replicas, %d nodes: all have to be positive", w.Tags, w.Replicas, w.Nodes)
	case w.Apart && w.Replicas >= w.Nodes:
		return nil, fmt.Errorf("%d replicas apart on %d nodes: no node is left for the new one", w.Replicas, w.Nodes)
	}
	sizes, err := newSizer(w.Sizes)
	if err != nil {
		return nil, err
	}
	versions, _ := history.Versions()
	if len(versions) == 0 {
		return nil, errors.New("no tag moves with an image: give an event file that belongs to the images")
	}
	first, last := versions[0].Time, versions[len(versions)-1].Time
	begin := first
	if spare := last.Sub(first) - w.Window; spare > 0 {
		begin = first.Add(time.Duration(r.Int64N(int64(spare))))
	}
	start, moves := changes(versions, begin, begin.Add(w.Window))
	tags, err := w.choose(r, start, moves)
	if err != nil {
		return nil, err
	}

	deployments := make(map[string]Deployment, len(tags))
	total := 0.0
	for i, tag := range tags {
		size := sizes.draw(r)
		total += float64(size.MilliCPU) * float64(w.Replicas)
		deployments[tag] = Deployment{
			Name: fmt.Sprintf("app-%04d", i+1), Replicas: w.Replicas, Apart: w.Apart,
			MilliCPU: size.MilliCPU, Memory: size.Memory,
		}
	}
	scale := func(n int64) int64 { return int64(math.Round(float64(n) * w.Use * w.milliCPU() / total)) }
	var images []dataset.Image
	named := map[string]bool{}
	var events []Event
	deploy := func(at time.Duration, tag string, image *dataset.Image) {
		d, version := deployments[tag], *image
		d.Image = reference(image.Image, image.ImageID)
		d.MilliCPU, d.Memory = scale(d.MilliCPU), scale(d.Memory)
		events = append(events, Event{At: at, Deploy: &d})
		if !named[d.Image] {
			named[d.Image] = true
			version.Image, version.Aliases = d.Image, nil
			images = append(images, version)
		}
	}
	var at time.Duration
	for i, tag := range tags {
		at = time.Duration(i) * w.Together
		deploy(at, tag, start[tag])
	}
	released := begin
	for _, move := range moves {
		if _, ok := deployments[move.Tag]; !ok {
			continue
		}
		if gap := move.Time.Sub(released); gap > 0 {
			at += min(gap, w.MaxGap)
		} else {
			at += w.Together
		}
		released = move.Time
		deploy(at, move.Tag, move.Image)
	}
	return newPlan(w.Cluster, images, events)
}

// choose draws tags.
func (w Rolling) choose(r *rand.Rand, start map[string]*dataset.Image, moves []dataset.Version) ([]string, error) {
	count := map[string]int{}
	for _, move := range moves {
		count[move.Tag]++
	}
	var candidates []string
	for tag, n := range count {
		if n >= w.MinMoves {
			candidates = append(candidates, tag)
		}
	}
	slices.Sort(candidates)
	r.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	taken := map[*dataset.Image]bool{}
	candidates = slices.DeleteFunc(candidates, func(tag string) bool {
		again := taken[start[tag]]
		taken[start[tag]] = true
		return again
	})
	if len(candidates) < w.Tags {
		return nil, fmt.Errorf("only %d tags with different images move %d times in %s: ask for less, or a longer window",
			len(candidates), w.MinMoves, w.Window)
	}
	return candidates[:w.Tags], nil
}

// changes returns the image of every tag at begin, and the moves of these tags to
// other images until end.
func changes(versions []dataset.Version, begin, end time.Time) (start map[string]*dataset.Image, moves []dataset.Version) {
	start, now := map[string]*dataset.Image{}, map[string]*dataset.Image{}
	for _, v := range versions {
		if v.Time.After(end) {
			break
		}
		if !v.Time.After(begin) {
			start[v.Tag] = v.Image
		} else if start[v.Tag] != nil && now[v.Tag] != v.Image {
			moves = append(moves, v)
		}
		now[v.Tag] = v.Image
	}
	return start, moves
}

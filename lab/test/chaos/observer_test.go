//go:build e2e

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

const (
	// every is the time between two checks, unchecked the longest in which one may fail.
	every, unchecked = 10 * time.Second, 5 * time.Minute
	// warm is the age from which on a process's memory counts.
	warm = time.Minute
)

// observer looks at the cluster from outside.
type observer struct {
	*chaos
	// seen is what was in the storage of each node.
	seen map[string]seen
	// apart is since when the scheduler's index and one from the API differ, by node.
	apart map[string]time.Time
	// memory by program, and when a process was seen first, by program and id.
	memory map[string][]sample
	first  map[string]time.Time
}

func newObserver(x *chaos) *observer {
	return &observer{chaos: x, seen: map[string]seen{}, apart: map[string]time.Time{}, memory: map[string][]sample{}, first: map[string]time.Time{}}
}

// run checks until all is over; memory only as long as there are faults.
func (o *observer) run(ctx context.Context, end time.Time) {
	checks := map[string]func(context.Context, time.Time) error{"index": o.index}
	for _, node := range o.c.Nodes() {
		checks[node.Name] = func(ctx context.Context, now time.Time) error { return o.node(ctx, node, now) }
	}
	checked := map[string]time.Time{}
	for now := time.Now(); ctx.Err() == nil; now = time.Now() {
		for what, check := range checks {
			ctx, cancel := context.WithTimeout(ctx, every)
			err := check(ctx, now)
			if cancel(); err == nil || checked[what].IsZero() {
				checked[what] = now
			} else if now.Sub(checked[what]) > unchecked {
				o.add("check "+what, "%s could not be checked for %s: %v", what, unchecked, err)
			}
		}
		if now.Before(end) {
			o.sample(now)
		}
		sleep(ctx, time.Until(now.Add(every)))
	}
}

// stored returns what is in a node's container storage: digests of layers, and names of images.
func stored(ctx context.Context, node *cluster.Node) (all []string, err error) {
	for _, file := range []string{"overlay-layers/layers.json", "overlay-images/images.json"} {
		text, err := node.Exec(ctx, "cat", folder+"/"+file)
		if err != nil {
			return nil, err
		}
		var entries []struct {
			Digest string   `json:"compressed-diff-digest"`
			Names  []string `json:"names"`
		}
		if err := json.Unmarshal(text, &entries); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", node.Name, file, err)
		}
		for _, entry := range entries {
			all = append(append(all, entry.Digest), entry.Names...)
		}
	}
	return all, nil
}

// reported returns what NodeStatus and NodeLayers have of a node.
func (o *observer) reported(ctx context.Context, node string) (status, layers []string, err error) {
	list, err := nodeimages.Get(ctx, o.lab.Client, node)
	if err != nil {
		return nil, nil, err
	}
	for _, image := range list {
		for _, layer := range image.Layers {
			status = append(status, layer.Digest)
		}
		for _, name := range image.Names {
			if !strings.Contains(name, "@") { // digests of images are of more than one form
				status = append(status, name)
			}
		}
	}
	var object v1alpha1.NodeLayers
	err = o.lab.Objects.Get(ctx, client.ObjectKey{Name: node}, &object)
	for _, text := range object.Spec.Layers {
		digest, _, _ := strings.Cut(text, " ")
		layers = append(layers, digest)
	}
	return status, layers, client.IgnoreNotFound(err)
}

// node compares what is reported of a node with its storage, which is read before and afterwards.
func (o *observer) node(ctx context.Context, node *cluster.Node, now time.Time) error {
	there, err := stored(ctx, node)
	if err != nil {
		return err
	}
	status, layers, err := o.reported(ctx, node.Name)
	if err != nil {
		return err
	}
	after, err := stored(ctx, node)
	if err != nil {
		return err
	}
	if o.seen[node.Name] == nil {
		o.seen[node.Name] = seen{}
	}
	// What a report takes: that it was broken does not count.
	takes := []string{"control etcd", "control kube-apiserver", node.Kubelet().Name(), node.Runtime().Name(), node.Name + " link"}
	removing := o.during(now.Add(-grace), now, node.Name+" images", node.Name+" disk") > 0
	for kind, all := range map[string][]string{"NodeStatus": status, "NodeLayers": layers} {
		of := takes
		if kind == "NodeLayers" {
			of = append(of, node.Name+" "+scenario.Agent)
		}
		down := func(from, to time.Time) time.Duration { return o.during(from, to, of...) }
		for _, broken := range o.seen[node.Name].check(now, append(there, after...), all, down, removing) {
			what, _, _ := strings.Cut(broken, " ")
			o.add(kind+node.Name+what, "%s of %s: %s", kind, node.Name, broken)
		}
	}
	return nil
}

// held is what an index has of the images on a node, in bytes.
type held struct{ Present, Total int64 }

func heldOf(ratings scenario.Ratings) map[string]held {
	all := map[string]held{}
	for _, rating := range ratings.Nodes {
		all[rating.Node] = held{rating.PresentBytes, rating.TotalBytes}
	}
	return all
}

// indexed returns what the scheduler's index has by node, fresh what one has that kubectl layers builds from the API.
func (o *observer) indexed(ctx context.Context) (map[string]held, error) {
	body, err := o.lab.Ask(ctx, o.c.SchedulerURL()+"/debug/layerlocality?"+url.Values{"image": o.images, "profile": {scenario.Layers}}.Encode())
	var ratings scenario.Ratings
	if err == nil {
		err = json.Unmarshal(body, &ratings)
	}
	return heldOf(ratings), err
}

func (o *observer) fresh(ctx context.Context) (map[string]held, error) {
	args := []string{"plan"}
	for _, image := range o.images {
		args = append(args, "--image", image)
	}
	var planned struct {
		scenario.Ratings
		RatedBy string
	}
	err := o.lab.AskKubectlLayers(ctx, root, &planned, args...)
	if planned.RatedBy != "" {
		err = fmt.Errorf("kubectl layers asked %s", planned.RatedBy)
	}
	return heldOf(planned.Ratings), err
}

// index compares the scheduler's index with a fresh one, between two answers of the scheduler.
func (o *observer) index(ctx context.Context, now time.Time) error {
	before, err := o.indexed(ctx)
	if err != nil {
		return err
	}
	fresh, err := o.fresh(ctx)
	if err != nil {
		return err
	}
	after, err := o.indexed(ctx)
	if err != nil {
		return err
	}
	for node, want := range fresh {
		since, known := o.apart[node]
		switch {
		case before[node] == want || after[node] == want || o.during(now.Add(-grace), time.Now(), controlPlane...) > 0:
			delete(o.apart, node)
		case !known:
			o.apart[node] = now
		case now.Sub(since) > grace:
			o.add("index "+node, "the scheduler's index has had %+v on %s, and one from the API %+v, for %s", after[node], node, want, now.Sub(since).Round(time.Second))
		}
	}
	return nil
}

// same waits until both are the same, now that nothing happens any more.
func (o *observer) same(ctx context.Context) {
	err := poll.Until(ctx, time.Second, settled, func(ctx context.Context) error {
		indexed, err := o.indexed(ctx)
		if err != nil {
			return err
		}
		fresh, err := o.fresh(ctx)
		if err == nil && (!maps.Equal(indexed, fresh) || len(fresh) != nodes) {
			err = fmt.Errorf("the scheduler's index has %+v, and one from the API %+v", indexed, fresh)
		}
		return err
	})
	if err != nil {
		o.add("same", "in the end: %v", err)
	}
}

// sample notes the memory of scheduler, resolver and agents.
func (o *observer) sample(now time.Time) {
	note := func(program string, table process.Table, pid int) {
		key := fmt.Sprint(program, " ", pid)
		if o.first[key].IsZero() {
			o.first[key] = now
		}
		if memory, err := table.Memory(pid); err == nil && now.Sub(o.first[key]) >= warm {
			o.memory[program] = append(o.memory[program], sample{now.Sub(o.began), memory.RSS})
		}
	}
	note("kube-scheduler", process.Host, o.c.Scheduler().PID())
	note(addons.LayerResolver, process.Host, o.c.Addon(addons.LayerResolver).PID())
	for _, node := range o.c.Nodes() {
		if pids, err := agents(node); err == nil && len(pids) == 2 {
			for i, container := range containers {
				note(scenario.Agent+" "+container+" of "+node.Name, process.SeenBy(node.Runtime().PID()), pids[i])
			}
		}
	}
}

// memories compares the memory of each program in two quarters of the run, and returns a table.
func (o *observer) memories(whole time.Duration) string {
	text := "resident memory in MB, medians of the second and of the last quarter:\n"
	for _, program := range slices.Sorted(maps.Keys(o.memory)) {
		second, last, enough := quarters(o.memory[program], whole)
		text += fmt.Sprintf("%-28s %6.1f %6.1f\n", program, second/1e6, last/1e6)
		if enough && last > second*growth {
			o.add("memory "+program, "the memory of %s was %.1f MB in the second quarter and %.1f MB in the last", program, second/1e6, last/1e6)
		}
	}
	return text
}

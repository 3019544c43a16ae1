package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// history has n images whose tags move 5 times, once a day, all in the same
// second.
func history(n int) dataset.History {
	var h dataset.History
	for version := range 6 {
		at := time.Date(2017, 1, 1+version, 0, 0, 0, 0, time.UTC)
		for i := range n {
			image := dataset.Image{
				Image:   fmt.Sprintf("registry.example:5000/library/image-%d:v%d", i, version),
				ImageID: digest.FromString(fmt.Sprint("image", i, version)).String(),
				Layers:  []dataset.Layer{{Digest: digest.FromString(fmt.Sprint("layer", i, version)).String(), Size: 1000}},
			}
			h.Images = append(h.Images, image)
			// Two names each, of which only one may be used.
			for _, tag := range []string{"latest", "1"} {
				h.Moves = append(h.Moves, dataset.Move{Time: at, Tag: fmt.Sprintf("image-%d:%s", i, tag), ImageID: image.ImageID})
			}
		}
	}
	return h
}

func updates() Rolling {
	w := Updates(2, true)
	w.Tags, w.Window = 20, 6*24*time.Hour
	return w
}

// The seed decides everything, and the plan is valid.
func TestDeterministic(t *testing.T) {
	images := dataset.Generate(random(1), 300)
	service := Service()
	service.Others.Pods = 200
	replicaSets := Zipf(0.6)
	replicaSets.ReplicaSets = true
	large := Zipf(1)
	large.Nodes, large.Node.Disk, large.Node.Link = 5000, 5e9, 10*Mbit
	for name, plan := range map[string]func(r *rand.Rand) (*Plan, error){
		"Zipf":        func(r *rand.Rand) (*Plan, error) { return Zipf(1.4).Plan(r, images) },
		"ReplicaSets": func(r *rand.Rand) (*Plan, error) { return replicaSets.Plan(r, images) },
		"large":       func(r *rand.Rand) (*Plan, error) { return large.Plan(r, images) },
		"Busy":        func(r *rand.Rand) (*Plan, error) { return Busy().Plan(r, images) },
		"Joining":     func(r *rand.Rand) (*Plan, error) { return Joining().Plan(r, images) },
		"LRScheduler": func(r *rand.Rand) (*Plan, error) { return LRScheduler(3).Plan(r, images) },
		"Bursts":      func(r *rand.Rand) (*Plan, error) { return Bursts(30).Plan(r, images) },
		"LateBursts":  func(r *rand.Rand) (*Plan, error) { return LateBursts(30).Plan(r, images) },
		"Service":     func(r *rand.Rand) (*Plan, error) { return service.Plan(r, images) },
		"Updates":     func(r *rand.Rand) (*Plan, error) { return updates().Plan(r, history(40)) },
		"Updates of generated images": func(r *rand.Rand) (*Plan, error) {
			h := dataset.Generator{Images: 300, Sharing: dataset.DefaultSharing}.
				History(r, time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC), 120*24*time.Hour)
			return Updates(4, true).Plan(r, h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			plans := make([]*Plan, 3)
			for i, seed := range []uint64{1, 1, 2} {
				var err error
				if plans[i], err = plan(random(seed)); err != nil {
					t.Fatal(err)
				}
				if err := plans[i].Validate(); err != nil {
					t.Error(err)
				}
			}
			if !reflect.DeepEqual(plans[0], plans[1]) {
				t.Error("the same seed gives another plan")
			}
			if reflect.DeepEqual(plans[0], plans[2]) {
				t.Error("another seed gives the same plan")
			}
		})
	}
}

// use returns the mean requested share of the CPU of the nodes at the start.
// from and until are shares of the time in which pods come. Pods run at once.
func use(p *Plan, from, until float64) float64 {
	capacity, requested := 0.0, 0.0
	for _, n := range p.Nodes {
		capacity += float64(n.MilliCPU)
	}
	last := float64(end(p.Events))
	from, until = from*last, until*last
	for _, e := range p.Events {
		if e.Pod != nil {
			stop := float64(e.At + e.Pod.Lifetime)
			if e.Pod.Lifetime == 0 {
				stop = math.Inf(1)
			}
			requested += float64(e.Pod.MilliCPU) * max(0, min(stop, until)-max(float64(e.At), from))
		}
	}
	return requested / (until - from) / capacity
}

func TestUse(t *testing.T) {
	images := dataset.Generate(random(1), 300)
	for _, tc := range []struct {
		name        string
		nodes       int
		use         float64
		replicaSets bool
	}{
		{"half", 10, 0.5, false},
		{"of ReplicaSets", 10, 0.5, true},
		{"of more nodes", 50, 0.5, false},
		{"busy", 10, 0.85, false},
		{"little", 3, 0.1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := Zipf(1)
			a.Nodes, a.Use, a.ReplicaSets = tc.nodes, tc.use, tc.replicaSets
			a.Pods = 400 * tc.nodes
			p, err := a.Plan(random(7), images)
			if err != nil {
				t.Fatal(err)
			}
			if got := use(p, 0.3, 1); math.Abs(got/tc.use-1) > 0.1 {
				t.Errorf("%v of the CPU is requested, want about %v", got, tc.use)
			}
			// The load grows with the cluster: 400 pods per node take equally
			// long.
			if got, want := end(p.Events).Seconds(), 400/a.Rate; math.Abs(got/want-1) > 0.1 {
				t.Errorf("pods come for %v s, want about %v", got, want)
			}
		})
	}
	// In the middle of a run, averaged over seeds.
	for _, a := range []Arrivals{Zipf(1), Busy()} {
		mean := 0.0
		for seed := range uint64(20) {
			p, err := a.Plan(random(seed), images)
			if err != nil {
				t.Fatal(err)
			}
			mean += use(p, 0.45, 0.55) / 20
		}
		if math.Abs(mean/a.Use-1) > 0.1 {
			t.Errorf("%v of the CPU is requested in the middle, want about %v", mean, a.Use)
		}
	}
}

// The counts of images fall with the rank, following Zipf's law.
func TestZipf(t *testing.T) {
	images := dataset.Generate(random(1), 300)
	var last []dataset.Image
	for _, exponent := range []float64{0, 0.6, 1, 1.4} {
		t.Run(fmt.Sprint(exponent), func(t *testing.T) {
			a := Zipf(exponent)
			a.Pods = 200_000
			p, err := a.Plan(random(3), images)
			if err != nil {
				t.Fatal(err)
			}
			counts := map[string]float64{}
			for _, e := range p.Events {
				counts[e.Pod.Image]++
			}
			var ranked []float64
			for _, n := range counts {
				ranked = append(ranked, n)
			}
			slices.SortFunc(ranked, func(a, b float64) int { return int(b - a) })
			// A line through the logarithms of the 30 most popular ones.
			var x, y, xx, xy float64
			const n = 30
			for i, count := range ranked[:n] {
				lx, ly := math.Log(float64(i+1)), math.Log(count)
				x, y, xx, xy = x+lx, y+ly, xx+lx*lx, xy+lx*ly
			}
			slope := (n*xy - x*y) / (n*xx - x*x)
			if math.Abs(slope+exponent) > 0.05 {
				t.Errorf("slope %v, want %v", slope, -exponent)
			}
			last = p.Images
		})
	}
	if len(last) != len(images) {
		t.Errorf("%d of %d images are used", len(last), len(images))
	}
}

func TestArrivals(t *testing.T) {
	images := dataset.Generate(random(1), 300)
	a := Joining()
	a.ReplicaSets = true
	p, err := a.Plan(random(1), images)
	if err != nil {
		t.Fatal(err)
	}
	apps, sizes, joined := map[string]string{}, map[string]int64{}, 0
	for _, e := range p.Events {
		if e.Join != nil {
			joined++
			if at := float64(e.At) / float64(end(p.Events)); at < 0.25 || at > 0.75 {
				t.Errorf("%s joins after %v of the time", e.Join.Name, at)
			}
			continue
		}
		if image, ok := apps[e.Pod.App]; ok && image != e.Pod.Image {
			t.Errorf("%s has %s and %s", e.Pod.App, image, e.Pod.Image)
		}
		if cpu, ok := sizes[e.Pod.App]; ok && cpu != e.Pod.MilliCPU {
			t.Errorf("%s requests %d and %d", e.Pod.App, cpu, e.Pod.MilliCPU)
		}
		apps[e.Pod.App], sizes[e.Pod.App] = e.Pod.Image, e.Pod.MilliCPU
	}
	if joined != 5 || len(p.Events) != 1005 || len(apps) != len(p.Images) || apps[""] != "" {
		t.Errorf("%d nodes join, %d events, %d apps, %d images", joined, len(p.Events), len(apps), len(p.Images))
	}

	// Images that nodes have from the start are in the plan even if no pod
	// uses them.
	a = Zipf(1)
	a.Pods, a.Node.Holds = 0, []string{images[7].Image}
	if p, err = a.Plan(random(1), images); err != nil || len(p.Images) != 1 {
		t.Errorf("nodes hold an image: %v, %v", p, err)
	}

	p, err = LRScheduler(4).Plan(random(1), images)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Nodes) != 4 || len(p.Events) != 20 || p.Nodes[0].Link != 3.75e6 {
		t.Errorf("%d nodes, %d events, link %v", len(p.Nodes), len(p.Events), p.Nodes[0].Link)
	}
	for _, e := range p.Events {
		if e.Pod.Lifetime != 0 {
			t.Errorf("a pod ends after %s", e.Pod.Lifetime)
		}
	}
}

func TestBatches(t *testing.T) {
	images := dataset.Generate(random(1), 300)
	b := Bursts(50)
	b.ReplicaSets = true
	p, err := b.Plan(random(1), images)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Nodes) != 20 || len(p.Events) != 400+10*50 || p.History != 0 {
		t.Fatalf("%d nodes, %d events, history %s", len(p.Nodes), len(p.Events), p.History)
	}
	late, err := LateBursts(50).Plan(random(1), images)
	if err != nil || len(late.Events) != 4000+10*50 || late.History != late.Events[4000].At || late.Events[3999].At >= late.History {
		t.Errorf("late: %d events, history %s, error %v", len(late.Events), late.History, err)
	}
	groups, err := Groups().Plan(random(1), images)
	if err != nil || groups.Nodes[0].Rack != "rack-01" || groups.Nodes[4].Rack != "rack-05" || groups.Nodes[5].Rack != "rack-01" {
		t.Errorf("groups: %+v, error %v", groups.Nodes[:6], err)
	}
	for i, e := range groups.Events[4000:] {
		if want := fmt.Sprintf("batch-%02d", i/16+1); e.Pod.Group != want {
			t.Errorf("pod %d is of group %q, want %s", i, e.Pod.Group, want)
		}
	}
	seen := map[string]bool{}
	for _, e := range p.Events[:400] {
		seen[e.Pod.Image] = true
	}
	for i := range 10 {
		batch := p.Events[400+50*i:][:50]
		if seen[batch[0].Pod.Image] {
			t.Errorf("batch %d: %s is known", i, batch[0].Pod.Image)
		}
		seen[batch[0].Pod.Image] = true
		if gap := batch[0].At - p.Events[399+50*i].At; gap != b.Gap {
			t.Errorf("batch %d comes after %s", i, gap)
		}
		for _, e := range batch {
			if e.At != batch[0].At || *e.Pod != *batch[0].Pod || e.Pod.App == "" {
				t.Errorf("batch %d: %v and %v", i, e.Pod, batch[0].Pod)
			}
		}
	}
}

func TestScaleOut(t *testing.T) {
	p, err := Service().Plan(random(1), dataset.Generate(random(1), 300))
	if err != nil {
		t.Fatal(err)
	}
	var replicas []int
	var image string
	for _, e := range p.Events {
		if e.Deploy != nil {
			replicas, image = append(replicas, e.Deploy.Replicas), e.Deploy.Image
		}
	}
	for _, e := range p.Events {
		if e.Pod != nil && e.Pod.Image == image {
			t.Errorf("the service's image is also that of a pod at %s", e.At)
		}
	}
	if !slices.Equal(replicas, []int{1, 2, 5, 10, 20, 40}) {
		t.Errorf("replicas %v", replicas)
	}
}

func TestRolling(t *testing.T) {
	h := history(40)
	p, err := updates().Plan(random(1), h)
	if err != nil {
		t.Fatal(err)
	}
	// 20 tags with version 0, and 5 releases of each.
	if len(p.Events) != 20*6 || len(p.Images) != 20*6 {
		t.Fatalf("%d events, %d images", len(p.Events), len(p.Images))
	}
	byReference := map[string]dataset.Image{}
	for _, image := range h.Images {
		name, _, _ := strings.Cut(image.Image, ":v")
		byReference[name+"@"+image.ImageID] = image
	}
	total := 0.0
	current := map[string]string{}
	for i, e := range p.Events {
		image, ok := byReference[e.Deploy.Image]
		if !ok {
			t.Fatalf("%s is no image", e.Deploy.Image)
		}
		// The versions come one after another and belong to the same image.
		name, version, _ := strings.Cut(image.Image, ":v")
		if version != fmt.Sprint(i/20) {
			t.Errorf("event %d is about version %s", i, version)
		}
		if old, ok := current[e.Deploy.Name]; ok && old != name {
			t.Errorf("%s is %s and %s", e.Deploy.Name, old, name)
		}
		current[e.Deploy.Name] = name
		if i < 20 {
			total += float64(e.Deploy.MilliCPU) * 2
		}
		gap := 5 * time.Second
		if i > 0 && i%20 == 0 {
			gap = 2 * time.Minute
		}
		if i > 0 && e.At-p.Events[i-1].At != gap {
			t.Errorf("event %d comes %s after the one before", i, e.At-p.Events[i-1].At)
		}
	}
	if math.Abs(total/40000-1) > 0.01 {
		t.Errorf("%v milli-CPUs are requested, want half of 80000", total)
	}
}

func TestErrors(t *testing.T) {
	images := dataset.Generate(random(1), 10)
	change := func(f func(*Arrivals)) Arrivals { a := Zipf(1); f(&a); return a }
	rolling := func(f func(*Rolling)) func() (*Plan, error) {
		w := updates()
		f(&w)
		return func() (*Plan, error) { return w.Plan(random(1), history(40)) }
	}
	for name, tc := range map[string]struct {
		plan func() (*Plan, error)
		err  string
	}{
		"no images":    {func() (*Plan, error) { return Zipf(1).Plan(random(1), nil) }, "no images"},
		"no nodes":     {func() (*Plan, error) { return change(func(a *Arrivals) { a.Nodes = 0 }).Plan(random(1), images) }, "0 nodes"},
		"no sizes":     {func() (*Plan, error) { return change(func(a *Arrivals) { a.Sizes = nil }).Plan(random(1), images) }, "0 sizes"},
		"no link":      {func() (*Plan, error) { return change(func(a *Arrivals) { a.Node.Link = 0 }).Plan(random(1), images) }, "link"},
		"negative use": {func() (*Plan, error) { return change(func(a *Arrivals) { a.Use = -1 }).Plan(random(1), images) }, "use -1"},
		"few images":   {func() (*Plan, error) { return Bursts(30).Plan(random(1), images) }, "10 batches need more than the 10 images"},
		"one image":    {func() (*Plan, error) { return Service().Plan(random(1), images[:1]) }, "1 images"},
		"few tags":     {rolling(func(w *Rolling) { w.Tags = 41 }), "only 40 tags"},
		"few moves":    {rolling(func(w *Rolling) { w.MinMoves = 6 }), "only 0 tags"},
		"no room":      {rolling(func(w *Rolling) { w.Replicas = 10 }), "10 replicas apart on 10 nodes"},
		"no moves":     {func() (*Plan, error) { return updates().Plan(random(1), dataset.History{Images: images}) }, "no tag moves"},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := tc.plan(); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v and error %v, want error %q", p, err, tc.err)
			}
		})
	}
}

func TestValidateHistory(t *testing.T) {
	for history, valid := range map[time.Duration]bool{0: true, maxTime: true, -1: false, maxTime + 1: false} {
		p := &Plan{Nodes: DefaultCluster().nodes(), History: history}
		if err := p.Validate(); (err == nil) != valid {
			t.Errorf("history %s: %v", history, err)
		}
	}
}

// Files may hold several versions of a tag: each is a separate image.
func TestReferences(t *testing.T) {
	named := references([]dataset.Image{
		{Image: "host:5000/a:1", Aliases: []string{"host:5000/a:2"}, ImageID: "sha256:1"},
		{Image: "host:5000/a:1", ImageID: "sha256:2", Digest: "sha256:3"},
		{Image: "host:5000/a:1", Digest: "sha256:4"},
		{Image: "host:5000/a:1", Digest: "sha256:4"},
		{Image: "host:5000/a:1"},
	})
	var names []string
	for _, image := range named {
		names = append(names, image.Image)
		if image.Aliases != nil {
			t.Errorf("%s has other names: %v", image.Image, image.Aliases)
		}
	}
	if want := []string{"host:5000/a:1", "host:5000/a@sha256:2", "host:5000/a@sha256:4"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// The images have the sizes of those they stand for: stored as they are, and each layer once.
func TestSandboxes(t *testing.T) {
	s := DefaultSandboxes()
	s.Images = 2290
	images := s.images(rand.New(rand.NewPCG(1, 2)))
	var stored, distinct int64
	seen := map[string]bool{}
	for _, image := range images {
		for _, l := range image.Layers {
			stored += l.Size
			if !seen[l.Digest] {
				seen[l.Digest] = true
				distinct += l.Size
			}
		}
	}
	if stored>>30 < 560 || stored>>30 > 800 || distinct>>30 < 50 || distinct>>30 > 85 {
		t.Errorf("%d GiB as stored, %d GiB of distinct layers; want about 684 and 67", stored>>30, distinct>>30)
	}
	plan, err := DefaultSandboxes().Plan(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(); err != nil {
		t.Fatal(err)
	}
	bursts, pods := map[time.Duration]int{}, map[string]int{}
	for _, e := range plan.Events {
		if e.Pod != nil {
			bursts[e.At]++
			pods[e.Pod.Image]++
		}
	}
	for at, n := range bursts {
		if n < 50 || n > 200 {
			t.Errorf("%d pods at %s", n, at)
		}
	}
	for image, n := range pods {
		if n > 24 {
			t.Errorf("%s is used %d times", image, n)
		}
	}
	if len(bursts) != 30 || len(pods) < 300 {
		t.Errorf("%d bursts of %d images", len(bursts), len(pods))
	}
	for name, bad := range map[string]Sandboxes{"no image": {Environments: 1, Each: 1}, "bounds": {Images: 1, Environments: 1, Each: 1, LeastPods: 2}} {
		if _, err := bad.Plan(rand.New(rand.NewPCG(1, 2))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

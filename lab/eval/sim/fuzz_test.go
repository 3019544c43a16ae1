package sim

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// FuzzRun plays plans from untrusted files: a plan that Validate accepts is played
// to the end, without panic, error or hanging.
func FuzzRun(f *testing.F) {
	needsLayers(f)
	for seed := range uint64(5) {
		data, err := json.Marshal(randomPlan(rand.New(rand.NewPCG(seed, 5)), 2+int(seed), 20))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	const node = `{"name":"n","milliCPU":1,"memory":1,"pods":1,"disk":1,"link":1e-300,"holds":["a"]}`
	for _, events := range []string{
		``,
		`{"at":31622400000000000,"pod":{"image":"b","lifetime":31622400000000000}},{"at":31622400000000000,"pod":{"image":"a","app":"x"}}`,
		`{"deploy":{"name":"d","image":"b","replicas":3,"apart":true}},{"at":1,"deploy":{"name":"d","image":"a","replicas":1}}`,
		`{"deploy":{"name":"d","image":"b","replicas":300}},{"at":1,"join":{"name":"m","milliCPU":1000000000,"memory":1125899906842624,"pods":9223372036854775807,"disk":1125899906842624,"link":1e308}}`,
	} {
		f.Add([]byte(`{"nodes":[` + node + `],"images":[{"image":"a"},{"image":"b","layers":[{"digest":"","size":1099511627776},{"digest":"","size":0}]}],"events":[` + events + `]}`))
	}
	policies := Policies()
	f.Fuzz(func(t *testing.T, data []byte) {
		plan := &workload.Plan{}
		if json.Unmarshal(data, plan) != nil || plan.Validate() != nil {
			return
		}
		pods := 0
		for _, e := range plan.Events {
			if e.Deploy != nil {
				pods += e.Deploy.Replicas
			}
		}
		if pods > 1_000 { // allowed, but it takes a while
			return
		}
		h := fnv.New32a()
		h.Write(data)
		policy := policies[int(h.Sum32())%len(policies)]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := Run(ctx, plan, policy, DefaultModel(), 1)
		if err != nil {
			t.Fatalf("%s: %v", policy.Name, err)
		}
		if m.PulledBytes < 0 || m.RemovedBytes < 0 || m.DiskBytes < 0 || m.Unschedulable > m.Pods || m.Unstarted < 0 || !(m.StartupMean >= 0) || !(m.CPUStd >= 0) {
			t.Errorf("%s: %+v", policy.Name, m)
		}
	})
}

func TestPlansThatAreTooLarge(t *testing.T) {
	valid := func() *workload.Plan {
		return &workload.Plan{
			Nodes: nodesOf(1), Images: []dataset.Image{imageOf("a", "a", 1)},
			Events: []workload.Event{
				{Pod: podOf("a", 1, 0)}, {Deploy: &workload.Deployment{Name: "d", Image: "a"}}, {Join: &workload.Node{Name: "m", MilliCPU: 1, Memory: 1, Pods: 1, Disk: 1, Link: 1}},
			},
		}
	}
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want   string
		change func(*workload.Plan)
	}{
		{"more than 10000 nodes", func(p *workload.Plan) { p.Nodes = nodesOf(10_001) }},
		{"more than 10000 nodes", func(p *workload.Plan) { p.Nodes = nodesOf(10_000) }}, // and one more joins
		{"at most 1000000000 milliCPU", func(p *workload.Plan) { p.Nodes[0].MilliCPU = 1e9 + 1 }},
		{"bytes of memory and disk", func(p *workload.Plan) { p.Events[2].Join.Memory = 1<<50 + 1 }},
		{"bytes of memory and disk", func(p *workload.Plan) { p.Nodes[0].Disk = 1<<50 + 1 }},
		{"have to be positive", func(p *workload.Plan) { p.Nodes[0].Link = 0 }},
		{"layer a of -1 bytes", func(p *workload.Plan) { p.Images[0].Layers[0].Size = -1 }},
		{"no more than 1099511627776 in an image", func(p *workload.Plan) {
			p.Images[0].Layers = []dataset.Layer{{Digest: "a", Size: 1 << 40}, {Digest: "b", Size: 1}}
		}},
		{"1001 layers", func(p *workload.Plan) { p.Images[0].Layers = make([]dataset.Layer, 1001) }},
		{"the last may be at", func(p *workload.Plan) { p.Events[2].At = 367 * 24 * time.Hour }},
		{"lifetime", func(p *workload.Plan) { p.Events[0].Pod.Lifetime = 367 * 24 * time.Hour }},
		{"lifetime", func(p *workload.Plan) { p.Events[0].Pod.Lifetime = -1 }},
		{"requests of", func(p *workload.Plan) { p.Events[0].Pod.Memory = 1<<50 + 1 }},
		{"requests of", func(p *workload.Plan) { p.Events[1].Deploy.MilliCPU = -1 }},
		{"replicas", func(p *workload.Plan) { p.Events[1].Deploy.Replicas = 10_001 }},
		{"replicas", func(p *workload.Plan) { p.Events[1].Deploy.Replicas = -1 }},
		{"without name", func(p *workload.Plan) { p.Events[1].Deploy.Name = "" }},
		{`name "a b"`, func(p *workload.Plan) { p.Events[1].Deploy.Name = "a b" }},
		{`app "a/b"`, func(p *workload.Plan) { p.Events[0].Pod.App = "a/b" }},
		{"more than 1000000 pods", func(p *workload.Plan) {
			for range 101 {
				p.Events = append(p.Events, workload.Event{Deploy: &workload.Deployment{Name: "d", Image: "a", Replicas: 10_000}})
			}
		}},
	} {
		p := valid()
		test.change(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
		if _, err := Run(t.Context(), p, Policies()[0], DefaultModel(), 1); err == nil {
			t.Errorf("%q was played", test.want)
		}
	}
}

package workload

import (
	"encoding/json"
	"testing"
)

// FuzzPlan checks that Validate handles every file, and that what it accepts is
// bounded.
func FuzzPlan(f *testing.F) {
	for _, text := range []string{
		`{}`,
		`{"nodes":[{"name":"n","milliCPU":1,"memory":1,"pods":1,"disk":1,"link":1,"holds":["a"]}],"images":[{"image":"a","layers":[{"digest":"x","size":1}]}],
		  "events":[{"at":1,"pod":{"image":"a","lifetime":5}},{"at":2,"deploy":{"name":"d","image":"a","replicas":3,"apart":true}},
		  {"at":3,"join":{"name":"m","milliCPU":1,"memory":1,"pods":1,"disk":1,"link":1e308}}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Plan{}
		if json.Unmarshal(data, p) != nil || p.Validate() != nil {
			return
		}
		pods := 0
		for _, e := range p.Events {
			if e.At < 0 || e.At > maxTime {
				t.Errorf("an event at %s", e.At)
			}
			if e.Deploy != nil {
				pods += e.Deploy.Replicas
			}
			if e.Pod != nil {
				pods++
			}
		}
		if pods > maxPods || len(p.Nodes) > maxNodes {
			t.Errorf("%d pods on %d nodes", pods, len(p.Nodes))
		}
	})
}

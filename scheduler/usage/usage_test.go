package usage

import (
	"math"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func annotated(annotations map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: annotations}}
}

func TestAnnotations(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	for name, c := range map[string]struct {
		annotations map[string]string
		resource    v1.ResourceName
		want        Statistics
	}{
		"none":             {nil, v1.ResourceCPU, Statistics{Problem: Missing, Of: "mean-free-cpu"}},
		"mean":             {map[string]string{"mean-free-cpu": "2500"}, v1.ResourceCPU, Statistics{Free: 2500}},
		"of the other":     {map[string]string{"mean-free-cpu": "2500"}, v1.ResourceMemory, Statistics{Problem: Missing, Of: "mean-free-memory"}},
		"all":              {map[string]string{"mean-free-memory": "155597063", "std-free-memory": "30372823.5", "forcasted-free-memory": "2e8"}, v1.ResourceMemory, Statistics{Free: 155597063, Deviation: 30372823.5, Forecast: 2e8, Forecasts: true}},
		"forecast of 0":    {map[string]string{"mean-free-cpu": "1", "forcasted-free-cpu": "0"}, v1.ResourceCPU, Statistics{Free: 1, Forecasts: true}},
		"other spelling":   {map[string]string{"mean-free-cpu": "1", "forecasted-free-cpu": "0"}, v1.ResourceCPU, Statistics{Free: 1}},
		"only a deviation": {map[string]string{"std-free-cpu": "1"}, v1.ResourceCPU, Statistics{Problem: Missing, Of: "mean-free-cpu"}},
		"NaN":              {map[string]string{"mean-free-cpu": "NaN"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"too large":        {map[string]string{"mean-free-cpu": "1e400"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"1 MB":             {map[string]string{"mean-free-cpu": long}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"empty":            {map[string]string{"mean-free-cpu": ""}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
	} {
		if got := Of(annotated(c.annotations), c.resource); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestAncestor has each annotation of the kube-safe-scheduler in each form that its README and its
// annotators have: str() of Python's numbers, of pandas' and of None, "N/A" without a forecast, whole
// megabytes with a unit, and what Prometheus returns for no samples. Of what is no number, it keeps
// what its agent made of it, but for "nan", by which that took every node for safe.
func TestAncestor(t *testing.T) {
	invalid := Statistics{Problem: Invalid, Of: "mean-free-memory"}
	for _, c := range []struct {
		mean, deviation, forecast string // "-": no such annotation
		want                      Statistics
	}{
		{"155597063", "30372823", "200000000", Statistics{Free: 155597063, Deviation: 30372823, Forecast: 2e8, Forecasts: true}}, // the README
		{"2500", "400", "2000", Statistics{Free: 2500, Deviation: 400, Forecast: 2000, Forecasts: true}},
		{"4194304.0", "41943.04", "N/A", Statistics{Free: 4194304, Deviation: 41943.04}}, // the annotator's defaults
		{"1.55597063e+11", "3.03728235123e+10", "1.6e+11", Statistics{Free: 155597063e3, Deviation: 30372823512.3, Forecast: 1.6e11, Forecasts: true}},
		{"1000.0", "0.0", "None", Statistics{Free: 1000}}, // ARIMA did not converge
		{"1000.0", "5e-05", "nan", Statistics{Free: 1000, Deviation: 5e-5}},
		{"1000.0", "nan", "N/A", Statistics{Free: 1000}}, // the deviation of one sample
		{"1000.0", "None", "-", Statistics{Free: 1000}},
		{"1000.0", "", "", Statistics{Free: 1000}},
		{"1000.0", "-", "inf", Statistics{Free: 1000}},
		{"1000.0", "-2.5", "-300.25", Statistics{Free: 1000, Forecasts: true}}, // ARIMA goes below 0
		{"-150", "10", "-", Statistics{Deviation: 10}},                         // used beyond what pods may have
		{"-4194304.0", "41943.04", "N/A", Statistics{Deviation: 41943.04}},
		{"0", "0", "N/A", Statistics{}},
		{"155Mi", "30Mi", "-", invalid}, // unit_parsing of the annotator
		{"155597063.0", "30Mi", "160Mi", Statistics{Free: 155597063}},
		{"nan", "1", "1", invalid}, {"inf", "1", "1", invalid}, {"None", "1", "1", invalid}, {"N/A", "1", "1", invalid}, {"", "1", "1", invalid},
		{"-", "1", "1", Statistics{Problem: Missing, Of: "mean-free-memory"}},
	} {
		annotations := map[string]string{ // which no agent reads
			"free_memory": "4194304", "min_free_memory": "nan", "reqested_memory": "0", "allocatable_memory": "419430400", "free-memory": "1", "requested-memory": "2",
		}
		for name, text := range map[string]string{"mean-free-memory": c.mean, "std-free-memory": c.deviation, "forcasted-free-memory": c.forecast} {
			if text != "-" {
				annotations[name] = text
			}
		}
		if got := Of(annotated(annotations), v1.ResourceMemory); got != c.want {
			t.Errorf("%q %q %q: %+v, want %+v", c.mean, c.deviation, c.forecast, got, c.want)
		}
	}
}

// TestUntil: statistics that are stated are those that are read, until their time, which must be one.
func TestUntil(t *testing.T) {
	until := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	cpu := Statistics{Free: 2500, Deviation: 400, Forecast: 2000, Forecasts: true, Until: until}
	memory := Statistics{Free: 155597063, Until: until}
	for name, stated := range map[string]map[v1.ResourceName]Statistics{"both": {v1.ResourceCPU: cpu, v1.ResourceMemory: memory}, "one": {v1.ResourceCPU: cpu}} {
		node := annotated(map[string]string{})
		removed := 0
		for annotation, text := range State(stated, until) {
			if text == nil {
				removed++
				continue
			}
			node.Annotations[annotation] = *text
		}
		for _, resource := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			want, ok := stated[resource]
			if !ok {
				want = Statistics{Problem: Missing, Of: "mean-free-memory"}
			}
			if got := Of(node, resource); got != want {
				t.Errorf("%s, %s: %+v, want %+v", name, resource, got, want)
			}
		}
		if want := map[string]int{"both": 1, "one": 3}[name]; removed != want {
			t.Errorf("%s: %d annotations are removed, want %d", name, removed, want)
		}
		node.Annotations[Until] = "tomorrow"
		if got := Of(node, v1.ResourceCPU); got != (Statistics{Problem: Invalid, Of: Until}) {
			t.Errorf("until tomorrow: %+v", got)
		}
	}
}

func TestCapacity(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("1Ki")}}}
	if got := Capacity(node, v1.ResourceCPU); got != 1500 {
		t.Errorf("CPU: %v", got)
	}
	if got := Capacity(node, v1.ResourceMemory); got != 1024 {
		t.Errorf("memory: %v", got)
	}
	if got := Capacity(&v1.Node{}, v1.ResourceCPU); got != 0 {
		t.Errorf("nothing: %v", got)
	}
}

func FuzzAnnotations(f *testing.F) {
	f.Add("1600", "400", "1200")
	f.Add("NaN", "1e400", "-3")
	f.Fuzz(func(t *testing.T, mean, deviation, forecast string) {
		got := Of(annotated(map[string]string{"mean-free-cpu": mean, "std-free-cpu": deviation, "forcasted-free-cpu": forecast}), v1.ResourceCPU)
		if got.Problem != None && got != (Statistics{Problem: Invalid, Of: got.Of}) {
			t.Errorf("%q %q %q: %+v", mean, deviation, forecast, got)
		}
		for _, value := range []float64{got.Free, got.Deviation, got.Forecast} {
			if !(value >= 0) || math.IsInf(value, 0) {
				t.Errorf("%q %q %q: %+v", mean, deviation, forecast, got)
			}
		}
	})
}

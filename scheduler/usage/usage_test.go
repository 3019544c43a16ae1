package usage

import (
	"math"
	"strings"
	"testing"

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
		"none":              {nil, v1.ResourceCPU, Statistics{Problem: Missing, Of: "mean-free-cpu"}},
		"mean":              {map[string]string{"mean-free-cpu": "2500"}, v1.ResourceCPU, Statistics{Free: 2500}},
		"of the other":      {map[string]string{"mean-free-cpu": "2500"}, v1.ResourceMemory, Statistics{Problem: Missing, Of: "mean-free-memory"}},
		"all":               {map[string]string{"mean-free-memory": "155597063", "std-free-memory": "30372823.5", "forcasted-free-memory": "2e8"}, v1.ResourceMemory, Statistics{Free: 155597063, Deviation: 30372823.5, Forecast: 2e8, Forecasts: true}},
		"forecast of 0":     {map[string]string{"mean-free-cpu": "1", "forcasted-free-cpu": "0"}, v1.ResourceCPU, Statistics{Free: 1, Forecasts: true}},
		"other spelling":    {map[string]string{"mean-free-cpu": "1", "forecasted-free-cpu": "0"}, v1.ResourceCPU, Statistics{Free: 1}},
		"only a deviation":  {map[string]string{"std-free-cpu": "1"}, v1.ResourceCPU, Statistics{Problem: Missing, Of: "mean-free-cpu"}},
		"NaN":               {map[string]string{"mean-free-cpu": "NaN"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"too large":         {map[string]string{"mean-free-cpu": "1e400"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"negative":          {map[string]string{"mean-free-cpu": "-3"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"1 MB":              {map[string]string{"mean-free-cpu": long}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"empty":             {map[string]string{"mean-free-cpu": ""}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "mean-free-cpu"}},
		"invalid deviation": {map[string]string{"mean-free-cpu": "5", "std-free-cpu": "NaN", "forcasted-free-cpu": "4"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "std-free-cpu"}},
		"invalid forecast":  {map[string]string{"mean-free-cpu": "5", "std-free-cpu": "1", "forcasted-free-cpu": "-4"}, v1.ResourceCPU, Statistics{Problem: Invalid, Of: "forcasted-free-cpu"}},
	} {
		if got := (Annotations{}).Of(annotated(c.annotations), c.resource); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
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
		got := Annotations{}.Of(annotated(map[string]string{"mean-free-cpu": mean, "std-free-cpu": deviation, "forcasted-free-cpu": forecast}), v1.ResourceCPU)
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

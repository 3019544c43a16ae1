package scenario

import (
	"maps"
	"testing"
)

func TestFloats(t *testing.T) {
	t.Parallel()
	const name = "scheduler_qosaware_workload_service_ratio"
	text := "# TYPE " + name + " gauge\n" +
		name + `{kind="Deployment",namespace="default",workload="a-1"} 0.25` + "\n" +
		name + `{kind="Deployment",namespace="default",workload="b"} 5e-01` + "\n" +
		`another{workload="c"} 1` + "\n"
	got, err := floats(text, name, "workload")
	if want := (map[string]float64{"a-1": .25, "b": .5}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if whole, err := metric(text, "another", "workload"); err != nil || whole["c"] != 1 {
		t.Errorf("%v, %v", whole, err)
	}
	for _, wrong := range []string{"", name + `{workload="a"} x` + "\n"} {
		if got, err := floats(wrong, name, "workload"); err == nil {
			t.Errorf("%q: %v", wrong, got)
		}
	}
}

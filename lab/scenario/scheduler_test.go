package scenario

import (
	"reflect"
	"testing"
)

func TestScores(t *testing.T) {
	t.Parallel()
	const prefix = `I1121 10:15:51.909485     402 schedule_one.go:983] "Plugin scored node for pod" `
	log := prefix + `pod="default/p-1" plugin="LayerLocality" node="n1" score=360` + "\n" +
		prefix + `pod="default/p-1" plugin="LayerLocality" node="n2" score=0` + "\n" +
		prefix + `pod="default/p-1" plugin="ImageLocality" node="n1" score=5` + "\n" +
		prefix + `pod="default/p-10" plugin="LayerLocality" node="n1" score=1` + "\n" +
		prefix + `pod="kube-system/p-1" plugin="LayerLocality" node="n3" score=2` + "\n" +
		`I1121 10:15:51.909485     402 schedule_one.go:1027] "Extender scored node for pod" pod="default/p-1" extender="https://198.51.100.1:5401/scheduler" node="n1" score=36` + "\n" +
		`I1121 10:15:51.909485     402 schedule_one.go:1055] "Calculated node's final score for pod" pod="default/p-1" node="n1" score=418` + "\n"
	for plugin, want := range map[string]map[string]int64{
		"LayerLocality": {"n1": 360, "n2": 0}, "https://198.51.100.1:5401/scheduler": {"n1": 36}, "PodTopologySpread": {},
	} {
		got, err := scores(log, "p-1", plugin)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", plugin, got, want)
		}
	}
}

package handler

import (
	"encoding/json"
	"reflect"
	"testing"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/layer-locality/layer-locality/extender/agent"
)

// requests are decoded as encoding/json does it, the first of them without it.
var requests = []string{
	`{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["n1","n2"]}`,
	`{"Pod":{},"NodeNames":[]}` + "\r\n",
	`{"Pod":{},"NodeNames":[""]}`,
	`{"NodeNames":["a"],"NodeNames":["b","b"]}`,
	`{"NodeNames":["a"],"nodenames":["b"]}`,
	`{"Pod":{"metadata":{"name":"\"NodeNames\":["}},"NodeNames":["n1"]}`,
	`{"Pod":{"metadata":{"annotations":{"NodeNames":["x"]}}}}`,
	`{"Pod":{"NodeNames":["x"]}`, `{"Pod":{"NodeNames":["x"]}}`, `[{"NodeNames":["x"]}`, `{"Pod":"NodeNames":["x"]}`,
	`{"NodeNames":["a",]}`, `{"NodeNames":[,"a"]}`, `{"NodeNames":["a" "b"]}`, `{"NodeNames":["a"}`, `{"NodeNames":["a]}`, `{"NodeNames":[a]}`, `{"NodeNames":["]}`,
	`{"NodeNames":["é","\u00e9","\n","<&>"]}`, "{\"NodeNames\":[\"\xff\"]}", "{\"NodeNames\":[\"\n\"]}", `{"NodeNames":[1]}`, `{"NodeNames":[null]}`, `{"NodeNames":[["a"]]}`, ``, `]}`,
}

// TestRequests has decode and encoding/json read the same, or neither anything.
func TestRequests(t *testing.T) {
	for i, body := range requests {
		same(t, body)
		if plain := decodeNames([]byte(body), &extenderv1.ExtenderArgs{}); i < 4 && !plain {
			t.Errorf("%s: not read as names", body)
		}
	}
}

func same(t *testing.T, body string) {
	t.Helper()
	var got, want extenderv1.ExtenderArgs
	ok := decodeNames([]byte(body), &got)
	if err := json.Unmarshal([]byte(body), &want); ok && (err != nil || !reflect.DeepEqual(got, want)) {
		t.Errorf("%q: %+v, want %+v %v", body, got, want, err)
	}
}

func FuzzRequests(f *testing.F) {
	for _, body := range requests {
		f.Add(body)
	}
	f.Fuzz(same)
}

// TestAnswers reads what is encoded, with names as nobody has them.
func TestAnswers(t *testing.T) {
	for _, names := range [][]string{{}, {"n1"}, {"n1", "", "\"", "\\", "\n\t\x00", "é", "\u2028", "</script>&", "n2"}} {
		var scores extenderv1.HostPriorityList
		points, rejections := make([]int64, len(names)), make([]agent.Rejection, len(names))
		wantScores, want := extenderv1.HostPriorityList{}, extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{}}
		for i, name := range names {
			points[i] = int64(i * 7)
			wantScores = append(wantScores, extenderv1.HostPriority{Host: name, Score: points[i]})
			switch i % 3 {
			case 0:
				*want.NodeNames = append(*want.NodeNames, name)
			case 1:
				rejections[i].Reason = "full of " + name
				want.FailedNodes[name] = rejections[i].Reason
			default:
				rejections[i] = agent.Rejection{Reason: "not\n\"there\"", Unresolvable: true}
				want.FailedAndUnresolvableNodes[name] = rejections[i].Reason
			}
		}
		if err := json.Unmarshal(encodePriorities(names, points), &scores); err != nil || !reflect.DeepEqual(scores, wantScores) {
			t.Errorf("%v, want %v: %v", scores, wantScores, err)
		}
		var result extenderv1.ExtenderFilterResult
		if err := json.Unmarshal(encodeFiltered(names, rejections), &result); err != nil || !reflect.DeepEqual(result, want) {
			t.Errorf("%+v, want %+v: %v", result, want, err)
		}
	}
}

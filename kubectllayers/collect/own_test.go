package collect

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The metadata of a list is found wherever it is, and is never that of an object in it.
func TestListMeta(t *testing.T) {
	want := metav1.ListMeta{ResourceVersion: "7", Continue: "more"}
	for what, text := range map[string]string{
		"last, as an apiserver writes it": `{"apiVersion":"v1","items":[{"metadata":{"continue":"no"}}],"kind":"List","metadata":{"continue":"more","resourceVersion":"7"}}` + "\n",
		"first":                           `{"metadata":{"continue":"more","resourceVersion":"7"},"items":[{"metadata":{"continue":"no"}}]}`,
		"before an object that has some":  `{"metadata":{"continue":"more","resourceVersion":"7"},"other":{"metadata":{"continue":"no"}}}`,
		"with spaces":                     `{"items":[{"metadata":{"continue":"no"}}], "metadata" : {"continue":"more","resourceVersion":"7"} }`,
		"as a text":                       `{"metadata":{"continue":"more","resourceVersion":"7"},"items":["\"metadata\":{\"continue\":\"no\"}"]}`,
	} {
		if got, err := listMeta([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	for _, text := range []string{``, `{"metadata":{"continue":"more"}`, `{"metadata":7}`, `"metadata":{"continue":"more"}}x`} {
		if got, err := listMeta([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// Pages come packed where the link is slow, and otherwise in the way that was faster.
func TestPacking(t *testing.T) {
	type took struct {
		size    int
		seconds float64
	}
	const mb = 1_000_000
	for name, test := range map[string]struct {
		begin packing
		pages []took
		// want is whether each page is asked for plain, and the one behind them.
		want []bool
	}{
		"slow link":        {packing{}, []took{{6 * mb, 2}, {6 * mb, .1}, {6 * mb, .1}}, []bool{false, false, false, false}},
		"plain is faster":  {packing{}, []took{{6 * mb, .3}, {5 * mb, .1}, {6 * mb, 9}}, []bool{false, true, true, true}},
		"packed is faster": {packing{}, []took{{6 * mb, .3}, {6 * mb, .5}, {6 * mb, 9}}, []bool{false, true, false, false}},
		"user's option":    {packing{plain: true, settled: true}, []took{{6 * mb, .3}, {6 * mb, 9}}, []bool{true, true, true}},
		"no time":          {packing{}, []took{{0, 0}, {0, 0}}, []bool{false, false, false}},
	} {
		p := test.begin
		for i, want := range test.want {
			if p.plain != want {
				t.Errorf("%s: page %d is plain: %t", name, i, p.plain)
			}
			if i < len(test.pages) {
				p.took(test.pages[i].size, time.Duration(test.pages[i].seconds*float64(time.Second)))
			}
		}
	}
}

// Pods of one template have their containers in memory once, and each has its own otherwise.
func TestTemplates(t *testing.T) {
	pod := func(image, cpu string) []v1.Container {
		return []v1.Container{{Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
	}
	same := templates{}
	first, equal, other, larger := same.shared(pod("a:1", "1")), same.shared(pod("a:1", "1")), same.shared(pod("b:1", "1")), same.shared(pod("a:1", "2"))
	if &first[0] != &equal[0] || other[0].Image != "b:1" || larger[0].Resources.Requests.Cpu().Value() != 2 {
		t.Errorf("%v, %v, %v, %v", first, equal, other, larger)
	}
	for i := range 2 * maxAlike { // a tenant may have as many as they like
		if got := same.shared(pod("c:1", fmt.Sprint(i+1))); got[0].Resources.Requests.Cpu().Value() != int64(i+1) {
			t.Errorf("%d: %v", i, got)
		}
	}
	if len(same["c:1"]) != maxAlike {
		t.Errorf("%d are kept for comparison", len(same["c:1"]))
	}
	if same.shared(nil) != nil {
		t.Error("a pod without containers")
	}
}

package layerlocality

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// hookedNodes calls a function before nodes are listed.
type hookedNodes struct {
	corelisters.NodeLister
	hook func()
}

func (n hookedNodes) List(s labels.Selector) ([]*v1.Node, error) {
	n.hook()
	return n.NodeLister.List(s)
}

// A described pod is untrusted: how much it may have is bounded, one is rated at a time, and none whose client went away.
func TestDebugSpecIsBounded(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	handler := s.factory.DebugHandler()
	get := func(ctx context.Context, query string) string {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, DebugPath+"?"+query, nil))
		return fmt.Sprint(recorder.Code, " ", recorder.Body)
	}
	spec := func(fields string) string {
		return "spec=" + url.QueryEscape(`{"containers":[{"image":"quay.io/a:1"}],`+fields+`}`)
	}
	many := func(n int, one string) string { return strings.Repeat(one+",", n-1) + one }
	terms := func(n int, key string) string {
		return spec(`"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"` + key + `":[` + many(n, `{"key":"metadata.name","operator":"In","values":["n1"]}`) + `]}]}}}`)
	}
	for name, c := range map[string]struct{ query, want string }{
		"longest":          {spec(`"hostname":"` + strings.Repeat("x", maxSpec-60) + `"`), "200 "},
		"too long":         {spec(`"hostname":"` + strings.Repeat("x", maxSpec) + `"`), "400 spec: 65"},
		"most tolerations": {spec(`"tolerations":[` + many(maxTerms, `{}`) + `]`), "200 "},
		"more tolerations": {spec(`"tolerations":[` + many(maxTerms+1, `{}`) + `]`), "400 spec: 101 tolerations, want 100 at most"},
		"most terms":       {terms(maxTerms-1, "matchFields"), "200 "},
		"more fields":      {terms(maxTerms, "matchFields"), "400 spec: 101 terms and requirements of node affinity, want 100 at most"},
		"more expressions": {terms(maxTerms, "matchExpressions"), "400 spec: 101 terms"},
		"more terms":       {spec(`"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + many(maxTerms+1, `{}`) + `]}}}`), "400 spec: 101 terms"},
		"image":            {spec(`"initContainers":[{"image":"Not A Name"}]`), `400 "Not A Name" is not a valid image reference`},
		"volume":           {spec(`"volumes":[{"image":{"reference":"Not A Volume"}}]`), `400 "Not A Volume" is not a valid image reference`},
	} {
		if got := get(t.Context(), c.query); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %.300s, want %s", name, got, c.want)
		}
	}

	valid := spec(`"hostname":"h"`)
	during, next := "", make(chan string, 1)
	s.plugin.nodes = hookedNodes{s.plugin.nodes, func() {
		if during == "" {
			during = "-" // the one inside is to be refused before it comes here
			during = get(t.Context(), valid)
			go func() { next <- get(t.Context(), valid) }()
		}
	}}
	if got := get(t.Context(), valid); !strings.HasPrefix(got, "200 ") || !strings.HasPrefix(during, "429 other described pods are being rated: ask again") {
		t.Errorf("%.300s; another one meanwhile: %.300s", got, during)
	}
	if got := <-next; !strings.HasPrefix(got, "200 ") {
		t.Errorf("one that came shortly before the end: %.300s", got)
	}
	gone, cancel := context.WithCancel(t.Context())
	s.plugin.nodes = hookedNodes{s.plugin.nodes, cancel}
	if got := get(gone, valid); strings.HasPrefix(got, "200") || !strings.Contains(got, context.Canceled.Error()) {
		t.Errorf("a client that went away: %.300s", got)
	}
	if got := get(t.Context(), valid); !strings.HasPrefix(got, "200 ") {
		t.Errorf("the next one: %.300s", got)
	}
}

package nodeimages

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestGet(t *testing.T) {
	answer := `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"status":{"images":[
		{"names":["r/a:1"],"sizeBytes":300,"layers":[{"digest":"sha256:aa","sizeBytes":100},{"digest":"sha256:bb"}]},
		{"names":["r/b:1"],"sizeBytes":5}]}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1" {
			http.NotFound(w, r)
			return
		}
		if accept := r.Header.Get("Accept"); accept != "application/json" {
			t.Errorf("asked for %q: stock types drop the layers of protobuf", accept)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}

	got, err := Get(context.Background(), client, "n1")
	if err != nil {
		t.Fatal(err)
	}
	want := []Image{
		{Names: []string{"r/a:1"}, SizeBytes: 300, Layers: []Layer{{"sha256:aa", 100}, {"sha256:bb", 0}}},
		{Names: []string{"r/b:1"}, SizeBytes: 5},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}

	if _, err := Get(context.Background(), client, "n2"); err == nil || !strings.Contains(err.Error(), "node n2") {
		t.Errorf("an unknown node: %v, want an error that names it", err)
	}
}

package scenario

import (
	"reflect"
	"strings"
	"testing"
)

func TestPulled(t *testing.T) {
	t.Parallel()
	const digest = "sha256:8978760428075292c45d51dbe157c75ace71213a2411c273fddeb2ffe6783347"
	const when = ` - - [21/Nov/2026:09:07:36 +0000] `
	log := strings.Join([]string{
		`198.18.0.11` + when + `"GET /v2/team/app/blobs/` + digest + ` HTTP/1.1" 200 1000 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"GET /v2/team/app/blobs/` + digest + ` HTTP/1.1" 206 200 "" "cri-o/1.36.3"`, // the rest, after an interruption
		`198.18.0.12` + when + `"GET /v2/team/app/blobs/` + digest + ` HTTP/1.1" 200 30 "" "cri-o/1.36.3"`,
		// None of these is a download from this repository by a node.
		`198.18.0.2` + when + `"GET /v2/team/app/blobs/` + digest + ` HTTP/1.1" 200 4 "" "Go-http-client/1.1"`,
		`198.18.0.11` + when + `"GET /v2/team/app2/blobs/` + digest + ` HTTP/1.1" 200 5 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"GET /v2/app/blobs/` + digest + ` HTTP/1.1" 200 6 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"HEAD /v2/team/app/blobs/` + digest + ` HTTP/1.1" 200 7 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"GET /v2/team/app/blobs/` + digest + ` HTTP/1.1" 404 8 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"GET /v2/team/app/manifests/v1 HTTP/1.1" 200 9 "" "cri-o/1.36.3"`,
		`198.18.0.11` + when + `"GET /v2/team/app/blobs/` + digest, // being written
	}, "\n")
	got, err := pulled(strings.NewReader(log), "team/app", map[string]string{"198.18.0.11": "n1", "198.18.0.12": "n2", "198.18.0.13": "n3"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Bytes{"n1": 1200, "n2": 30}); !reflect.DeepEqual(got, want) || got.Total() != 1230 {
		t.Errorf("got %v, in all %d; want %v", got, got.Total(), want)
	}
}

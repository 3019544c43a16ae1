package auditlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// event returns the line of an audit log for a kubelet's status write. Each
// change replaces a part of the line.
func event(second int, changes ...string) string {
	line := fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a","stage":"ResponseComplete",`+
		`"requestURI":"/api/v1/nodes/n1/status?timeout=10s","verb":"patch","user":{"username":"system:node:n1","groups":["system:nodes"]},`+
		`"objectRef":{"resource":"nodes","name":"n1","apiVersion":"v1","subresource":"status"},"responseStatus":{"metadata":{},"code":200},`+
		`"requestReceivedTimestamp":"2026-01-01T00:00:%02d.000000Z","stageTimestamp":"2026-01-01T00:00:%02d.500000Z"}`+"\n", second, second)
	return strings.NewReplacer(changes...).Replace(line)
}

func TestStatusWrites(t *testing.T) {
	log, err := read(strings.NewReader(strings.Join([]string{
		event(1),
		event(2, `"patch"`, `"update"`),
		event(3, `"code":200`, `"code":422`),
		event(4, `"patch"`, `"get"`),
		event(5, `"ResponseComplete"`, `"RequestReceived"`),
		event(6, `system:node:n1`, `system:node:n2`), // another kubelet
		event(7, `"name":"n1"`, `"name":"n2"`),       // of another node
		event(8, `,"subresource":"status"`, ``),      // of the Node's metadata
		event(9, `"resource":"nodes"`, `"resource":"leases"`),
		event(10, `"objectRef":{"resource":"nodes","name":"n1","apiVersion":"v1","subresource":"status"},`, ``),
	}, "")))
	if err != nil {
		t.Fatal(err)
	}
	if len(log) != 10 {
		t.Fatalf("%d events instead of 10", len(log))
	}
	var seconds []int
	for _, at := range log.StatusWrites("n1").Times() {
		seconds = append(seconds, at.Second())
	}
	if fmt.Sprint(seconds) != "[1 2 3]" {
		t.Errorf("status writes of n1 at seconds %v, want [1 2 3]", seconds)
	}
	if writes := log.StatusWrites("n3"); len(writes) != 0 {
		t.Errorf("n3 wrote %v", writes)
	}
}

func TestBetween(t *testing.T) {
	log, err := read(strings.NewReader(event(1) + event(2) + event(3)))
	if err != nil {
		t.Fatal(err)
	}
	second := func(n int) time.Time { return time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC) }
	for _, test := range []struct{ from, to, want int }{{0, 9, 3}, {1, 3, 2}, {2, 2, 0}, {2, 3, 1}, {4, 9, 0}} {
		if got := len(log.Between(second(test.from), second(test.to))); got != test.want {
			t.Errorf("%d events from second %d to %d, want %d", got, test.from, test.to, test.want)
		}
	}
}

func TestRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	if _, err := Read(name); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("no file: %v, want an error that names it", err)
	}
	for content, want := range map[string]int{
		"":                              0,
		event(1) + event(2):             2,
		event(1) + event(2)[:100]:       1, // being written
		event(1) + `{"kind":"Event"`:    1,
		event(1) + "no JSON" + event(2): -1,
		event(1) + `{"verb":1}`:         -1,
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := Read(name)
		switch {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), name+": event 2")):
			t.Errorf("%q: %v, want an error that names file and event", content, err)
		case want >= 0 && (err != nil || len(log) != want):
			t.Errorf("%q: %d events, %v; want %d", content, len(log), err, want)
		}
	}
}

func TestNodeWritesIsAPolicy(t *testing.T) {
	var policy auditv1.Policy
	if err := yaml.UnmarshalStrict([]byte(NodeWrites), &policy); err != nil {
		t.Fatal(err)
	}
	if len(policy.Rules) != 2 || policy.Rules[0].Level != auditv1.LevelMetadata || policy.Rules[1].Level != auditv1.LevelNone {
		t.Errorf("got %+v", policy)
	}
}

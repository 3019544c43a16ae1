package command

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// execute runs the program with a kubeconfig of two contexts, in a cluster that does not answer.
func execute(t *testing.T, args ...string) (out, notes string) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{apiVersion: v1, kind: Config, current-context: two,
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: two, context: {cluster: c}}, {name: one, context: {cluster: c}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var o, e bytes.Buffer
	root := program()
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(slices.Concat(args[:1], []string{"--kubeconfig", kubeconfig}, args[1:]))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String()
}

func TestParseBandwidth(t *testing.T) {
	for value, want := range map[string]int64{"": 0, "100M": 100e6, "100m": 100e6, "1Gbit": 1e9, "1gbit/s": 1e9, "2500000": 2500000, "12.5Mbps": 12.5e6, "1Gi": 1 << 30} {
		if got, err := parseBandwidth(value); got != want || err != nil {
			t.Errorf("%q: %d, %v", value, got, err)
		}
	}
	for _, value := range []string{"0", "-1M", "fast", "1e30", "100 M"} {
		if got, err := parseBandwidth(value); err == nil {
			t.Errorf("%q: %d", value, got)
		}
	}
}

// Every command has a sentence of help, and its arguments can be completed.
func TestCommands(t *testing.T) {
	root := program()
	names := map[string]bool{}
	for _, command := range root.Commands() {
		names[command.Name()] = true
		if command.Short == "" || command.ValidArgsFunction == nil || command.RunE == nil {
			t.Errorf("%s: %q", command.Name(), command.Short)
		}
	}
	for _, want := range strings.Fields("nodes node image pod deployment statefulset daemonset replicaset job cronjob shared plan why imagelocality savings") {
		if !names[want] {
			t.Errorf("no command %s", want)
		}
	}
}

// The contexts of the kubeconfig complete --context.
func TestCompleteContexts(t *testing.T) {
	if out, _ := execute(t, "__complete", "nodes", "--context", ""); out != "one\ntwo\n:4\n" {
		t.Errorf("%q", out)
	}
}

// What Prometheus warns of is noted below the answer.
func TestSavingsWarns(t *testing.T) {
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"status":"success","warnings":["a store is away"],"data":{"resultType":"vector","result":[{"metric":{"profile":"p","of":"mean"},"value":[1700000000,"1"]}]}}`))
	}))
	defer prometheus.Close()
	out, notes := execute(t, "savings", "--prometheus", prometheus.URL)
	if want := "note: cannot read all series of Prometheus at " + prometheus.URL + ": a store is away: "; !strings.Contains(out, "PROFILE") || !strings.HasPrefix(notes, want) {
		t.Errorf("%s%s\nwant %s", out, notes, want)
	}
}

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

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/internal/terminaltest"
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
	defer klog.CaptureState().Restore()
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
		if command.Short == "" || command.ValidArgsFunction == nil || command.RunE == nil || command.Example == "" || !command.Hidden && !strings.Contains(command.Long, "\nColumns:\n  ") || strings.Contains(command.Long, "   \n") {
			t.Errorf("%s: %q", command.Name(), command.Short)
		}
	}
	for _, want := range strings.Fields("nodes node image pod deployment statefulset daemonset replicaset job cronjob shared plan why imagelocality savings qos advise prefetch") {
		if !names[want] {
			t.Errorf("no command %s", want)
		}
	}
}

// The contexts of the kubeconfig complete --context.
func TestCompleteContexts(t *testing.T) {
	if out, _ := execute(t, "__complete", "nodes", "--context", ""); out != "one\ntwo\n:4\n" && out != "two\none\n:4\n" {
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

// A table of QosAware as the scheduler writes it is a table of ours, with numbers for sorting and programs.
func TestPromisesIn(t *testing.T) {
	const text = `          CONTROLLER    QOS/SLO                   TTV               RUNNING               WAITING               BINDING  ADMITTED
            50_slo_1  0.44/0.50            -2m22.541s                 8m13s                10m36s                 591ms        no
         team/batch   1.00/0.00                 never                    1s                    0s                    0s       yes
`
	promises, table, err := promisesIn(text)
	if err != nil || len(promises) != 2 || len(table.Rows) != 2 || len(table.Columns) != 7 {
		t.Fatalf("%+v, %+v, %v", promises, table, err)
	}
	p := promises[0]
	if p.Controller != "50_slo_1" || p.QoS != .44 || p.SLO != .5 || *p.TTVSeconds != -142.541 || *p.RunningSeconds != 493 || *p.WaitingSeconds != 636 || *p.BindingSeconds != .591 || p.Admitted {
		t.Errorf("%+v", p)
	}
	if p = promises[1]; p.TTVSeconds != nil || !p.Admitted || table.Rows[1].Cells[2] != "never" || table.Rows[1].Name != "team/batch" {
		t.Errorf("%+v", p)
	}
	if _, table, err = promisesIn(strings.SplitAfter(text, "\n")[0]); err != nil || table.Above[0] != "No workload has a promise (docs/qosaware.md)." {
		t.Errorf("%+v, %v", table, err)
	}
	for text, want := range map[string]string{"404 page\n": "its first line is", "CONTROLLER TTV\na\n": "has 1 cells, want 2", "CONTROLLER TTV\na b\n": "invalid duration", "CONTROLLER QOS/SLO\na b\n": "invalid syntax"} {
		if _, _, err := promisesIn(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// With -v, what is asked of a cluster is logged; without, an error is all.
func TestVerbosity(t *testing.T) {
	for verbosity, want := range map[string]bool{"-v=0": false, "-v=6": true} {
		_, stderr, code := terminaltest.Run(t, program(), "nodes", verbosity, "--server=http://127.0.0.1:1", "--kubeconfig=/dev/null")
		if logged := strings.Contains(stderr, `verb="GET" url="http://127.0.0.1:1/api/v1/nodes`); code == 0 || logged != want {
			t.Errorf("%s: %s", verbosity, stderr)
		}
	}
}

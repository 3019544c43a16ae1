//go:build integration

package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/internal/poll"
)

// The forms, sorting and log that kubectl get has.
func TestForms(t *testing.T) {
	three := "kind in (by-names,by-agent,joined)"
	for _, c := range []struct {
		want string
		args []string
	}{
		{"joined Nodes", []string{"nodes", "-l", "kind=joined", "-o", "jsonpath={.answer[0].name} {.kind}"}},
		{"by-agent, by-names, joined,", []string{"nodes", "-l", three, "-o", "go-template={{range .answer}}{{.name}}, {{end}}"}},
		{"by-names 25000000 by-agent 280000000 joined 291000000", []string{"nodes", "-l", three, "-o", "custom-columns=N:.name,B:.bytes", "--sort-by=.bytes", "--no-headers"}},
		{"node/by-names node/by-agent node/joined", []string{"nodes", "-l", three, "-o", "name", "--sort-by", "{.bytes}"}},
		{"F 3000000 6000000 94000000 95000000", []string{"node", "by-kubelet", "--sort-by=freedBytes", "-o", "custom-columns=F:.freedBytes"}},
		{"node/joined node/empty", []string{"plan", "--image", "registry.example.com/team/app-8:v1", "-o", "name", "-l", "kind in (joined,empty)"}},
		{"node/by-agent node/by-kubelet node/by-names node/empty node/joined node/stale-agent", []string{"nodes", "--chunk-size=2", "-o", "name"}},
	} {
		if r := layers(t, c.args...); r.code != 0 || r.err != "" || strings.Join(strings.Fields(r.out), " ") != c.want {
			t.Errorf("%q: %+v\nwant %s", c.args, r, c.want)
		}
	}
	if r := layers(t, "nodes", "-v=6"); r.code != 0 || !strings.Contains(r.err, "/api/v1/nodes") {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "nodes", "--request-timeout=1ns"); r.code != 1 || !strings.Contains(r.err, "error: cannot read ") {
		t.Errorf("%+v", r)
	}
	must(t, apply(t.Context(), []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"default","name":"completed"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"registry.example.com/team/app-1:v1"}]}}}}`)))
	for want, args := range map[string][]string{
		"kube-system": {"nodes", "--namespace", "kube-s"}, "deployments/completed": {"image", "deployments/"}, byAgent: {"node", "by-a"},
	} {
		if r := layers(t, append([]string{"__complete"}, args...)...); r.code != 0 || !slices.Contains(strings.Fields(r.out), want) {
			t.Errorf("%q completes to %+v", args, r)
		}
	}
}

// If agents report all nodes that are asked about, nodes is what they state in sum: the same as where all is read, but
// for columns that need it.
func TestBrief(t *testing.T) {
	whole := layers(t, "nodes", "-l", "kind=by-agent", "-o", "wide")
	brief := layers(t, "nodes", "-l", "kind=by-agent", "-v=6")
	if brief.code != 0 || strings.Contains(brief.err, "/imagemanifests") || !strings.Contains(brief.err, "/nodelayers") {
		t.Errorf("%+v", brief)
	}
	cells := func(out string) []string {
		t.Helper()
		lines := strings.Split(out, "\n")
		if len(lines) != 3 {
			t.Fatal(out)
		}
		return strings.Fields(lines[1])[:6]
	}
	if a, b := cells(brief.out), cells(whole.out); !slices.Equal(a, b) || a[0] != byAgent || a[1] != "6" || a[3] != "1.1" {
		t.Errorf("%q, with all that is known %q", a, b)
	}
	if r := layers(t, "nodes", "-l", "kind in (by-agent,empty)", "-v=6"); !strings.Contains(r.err, "/imagemanifests") || !strings.Contains(r.out, "empty") {
		t.Errorf("%+v", r)
	}
}

// With -w, an answer that is another one follows the first, until somebody interrupts.
func TestWatch(t *testing.T) {
	name := "watched"
	text := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"kind":"watched"}}}`, name)
	must(t, apply(t.Context(), text))
	defer func() { must(t, core.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "_build/bin/patched/kubectl-layers"), "--kubeconfig", kubeconfig, "nodes", "-w", "-o", "jsonpath={.answer[*].images} ", "-l", "kind=watched")
	cmd.Env = []string{"HOME=" + t.TempDir()}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer file.Close()
	cmd.Stdout = file
	must(t, cmd.Start())
	has := func(want string) {
		t.Helper()
		must(t, poll.Until(ctx, 50*time.Millisecond, time.Minute, func(context.Context) error {
			out, err := os.ReadFile(file.Name())
			if err == nil && string(out) != want {
				err = fmt.Errorf("%q, want %q", out, want)
			}
			return err
		}))
	}
	has("0 ")
	_, err = core.CoreV1().Nodes().PatchStatus(ctx, name, statusOf(byNames, []picture{{name: "registry.example.com/other/new:v1"}}))
	must(t, err)
	has("0 1 ")
	must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// qos is the table that the scheduler serves, in every form.
func TestQos(t *testing.T) {
	scheduler, err := plane.StartScheduler(root, "patched", `leaderElection: {leaderElect: false}
profiles:
- schedulerName: promises
  plugins:
    multiPoint: {enabled: [{name: LayerLocality, weight: 1}, {name: QosAware}], disabled: [{name: ImageLocality}, {name: PrioritySort}, {name: DefaultPreemption}]}
`)
	must(t, err)
	defer scheduler.Stop()
	if r := layers(t, "qos", "--scheduler-url", scheduler.URL); r.code != 0 || r.out != "No workload has a promise (docs/qosaware.md).\n" {
		t.Errorf("%+v", r)
	}
	must(t, apply(t.Context(), []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"promised-1","annotations":{"qos.layerlocality.io/slo":"0.5"}},"spec":{"schedulerName":"promises","containers":[{"name":"c","image":"registry.example.com/team/app-1:v1"}]}}`)))
	var rows []struct {
		Controller, Pod string
		SLO             float64
		Admitted        bool
	}
	must(t, poll.Until(t.Context(), 200*time.Millisecond, time.Minute, func(context.Context) error {
		r := layers(t, "qos", "--scheduler-url", scheduler.URL, "-o", "json")
		var document struct{ Answer any }
		document.Answer = &rows
		if err := json.Unmarshal([]byte(r.out), &document); err != nil {
			return fmt.Errorf("%w: %+v", err, r)
		}
		if len(rows) != 1 || rows[0].Controller != "promised-1" || rows[0].SLO != .5 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}))
	served, err := get(t.Context(), scheduler.URL+"/debug/qosaware", debugToken(t))
	must(t, err)
	columns := func(s string) string { return strings.Join(strings.Fields(strings.SplitN(s, "\n", 2)[0]), " ") }
	if r := layers(t, "qos", "--scheduler-url", scheduler.URL); r.code != 0 || columns(r.out) != columns(served) || !bytes.Contains([]byte(r.out), []byte("\npromised-1 ")) {
		t.Errorf("%+v\nserved\n%s", r, served)
	}
	if r := layers(t, "qos", "--scheduler-url", scheduler.URL, "-o", "wide", "--no-headers"); r.code != 0 || !strings.HasPrefix(r.out, "promised-1 ") || len(strings.Fields(r.out)) != 12 {
		t.Errorf("%+v", r)
	}
}

// advise names what nodes hold: here, three bases of one size, and a full picture of none.
func TestAdvise(t *testing.T) {
	var advice []struct {
		Kind       string
		SavedBytes int64
		PullBytes  int64
	}
	answers(t, &advice, "advise")
	// by-agent has all three bases of 90 MB, by-kubelet base-2, base-0 and base-1, joined base-2, base-0 and base-1: with
	// one base, each would hold 90 MB once.
	if len(advice) != 1 || advice[0].Kind != "Base" || advice[0].PullBytes != 90*mb || advice[0].SavedBytes != 3*2*90*mb {
		t.Errorf("%+v", advice)
	}
	if r := layers(t, "advise"); r.code != 0 || !strings.Contains(r.out, "3 bases of nearly one size share no layer: build 5 images on that of registry.example.com/team/app-") {
		t.Errorf("%+v", r)
	}
}

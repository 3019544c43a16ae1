package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
)

// twelve are nodes of which n12 alone has the label pool=last and the image app:1. They were ready seconds ago.
func twelve() (nodes []v1.Node) {
	for i := range 12 {
		node := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%02d", i+1)}}
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now().Add(-5 * time.Second))}}
		nodes = append(nodes, node)
	}
	last := &nodes[11]
	last.Labels = map[string]string{"pool": "last"}
	last.Status.Images = []v1.ContainerImage{{Names: []string{"docker.io/library/app:1"}, SizeBytes: 100e6}}
	return nodes
}

// serve returns the address of an apiserver that has what list returns, each time nodes or the first of them are read, and no
// other objects. If list returns none, the request fails.
func serve(t *testing.T, list func() []v1.Node) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch kind := path.Base(r.URL.Path); {
		case kind == "nodes" && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
			names := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
			for _, node := range twelve() {
				if selector := r.URL.Query().Get("labelSelector"); selector == "" || selector == "pool="+node.Labels["pool"] {
					names.Items = append(names.Items, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: "uid"}})
				}
			}
			answer = names
		case kind == "nodes":
			if nodes := list(); nodes != nil {
				answer = v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: nodes}
			}
		case strings.HasPrefix(kind, "n") && path.Base(path.Dir(r.URL.Path)) == "nodes":
			if nodes := list(); nodes != nil {
				nodes[0].TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
				answer = nodes[0]
			}
		case kind == "token":
			answer = authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}, Status: authenticationv1.TokenRequestStatus{Token: "reader"}}
		case kind == "pods":
			answer = v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		case kind == "nodelayers":
			answer = v1alpha1.NodeLayersList{TypeMeta: metav1.TypeMeta{Kind: "NodeLayersList", APIVersion: v1alpha1.GroupVersion.String()}}
		case kind == "imagemanifests":
			answer = v1alpha1.ImageManifestList{TypeMeta: metav1.TypeMeta{Kind: "ImageManifestList", APIVersion: v1alpha1.GroupVersion.String()}}
		}
		if answer == nil {
			w.WriteHeader(http.StatusInternalServerError)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "not now"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// run runs the program with an apiserver.
func run(ctx context.Context, t *testing.T, server string, args ...string) (out, notes string, err error) {
	t.Helper()
	defer klog.CaptureState().Restore()
	var o, e bytes.Buffer
	root := program()
	root.SetOut(&o)
	root.SetErr(&e)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(append(args, "--kubeconfig=/dev/null", "--server="+server))
	err = root.ExecuteContext(ctx)
	return o.String(), e.String(), err
}

// Ten nodes are the default of tables for people: programs get all, and the best of another order are of all nodes.
func TestTenBest(t *testing.T) {
	server := serve(t, twelve)
	for args, want := range map[string]int{
		"": 11, "-o=wide": 11, "--all": 13, "-o=name": 12, "--no-headers": 12, "-o=custom-columns=N:.node": 13, "-o=name --sort-by=.node": 12, "-l=pool=last": 2,
	} {
		out, notes, err := run(t.Context(), t, server, append([]string{"plan", "--image=app:1"}, strings.Fields(args)...)...)
		lines := 0
		for line := range strings.Lines(out) {
			if name := strings.TrimPrefix(line, "node/"); len(name) > 3 && name[0] == 'n' || strings.HasPrefix(line, "N") {
				lines++
			}
		}
		if err != nil || notes != "" || lines != want || strings.Contains(out, "\n2 more: --all shows them.\n") != (want == 11) {
			t.Errorf("%q: %d lines, want %d: %v\n%s%s", args, lines, want, err, out, notes)
		}
	}
	if out, _, err := run(t.Context(), t, server, "plan", "--image=app:1", "--sort-by=.presentBytes"); err != nil || strings.Contains(out, "n12") || !strings.Contains(out, "n10") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err := run(t.Context(), t, server, "plan", "--image=app:1", "-l", "pool=last"); err != nil || !strings.Contains(out, "fits on 1 of 1 node, which lack 0 on average") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, command := range []string{"plan", "imagelocality"} {
		if out, _, err := run(t.Context(), t, server, command, "--image=app:1", "-l", "pool=first"); err == nil || err.Error() != `no node has the labels "pool=first": see kubectl get nodes --show-labels` {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

// --template without a form is a Go template, as of kubectl get; but of plan and imagelocality the name of a pod template.
func TestTemplate(t *testing.T) {
	server := serve(t, twelve)
	for args, want := range map[string]string{"": "Nodes", "-o=go-template": "Nodes", "-o=wide": "NODE "} {
		if out, notes, err := run(t.Context(), t, server, append([]string{"nodes", "--template={{.kind}}"}, strings.Fields(args)...)...); err != nil || notes != "" || !strings.HasPrefix(out, want) {
			t.Errorf("%q: %v\n%s%s", args, err, out, notes)
		}
	}
	for args, noted := range map[string]bool{"--template=workers": true, "--template={{.kind}} -o=go-template": false, "--template={{.kind}} --pod-template=workers": false, "": false} {
		for _, command := range []string{"plan", "imagelocality"} {
			out, notes, err := run(t.Context(), t, server, append([]string{command, "--image=app:1"}, strings.Fields(args)...)...)
			if err != nil || strings.HasPrefix(notes, "note: --template names a pod template here: write --pod-template workers, ") != noted || strings.HasPrefix(out, "NODE") != (noted || args == "") {
				t.Errorf("%s %s: %v\n%s%s", command, args, err, out, notes)
			}
		}
	}
}

// With -w, an answer in which only an age is another one is not repeated, a failed request is noted and repeated, and
// standard input is read once.
func TestWatch(t *testing.T) {
	watch := func(rounds [][]v1.Node, args ...string) (out, notes string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		server := serve(t, func() []v1.Node {
			if n == len(rounds) {
				cancel()
				return nil
			}
			n++
			return rounds[n-1]
		})
		out, notes, err := run(ctx, t, server, append(args, "-w")...)
		if err != nil || n != len(rounds) {
			t.Errorf("%q ended after %d rounds, want %d: %v", args, n, len(rounds), err)
		}
		return out, notes
	}
	nodes := twelve()
	other := twelve()[:11]
	if out, notes := watch([][]v1.Node{nodes, nil, nodes, other}, "nodes"); strings.Count(out, "SIZE") != 2 || strings.Count(out, "n12") != 1 || strings.Count(notes, "note: ") != 1 ||
		!strings.HasPrefix(notes, "note: cannot read nodes: not now: ") || !strings.HasSuffix(notes, "; asked again every 2s or more seldom\n") {
		t.Errorf("%s%s", out, notes)
	}
	if out, notes := watch([][]v1.Node{nodes, nodes}, "node", "n01"); strings.Count(out, "reported ") != 1 || notes != "" {
		t.Errorf("%s%s", out, notes)
	}
	defer func(f *os.File) { os.Stdin = f }(os.Stdin)
	file := filepath.Join(t.TempDir(), "pod.yaml")
	err := os.WriteFile(file, []byte(`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: "app:1"}]}}`), 0o600)
	if err == nil {
		os.Stdin, err = os.Open(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Stdin.Close()
	if out, notes := watch([][]v1.Node{nodes, other}, "plan", "-f", "-"); strings.Count(out, "pod/p fits on 1") != 2 || notes != "" {
		t.Errorf("%s%s", out, notes)
	}
}

// qos -w follows the table of the scheduler: one that is the same is not repeated.
func TestWatchQos(t *testing.T) {
	const title = "CONTROLLER QOS/SLO TTV RUNNING WAITING BINDING ADMITTED\n"
	tables := []string{title + "a 0.44/0.50 -2s 8m13s 10m36s 591ms no\n", title + "a 0.44/0.50 -2s 8m13s 10m36s 591ms no\n", title + "a 0.51/0.50 9s 9m13s 10m36s 591ms yes\n"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	scheduler := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer reader" || r.URL.Path != "/debug/qosaware" || n == len(tables) {
			cancel()
			return
		}
		n++
		_, _ = w.Write([]byte(tables[n-1]))
	}))
	defer scheduler.Close()
	out, notes, err := run(ctx, t, serve(t, twelve), "qos", "-w", "--scheduler-url="+scheduler.URL)
	if err != nil || n != len(tables) || strings.Count(out, "CONTROLLER") != 2 || strings.Count(out, "0.44/0.50") != 1 || strings.Count(out, "0.51/0.50") != 1 || notes != "" {
		t.Errorf("%d tables were read, want %d: %v\n%s%s", n, len(tables), err, out, notes)
	}
}

// The examples of qos sort by fields that are in the table that they are about.
func TestQosExamples(t *testing.T) {
	const narrow = "CONTROLLER QOS/SLO TTV RUNNING WAITING BINDING ADMITTED\na 0.44/0.50 -2m22.541s 8m13s 10m36s 591ms no\nb 1.00/0.00 never 1s 0s 0s yes\n"
	const wide = "CONTROLLER POD PHASE MEASURING QOS/SLO METRIC OVERHEAD/MAX RUNNING LOST WAITING BINDING ADMITTED\na a-1 running total 0.44/0.50 1s 0.1/0.2 8m13s 0s 1s 1s no\nb b-1 running total 1.00/0.00 1s 0.1/0.2 8m13s 0s 1s 1s yes\n"
	command, _, err := program().Find([]string{"qos"})
	if err != nil {
		t.Fatal(err)
	}
	sorted := 0
	for line := range strings.Lines(command.Example) {
		f, text := output.NewFlags(), narrow
		if strings.Contains(line, "-o wide") {
			text = wide
		}
		if !strings.Contains(line, "--sort-by") {
			continue
		}
		sorted++
		_, table, err := promisesIn(text)
		if err != nil {
			t.Fatal(err)
		}
		own := program()
		own.ResetFlags()
		f.Add(own)
		if err := own.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		print, err := f.Printer()
		if err == nil {
			err = print(&bytes.Buffer{}, &table)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if sorted == 0 {
		t.Error("no example sorts")
	}
}

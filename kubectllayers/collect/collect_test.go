package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// digest returns the digest that stands for a letter.
func digest(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

// answer is what the apiserver returns: an object, or a failure.
type answer struct {
	status int
	object any
	// gone means that the connection ends without an answer.
	gone bool
}

// apiserver answers requests for lists by their last part, such as nodes: the first request with
// the first answer, and so on. It counts what it was asked.
type apiserver struct {
	t       *testing.T
	answers map[string][]answer
	// date is the header Date of answers.
	date string

	mu    sync.Mutex
	asked map[string][]string
}

// RoundTrip implements http.RoundTripper.
func (s *apiserver) RoundTrip(request *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
	at := len(s.asked[what])
	s.asked[what] = append(s.asked[what], request.URL.RawQuery)
	if at >= len(s.answers[what]) {
		s.t.Errorf("asked for %s: %d times", request.URL, at+1)
		return nil, errors.New("not expected")
	}
	a := s.answers[what][at]
	if a.gone {
		return nil, errors.New("connection refused \x1b[2J")
	}
	body, err := json.Marshal(a.object)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Content-Type": {"application/json"}, "Date": {s.date}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: request,
	}, nil
}

func failure(code int, reason metav1.StatusReason, message string) answer {
	return answer{status: code, object: metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message, //nolint:gosec // small
	}}
}

func nodeList(more string, names ...string) answer {
	list := v1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{Continue: more, ResourceVersion: "7"}}
	for _, name := range names {
		list.Items = append(list.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Annotations: map[string]string{"a": "large"}}})
	}
	return answer{status: http.StatusOK, object: list}
}

func podList(pods ...v1.Pod) answer {
	return answer{status: http.StatusOK, object: v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: pods}}
}

func layersList(items ...v1alpha1.NodeLayers) answer {
	return answer{status: http.StatusOK, object: v1alpha1.NodeLayersList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayersList"}, Items: items}}
}

func manifestList(items ...v1alpha1.ImageManifest) answer {
	return answer{status: http.StatusOK, object: v1alpha1.ImageManifestList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifestList"}, Items: items}}
}

func nodeLayers(name string, images ...string) v1alpha1.NodeLayers {
	return v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "uid"}}},
		Spec: v1alpha1.NodeLayersSpec{
			Runtime: "containerd 2.3.1", Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.Now(), TotalImages: 9, TotalLayers: 8, TotalBytes: 7,
			Layers: []string{digest("a") + " 10"}, Images: images,
		},
	}
}

// start returns a Reader of an apiserver that answers so.
func start(t *testing.T, answers map[string][]answer) (*Reader, *apiserver) {
	t.Helper()
	server := &apiserver{t: t, answers: answers, asked: map[string][]string{}}
	r, err := New(&rest.Config{Host: "https://apiserver.example", Transport: server})
	if err != nil {
		t.Fatal(err)
	}
	return r, server
}

var everything = Parts{Nodes: true, Pods: true, Images: true}

// All is read, in chunks, and only the parts that answers need are kept.
func TestRead(t *testing.T) {
	placed := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "placed", UID: "u", Annotations: map[string]string{"a": "large"}}}
	placed.Spec.NodeName = "n1"
	placed.Spec.Containers = []v1.Container{{
		Name: "c", Image: "quay.io/a:1", Command: []string{"large"}, Env: []v1.EnvVar{{Name: "SECRET", Value: "x"}},
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
	}}
	placed.Spec.Volumes = []v1.Volume{
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "quay.io/b:1"}}},
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}},
	}
	placed.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Message: "large"}, {Type: v1.PodScheduled, Status: v1.ConditionTrue, Message: "large"}}
	waiting := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "waiting"}}
	unowned := nodeLayers("n2", "0 quay.io/a:1")
	unowned.OwnerReferences = nil
	unresolved := v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: "unresolved-1"}, Status: v1alpha1.ImageManifestStatus{
		References: []v1alpha1.ImageReference{{Name: "quay.io/c:1"}},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionConfirmed, Status: metav1.ConditionFalse, Reason: "Second", Message: "no"},
			{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionFalse, Reason: "Unauthorized", Message: "the registry wants credentials"},
		},
	}}
	r, server := start(t, map[string][]answer{
		"nodes":          {nodeList("more", "n2", "n1"), nodeList("", "n3")},
		"nodelayers":     {layersList(nodeLayers("n1", "0 quay.io/a:1", "4000 quay.io/invalid:1"), unowned)},
		"imagemanifests": {manifestList(unresolved)},
		"pods":           {podList(placed, waiting)},
	})
	before := time.Now()
	c, err := r.Read(t.Context(), everything)
	if err != nil || len(c.Problems) > 0 || c.Now.Before(before) {
		t.Fatalf("%v, %+v", err, c)
	}
	for what, want := range map[string][]string{
		"nodes": {"limit=500", "continue=more&limit=500"}, "nodelayers": {"limit=100"}, "imagemanifests": {"limit=100"},
		"pods": {"fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&limit=500"},
	} {
		if got := strings.Join(server.asked[what], " "); got != strings.Join(want, " ") {
			t.Errorf("%s: asked %s, want %s", what, got, want)
		}
	}
	if len(c.Nodes) != 3 || c.Nodes[0].Annotations != nil {
		t.Errorf("%+v", c.Nodes)
	}
	if len(c.Pods) != 1 {
		t.Fatalf("%+v", c.Pods)
	}
	p := c.Pods[0]
	if p.Name != "placed" || p.Annotations != nil || len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Name != "image" || len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Message != "" {
		t.Errorf("%+v", p)
	}
	if k := p.Spec.Containers[0]; k.Image != "quay.io/a:1" || k.Command != nil || k.Env != nil || k.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("%+v", k)
	}
	if a := c.Agents["n1"]; a.Runtime != "containerd 2.3.1" || a.TotalImages != 9 || a.TotalLayers != 8 || a.TotalBytes != 7 || a.ListedImages != 2 || a.ListedLayers != 1 || a.Invalid != 1 || a.Problem != "" {
		t.Errorf("%+v", a)
	}
	if a := c.Agents["n2"]; a.Invalid != 0 || !strings.Contains(a.Problem, "0 owners") {
		t.Errorf("%+v", a)
	}
	if report := c.Reports.Of("n1"); report == nil || !report.Fresh || c.Reports.Of("n2") != nil || c.Reports.Refused() != 2 {
		t.Errorf("%+v, %d refused", report, c.Reports.Refused())
	}
	if len(c.Records) != 1 || c.Records[0].Reason != "Unauthorized" || c.Records[0].Message != "the registry wants credentials" || c.Records[0].References[0].Name != "quay.io/c:1" {
		t.Errorf("%+v", c.Records)
	}
	known, err := c.Snapshot(t.Context())
	if err != nil || !known.HasFreshReport(c.Nodes[0]) || c.Nodes[0].Name != "n1" { // it sorts them
		t.Errorf("%v, %s", err, c.Nodes[0].Name)
	}
	if again, err := c.Snapshot(t.Context()); again != known || err != nil {
		t.Errorf("a second one was made: %v", err)
	}
}

// Pods with labels come in chunks, until there are enough.
func TestPodsWith(t *testing.T) {
	chunks := func() []answer {
		first, second := podList(v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b"}}), podList(v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
		list := first.object.(v1.PodList)
		list.Continue, list.ResourceVersion = "more", "7"
		first.object = list
		return []answer{first, second}
	}
	var names []string
	keep := func(most int) func(*v1.Pod) error {
		names = nil
		return func(p *v1.Pod) error {
			if names = append(names, p.Name); len(names) == most {
				return errors.New("enough")
			}
			return nil
		}
	}
	r, server := start(t, map[string][]answer{"pods": chunks()})
	if err := r.PodsWith(t.Context(), "ns", "app=a", keep(9)); err != nil || strings.Join(names, " ") != "a b c" {
		t.Errorf("%q, %v", names, err)
	}
	if got := strings.Join(server.asked["pods"], " "); got != "labelSelector=app%3Da&limit=500 continue=more&labelSelector=app%3Da&limit=500" {
		t.Errorf("%s", got)
	}
	r, _ = start(t, map[string][]answer{"pods": chunks()})
	if err := r.PodsWith(t.Context(), "ns", "", keep(1)); err == nil || err.Error() != "enough" || strings.Join(names, " ") != "a" {
		t.Errorf("%q, %v", names, err)
	}
	for namespace, want := range map[string]string{"ns": "cannot read pods in namespace ns: you may not: ask for", "": "cannot read pods in all namespaces: you may not"} {
		r, _ = start(t, map[string][]answer{"pods": {failure(http.StatusForbidden, metav1.StatusReasonForbidden, "no")}})
		var p *Problem
		if err := r.PodsWith(t.Context(), namespace, "", keep(9)); !errors.As(err, &p) || !p.Partial() || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	r, _ = start(t, map[string][]answer{"pods": {chunks()[0], {gone: true}}})
	var p *Problem
	if err := r.PodsWith(t.Context(), "ns", "", keep(9)); !errors.As(err, &p) || p.Partial() || !strings.Contains(err.Error(), "went away after 2 of them") {
		t.Error(err)
	}
}

// Of one node, only what is about it is asked for.
func TestReadOne(t *testing.T) {
	r, server := start(t, map[string][]answer{
		"n1":         {{status: http.StatusOK, object: v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}},
		"nodelayers": {layersList()}, "pods": {podList()},
	})
	c, err := r.Read(t.Context(), Parts{Nodes: true, Node: "n1", Pods: true})
	if err != nil || len(c.Nodes) != 1 || c.Nodes[0].Name != "n1" || c.AllNodes {
		t.Fatalf("%v, %+v", err, c)
	}
	if got := server.asked["pods"]; len(got) != 1 || !strings.Contains(got[0], "%2Cspec.nodeName%3Dn1&") {
		t.Errorf("%q", got)
	}
	if got := server.asked["nodelayers"]; len(got) != 1 || got[0] != "fieldSelector=metadata.name%3Dn1&limit=100" {
		t.Errorf("%q", got)
	}
}

// Pods are asked for if a node has no NodeLayers that counts.
func TestPodsUnlessReported(t *testing.T) {
	stale := nodeLayers("n2")
	stale.Spec.RenewTime = metav1.NewTime(time.Now().Add(-time.Hour))
	another := nodeLayers("n2")
	another.OwnerReferences[0].UID = "another"
	for name, test := range map[string]struct {
		layers []v1alpha1.NodeLayers
		want   int
	}{
		"all are reported":                 {[]v1alpha1.NodeLayers{nodeLayers("n1"), nodeLayers("n2")}, 0},
		"one is not":                       {[]v1alpha1.NodeLayers{nodeLayers("n1")}, 1},
		"a silent one":                     {[]v1alpha1.NodeLayers{nodeLayers("n1"), stale}, 1},
		"of a Node before it of that name": {[]v1alpha1.NodeLayers{nodeLayers("n1"), another}, 1},
	} {
		pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{NodeName: "n2"}}
		r, server := start(t, map[string][]answer{"nodes": {nodeList("", "n1", "n2")}, "nodelayers": {layersList(test.layers...)}, "pods": {podList(pod)}})
		c, err := r.Read(t.Context(), Parts{Nodes: true, PodsUnlessReported: true})
		if err != nil || len(server.asked["pods"]) != test.want || len(c.Pods) != test.want {
			t.Errorf("%s: %v: pods asked for %d times, want %d", name, err, len(server.asked["pods"]), test.want)
		}
	}
}

// The clock of the apiserver counts: on a machine whose own is hours ahead, or behind, an agent that
// works is no silent one.
func TestClock(t *testing.T) {
	for _, wrong := range []time.Duration{-3 * time.Hour, 3 * time.Hour, time.Second} {
		there := time.Now().Add(-wrong)
		o := nodeLayers("n1", "0 quay.io/a:1")
		o.Spec.RenewTime = metav1.NewTime(there.Add(-time.Minute))
		r, server := start(t, map[string][]answer{"nodes": {nodeList("", "n1")}, "nodelayers": {layersList(o)}})
		server.date = there.UTC().Format(http.TimeFormat)
		c, err := r.Read(t.Context(), Parts{Nodes: true})
		if err != nil {
			t.Fatal(err)
		}
		if off := c.Now.Sub(there).Abs(); off > time.Minute {
			t.Errorf("a clock that is off by %s: the answer is as of %s, at %s", wrong, c.Now, there)
		}
		known, err := c.Snapshot(t.Context())
		if err != nil || !known.HasFreshReport(c.Nodes[0]) {
			t.Errorf("a clock that is off by %s: the agent counts as silent, %v", wrong, err)
		}
	}
	if r, _ := start(t, nil); time.Since(r.Now()).Abs() > time.Minute {
		t.Error("without an answer, the machine's own clock counts")
	}
}

// What may not be read, or is not installed, is said; the rest is there. Nothing else is an answer.
func TestProblems(t *testing.T) {
	forbidden := failure(http.StatusForbidden, metav1.StatusReasonForbidden, "no")
	none := failure(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	all := func(change map[string][]answer) map[string][]answer {
		answers := map[string][]answer{"nodes": {nodeList("", "n1")}, "nodelayers": {layersList()}, "imagemanifests": {manifestList()}, "pods": {podList()}}
		maps.Copy(answers, change)
		return answers
	}
	for _, c := range []struct {
		name    string
		answers map[string][]answer
		// some is ReadSome in place of Read.
		some     bool
		err      string
		problems []string
	}{
		{name: "all is there", answers: all(nil)},
		{
			name: "rights and resources are missing", answers: all(map[string][]answer{"nodelayers": {none}, "imagemanifests": {forbidden}, "pods": {forbidden}}),
			problems: []string{
				"cannot read NodeLayers: the cluster has no such resource: install layer-agent if nodes shall report more than their names of images (docs/agent.md)",
				"cannot read pods: you may not: ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)",
				"cannot read ImageManifests: you may not: ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)",
			},
		},
		{
			name: "no right to read nodes", answers: all(map[string][]answer{"nodes": {forbidden}}),
			err: "cannot read nodes: you may not: ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)",
		},
		{
			name: "some without nodes", some: true, answers: all(map[string][]answer{"nodes": {forbidden}}),
			problems: []string{"cannot read nodes: you may not: ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)"},
		},
		{
			name: "an unknown user", answers: all(map[string][]answer{"nodes": {failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "")}}),
			err: "cannot read nodes: the apiserver does not accept your credentials: log in, or name another user with --user or --context",
		},
		{
			name: "no answer", answers: all(map[string][]answer{"nodes": {{gone: true}}}),
			err: "check that https://apiserver.example answers, and run the command again",
		},
		{
			name: "something else", answers: all(map[string][]answer{"nodelayers": {{status: http.StatusOK, object: v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod\x1b"}}}}}),
			err: "cannot read NodeLayers: the server answers with a \"Pod\\x1b\" in place of a list",
		},
		{
			name: "no JSON", answers: all(map[string][]answer{"nodelayers": {{status: http.StatusOK, object: "text"}}}),
			err: "cannot read NodeLayers: json: cannot unmarshal string",
		},
		{
			name: "gone in the middle", answers: all(map[string][]answer{"nodes": {nodeList("more", "n1", "n2"), {gone: true}}}),
			err: "cannot read nodes: the apiserver went away after 2 of them (",
		},
		{
			name: "a failure of the server", answers: all(map[string][]answer{"nodes": {failure(http.StatusTeapot, "Strange", "\x1b[2J\u202E"+strings.Repeat("x", 1<<20))}}),
			err: "try again, and look at the apiserver's log if it stays",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, server := start(t, c.answers)
			read := r.Read
			if c.some {
				read = r.ReadSome
			}
			got, err := read(t.Context(), everything)
			if c.err != "" {
				var p *Problem
				if !errors.As(err, &p) || !strings.Contains(err.Error(), c.err) || len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\x1b\u202E") {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, p := range got.Problems {
				said = append(said, p.Error())
			}
			if strings.Join(said, "\n") != strings.Join(c.problems, "\n") {
				t.Errorf("%s\nwant %s", strings.Join(said, "\n"), strings.Join(c.problems, "\n"))
			}
			if len(server.asked) != 4 {
				t.Errorf("%q", server.asked)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	r, _ := start(t, map[string][]answer{"nodes": {{gone: true}}, "nodelayers": {{gone: true}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(ctx, Parts{Nodes: true}); err == nil || !strings.Contains(err.Error(), "interrupted: run the command again") || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The text of an error is bounded, and so is the address.
func TestExplain(t *testing.T) {
	r := &Reader{host: "https://\x1b[2J.example/" + strings.Repeat("x", 10_000)}
	p := r.Explain("pod ns/p", fmt.Errorf("dial: %s", strings.Repeat("y", 10_000)))
	if len(p.Why) > maxWhy || len(p.Help) > maxWhy+100 || strings.Contains(p.Help, "\x1b") || p.Unwrap() == nil {
		t.Errorf("%+v", p)
	}
}

// Arguments are those that a plugin without any has: it looks at NodeLayers.
func TestDefaultArgs(t *testing.T) {
	args, err := defaultArgs()
	if err != nil || !args.NodeLayers || args.MinImageBytes <= 0 {
		t.Errorf("%+v, %v", args, err)
	}
}

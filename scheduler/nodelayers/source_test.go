package nodelayers

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

var digest = fixture.Digest

// line returns a layer of so many bytes, as NodeLayers list it.
func line(name string, bytes int64) string {
	return v1alpha1.ImageLayer{Digest: digest(name), Size: bytes}.String()
}

// object returns the NodeLayers of a node with a layer and an image, renewed just now.
func object(name string, change ...func(*v1alpha1.NodeLayers)) *v1alpha1.NodeLayers {
	o := &v1alpha1.NodeLayers{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayers"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: "8", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "layer-agent"}},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("uid-" + name)}},
		},
		Spec: v1alpha1.NodeLayersSpec{
			Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.NewTime(time.Now()),
			Layers: []string{line("a", 10)}, Images: []string{"0 quay.io/a:1"},
		},
	}
	for _, f := range change {
		f(o)
	}
	return o
}

// sink keeps what was last reported of each node.
type sink struct {
	reports map[string]*locality.NodeReport
	calls   int
}

func (*sink) SetImages(string, string, []index.Image) bool { return true }

func (s *sink) SetReport(source, node string, report *locality.NodeReport) {
	if s.calls++; source != Name {
		panic(source)
	}
	if delete(s.reports, node); report != nil {
		s.reports[node] = report
	}
}

// fresh returns the nodes whose agent counts, sorted.
func (s *sink) fresh() []string {
	var names []string
	for name, report := range s.reports {
		if report.Fresh {
			names = append(names, fmt.Sprint(name, " ", len(report.Images)))
		} else if len(report.Images) > 0 {
			names = append(names, name+" has images although it is stale")
		}
	}
	slices.Sort(names)
	return names
}

func TestConvert(t *testing.T) {
	layers := []string{line("a", 10), line("b", 20), line("c", 30), "no layer"}
	slices.Sort(layers[:3])
	parse := func(i int) index.Layer {
		l, err := v1alpha1.ParseLayer(layers[i])
		if err != nil {
			t.Fatal(err)
		}
		return index.Layer{Digest: l.Digest, Size: l.Size}
	}
	zero, one, two := parse(0), parse(1), parse(2)
	manifest := digest("manifest")
	for name, test := range map[string]struct {
		image string
		spec  v1alpha1.NodeLayersSpec
		want  index.Image
	}{
		"digests": {"2,0,1 quay.io/a:1 " + manifest, v1alpha1.NodeLayersSpec{},
			index.Image{Names: []string{"quay.io/a:1"}, Canonical: []imageref.Canonical{imageref.Canonical(manifest)}, Layers: []index.Layer{zero, one, two}}},
		"a layer twice":       {"1,0,1 quay.io/a:1", v1alpha1.NodeLayersSpec{}, index.Image{Names: []string{"quay.io/a:1"}, Layers: []index.Layer{zero, one}}},
		"name only":           {"- quay.io/a:1", v1alpha1.NodeLayersSpec{}, index.Image{Names: []string{"quay.io/a:1"}}},
		"an invalid layer":    {"0,3,1 quay.io/a:1", v1alpha1.NodeLayersSpec{}, index.Image{Names: []string{"quay.io/a:1"}, Layers: []index.Layer{zero, one}}},
		"chain":               {"2,0 quay.io/a:1", v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseInChains}, index.Image{Names: []string{"quay.io/a:1"}, Layers: index.Chain([]index.Layer{two, zero})}},
		"a chain broken":      {"2,3,0 quay.io/a:1", v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseInChains}, index.Image{Names: []string{"quay.io/a:1"}, Layers: index.Chain([]index.Layer{two})}},
		"a chain with gaps":   {"2,0 quay.io/a:1", v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseInChains, MinLayerBytes: 1}, index.Image{Names: []string{"quay.io/a:1"}}},
		"small layers missed": {"2,0 quay.io/a:1", v1alpha1.NodeLayersSpec{MinLayerBytes: 1}, index.Image{Names: []string{"quay.io/a:1"}, Layers: []index.Layer{zero, two}}},
	} {
		test.spec.Layers, test.spec.Images = layers, []string{"4 no layer of that index", test.image, "no numbers"}
		test.spec.JoinsDownloads = ptr.To(true)
		got, refused := convert(&test.spec)
		if len(got.Images) != 1 || !reflect.DeepEqual(normal(got.Images[0]), normal(test.want)) || refused != 3 {
			t.Errorf("%s: %+v, want %+v; %d lines refused, want 3", name, got.Images, test.want, refused)
		}
		if got.InChains != (test.spec.Reuse == v1alpha1.ReuseInChains) || !*got.JoinsDownloads {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func normal(i index.Image) index.Image {
	if len(i.Layers) == 0 {
		i.Layers = nil
	}
	return i
}

// An object that the schema would not let through costs no more than one that it does.
func TestBounds(t *testing.T) {
	spec := v1alpha1.NodeLayersSpec{Layers: slices.Repeat([]string{line("a", 1)}, v1alpha1.MaxNodeLayers+5), Images: slices.Repeat([]string{"4095 a"}, v1alpha1.MaxNodeImages+7)}
	if got, refused := convert(&spec); len(got.Images) != v1alpha1.MaxNodeImages || refused != 12 {
		t.Errorf("%d images, %d lines refused", len(got.Images), refused)
	}
	// As many layers as fit into each of the images.
	spec = v1alpha1.NodeLayersSpec{Layers: []string{line("a", 1)}, Images: slices.Repeat([]string{strings.Repeat("0,", 511) + "0 a"}, 129)}
	spec.Images = append(spec.Images, "- b")
	if got, refused := convert(&spec); len(got.Images) != maxLayerIndexes/512+1 || refused != 1 {
		t.Errorf("%d images, %d lines refused", len(got.Images), refused)
	}
}

func TestOwner(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.NodeLayers){
		"nobody's":          func(o *v1alpha1.NodeLayers) { o.OwnerReferences = nil },
		"of two":            func(o *v1alpha1.NodeLayers) { o.OwnerReferences = append(o.OwnerReferences, o.OwnerReferences[0]) },
		"of another Node":   func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].Name = "n2" },
		"of a Pod":          func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].Kind = "Pod" },
		"of something else": func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].APIVersion = "example.com/v1" },
		"of no Node":        func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].UID = "" },
	} {
		recorder := &sink{reports: map[string]*locality.NodeReport{}}
		s := &Source{nodes: map[string]*node{}, sink: recorder}
		if err := s.apply(object("n1"), time.Now()); err != nil || len(recorder.reports) != 1 || recorder.reports["n1"].UID != "uid-n1" {
			t.Fatalf("%v, %+v", err, recorder.reports)
		}
		if err := s.apply(object("n1", change), time.Now()); err == nil || len(recorder.reports) > 0 || s.Stats() != (Stats{Refused: 1}) {
			t.Errorf("%s: %v, %+v, %+v", name, err, recorder.reports, s.Stats())
		}
	}
}

// The report of an agent counts as long as it renews it: on the clock of this machine, whatever
// the time of the node is.
func TestStale(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	recorder := &sink{reports: map[string]*locality.NodeReport{}}
	s := &Source{nodes: map[string]*node{}, sink: recorder}
	begin := time.Now()
	apply := func(after time.Duration, name string, renewed time.Time, more ...func(*v1alpha1.NodeLayers)) {
		t.Helper()
		o := object(name, append(more, func(o *v1alpha1.NodeLayers) { o.Spec.RenewTime = metav1.NewTime(renewed) })...)
		if err := s.apply(o, begin.Add(after)); err != nil {
			t.Error(err)
		}
	}
	expect := func(when string, after time.Duration, want ...string) {
		t.Helper()
		s.expire(logger, begin.Add(after))
		if got := recorder.fresh(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		if stats := s.Stats(); stats.Fresh != len(want) || stats.Fresh+stats.Stale != len(recorder.reports) {
			t.Errorf("%s: %+v", when, stats)
		}
	}
	apply(0, "ahead", begin.Add(24*time.Hour), func(o *v1alpha1.NodeLayers) { o.Spec.JoinsDownloads = ptr.To(true) })
	apply(0, "long-gone", begin.Add(-31*time.Minute))
	apply(0, "renewed", begin)
	expect("at first", 0, "ahead 1", "renewed 1")
	expect("after three periods", 30*time.Minute, "ahead 1", "renewed 1")
	// Back on the clock, and the same time again with other content.
	apply(30*time.Minute, "renewed", begin.Add(-time.Hour))
	apply(30*time.Minute, "ahead", begin.Add(24*time.Hour), func(o *v1alpha1.NodeLayers) { o.Spec.Images = nil; o.Spec.JoinsDownloads = ptr.To(true) })
	calls := recorder.calls
	expect("later", 30*time.Minute+time.Second, "renewed 1")
	expect("and later", 40*time.Minute, "renewed 1")
	if recorder.calls != calls+1 {
		t.Errorf("reported %d times that one is stale", recorder.calls-calls)
	}
	if report := recorder.reports["ahead"]; report.JoinsDownloads == nil || report.UID != "uid-ahead" {
		t.Errorf("forgotten with the images: %+v", report)
	}
	// An agent that works again, and one of a Node that was made again.
	apply(41*time.Minute, "long-gone", begin.Add(10*time.Minute))
	apply(41*time.Minute, "ahead", begin.Add(24*time.Hour), func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].UID = "another" })
	expect("at last", 41*time.Minute, "ahead 1", "long-gone 1", "renewed 1")
	if n := strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "are not renewed"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// A source copes with every state of the apiserver, and logs each once.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(3)))
		logged := func(text string) int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), text)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		server := &fixture.Apiserver{T: t, Resource: "nodelayers"}
		s, err := NewSource(&rest.Config{Host: "https://apiserver.example", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		recorder := &sink{reports: map[string]*locality.NodeReport{}}
		list := func(objects ...*v1alpha1.NodeLayers) *v1alpha1.NodeLayersList {
			list := &v1alpha1.NodeLayersList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayersList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
			for _, o := range objects {
				list.Items = append(list.Items, *o)
			}
			return list
		}
		later := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		const cannot, can = "Cannot watch NodeLayers", "Watching NodeLayers"
		expect := func(when string, failures, successes int, want ...string) {
			t.Helper()
			if got := recorder.fresh(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
			if logged(cannot) != failures || logged(can) != successes {
				t.Errorf("%s: logged %d times that it cannot and %d times that it can, want %d and %d", when, logged(cannot), logged(can), failures, successes)
			}
		}
		server.Set(http.StatusNotFound, nil)
		if s.HasSynced() {
			t.Error("synced before it was started")
		}
		if _, err := s.Start(ctx, recorder); err != nil {
			t.Fatal(err)
		}
		later(time.Hour)
		expect("without the resource", 1, 0)
		if !s.HasSynced() {
			t.Error("a missing resource keeps the scheduler waiting")
		}
		server.Set(http.StatusForbidden, nil)
		later(time.Hour)
		expect("without the right", 2, 0)

		server.Set(http.StatusOK, list(object("n1"), object("n2"), object("n3", func(o *v1alpha1.NodeLayers) { o.OwnerReferences = nil })))
		later(time.Minute)
		expect("with the resource", 2, 1, "n1 1", "n2 1")
		server.Event("ADDED", object("n4"))
		server.Event("MODIFIED", object("n1", func(o *v1alpha1.NodeLayers) { o.Spec.Images = append(o.Spec.Images, "0 quay.io/b:1", "? quay.io/c:1") }))
		server.Event("DELETED", object("n2"))
		synctest.Wait()
		expect("after events", 2, 1, "n1 2", "n4 1")
		if logged("left out") != 2 {
			t.Errorf("logged %d times that something is left out", logged("left out"))
		}

		// The resource is gone, so nobody renews anything.
		server.Set(http.StatusNotFound, nil)
		server.CloseWatch()
		later(29 * time.Minute)
		expect("without the resource again", 3, 1, "n1 2", "n4 1")
		later(2 * time.Minute)
		expect("and for longer", 3, 1)
		server.Set(http.StatusOK, list(object("n4")))
		later(time.Minute)
		expect("with the resource again", 3, 2, "n4 1")
		if len(recorder.reports) != 1 || s.Stats() != (Stats{Fresh: 1, Refused: 2}) {
			t.Errorf("%v, %+v", recorder.reports, s.Stats())
		}
		cancel()
		server.CloseWatch()
		later(time.Hour)
	})
}

// followed starts a source on an apiserver with objects, and calls check once they are read.
func followed(t *testing.T, check func(s *Source, recorder *sink, server *fixture.Apiserver), objects ...runtime.Object) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server := &fixture.Apiserver{T: t, Resource: "nodelayers"}
		list := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayersList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		for _, o := range objects {
			list.Items = append(list.Items, runtime.RawExtension{Object: o})
		}
		server.Set(http.StatusOK, list)
		s, err := NewSource(&rest.Config{Host: "https://apiserver.example", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		recorder := &sink{reports: map[string]*locality.NodeReport{}}
		if _, err := s.Start(ctx, recorder); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		check(s, recorder, server)
		cancel()
		server.CloseWatch()
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

// An object of 2 MiB, as a schema without bounds would let through, is taken over up to the bounds.
func TestLarge(t *testing.T) {
	const lines = 8000
	large := object("large", func(o *v1alpha1.NodeLayers) {
		o.Spec.Images = nil
		for i := range lines {
			o.Spec.Images = append(o.Spec.Images, fmt.Sprintf("0 registry.example.com/%s:%d", strings.Repeat("a", 256), i))
		}
	})
	followed(t, func(s *Source, recorder *sink, server *fixture.Apiserver) {
		server.Event("MODIFIED", large)
		synctest.Wait()
		if got := recorder.fresh(); !slices.Equal(got, []string{fmt.Sprint("large ", v1alpha1.MaxNodeImages), "n1 1"}) {
			t.Errorf("%q", got)
		}
		if want := (Stats{Fresh: 2, Refused: 2 * (lines - v1alpha1.MaxNodeImages)}); s.Stats() != want {
			t.Errorf("%+v, want %+v", s.Stats(), want)
		}
	}, large, object("n1"))
}

// A newer agent reports fields that are unknown here: the rest counts.
func TestNewerAgent(t *testing.T) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object("n1", func(o *v1alpha1.NodeLayers) {
		o.Spec.Layers = append(o.Spec.Layers, line("b", 20)+" zstd")
		o.Spec.Images = []string{"0,1 quay.io/a:1", "0 quay.io/b:1"}
	}))
	if err != nil {
		t.Fatal(err)
	}
	content["spec"].(map[string]any)["compression"] = map[string]any{"zstd": "1"}
	followed(t, func(s *Source, recorder *sink, _ *fixture.Apiserver) {
		if got := recorder.fresh(); !slices.Equal(got, []string{"n1 2"}) {
			t.Fatalf("%q", got)
		}
		for _, image := range recorder.reports["n1"].Images {
			if len(image.Layers) != 1 || image.Layers[0] != (index.Layer{Digest: digest("a"), Size: 10}) {
				t.Errorf("%+v", image)
			}
		}
		if want := (Stats{Fresh: 1, Refused: 1}); s.Stats() != want {
			t.Errorf("%+v, want %+v", s.Stats(), want)
		}
	}, &unstructured.Unstructured{Object: content})
}

// An older agent reports fewer fields: what the schema requires is enough.
func TestOlderAgent(t *testing.T) {
	older := func(name string, optional ...string) *unstructured.Unstructured {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object(name))
		if err != nil {
			t.Fatal(err)
		}
		written := slices.Concat(optional, []string{"reuse", "renewSeconds", "renewTime", "totalImages", "totalLayers", "totalBytes"})
		maps.DeleteFunc(content["spec"].(map[string]any), func(field string, _ any) bool { return !slices.Contains(written, field) })
		return &unstructured.Unstructured{Object: content}
	}
	followed(t, func(s *Source, recorder *sink, _ *fixture.Apiserver) {
		if got := recorder.fresh(); !slices.Equal(got, []string{"n1 1", "n2 0"}) {
			t.Fatalf("%q", got)
		}
		report := recorder.reports["n1"]
		if layers := report.Images[0].Layers; len(layers) != 1 || layers[0].Size != 10 || report.InChains || report.JoinsDownloads != nil {
			t.Errorf("%+v", report)
		}
		if want := (Stats{Fresh: 2}); s.Stats() != want {
			t.Errorf("%+v, want %+v", s.Stats(), want)
		}
	}, older("n1", "layers", "images"), older("n2"))
}

// A host that can put off questions waits for the objects, unless there will be none.
func TestRequireSync(t *testing.T) {
	for status, began := range map[int]bool{http.StatusNotFound: true, http.StatusForbidden: true, http.StatusInternalServerError: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			server := &fixture.Apiserver{T: t, Resource: "nodelayers"}
			server.Set(status, nil)
			s, err := NewSource(&rest.Config{Host: "https://apiserver.example", Transport: server})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.RequireSync().Start(ctx, &sink{reports: map[string]*locality.NodeReport{}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if s.HasSynced() != began {
				t.Errorf("after %d: HasSynced is %t", status, s.HasSynced())
			}
			cancel()
			time.Sleep(time.Hour)
		})
	}
	if _, err := NewSource(nil); err == nil {
		t.Error("a source without an apiserver")
	}
}

func TestMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(newCollector(
		func() Stats { return Stats{Fresh: 3, Stale: 2, Refused: 1} },
		func() Ages { return Ages{Median: time.Minute, P99: 90 * time.Second, Oldest: 1500 * time.Millisecond} },
	))
	const want = `
# HELP scheduler_layerlocality_node_layers [ALPHA] NodeLayers, by whether their layer-agent renews them (fresh), so that they count in place of NodeStatus, or not (stale).
# TYPE scheduler_layerlocality_node_layers gauge
scheduler_layerlocality_node_layers{state="fresh"} 3
scheduler_layerlocality_node_layers{state="stale"} 2
# HELP scheduler_layerlocality_node_layers_age_seconds [ALPHA] Time since this process last saw NodeLayers renewed: median, 99th percentile (p99) and longest (oldest). Absent without NodeLayers.
# TYPE scheduler_layerlocality_node_layers_age_seconds gauge
scheduler_layerlocality_node_layers_age_seconds{of="median"} 60
scheduler_layerlocality_node_layers_age_seconds{of="oldest"} 1.5
scheduler_layerlocality_node_layers_age_seconds{of="p99"} 90
# HELP scheduler_layerlocality_node_layers_refused_total [ALPHA] NodeLayers that are about no Node, and lines in them that are not valid, as often as they came.
# TYPE scheduler_layerlocality_node_layers_refused_total counter
scheduler_layerlocality_node_layers_refused_total 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// Without NodeLayers there is no age: 0 would mean that all were just renewed.
func TestMetricsWithoutObjects(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(newCollector(func() Stats { return Stats{} }, func() Ages { return Ages{} }))
	if err := testutil.GatherAndCompare(registry, strings.NewReader(""), "scheduler_layerlocality_node_layers_age_seconds"); err != nil {
		t.Error(err)
	}
}

// The age of a report counts from when its renewal was seen, not from the time of the node's clock.
func TestAges(t *testing.T) {
	s := &Source{nodes: map[string]*node{}, sink: &sink{reports: map[string]*locality.NodeReport{}}}
	begin := time.Now()
	if got := s.ages(begin); got != (Ages{}) {
		t.Errorf("without objects: %+v", got)
	}
	apply := func(name string, seen, renewed time.Duration) {
		t.Helper()
		o := object(name, func(o *v1alpha1.NodeLayers) { o.Spec.RenewTime = metav1.NewTime(begin.Add(renewed)) })
		if err := s.apply(o, begin.Add(seen)); err != nil {
			t.Error(err)
		}
	}
	apply("n1", 0, 24*time.Hour)
	expect := func(when string, after time.Duration, want Ages) {
		t.Helper()
		if got := s.ages(begin.Add(after)); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	expect("one", 7*time.Second, Ages{7 * time.Second, 7 * time.Second, 7 * time.Second})
	expect("a clock that goes back", -time.Second, Ages{})
	apply("n1", 10*time.Second, 24*time.Hour) // with other content, and not renewed
	expect("not renewed", 11*time.Second, Ages{11 * time.Second, 11 * time.Second, 11 * time.Second})
	apply("n1", 20*time.Second, time.Hour)
	expect("renewed", 21*time.Second, Ages{time.Second, time.Second, time.Second})
	for i := 1; i <= 200; i++ {
		apply(fmt.Sprint("n", i), time.Duration(100+i)*time.Second, time.Duration(i)*time.Minute)
	}
	expect("0 to 199 s", 300*time.Second, Ages{99 * time.Second, 197 * time.Second, 199 * time.Second})
	apply("gone", 300*time.Second, -time.Hour) // before this process began
	expect("and one that is gone", 300*time.Second, Ages{100 * time.Second, 198 * time.Second, time.Hour + 300*time.Second})
}

// FuzzConvert: nothing that is in an object makes a report invalid.
func FuzzConvert(f *testing.F) {
	f.Add(line("a", 1), "0 a", "0,0 b "+digest("x"), true)
	f.Add("x", "1 a", "- b", false)
	f.Fuzz(func(t *testing.T, layer, one, two string, chains bool) {
		spec := v1alpha1.NodeLayersSpec{Layers: []string{layer, line("z", 5)}, Images: []string{one, two}, Reuse: v1alpha1.ReuseByDigest}
		if chains {
			spec.Reuse = v1alpha1.ReuseInChains
		}
		report, refused := convert(&spec)
		if len(report.Images)+refused < 2 {
			t.Errorf("%d images, %d lines refused", len(report.Images), refused)
		}
		for _, image := range report.Images {
			if len(image.Names)+len(image.Canonical) == 0 {
				t.Errorf("%+v has no name", image)
			}
			for _, l := range image.Layers {
				if !v1alpha1.IsDigest(l.Digest) || l.Size < 0 || l.Size > v1alpha1.MaxLayerBytes {
					t.Errorf("%+v", l)
				}
			}
		}
	})
}

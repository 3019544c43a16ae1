package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

func TestParsePull(t *testing.T) {
	for message, want := range map[string]Pull{
		`Successfully pulled image "quay.io/a:1" in 1.5s (2m1s including waiting). Image size: 5 bytes.`: {Image: "quay.io/a:1", Seconds: 1.5, SecondsWithWaiting: 121},
		`Successfully pulled image "quay.io/a:1" in 90ms`:                                                {Image: "quay.io/a:1", Seconds: .09, SecondsWithWaiting: .09},
		`Successfully pulled image "a` + "\x1b" + `[2J" in 2s (1s including waiting)`:                    {Image: "a\uFFFD[2J", Seconds: 2, SecondsWithWaiting: 2},
		`Container image "quay.io/a:1" already present on machine and can be accessed by the pod`:        {Image: "quay.io/a:1", Present: true},
		`Container image "quay.io/a:1" already present on machine`:                                       {Image: "quay.io/a:1", Present: true},
	} {
		if got, ok := ParsePull(message); !ok || got != want {
			t.Errorf("%s: %+v, %t", message, got, ok)
		}
	}
	for _, message := range []string{"", "Pulling image", `Successfully pulled image "a" in -3s`, `Successfully pulled image "a" in 1y`, `Successfully pulled image "` + strings.Repeat("a", maxMessage) + `" in 1s`} {
		if got, ok := ParsePull(message); ok {
			t.Errorf("%.50s: %+v", message, got)
		}
	}
}

func FuzzParsePull(f *testing.F) {
	f.Add(`Successfully pulled image "quay.io/a:1" in 1.5s (2m1s including waiting). Image size: 5 bytes.`)
	f.Add(`Container image "quay.io/a:1" already present on machine`)
	f.Fuzz(func(t *testing.T, message string) {
		pull, ok := ParsePull(message)
		if ok && (pull.Seconds < 0 || pull.SecondsWithWaiting < pull.Seconds || len(pull.Image) > 1200 || strings.ContainsAny(pull.Image, "\x1b\n")) {
			t.Errorf("%q: %+v", message, pull)
		}
	})
}

func placedPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{NodeName: "n2", SchedulerName: "s"}}
}

// An image that was pulled is not also said to be there; other events say nothing.
func TestPulls(t *testing.T) {
	event := func(name, message string, at int) *v1.Event {
		return &v1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, InvolvedObject: v1.ObjectReference{Kind: "Pod", UID: "u"}, Reason: "Pulled", Message: message,
			FirstTimestamp: metav1.NewTime(time.Unix(int64(at), 0)),
		}
	}
	client := fake.NewClientset(event("3", `Container image "a" already present on machine`, 3), event("1", `Successfully pulled image "a" in 1s`, 1), event("2", `Container image "b" already present on machine`, 2), event("4", "something else", 4))
	pulls, all, err := Pulls(t.Context(), client, placedPod())
	if err != nil || !all || len(pulls) != 2 || pulls[0].Image != "a" || pulls[0].Present || !pulls[1].Present || pulls[0].At.Unix() != 1 {
		t.Errorf("%+v, %v", pulls, err)
	}
}

// Events come in several lists; of a pod that has too many, it is said that there are more.
func TestPullsOfManyEvents(t *testing.T) {
	for _, test := range []struct {
		lists, want int
		all         bool
	}{{1, 1, true}, {3, 3, true}, {1000, maxEvents / eventsChunk, false}} {
		client, asked := fake.NewClientset(), 0
		client.PrependReactor("list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
			options := action.(clienttesting.ListActionImpl).ListOptions
			if options.Limit != eventsChunk || (asked > 0) != (options.Continue != "") {
				t.Errorf("list %d: %+v", asked, options)
			}
			list := &v1.EventList{Items: make([]v1.Event, eventsChunk)}
			list.Items[0].Message = fmt.Sprintf(`Successfully pulled image "i%d" in 1s`, asked)
			if asked++; asked < test.lists {
				list.Continue = "more"
			}
			return true, list, nil
		})
		pulls, all, err := Pulls(t.Context(), client, placedPod())
		if err != nil || all != test.all || len(pulls) != test.want || asked != test.want {
			t.Errorf("%d lists: %d pulls of %d, all %t, %v", test.lists, len(pulls), asked, all, err)
		}
	}
}

// layerSizes are those of images, by letter, in MB.
var layerSizes = map[string]int64{"a": 60, "b": 2, "c": 5, "d": 30}

// clusterHolding returns nodes that hold images, each made of some of the layers.
func clusterHolding(t *testing.T, nodes map[string]map[string]string) *collect.Cluster {
	t.Helper()
	c := &collect.Cluster{Agents: map[string]collect.Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), Now: time.Now()}
	for name, images := range nodes {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		node.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		c.Nodes = append(c.Nodes, node)
		o := &v1alpha1.NodeLayers{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}}},
			Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.NewTime(c.Now)},
		}
		places := map[string]int{}
		for place, letter := range slices.Sorted(maps.Keys(layerSizes)) {
			places[letter] = place
			o.Spec.Layers = append(o.Spec.Layers, v1alpha1.ImageLayer{Digest: "sha256:" + strings.Repeat(letter, 64), Size: layerSizes[letter] * mb}.String())
		}
		for image, letters := range images {
			held := v1alpha1.NodeImage{Names: []string{image}}
			for _, letter := range strings.Split(letters, "") {
				held.Layers = append(held.Layers, places[letter])
			}
			o.Spec.Images = append(o.Spec.Images, held.String())
		}
		if err := c.Reports.Add(o, c.Now); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Of a pod that nobody remembers, nodes are rated now. A base that two of its images brought was
// pulled once; what another image has anyway was not.
func TestRated(t *testing.T) {
	p := placedPod()
	p.Spec.Containers = []v1.Container{{Name: "app", Image: "quay.io/app:1"}, {Name: "side", Image: "quay.io/side:1"}}
	pulled, present := func(image string) Pull { return Pull{Image: image, Seconds: 1, SecondsWithWaiting: 1} }, func(image string) Pull { return Pull{Image: image, Present: true} }
	holds := map[string]string{"quay.io/app:1": "ab", "quay.io/side:1": "ac"}
	for name, test := range map[string]struct {
		holds map[string]string
		pulls []Pull
		want  int64
		words string
	}{
		"both":                {holds, []Pull{pulled("quay.io/app:1"), pulled("quay.io/side:1")}, 60 + 2 + 5, "There it would have saved 60.0 MB."},
		"one was there":       {holds, []Pull{pulled("quay.io/app:1"), present("quay.io/side:1")}, 2, "There it would have saved nothing."},
		"another has a layer": {map[string]string{"quay.io/app:1": "ab", "quay.io/side:1": "ac", "quay.io/other:1": "ad"}, []Pull{pulled("quay.io/app:1"), pulled("quay.io/side:1")}, 2 + 5, "saved nothing"},
		"both were there":     {holds, []Pull{present("quay.io/app:1"), present("quay.io/side:1")}, 0, "Its kubelet found quay.io/side:1 there."},
		"one is gone":         {map[string]string{"quay.io/app:1": "ab"}, []Pull{pulled("quay.io/app:1"), pulled("quay.io/side:1")}, -1, "Its kubelet pulled quay.io/side:1"},
		"no events":           {holds, nil, -1, "No event states"},
	} {
		c := clusterHolding(t, map[string]map[string]string{"n1": {"quay.io/base:1": "a"}, "n2": test.holds, "n3": {"quay.io/tools:1": "d"}})
		a, err := Rated(t.Context(), c, p, test.pulls, "Nobody remembers.")
		if err != nil {
			t.Fatal(err)
		}
		got := int64(-1)
		if a.Now.PulledBytes != nil {
			got = *a.Now.PulledBytes / mb
		}
		if words := strings.Join(a.Words, "\n"); got != test.want || !strings.Contains(words, test.words) || !strings.Contains(words, "Of 2 other nodes that it fits on, n1 lacks least") || a.Forgotten != "Nobody remembers." {
			t.Errorf("%s: %d MB, want %d MB, %s:\n%s", name, got, test.want, test.words, words)
		}
	}
}

// Pods that have ended, and pods without a node, are named as what they are.
func TestStates(t *testing.T) {
	with := func(phase v1.PodPhase, node string) *v1.Pod {
		p := placedPod()
		p.Status.Phase, p.Spec.NodeName = phase, node
		return p
	}
	waits := with(v1.PodPending, "")
	waits.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "0/3 nodes are available.\x1b"}}
	for _, test := range []struct {
		pod         *v1.Pod
		ended, want string
	}{
		{with(v1.PodRunning, "n2"), "", "Pod ns/p is on n2, placed by s."},
		{with(v1.PodSucceeded, "n2"), "Succeeded", "Pod ns/p was on n2, placed by s, and has ended (Succeeded)."},
		{with(v1.PodFailed, "n2"), "Failed", "Pod ns/p was on n2, placed by s, and has ended (Failed)."},
		{with(v1.PodPending, ""), "", "Pod ns/p has no node yet: kubectl layers plan pod/p shows what nodes have for it."},
		{waits, "", "Pod ns/p has no node yet (0/3 nodes are available.\uFFFD): kubectl layers plan pod/p shows what nodes have for it."},
		{with(v1.PodFailed, ""), "Failed", "Pod ns/p has ended (Failed) and never had a node: kubectl layers plan pod/p shows what nodes have for one like it."},
	} {
		a := Unplaced(test.pod)
		if test.pod.Spec.NodeName != "" {
			a = Forgotten(test.pod, nil, "Nobody remembers.")
		} else if err := ErrUnplaced(test.pod); "Pod"+strings.TrimPrefix(err.Error(), "pod")+"." != test.want {
			t.Errorf("%v, want %s", err, test.want)
		}
		if a.Words[0] != test.want || a.Ended != test.ended || a.Node != test.pod.Spec.NodeName {
			t.Errorf("%+v, want %s", a, test.want)
		}
	}
}

func TestRemembered(t *testing.T) {
	chosen := placements.Weights{Node: "n2", Score: 40, TotalBytes: 10 * mb, PresentBytes: 4 * mb, MissingBytes: 6 * mb}
	best := placements.Weights{Node: "n1\x1b", Score: 90, MissingBytes: 1 * mb}
	mean := &placements.Mean{Score: 20, MissingBytes: 8 * mb}
	for _, test := range []struct {
		p    placements.Placement
		want []string
	}{
		{placements.Placement{Known: "layers", FeasibleNodes: 3, Chosen: chosen, Best: &best, Mean: mean, HeldMilliseconds: 400}, []string{
			"n2 had 4.0 MB of its 10.0 MB, 0 on their way, and lacked 6.0 MB; score 40 of 100", "held 0.4 s", "The mean of the 3 nodes that it fitted on lacked 8.0 MB: 2.0 MB saved.",
			"Other plugins overruled layers: n1\uFFFD scored 90 against 40, and lacked 1.0 MB.",
		}},
		{placements.Placement{Known: "layers", FeasibleNodes: 3, Chosen: chosen, Best: &chosen, Mean: &placements.Mean{MissingBytes: 5 * mb}}, []string{"1.0 MB more than the mean", "No other node scored more."}},
		{placements.Placement{Known: "unknown", FeasibleNodes: 3, Mean: &placements.Mean{}}, []string{"Nothing was known about its images (unknown)."}},
		{placements.Placement{Known: "layers", FeasibleNodes: 1, Chosen: chosen}, []string{"kube-scheduler chose from this node alone: no other fitted, or it was tried first"}},
		{placements.Placement{Chosen: chosen}, []string{"no image of the pod has a valid name, or it was placed with others in one step"}},
		{placements.Placement{Known: "layers", FeasibleNodes: 2, Chosen: chosen, Mean: mean}, []string{"No node scored more than 0"}},
	} {
		a := Remembered(placedPod(), test.p, nil)
		words := strings.Join(a.Words, "\n")
		for _, want := range test.want {
			if !strings.Contains(words, want) {
				t.Errorf("%+v:\n%s\nwant %s", test.p, words, want)
			}
		}
		if saved := a.SavedBytes != nil; saved != (test.p.Mean != nil) {
			t.Errorf("saved: %v", a.SavedBytes)
		}
	}
	if best.Node != "n1\x1b" {
		t.Error("what the caller has was changed")
	}
}

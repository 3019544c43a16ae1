package why

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

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

func pod() *v1.Pod {
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
	pulls, err := Pulls(t.Context(), client, pod())
	if err != nil || len(pulls) != 2 || pulls[0].Image != "a" || pulls[0].Present || !pulls[1].Present || pulls[0].At.Unix() != 1 {
		t.Errorf("%+v, %v", pulls, err)
	}
}

func TestRemembered(t *testing.T) {
	const mb = 1_000_000
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
		{placements.Placement{Known: "layers", FeasibleNodes: 1, Chosen: chosen}, []string{"It fitted on no other node."}},
		{placements.Placement{Chosen: chosen}, []string{"placed with others in one step"}},
		{placements.Placement{Known: "layers", FeasibleNodes: 2, Chosen: chosen, Mean: mean}, []string{"No node scored more than 0"}},
	} {
		a := Remembered(pod(), test.p, nil)
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

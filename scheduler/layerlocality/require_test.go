package layerlocality

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
)

// requiring returns a pod that was created some time ago, with the two annotations; "" leaves one out.
func requiring(percent, timeout string, age time.Duration, images ...string) *v1.Pod {
	p := pod("p", images...)
	p.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
	p.Annotations = map[string]string{}
	if percent != "" {
		p.Annotations[RequireAnnotation] = percent
	}
	if timeout != "" {
		p.Annotations[RequireTimeoutAnnotation] = timeout
	}
	return p
}

// accepted returns the nodes that Filter accepts; skipped means that it is not asked.
func (s *suite) accepted(p *v1.Pod) (accepted []string, skipped bool) {
	s.t.Helper()
	state := framework.NewCycleState()
	if _, status := s.plugin.PreFilter(s.ctx, state, p, nil); status.IsSkip() {
		return nil, true
	} else if !status.IsSuccess() {
		s.t.Fatal(status)
	}
	for _, n := range s.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		switch status := s.plugin.Filter(s.ctx, state, p, info); {
		case status.IsSuccess():
			accepted = append(accepted, n.Name)
		case status.Code() != fwk.UnschedulableAndUnresolvable || !strings.Contains(status.Message(), p.Annotations[RequireAnnotation]):
			s.t.Errorf("node %s: %v, want to be refused with what is required: no eviction helps", n.Name, status)
		}
	}
	return accepted, false
}

func TestRequire(t *testing.T) {
	const image, unknown = "quay.io/a:1", "quay.io/unknown:1"
	s := newSuite(t, args(), nodes("n1", "n2", "n3"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage(image, layers{"a": 100, "b": 100})})
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"b": 100})})
	recorder := events.NewFakeRecorder(100)
	s.plugin.requirements.events = recorder

	for name, test := range map[string]struct {
		pod     *v1.Pod
		nodes   []string
		skipped bool
		event   string
	}{
		"all":                          {requiring("100%", "", 0, image), []string{"n1"}, false, ""},
		"most":                         {requiring("51%", "", 0, image), []string{"n1"}, false, ""},
		"half":                         {requiring("50%", "", 0, image), []string{"n1", "n2"}, false, ""},
		"little":                       {requiring("1%", "", 0, image), []string{"n1", "n2"}, false, ""},
		"with an unknown image":        {requiring("1%", "", 0, image, unknown), nil, false, ""},
		"an unknown image":             {requiring("1%", "", 0, unknown), nil, false, ""},
		"time is over":                 {requiring("100%", "", defaultRequireTimeout, image), nil, true, ""},
		"time is not over":             {requiring("100%", "", defaultRequireTimeout-time.Minute, image), []string{"n1"}, false, ""},
		"longer timeout":               {requiring("100%", "1h", defaultRequireTimeout, image), []string{"n1"}, false, ""},
		"shorter timeout":              {requiring("100%", "1m", 2*time.Minute, image), nil, true, ""},
		"clock of another is ahead":    {requiring("100%", "", -maxRequireTimeout, image), []string{"n1"}, false, ""},
		"no annotation":                {requiring("", "1h", 0, image), nil, true, ""},
		"no percent sign":              {requiring("90", "", 0, image), nil, true, `layerlocality.io/require: want 1% to 100%, not "90"`},
		"no number":                    {requiring("9O%", "", 0, image), nil, true, `not "9O%"`},
		"nothing":                      {requiring("0%", "", 0, image), nil, true, `not "0%"`},
		"too much":                     {requiring("101%", "", 0, image), nil, true, `not "101%"`},
		"long":                         {requiring(strings.Repeat("9", 1e5), "", 0, image), nil, true, `not "99999999999999999999": any node`},
		"no duration":                  {requiring("90%", "soon", 0, image), nil, true, `layerlocality.io/require-timeout: want 1s to 1h, not "soon"`},
		"no time":                      {requiring("90%", "0s", 0, image), nil, true, `not "0s"`},
		"negative timeout":             {requiring("90%", "-5m", 0, image), nil, true, `not "-5m"`},
		"longer than anyone will wait": {requiring("90%", "1h1s", 0, image), nil, true, `not "1h1s"`},
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			clear(s.plugin.requirements.waiting) // each is another pod
			nodes, skipped := s.accepted(test.pod)
			if skipped != test.skipped || !slices.Equal(nodes, test.nodes) {
				t.Errorf("accepted %v (skipped %t), want %v (%t)", nodes, skipped, test.nodes, test.skipped)
			}
			var event string
			select {
			case event = <-recorder.Events:
			default:
			}
			if (event == "") != (test.event == "") || !strings.Contains(event, test.event) {
				t.Errorf("event %q, want %q", event, test.event)
			}
			if w := s.plugin.requirements.waiting[test.pod.UID]; w.since.After(time.Now()) {
				t.Errorf("waits from %s on", w.since)
			}
			if fragments, status := s.plugin.SignPod(s.ctx, test.pod); status.IsSuccess() == (test.pod.Annotations[RequireAnnotation] != "") {
				t.Errorf("signature %v, %v", fragments, status)
			}
		})
	}
	s.plugin.requirements = nil // WithoutHolding
	if nodes, skipped := s.accepted(requiring("100%", "", 0, image)); !skipped {
		t.Errorf("without holding: %v", nodes)
	}
}

// TestRequireAgain has pods tried again, when other nodes have their layers and when they need no node any more that has.
func TestRequireAgain(t *testing.T) {
	const image = "quay.io/a:1"
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/b:1", layers{"a": 100})})
	s.registry[image] = manifest(index.Layer{Digest: digest("a"), Size: 100 * mb}, index.Layer{Digest: digest("b"), Size: 100 * mb})
	r := s.plugin.requirements
	p := requiring("90%", "", 0, image)
	expect := func(what string, again, more bool) {
		t.Helper()
		pods, goesOn := r.look()
		if (len(pods) == 1) != again || goesOn != more {
			t.Errorf("%s: try again %v, more %t; want %t, %t", what, pods, goesOn, again, more)
		}
	}
	update := func(create bool) {
		t.Helper()
		var err error
		if create {
			_, err = s.client.CoreV1().Pods(p.Namespace).Create(s.ctx, p, metav1.CreateOptions{})
		} else {
			_, err = s.client.CoreV1().Pods(p.Namespace).Update(s.ctx, p, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		fixture.Eventually(t, "the pod is known", func() any { return p }, func() bool {
			known, err := r.pods.Pods(p.Namespace).Get(p.Name)
			return err == nil && maps.Equal(known.Annotations, p.Annotations) && known.Spec.NodeName == p.Spec.NodeName
		})
	}
	update(true)
	try := func(want ...string) {
		t.Helper()
		if nodes, _ := s.accepted(p); !slices.Equal(nodes, want) {
			t.Errorf("accepted %v, want %v", nodes, want)
		}
	}
	try()
	expect("nothing changed", false, true)
	if reason := r.reason(p); !strings.Contains(reason, "for a node with 90% of its layers") {
		t.Errorf("reason %q", reason)
	}
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage(image, layers{"a": 100, "b": 100})})
	for range maxWakes {
		expect("a node has the image", true, true)
	}
	expect("it does not get as far as PreFilter", false, true)
	try("n2")
	expect("tried", false, true)
	s.agent.Sink.SetImages("test", "n2", nil)
	expect("a node lost the image", false, true)
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage(image, layers{"a": 100, "b": 100})})
	expect("another node has the image", true, true)
	try("n1")
	w := r.waiting[p.UID]
	w.since = w.since.Add(-defaultRequireTimeout)
	r.waiting[p.UID] = w
	expect("time is over", true, true)
	if _, skipped := s.accepted(p); !skipped {
		t.Error("nodes are refused although the time is over")
	}
	expect("any node will do", false, false)

	p = p.DeepCopy()
	p.Annotations = requiring("100%", "1h", 0).Annotations
	update(false)
	try("n1")
	p = p.DeepCopy()
	p.Annotations = nil
	update(false)
	expect("requires nothing any more", true, true)
	expect("and again", true, true)
	expect("and is left to kube-scheduler", true, false)

	p = p.DeepCopy()
	p.Annotations = requiring("100%", "1h", 0).Annotations
	update(false)
	try("n1")
	p = p.DeepCopy()
	p.Annotations[RequireTimeoutAnnotation] = "1s"
	p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute))
	w = r.waiting[p.UID]
	w.since = p.CreationTimestamp.Time
	r.waiting[p.UID] = w
	update(false)
	expect("a shorter time that is over", true, true)
	p = p.DeepCopy()
	p.Spec.NodeName = "n1"
	update(false)
	expect("is placed", false, false)
}

// TestRequireOnItsPlatform: a node has nothing of an image that is not for its platform.
func TestRequireOnItsPlatform(t *testing.T) {
	all := nodes("amd", "arm")
	all[1].Status.NodeInfo.Architecture = "arm64"
	s := newSuite(t, args(), all)
	s.agent.Sink.SetImages("test", "amd", []index.Image{nodeImage("quay.io/other:1", layers{"b": 100})})
	s.agent.Sink.SetImages("test", "arm", []index.Image{nodeImage("quay.io/sidecar:1", layers{"s": 10})})
	amd := index.Platform{OS: "linux", Architecture: "amd64"}
	s.registry["quay.io/notebook:1"] = []index.Manifest{{Platform: amd, Layers: []index.Layer{{Digest: digest("n"), Size: 100 * mb}}}}
	if nodes, skipped := s.accepted(requiring("90%", "", 0, "quay.io/notebook:1", "quay.io/sidecar:1")); skipped || len(nodes) > 0 {
		t.Errorf("accepted %v (skipped %t)", nodes, skipped)
	}
}

// TestRequireManyPods activates pods that wait for the same node a few at a time, those first that wait for longest.
func TestRequireManyPods(t *testing.T) {
	const image, many = "quay.io/a:1", 3 * maxActivated
	var pods []*v1.Pod
	for i := range many {
		p := requiring("90%", "1h", time.Duration(many-i)*time.Second, image)
		p.Name = fmt.Sprintf("p%02d", i)
		p.UID = types.UID(p.Name)
		pods = append(pods, p)
	}
	s := newSuite(t, args(), nodes("n1"), pods...)
	for _, p := range pods {
		s.accepted(p)
	}
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage(image, layers{"a": 100})})
	first, _ := s.plugin.requirements.look()
	if len(first) != maxActivated || first["ns/p00"] == nil || first[fmt.Sprintf("ns/p%02d", maxActivated)] != nil {
		t.Errorf("%d pods: %v", len(first), slices.Sorted(maps.Keys(first)))
	}
}

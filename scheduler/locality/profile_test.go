package locality_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
)

// A name that is not valid is nobody's image.
func TestInvalidName(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	p := pod("p", "quay.io/a:1", "NOT VALID")
	if got := s.profile.Wanted(p); len(got) != 1 {
		t.Errorf("%+v, want one image", got)
	}
	if got := s.profile.Signature(p); len(got) != 1 {
		t.Errorf("signature %q, want one image", got)
	}
	if got := s.profile.Signature(pod("p", "NOT VALID")); len(got) != 0 {
		t.Errorf("signature %q, want none", got)
	}
}

func TestSignature(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	one := s.profile.Signature(pod("p", "quay.io/a:1", "quay.io/b:1"))
	if got := s.profile.Signature(pod("q", "quay.io/b:1", "quay.io/a:1", "quay.io/a:1")); !slices.Equal(got, one) {
		t.Errorf("%q and %q are of the same images", got, one)
	}
	always := pod("p", "quay.io/a:1", "quay.io/b:1")
	always.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
	if slices.Equal(s.profile.Signature(always), one) {
		t.Error("an image that is always pulled is another one")
	}
	// Nodes may hold an image once for each class (KEP-4216), and report neither.
	class := pod("p", "quay.io/a:1", "quay.io/b:1")
	class.Spec.RuntimeClassName = ptr.To("kata")
	if got := s.profile.Signature(class); !slices.Equal(got, one) {
		t.Errorf("with a runtime class %q, without %q", got, one)
	}
}

// Which image a pod may be gated for.
func TestUnknownImage(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	s.images.Images["quay.io/known:1"] = manifest(index.Layer{Digest: digest("a"), Size: mb})
	s.images.Refused = map[imageref.Canonical]bool{"quay.io/gone:1": true}
	if got := s.profile.UnknownImages(pod("p", "quay.io/new:1")); len(got) != 0 {
		t.Errorf("%q, before the source is ready", got)
	}
	s.images.Ready.Store(true)
	s.agent.Holds("n1", fixture.Image("quay.io/reported:1", fixture.Layers{"b": 1}))
	for name, test := range map[string]struct {
		change func(*v1.Pod)
		images []string
		want   string
	}{
		"known":            {nil, []string{"quay.io/known:1"}, ""},
		"reported":         {nil, []string{"quay.io/reported:1"}, ""},
		"unknown":          {nil, []string{"quay.io/known:1", "quay.io/new:1"}, "quay.io/new:1"},
		"no manifest":      {nil, []string{"quay.io/gone:1"}, ""},
		"not valid":        {nil, []string{"NOT VALID"}, ""},
		"not valid, first": {nil, []string{"NOT VALID", "quay.io/new:1"}, "quay.io/new:1"},
		"never pulled": {func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullNever },
			[]string{"quay.io/new:1"}, ""},
		"the other one is never pulled": {func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullNever },
			[]string{"quay.io/new:1", "quay.io/newer:1"}, "quay.io/newer:1"},
		"gated": {func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "wait"}} },
			[]string{"quay.io/new:1"}, ""},
		"of a DaemonSet": {owned("DaemonSet", true), []string{"quay.io/new:1"}, ""},
		"of a Job":       {owned("Job", true), []string{"quay.io/new:1"}, "quay.io/new:1"},
		"owned by a DaemonSet that does not control it": {owned("DaemonSet", false), []string{"quay.io/new:1"}, "quay.io/new:1"},
	} {
		p := pod("p", test.images...)
		if test.change != nil {
			test.change(p)
		}
		if got := strings.Join(s.profile.UnknownImages(p), " "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func owned(kind string, controller bool) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: ptr.To(controller)}}
	}
}

package lookup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// openRegistry denies nothing, and is not asked.
type openRegistry struct{ Registry }

func (openRegistry) Denied(string) error { return nil }

// What a workload brings is tried first, and takes no place if it is its turn anyway.
func TestBroughtSecretsTakeOnePlace(t *testing.T) {
	const tag = "reg/x:1"
	expand := func(name string) ([]string, error) { return []string{name}, nil }
	none := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no")
		},
	})
	in := usage.New(expand, clock.RealClock{}, time.Hour, usage.Limits{All: 100, Each: 100})
	a := &Asker{Registry: openRegistry{}, Credentials: pullsecrets.New(nil, none), Usage: in}
	pull := func(namespace string) usage.Pull { return usage.Pull{Namespace: namespace} }
	for i := range 3 * maxPulls {
		namespace := fmt.Sprintf("ns-%02d", i)
		in.Set(usage.WorkloadImages{
			Workload: corev1.ObjectReference{Kind: "Deployment", Namespace: namespace, Name: "w"}, Pull: pull(namespace), Images: []string{tag},
		})
	}
	for brought, place := range map[string]int{"ns-03": 3, "ns-23": 0} {
		next := fmt.Sprintf("ns-%02d", maxPulls)
		if place == 0 {
			next = fmt.Sprintf("ns-%02d", maxPulls-1) // the last one gave up its place
		}
		a.secrets.setNext(tag, usage.Pull{})
		a.Brought(tag, pull(brought))
		tried := a.nextSecrets(t.Context(), usage.ImageOf(tag))
		if len(tried) != maxPulls || tried[place].Namespace != brought {
			t.Errorf("of %d namespaces the secrets are tried, want %d with %s in place %d", len(tried), maxPulls, brought, place)
		}
		if tried := a.nextSecrets(t.Context(), usage.ImageOf(tag)); tried[0].Namespace != next {
			t.Errorf("%s is next, want %s", tried[0].Namespace, next)
		}
	}
}

// Of several reasons the first counts, and the first temporary one before all final ones.
func TestReason(t *testing.T) {
	const notFound, unauthorized, down, limited = v1alpha1.ReasonNotFound, v1alpha1.ReasonUnauthorized, v1alpha1.ReasonUnavailable, v1alpha1.ReasonRateLimited
	for _, test := range []struct {
		reasons []string
		want    string
	}{
		{nil, ""}, {[]string{notFound, unauthorized}, notFound}, {[]string{unauthorized, notFound}, unauthorized},
		{[]string{notFound, down, limited}, down}, {[]string{limited, down, notFound}, limited},
	} {
		var refusals Refusals
		for _, reason := range test.reasons {
			refusals = append(refusals, Refusal{"reg/x:1", &registry.Error{Reason: reason, Err: errors.New("no")}})
		}
		if got, _ := refusals.Reason(); got != test.want {
			t.Errorf("%q: %s, want %s", test.reasons, got, test.want)
		}
	}
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/store/storetest"
	"github.com/layer-locality/layer-locality/resolver/usage"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

func deploymentOf(account, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"}}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Image: image}}}
	return d
}

func emptyPolicy(t *testing.T) *policy.Policy {
	p, err := policy.New(policy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// addNodes adds a node of each platform.
func addNodes(r *Resolver, platforms ...string) {
	for _, platform := range platforms {
		r.nodes.set("node-"+platform, nodeFacts{platform: platform})
	}
	r.nodesChanged()
}

// runQueues starts queues that end with the test.
func runQueues(t *testing.T, workers int, work func(context.Context, *queue.Queue, string)) *queue.Queues {
	q := queue.New(workers, func(string) bool { return false }, countRequests(work))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Run(ctx, nil)
	}()
	<-q.Started()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return q
}

// pauseOf returns for how long a registry is left alone.
func pauseOf(q *queue.Queue) time.Duration {
	_, resume := q.State()
	return time.Until(resume)
}

func one(reference string) usage.Image { return usage.NewImage([]string{reference}) }

// expandForTest expands a name: with a slash it is a full name, without one it
// may be in two registries. Names in capitals are invalid.
func expandForTest(name string) ([]string, error) {
	if strings.ToUpper(name) == name {
		return nil, errors.New("capitals")
	}
	if strings.Contains(name, "/") {
		return []string{name}, nil
	}
	return []string{"a.example/" + name + ":latest", "b.example/" + name + ":latest"}, nil
}

func imagesFor(name, namespace string, images ...string) usage.WorkloadImages {
	return usage.WorkloadImages{
		Workload: corev1.ObjectReference{Kind: "Deployment", Namespace: namespace, Name: name},
		Pull:     usage.Pull{Namespace: namespace}, Images: images,
	}
}

// kinds are those without templates of others.
var kinds = workloads.Kinds(nil)

// cached returns an object as the cache keeps it.
func cached(object any) (any, error) {
	for of, by := range workloads.CacheOptions().ByObject {
		if reflect.TypeOf(of) == reflect.TypeOf(object) {
			return by.Transform(object)
		}
	}
	return nil, fmt.Errorf("%T is not in the cache", object)
}

// storeTest is a resolver's store and its API server.
type storeTest struct {
	*store.Store
	*storetest.Server
	t *testing.T
}

func (s *storeTest) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *storeTest) expect(want map[string]string) {
	s.t.Helper()
	if got := fmt.Sprint(s.Objects()); got != fmt.Sprint(want) {
		s.t.Errorf("objects %v, want %v", got, want)
	}
	resolved, unresolved := s.Count()
	if resolved+unresolved != len(want) {
		s.t.Errorf("%d in memory, want %d", resolved+unresolved, len(want))
	}
}

var amd64 = []string{"linux/amd64"}

var hash, plain, specOf = storetest.Digest, storetest.Plain, storetest.Manifest

// secret is a pull secret of namespace ns.
func secret(named, user string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: named}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"reg.example.com":{"username":"` + user + `","password":"x"}}}`)},
	}
}

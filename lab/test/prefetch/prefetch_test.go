//go:build e2e

package prefetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	bandwidth = 100_000_000
	baseBytes = 20_000_000
	ownBytes  = 3_000_000
	// tolerance is for manifests, configurations and the program in each image.
	tolerance = 2_000_000
	within    = 3 * time.Minute

	nodes          = 4
	withContainerd = "n4"
)

// verifies is how nodes see to it that a pod may use a private image that is there (KEP-2535).
var verifies = map[string]string{"n1": "NeverVerifyPreloadedImages", "n2": "AlwaysVerify", "n3": "NeverVerify"}

var (
	c    *cluster.Cluster
	lab  *scenario.Lab
	must = testkit.Must
)

func TestMain(m *testing.M) {
	config := cluster.Config{
		Name: livetest.ClusterName("prefetch"), Nodes: nodes, Bandwidth: bandwidth, Flavour: livetest.Flavour(),
		ContainerRuntimes: map[string]cluster.ContainerRuntime{withContainerd: cluster.Containerd},
		Scheduler:         scenario.Schedulers(),
		Addons: []cluster.Addon{
			addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}}),
			addons.Prefetcher(cluster.Component{Args: []string{"--sources=template"}}),
		},
		PerNode: func(node string, _, kubelet *cluster.Component) {
			// Ten times as often as usual, so that tests wait less.
			kubelet.Config = map[string]any{"nodeStatusUpdateFrequency": "1s"}
			if policy := verifies[node]; policy != "" {
				kubelet.Config["imagePullCredentialsVerificationPolicy"] = policy
			}
		},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

// prefetches returns the ImagePrefetches.
func prefetches(ctx context.Context) ([]v1alpha1.ImagePrefetch, error) {
	text, err := lab.Client.CoreV1().RESTClient().Get().AbsPath("/apis/layerlocality.io/v1alpha1/imageprefetches").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list v1alpha1.ImagePrefetchList
	return list.Items, json.Unmarshal(text, &list)
}

// complete waits until an ImagePrefetch for which f is true is complete, with its pods gone.
func complete(t *testing.T, what string, f func(*v1alpha1.ImagePrefetch) bool) (found *v1alpha1.ImagePrefetch) {
	t.Helper()
	livetest.Eventually(t, within, what, func(ctx context.Context) error {
		all, err := prefetches(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(p v1alpha1.ImagePrefetch) bool { return f(&p) })
		if i < 0 {
			return fmt.Errorf("%d others", len(all))
		}
		found = &all[i]
		pods, err := lab.Client.CoreV1().Pods(found.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "layerlocality.io/prefetch-pod"})
		if err != nil {
			return err
		}
		status, _ := json.Marshal(found.Status)
		if found.Status.CompletionTime == nil || len(pods.Items) > 0 {
			for i := range pods.Items {
				pod, _ := json.Marshal(pods.Items[i].Status)
				status = append(status, pod...)
			}
			return errors.New(string(status))
		}
		t.Logf("%s", status)
		return nil
	})
	return found
}

// TestObject: all nodes, with either runtime, pull an image that nothing runs. A pod on each starts without pulling, also one that asks
// the registry each time; each shows what was saved.
func TestObject(t *testing.T) {
	image, err := scenario.PushOnBase(t.Context(), c, "ahead:v1", images.Layer{Name: "ahead-base", Size: baseBytes}, ownBytes)
	must(t, err)
	must(t, c.Apply(t.Context(), metav1.NamespaceDefault, fmt.Appendf(nil,
		"{apiVersion: layerlocality.io/v1alpha1, kind: ImagePrefetch, metadata: {name: ahead}, spec: {images: [%q], nodeSelector: {}}}", image.Reference)))
	object := complete(t, "all nodes have the image", func(p *v1alpha1.ImagePrefetch) bool { return p.Name == "ahead" })
	if s := object.Status; s.NodesReady != nodes || s.NodesFailed != 0 || s.BytesMoved < nodes*(baseBytes+ownBytes) || s.BytesMoved > nodes*(baseBytes+ownBytes+tolerance) {
		t.Errorf("status %+v", s)
	}
	before, err := scenario.Pulled(c, "ahead")
	must(t, err)
	if before.Total() < nodes*(baseBytes+ownBytes) {
		t.Errorf("nodes pulled %s", before)
	}
	for _, node := range c.Nodes() {
		for _, policy := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullAlways} {
			pod := strings.ToLower("uses-" + node.Name + "-" + string(policy))
			t.Cleanup(func() { must(t, lab.Remove(context.Background(), pod)) })
			must(t, lab.Submit(t.Context(), scenario.Pod{Name: pod, Image: image.Reference, Node: node.Name, PullPolicy: policy}))
			must(t, lab.Ready(t.Context(), pod))
		}
	}
	after, err := scenario.Pulled(c, "ahead")
	must(t, err)
	if after.Total() > before.Total()+tolerance { // with policy Always, a manifest
		t.Errorf("pods pulled %d bytes", after.Total()-before.Total())
	}
	livetest.Eventually(t, within, "pods use what was pulled", func(ctx context.Context) error {
		all, err := prefetches(ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Name == "ahead" && p.Status.BytesSaved == p.Status.BytesMoved {
				return nil
			}
		}
		return fmt.Errorf("%+v", all)
	})
}

// TestRollout: while a Deployment is paused, its new template has one of the two nodes that run it pull what it lacks; once it goes on,
// that node pulls nothing.
func TestRollout(t *testing.T) {
	base := images.Layer{Name: "roll-base", Size: baseBytes}
	first, err := scenario.PushOnBase(t.Context(), c, "roll:v1", base, ownBytes)
	must(t, err)
	second, err := scenario.PushOnBase(t.Context(), c, "roll:v2", base, ownBytes)
	must(t, err)
	deployment := scenario.Deployment("roll", 2, scenario.Pod{Image: first.Reference, Scheduler: scenario.Layers})
	deployments := lab.Client.AppsV1().Deployments(deployment.Namespace)
	livetest.WithdrawAtEnd(t, lab, "roll")
	_, err = deployments.Create(t.Context(), deployment, metav1.CreateOptions{})
	must(t, err)
	ready := func(image string) {
		t.Helper()
		livetest.Eventually(t, within, "all pods run "+image, func(ctx context.Context) error {
			d, err := deployments.Get(ctx, "roll", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != 2 || s.UpdatedReplicas != 2 || s.Replicas != 2 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	ready(first.Reference)
	before, err := scenario.Pulled(c, "roll")
	must(t, err)
	patch := func(spec string) {
		_, err := deployments.Patch(t.Context(), "roll", types.StrategicMergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
		must(t, err)
	}
	patch(fmt.Sprintf(`{"paused":true,"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}`, second.Reference))
	object := complete(t, "a node has the new image", func(p *v1alpha1.ImagePrefetch) bool {
		return p.Spec.Workload != nil && p.Spec.Workload.Name == "roll" && p.Labels["layerlocality.io/prefetch-source"] == "template"
	})
	if s := object.Status; s.NodesReady != 1 || s.BytesMoved < ownBytes || s.BytesMoved > ownBytes+tolerance || s.Nodes[0].Bytes != s.BytesMoved {
		t.Errorf("status %+v", s)
	}
	ahead, err := scenario.Pulled(c, "roll")
	must(t, err)
	node := object.Status.Nodes[0].Name
	if pulled := ahead[node] - before[node]; pulled < ownBytes || ahead.Total()-before.Total() != pulled {
		t.Errorf("before %s, ahead %s: want %d bytes on %s", before, ahead, ownBytes, node)
	}
	patch(`{"paused":false}`)
	ready(second.Reference)
	after, err := scenario.Pulled(c, "roll")
	must(t, err)
	if after[node] != ahead[node] || after.Total() > ahead.Total()+ownBytes+tolerance {
		t.Errorf("ahead %s, after %s: want nothing on %s, and the image's own %d bytes on another node at most", ahead, after, node, ownBytes)
	}
}

const user, password = "owner", "a-password-that-is-nowhere-else"

// private serves a registry that only the user may read, and returns a reference of an image there, and a pull secret.
func private(t *testing.T) (reference string, secret []byte) {
	t.Helper()
	blobs := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if given, secret, ok := r.BasicAuth(); !ok || given != user || secret != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		blobs.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	address := listener.Addr().String()
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "private", Size: ownBytes}}})
	must(t, err)
	parsed, err := name.ParseReference(address+"/team/app:v1", name.Insecure)
	must(t, err)
	must(t, remote.Write(parsed, image, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: user, Password: password})))
	secret, err = json.Marshal(map[string]any{"auths": map[string]any{address: map[string]string{"username": user, "password": password}}})
	must(t, err)
	return parsed.String(), secret
}

// TestTenants: a private image comes ahead with a secret of the namespace and not without one. Then it is no other tenant's, as far as the
// node sees to that for images that pods pulled.
func TestTenants(t *testing.T) {
	reference, secret := private(t)
	for _, namespace := range []string{"owner", "other"} {
		_, err := lab.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			must(t, lab.Client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}))
		})
	}
	_, err := lab.Client.CoreV1().Secrets("owner").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: secret},
	}, metav1.CreateOptions{})
	must(t, err)
	ahead := func(namespace, more string) *v1alpha1.ImagePrefetch {
		t.Helper()
		crio := fmt.Sprintf("{matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [%s]}]}", withContainerd)
		must(t, c.Apply(t.Context(), namespace, fmt.Appendf(nil,
			"{apiVersion: layerlocality.io/v1alpha1, kind: ImagePrefetch, metadata: {name: private}, spec: {images: [%q], nodeSelector: %s, %s}}", reference, crio, more)))
		return complete(t, "the object of "+namespace+" has ended", func(p *v1alpha1.ImagePrefetch) bool { return p.Namespace == namespace })
	}
	object := ahead("other", "deadlineSeconds: 60")
	if s := object.Status; s.NodesReady != 0 || len(s.Nodes) != len(verifies) || slices.ContainsFunc(s.Nodes, func(n v1alpha1.PrefetchedNode) bool { return !strings.Contains(n.Reason, "ImagePull") }) {
		t.Errorf("without a secret: %+v", s)
	}
	object = ahead("owner", "imagePullSecrets: [pull]")
	if s := object.Status; s.NodesReady != int32(len(verifies)) || s.NodesFailed != 0 {
		t.Errorf("with a secret: %+v", s)
	}
	for node, policy := range verifies {
		for _, namespace := range []string{"owner", "other"} {
			pod := scenario.Pod{Image: reference, Node: node}
			if namespace == "owner" {
				pod.PullSecret = "pull"
			}
			deployment := scenario.Deployment("uses-"+node, 1, pod)
			deployment.Namespace = namespace
			_, err := lab.Client.AppsV1().Deployments(namespace).Create(t.Context(), deployment, metav1.CreateOptions{})
			must(t, err)
			want := namespace == "owner" || policy == "NeverVerify"
			livetest.Eventually(t, within, fmt.Sprintf("a pod of %s on %s starts: %t", namespace, node, want), func(ctx context.Context) error {
				pods, err := lab.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=uses-" + node})
				if err != nil {
					return err
				}
				for i := range pods.Items {
					for _, status := range pods.Items[i].Status.ContainerStatuses {
						started := status.State.Running != nil
						refused := status.State.Waiting != nil && strings.Contains(status.State.Waiting.Reason, "ImagePull")
						if want && started || !want && refused {
							return nil
						}
					}
				}
				return fmt.Errorf("%d pods of %s on %s", len(pods.Items), namespace, node)
			})
		}
	}
}

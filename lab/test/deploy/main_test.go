//go:build e2e

package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	namespace = "kube-system"
	name      = "layer-locality-scheduler"
	// scheduler is the name that pods use for the second scheduler.
	scheduler = "layer-locality"
	// resolver is the name of all objects of layer-resolver, extender of those of
	// layer-extender.
	resolver = "layer-resolver"
	extender = "layer-extender"
	// staticPods is where kubelets look for manifests, on each node's own disk.
	staticPods = "/var/lib/kubelet/manifests"
)

var (
	c      *cluster.Cluster
	client kubernetes.Interface
)

func TestMain(m *testing.M) {
	config := cluster.Config{
		Name:    livetest.ClusterName("deploy"),
		Nodes:   2,
		Flavour: livetest.Flavour(),
		Kubelet: cluster.Component{Config: map[string]any{"staticPodPath": staticPods, "fileCheckFrequency": "1s"}},
		// Records everything that the shipped service accounts ask for.
		AuditPolicy: `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:` + namespace + ":" + name + `", "system:serviceaccount:` + namespace + ":" + resolver + `", "system:serviceaccount:` + namespace + ":" + extender + `"]
- level: None
`,
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if client, err = c.Client(); err != nil {
			panic(err)
		}
	}))
}

var must = testkit.Must

// buildImages builds and pushes the images as a user does. It returns their
// names with digests, by component.
func buildImages(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, format string, args ...any) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
		return file
	}
	storage := write("storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", dir+"/storage", dir+"/run")
	registries := write("registries.conf", "[[registry]]\nlocation = %q\ninsecure = true\n", c.Registry().Address)

	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), deployed+"/images/build.sh",
		"--tool", "buildah", "--repository", c.Registry().Address+"/layer-locality", "--push")
	cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+storage, "CONTAINERS_REGISTRIES_CONF="+registries)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	found := map[string]string{}
	for line := range strings.Lines(stdout.String()) {
		repository, _, _ := strings.Cut(strings.TrimPrefix(line, c.Registry().Address), ":")
		found[filepath.Base(repository)] = strings.TrimSpace(line)
	}
	for _, component := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", extender, resolver} {
		if !strings.Contains(found[component], "@sha256:") {
			t.Fatalf("no digest of %s in %q", component, stdout.String())
		}
	}
	return found
}

// variant returns what "kubectl apply -k" sends for a variant of the scheduler
// with the given image.
func variant(t *testing.T, variant, image string) []*unstructured.Unstructured {
	t.Helper()
	return render(t, filepath.Join(deployed, "scheduler", variant), map[string]any{
		"images": []map[string]string{kustomize.Image(kustomize.Shipped+"kube-scheduler", image)},
	})
}

// render returns what "kubectl apply -k" sends for an overlay of a shipped
// folder.
func render(t *testing.T, shipped string, overlay map[string]any) []*unstructured.Unstructured {
	t.Helper()
	objects, err := kustomize.Build(shipped, overlay)
	must(t, err)
	return objects
}

// resources returns the client of an object's resource.
func resources(t *testing.T) func(*unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	config, err := c.RESTConfig()
	must(t, err)
	api, err := discovery.NewDiscoveryClientForConfig(config)
	must(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api))
	dynamics, err := dynamic.NewForConfig(config)
	must(t, err)
	return func(object *unstructured.Unstructured) dynamic.ResourceInterface {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		must(t, err)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			return dynamics.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		return dynamics.Resource(mapping.Resource)
	}
}

// apply applies objects on the server's side. When the test ends, it deletes
// them and the lease that their program made; then nothing may be left.
func apply(t *testing.T, objects []*unstructured.Unstructured, leaseName string) {
	t.Helper()
	of := resources(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		gone := func(objects ...*unstructured.Unstructured) {
			for _, object := range slices.Backward(objects) {
				err := of(object).Delete(ctx, object.GetName(), metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Errorf("delete %s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
			for _, object := range objects {
				for {
					_, err := of(object).Get(ctx, object.GetName(), metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						break
					}
					if ctx.Err() != nil {
						t.Errorf("%s %s is left", object.GetKind(), object.GetName())
						break
					}
					time.Sleep(200 * time.Millisecond)
				}
			}
		}
		gone(objects...)
		// Delete the lease last, because a replica that still runs would make
		// it again.
		lease := &unstructured.Unstructured{}
		lease.SetAPIVersion("coordination.k8s.io/v1")
		lease.SetKind("Lease")
		lease.SetNamespace(namespace)
		lease.SetName(leaseName)
		gone(lease)
	})
	for _, object := range objects {
		data, err := object.MarshalJSON()
		must(t, err)
		_, err = of(object).Patch(t.Context(), object.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			FieldManager: "deploy-e2e", FieldValidation: metav1.FieldValidationStrict,
		})
		if err != nil {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// replicas returns the pods of a program that are ready.
func replicas(ctx context.Context, app string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || !slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		})
	}), nil
}

// leader returns the name of the pod that holds the lease.
func leader(ctx context.Context, leaseName string) (string, error) {
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	// The identity is the host name, which is the pod's name, and a unique
	// part.
	pod, _, ok := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	if !ok {
		return "", errors.New("nobody holds the lease")
	}
	return pod, nil
}

// elected waits until both replicas are ready and one of them holds the lease.
func elected(t *testing.T, app, leaseName string) (running []corev1.Pod, holder string) {
	t.Helper()
	livetest.Eventually(t, 2*time.Minute, "two replicas ready, one elected", func(ctx context.Context) (err error) {
		if running, err = replicas(ctx, app); err != nil {
			return err
		}
		if len(running) != 2 {
			return fmt.Errorf("%d replicas are ready", len(running))
		}
		if holder, err = leader(ctx, leaseName); err != nil {
			return err
		}
		if !slices.ContainsFunc(running, func(pod corev1.Pod) bool { return pod.Name == holder }) {
			return fmt.Errorf("the lease is of %s", holder)
		}
		return nil
	})
	return running, holder
}

// create creates a pod that pauses, for the scheduler of this test. It is
// deleted when the test ends.
func create(t *testing.T, podName string, change func(*corev1.Pod)) {
	t.Helper()
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.PodSpec{
			SchedulerName:                 scheduler,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: c.Registry().Address + "/pause:1"}},
		},
	}
	if change != nil {
		change(pod)
	}
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		err := pods.Delete(context.Background(), podName, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// placed waits until a pod has a node, and checks which scheduler placed it.
// The instance consists of the names of the scheduler and its host.
func placed(t *testing.T, podName, by string) (node, instance string) {
	t.Helper()
	livetest.Eventually(t, time.Minute, by+" places pod "+podName, func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, podName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = pod.Spec.NodeName; node == "" {
			return fmt.Errorf("pending: %+v", pod.Status.Conditions)
		}
		events, err := client.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled,regarding.name=" + podName})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Regarding.UID == pod.UID {
				if event.ReportingController != by {
					t.Fatalf("pod %s was placed by %s", podName, event.ReportingController)
				}
				instance = event.ReportingInstance
				return nil
			}
		}
		return errors.New("no event yet")
	})
	return node, instance
}

// get asks the secure port of a replica, from its node, with the token of a
// service account.
func get(ctx context.Context, pod corev1.Pod, token, path string) (status string, body []byte, err error) {
	out, err := c.Node(pod.Spec.NodeName).Exec(ctx, "curl", "--silent", "--show-error", "--insecure", "--max-time", "10",
		"--noproxy", "*", "--write-out", "\n%{http_code}", "--header", "Authorization: Bearer "+token,
		"https://"+pod.Status.PodIP+":10259"+path)
	end := bytes.LastIndexByte(out, '\n')
	if err != nil || end < 0 {
		return "", nil, errors.Join(err, fmt.Errorf("answer %q", out))
	}
	return string(out[end+1:]), out[:end], nil
}

// account makes a service account without rights, and a token for it.
func account(t *testing.T, accountName string) (token string) {
	t.Helper()
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: accountName}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := accounts.Delete(context.Background(), accountName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	livetest.Eventually(t, time.Minute, "token for "+accountName, func(ctx context.Context) error {
		request, err := client.CoreV1().RESTClient().Post().Namespace(metav1.NamespaceDefault).Resource("serviceaccounts").Name(accountName).
			SubResource("token").SetHeader("Content-Type", "application/json").
			Body([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}`)).DoRaw(ctx)
		if err != nil {
			return err
		}
		var answer struct{ Status struct{ Token string } }
		if err := yaml.Unmarshal(request, &answer); err != nil {
			return err
		}
		token = answer.Status.Token
		return nil
	})
	return token
}

// bind gives a service account a cluster role until the test ends.
func bind(t *testing.T, accountName, role string) {
	t.Helper()
	bindings := client.RbacV1().ClusterRoleBindings()
	_, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: accountName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: accountName}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := bindings.Delete(context.Background(), accountName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// requests returns what the shipped service account requested from the
// apiserver since then, as "group/resource:verb", and which requests were
// refused.
func requests(t *testing.T, since time.Time) (asked map[string]bool, refused []string) {
	t.Helper()
	log, err := auditlog.Read(c.AuditLog())
	must(t, err)
	asked = map[string]bool{}
	for _, event := range log.Between(since, time.Now()) {
		object := event.ObjectRef
		if event.Stage != auditv1.StageResponseComplete && event.Stage != auditv1.StageResponseStarted || object == nil {
			continue
		}
		resource := object.Resource
		if object.Subresource != "" {
			resource += "/" + object.Subresource
		}
		what := object.APIGroup + "/" + resource + ":" + event.Verb
		asked[what] = true
		if event.ResponseStatus != nil && (event.ResponseStatus.Code == 401 || event.ResponseStatus.Code == 403) {
			refused = append(refused, what+" "+object.Namespace+"/"+object.Name+": "+event.ResponseStatus.Message)
		}
	}
	return asked, refused
}

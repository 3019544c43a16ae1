//go:build integration

package kubectl

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"

	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// bind gives a user a role, in a namespace or everywhere.
func bind(t *testing.T, name, kind, role, namespace, user string) {
	t.Helper()
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}
	if namespace == "" {
		must(t, objects.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref, Subjects: subject}))
		return
	}
	must(t, objects.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, RoleRef: ref, Subjects: subject}))
}

// Each bad input gets one sentence that names the thing and the way out.
func TestBadInput(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	var hundred strings.Builder
	for i := range 100 {
		fmt.Fprintf(&hundred, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d}, spec: {containers: [{name: c, image: a}]}}\n", i)
	}
	waiting := pod(t, "waiting", "nobody", "registry.example.com/team/app-1:v1")
	waiting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/6 nodes are available.", Reason: "Unschedulable"}}
	must(t, objects.Status().Update(t.Context(), waiting))
	for _, test := range []struct {
		args, want string
	}{
		{"node none", `cannot read nodes none: there is none: see kubectl get nodes`},
		{"node a/b", `"a/b" is no name of a node: see kubectl get nodes`},
		{"node", `want the name of a node: kubectl layers node NAME`},
		{"image pod/none", `there is no pod/none in namespace "default": see kubectl get pod -A, or name another namespace with -n`},
		{"plan none", `there is no pod or workload none in namespace "default"`},
		{"plan rollout/web", `cannot get rollout/web in namespace "default": the server doesn't have a resource type "rollout": see kubectl api-resources`},
		{"plan service/kubernetes", `service/kubernetes has no pod template: name a pod or a workload`},
		{"image", `want a name, or the labels of pods with -l, or -A for all pods`},
		{"image pod/p7 -l app=web", `names, or -l and -A: not both`},
		{"plan", `want one of POD or KIND/NAME, -f FILE, and --image IMAGE`},
		{"plan --image UPPER:1", `"UPPER:1" is no image reference: want REGISTRY/REPOSITORY:TAG`},
		{"image a b:c:d", `"b:c:d" is no image reference`},
		{"image registry.example.com/team/none:v1", `nothing is known of registry.example.com/team/none:v1: no node has it, and no ImageManifest names it: check the name, or have layer-resolver ask its registry`},
		{"plan --image a --bandwidth fast", `--bandwidth "fast": want bits a second, such as 100M or 1Gbit`},
		{"plan -f " + file("none.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}"), "the file has no pod and no pod template (objects: 1): name a file that has one"},
		{"plan -f " + file("empty.yaml", ""), "the file has no pod and no pod template (objects: 0)"},
		{"plan -f " + file("text.yaml", "\x1b[2J: ]["), "cannot read the file: "},
		{"plan -f " + file("hundred.yaml", hundred.String()), "the file has 100 objects with pods (pod/p0, pod/p1, pod/p2, pod/p3, pod/p4, ...): add the one that you mean, as KIND/NAME"},
		{"plan -f " + file("roles.yaml", "{kind: PyTorchJob, metadata: {name: x}, spec: {pytorchReplicaSpecs: {Master: {template: {spec: {containers: [{image: a}]}}}, Worker: {template: {spec: {containers: [{image: a}]}}}}}}"), "pytorchjob/x has 2 pod templates (Master, Worker): add the one that you mean, as --pod-template NAME"},
		{"plan -f " + filepath.Join(folder, "gone.yaml"), "cannot read the file: the path "},
		{"why none", `there is no pod/none`},
		{"why -l app=none", `no pods in namespace default with the labels "app=none": see kubectl get pods -A`},
		{"why -l app=waiting", `pod default/waiting has no node yet (0/6 nodes are available): kubectl layers plan`},
		{"why -l app~waiting", `--selector: `},
		{"why waiting -A", `a name, or -l and -A: not both`},
		{"why waiting", `pod default/waiting has no node yet (0/6 nodes are available): kubectl layers plan pod/waiting shows what nodes have for it`},
		{"savings --since 3h", "--since needs --prometheus URL"},
		{"savings --prometheus nowhere", `--prometheus "nowhere": want a URL`},
		{"savings --prometheus http://127.0.0.1:1", `Prometheus at http://127.0.0.1:1 does not answer`},
		{"savings --scheduler-url http://127.0.0.1", `is no address of a scheduler: want one such as https://`},
		{"savings --scheduler-url https://127.0.0.1:1", `does not answer`},
		{"savings --scheduler-lease none", "there is no lease none in namespace kube-system"},
		{"savings", "is no pod in namespace kube-system: name that of the pod with --scheduler-pod-namespace (layer-locality with deploy/scheduler/okd), or give the address of its secure port with --scheduler-url"}, // the scheduler is a process here
		{"savings --scheduler-lease abandoned", "nobody renews the lease kube-system/abandoned: the scheduler does not run"},
		{"nodes -o xml", `--output "xml": want one of wide, json, yaml, name, custom-columns`},
		{"nodes -o jsonpath={.x", `--output: `},
		{"nodes --sort-by .none", `cannot print the answer: --sort-by .none: no row has this field`},
		{"nodes -v=x", `invalid argument "x" for "-v, --v" flag`},
		{"qos --scheduler-url " + schedulerURL, "has no /debug/qosaware: it is not ours, or no profile of it enables QosAware (docs/qosaware.md)"},
		{"nodes -l =,=", "--selector: "},
		{"shared -l kind=empty", "unknown shorthand flag: 'l' in -l: see kubectl layers shared --help"},
		{"node " + byAgent + " -A", "unknown shorthand flag: 'A' in -A: see kubectl layers node --help"},
		{"shared --layers --images a b", "if any flags in the group [layers images] are set none of the others can be"},
		{"shared --images a", "want 2 to 50 images, not 1"},
		{"nodes --none", "unknown flag: --none: see kubectl layers nodes --help"},
		{"none", `unknown command "none" for "kubectl layers"`},
		{"nodes --context none", `no cluster to ask: context "none" does not exist`},
	} {
		if test.args == "savings --scheduler-lease abandoned" {
			must(t, objects.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "abandoned"}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To("gone_1"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Hour)},
			}}))
		}
		r := layers(t, strings.Split(test.args, " ")...)
		if r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "error: ") || !strings.Contains(r.err, test.want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%.100s: %+v\nwant %s", test.args, r, test.want)
		}
	}
	// Of several images, what is known is an answer.
	if r := layers(t, "image", "registry.example.com/team/none:v1", "registry.example.com/team/app-2:v1"); r.code != 0 || !strings.Contains(r.out, "team/none:v1: nothing is known of it: check the name") || !strings.Contains(r.out, "app-2:v1: 93.0 MB in 3 layers") {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "plan", "-f", filepath.Join(folder, "hundred.yaml"), "pod/p7"); r.code != 0 || !strings.Contains(r.out, "pod/p7 fits on 6") {
		t.Errorf("%+v", r)
	}
	for _, args := range []string{"", "--help", "plan --help", "--version", "completion bash", "__complete node by-"} {
		if r := layers(t, strings.Fields(args)...); r.code != 0 || r.out == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	// A shell waits three seconds for names.
	must(t, poll.Until(t.Context(), time.Second, time.Minute, func(context.Context) error {
		if r := layers(t, "__complete", "node", ""); !strings.Contains(r.out, byAgent+"\n") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}))
}

// aggregated returns a role with the rules of all roles that another one aggregates: what the
// controller makes of that one, which does not run here.
func aggregated(t *testing.T, name string) *rbacv1.ClusterRole {
	t.Helper()
	whole, all := &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleList{}
	must(t, objects.Get(t.Context(), nameOf("", name), whole))
	must(t, objects.List(t.Context(), all))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "aggregated-" + name}}
	for _, part := range all.Items {
		for i := range whole.AggregationRule.ClusterRoleSelectors {
			selector, err := metav1.LabelSelectorAsSelector(&whole.AggregationRule.ClusterRoleSelectors[i])
			must(t, err)
			if selector.Matches(labels.Set(part.Labels)) {
				role.Rules = append(role.Rules, part.Rules...)
			}
		}
	}
	if len(role.Rules) == 0 {
		t.Fatalf("%s aggregates nothing: %+v", name, whole)
	}
	return role
}

// With less rights the answer is smaller, and names what is missing.
func TestRights(t *testing.T) {
	must(t, objects.Create(t.Context(), aggregated(t, "view")))
	bind(t, "viewer-of-default", "ClusterRole", "aggregated-view", "default", "alice")
	must(t, objects.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "nodes-and-pods"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "pods"}, Verbs: []string{"get", "list"}},
	}}))
	bind(t, "nothing-of-ours", "ClusterRole", "nodes-and-pods", "", "erin")
	bind(t, "scheduler-erin", "Role", "layer-locality-scheduler-reader", "kube-system", "erin")
	bind(t, "viewer-frank", "ClusterRole", "aggregated-view", "default", "frank")
	bind(t, "scheduler-frank", "Role", "layer-locality-scheduler-reader", "kube-system", "frank")
	must(t, objects.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "manifests"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{v1alpha1.ImageManifestsResource.Resource}, Verbs: []string{"get", "list"}},
	}}))
	bind(t, "manifests-grace", "ClusterRole", "manifests", "", "grace")
	bind(t, "layers-bob", "ClusterRole", "layer-locality-viewer", "", "bob")
	bind(t, "layers-carol", "ClusterRole", "layer-locality-viewer", "", "carol")
	bind(t, "scheduler-carol", "Role", "layer-locality-scheduler-reader", "kube-system", "carol")
	p := pod(t, "rights", "layer-locality", "registry.example.com/team/app-1:v1")
	placed(t, p)
	other := pod(t, "not-ours", "nobody", "registry.example.com/team/app-1:v1")
	must(t, core.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: other.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: byNames}}, metav1.CreateOptions{}))
	pulled := pod(t, "pulled", "nobody", "registry.example.com/team/app-1:v1")
	must(t, core.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pulled.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: byNames}}, metav1.CreateOptions{}))
	event(t, pulled, `Successfully pulled image "registry.example.com/team/app-1:v1" in 2s (2s including waiting). Image size: 1000 bytes.`)
	for _, p := range []*corev1.Pod{p, other} {
		must(t, objects.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"rights":"both"}}}`))))
	}
	for _, test := range []struct {
		user, args string
		code       int
		want       string
	}{
		{"alice", "nodes", 1, "error: cannot read nodes: you may not: ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)\n"},
		{"alice", "pod rights", 0, "note: cannot read ImageManifests: you may not: ask for the ClusterRole layer-locality-viewer"},
		{"alice", "pod rights -n kube-system", 1, `you may not get pod/rights in namespace "kube-system"`},
		{"alice", "why rights", 1, "The scheduler's memory cannot be read (cannot read the lease kube-system/layer-locality-scheduler: you may not: ask for the Role layer-locality-scheduler-reader"},
		{"alice", "why pulled", 0, "Its kubelet pulled registry.example.com/team/app-1:v1 in 2.0 s."},
		{"bob", "nodes", 0, "by-agent"},
		{"bob", "plan rights", 0, "fits on 6 of 6 nodes"},
		{"bob", "why rights --scheduler-url " + schedulerURL, 0, "cannot get a token of service account kube-system/layer-locality-debug: you may not"},
		{"carol", "why rights --scheduler-url " + schedulerURL, 0, "When it was placed,"},
		{"carol", "savings --scheduler-url " + schedulerURL, 0, "PROFILE"},
		{"dave", "nodes", 1, "cannot read nodes: you may not"},
		{"dave", "shared --images registry.example.com/team/app-1:v1 registry.example.com/team/app-2:v1", 1, "error: nothing is known of registry.example.com/team/app-1:v1, registry.example.com/team/app-2:v1, and not everything could be looked at: cannot read nodes: you may not: ask for"},
		{"dave", "image registry.example.com/team/app-1:v1", 1, "error: nothing is known of registry.example.com/team/app-1:v1, and not everything could be looked at: cannot read nodes: you may not: ask for"},
		// Nodes and pods, and nothing of ours: patched nodes speak for themselves.
		{"erin", "nodes", 0, "note: cannot read NodeLayers: you may not: ask for the ClusterRole layer-locality-viewer"},
		{"erin", "nodes -l kind=by-kubelet", 0, "288.0 MB"},
		{"erin", "nodes", 0, "note: cannot read ImageManifests: you may not: ask for the ClusterRole layer-locality-viewer"},
		{"erin", "plan rights", 0, "fits on 6 of 6 nodes"},
		{"erin", "image registry.example.com/team/app-2:v1", 0, "app-2:v1: 93.0 MB in 3 layers; on 1 (1 by layers)"},
		{"erin", "why rights --scheduler-url " + schedulerURL, 0, "note: cannot read events in namespace default: you may not"},
		// ImageManifests show what images have in common, whoever has them.
		{"grace", "shared --images registry.example.com/team/app-2:v1 registry.example.com/team/app-8:v1", 0, "[1] registry.example.com/team/app-2:v1   93.0 MB"},
		{"grace", "shared --images registry.example.com/team/app-2:v1 registry.example.com/team/app-8:v1", 0, "note: cannot read nodes: you may not"},
		// The scheduler may be asked, but nodes may not be read: of what it does not remember, there
		// is less.
		{"frank", "why rights --scheduler-url " + schedulerURL, 0, "When it was placed,"},
		{"frank", "why not-ours --scheduler-url " + schedulerURL, 1, "The scheduler does not remember this pod"},
		{"frank", "why -l rights=both --scheduler-url " + schedulerURL, 0, "note: cannot read nodes: you may not"},
	} {
		r := layers(t, append([]string{"--as", test.user}, strings.Split(test.args, " ")...)...)
		if r.code != test.code || !strings.Contains(r.out+r.err, test.want) {
			t.Errorf("%s: %s: %+v\nwant %d %s", test.user, test.args, r, test.code, test.want)
		}
	}
}

// The apiserver goes away in the middle of a list.
func TestServerGoes(t *testing.T) {
	target, err := url.Parse(plane.Config.Host)
	must(t, err)
	if target.Scheme == "" {
		target, err = url.Parse("https://" + plane.Config.Host)
		must(t, err)
	}
	transport, err := rest.TransportFor(plane.Config)
	must(t, err)
	var chunks atomic.Int32
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/pods" {
			if chunks.Add(1) > 1 {
				panic(http.ErrAbortHandler)
			}
			query := r.URL.Query()
			query.Set("limit", "2")
			r.URL.RawQuery = query.Encode()
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	for i := range 3 {
		placed(t, pod(t, fmt.Sprint("many-", i), "layer-locality", "registry.example.com/team/app-1:v1"))
	}
	r := layersIn(t, nil, "--server", server.URL, "plan", "--image", "registry.example.com/team/app-1:v1")
	if r.code != 1 || r.out != "" || !strings.Contains(r.err, "error: cannot read pods: the apiserver went away after 2 of them") || !strings.Contains(r.err, "check that "+server.URL+" answers, and run the command again\n") {
		t.Errorf("%+v", r)
	}
	server.Close()
	if r := layersIn(t, nil, "--server", server.URL, "nodes"); r.code != 1 || !strings.Contains(r.err, "check that "+server.URL+" answers") {
		t.Errorf("%+v", r)
	}
}

// Pods of all namespaces, and the cluster and namespace of a context.
func TestWhere(t *testing.T) {
	const image = "registry.example.com/elsewhere/thing:v1"
	must(t, objects.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}))
	must(t, objects.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "default"}}))
	for _, namespace := range []string{"default", "elsewhere"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "where", Labels: map[string]string{"where": "there"}}, Spec: corev1.PodSpec{
			SchedulerName: "layer-locality", Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/team/app-1:v1"}, {Name: "d", Image: image}},
		}}
		if namespace == "default" {
			p.Spec.Containers = p.Spec.Containers[:1]
		}
		must(t, objects.Create(t.Context(), p))
		placed(t, p)
	}
	if r := layers(t, "pod", "-l", "where=there", "-o", "name"); r.out != "registry.example.com/team/app-1:v1\n" {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "pod", "-A", "-l", "where=there", "-o", "name"); r.out != "registry.example.com/team/app-1:v1\n"+image+"\n" {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "pod", "-A"); r.code != 0 || !strings.Contains(r.out, image+": nothing is known of it") {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "why", "-A", "-l", "where=there", "--scheduler-url", schedulerURL); r.code != 0 || !strings.Contains(r.out, "\nelsewhere ") || !strings.Contains(r.out, "\ndefault ") {
		t.Errorf("%+v", r)
	}

	config, err := clientcmd.Load(plane.Kubeconfig())
	must(t, err)
	here := config.Contexts[config.CurrentContext].DeepCopy()
	here.Namespace = "elsewhere"
	config.Contexts["here"], config.Contexts["gone"] = here, &clientcmdapi.Context{Cluster: "gone", AuthInfo: here.AuthInfo}
	config.Clusters["gone"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.CurrentContext = "gone"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, file))
	if r := layersIn(t, nil, "--kubeconfig", file, "pod", "where"); r.code != 1 {
		t.Errorf("%+v", r)
	}
	if r := layersIn(t, nil, "--kubeconfig", file, "--context", "here", "pod", "where", "-o", "name"); r.code != 0 || !strings.HasSuffix(r.out, image+"\n") {
		t.Errorf("%+v", r)
	}
	if r := layersIn(t, nil, "--kubeconfig", file, "--context", "here", "-n", "default", "pod", "where", "-o", "name"); r.code != 0 || strings.Contains(r.out, image) {
		t.Errorf("%+v", r)
	}
}

// A cluster of 1.34 without anything of ours: what is printed, and which part to install for more.
func TestOldServer(t *testing.T) {
	old, err := controlplane.StartWith(root, controlplane.Settings{Stock: true, EmulatedVersion: "1.34", NoFsync: true, NoCRDs: true})
	must(t, err)
	defer func() { must(t, old.Stop()) }()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, old.Kubeconfig(), 0o600))
	r := layersIn(t, nil, "--kubeconfig", file, "nodes")
	for _, want := range []string{
		"note: cannot read NodeLayers: the cluster has no such resource: install layer-agent if nodes shall report more than their names of images (docs/agent.md)\n",
		"note: cannot read ImageManifests: the cluster has no such resource: install layer-resolver",
	} {
		if r.code != 0 || !strings.Contains(r.err, want) || r.out != "No nodes.\n" {
			t.Errorf("%+v\nwant %s", r, want)
		}
	}
	if r := layersIn(t, nil, "--kubeconfig", file, "savings"); r.code != 1 || !strings.Contains(r.err, "there is no lease layer-locality-scheduler or kube-scheduler in namespace kube-system") {
		t.Errorf("%+v", r)
	}

	// Nodes state the names of images. A pod goes where its own scheduler wants it.
	const image = "registry.example.com/other/thing:v1"
	admin, err := client.New(old.Config, client.Options{})
	must(t, err)
	must(t, admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}))
	for _, name := range []string{"has-it", "has-nothing"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must(t, admin.Create(t.Context(), node))
		held := []picture{{name: image}}
		if name == "has-nothing" {
			held = nil
		}
		must(t, admin.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, statusOf(byNames, held))))
		must(t, admin.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))))
	}
	says := func(args string, wants ...string) {
		t.Helper()
		r := layersIn(t, nil, append([]string{"--kubeconfig", file}, strings.Fields(args)...)...)
		for _, want := range wants {
			if r.code != 0 || !strings.Contains(strings.Join(strings.Fields(r.out), " "), want) {
				t.Errorf("%s: %+v\nwant %s", args, r, want)
			}
		}
	}
	says("nodes", "has-it 1 0 50.0 MB names", "has-nothing 0 0 0 nothing")
	says("plan --image "+image, "has-it 0 50.0 MB", "has-nothing 50.0 MB 0", image+" is known by name only: its size is an estimate")

	scheduler, err := old.StartScheduler(root, "stock", "", "--emulated-version=1.34")
	must(t, err)
	defer scheduler.Stop()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	must(t, admin.Create(t.Context(), p))
	on := placedIn(t, admin, p)
	others := map[string]string{"has-it": "has-nothing", "has-nothing": "has-it"}
	says("plan web", "pod/web fits on 2 of 2 nodes")
	says("why web", "Pod default/web is on "+on+", placed by default-scheduler.", "The scheduler's memory cannot be read (", "What follows is as of now, not as of then.",
		"Of 1 other node that it fits on, "+others[on]+" lacks least", "No event states what its kubelet pulled")
}

// Readers of the scheduler forward ports to its pods alone in kube-system; the policy concerns nobody else,
// and no other namespace.
func TestForwarding(t *testing.T) {
	role := func(namespace, name string, resources ...string) {
		must(t, objects.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: resources, Verbs: []string{"get", "create"}},
		}}))
	}
	role("kube-system", "forwards", "pods/portforward")
	role("kube-system", "runs", "pods/exec")
	role("default", "forwards", "pods/portforward")
	const reader = "layer-locality-scheduler-reader"
	bind(t, "scheduler-heidi", "Role", reader, "kube-system", "heidi")
	bind(t, "forwards-heidi", "Role", "forwards", "default", "heidi")
	bind(t, "scheduler-ivan", "Role", reader, "kube-system", "ivan")
	bind(t, "runs-ivan", "Role", "runs", "kube-system", "ivan")
	bind(t, "forwards-judy", "Role", "forwards", "kube-system", "judy")
	ask := func(user, verb, namespace, pod string) error {
		config := rest.CopyConfig(plane.Config)
		config.Impersonate.UserName = user
		c, err := kubernetes.NewForConfig(config)
		must(t, err)
		return c.CoreV1().RESTClient().Verb(verb).Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").Do(t.Context()).Error()
	}
	// The policy applies a moment after it was made.
	must(t, poll.Until(t.Context(), 100*time.Millisecond, time.Minute, func(context.Context) error {
		if err := ask("heidi", http.MethodPost, "kube-system", "etcd-n1"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a reader forwards a port to etcd: %w", err)
		}
		return nil
	}))
	for _, verb := range []string{http.MethodGet, http.MethodPost} {
		for _, test := range []struct {
			user, namespace, pod string
			may                  bool
		}{
			{"heidi", "kube-system", "layer-locality-scheduler-6c9f7d8b5-x2x4z", true},
			{"heidi", "kube-system", "kube-scheduler-n1", true},
			{"heidi", "kube-system", "etcd-n1", false},
			{"heidi", "kube-system", "layer-locality-scheduler-exporter-6c9f7d8b5-x2x4z", false},
			{"heidi", "kube-system", "not-kube-scheduler-n1", false},
			{"heidi", "default", "etcd-n1", true},
			{"ivan", "kube-system", "etcd-n1", true},
			{"judy", "kube-system", "etcd-n1", true},
			{"mallory", "kube-system", "kube-scheduler-n1", false},
		} {
			// Who may gets the answer that there is no such pod.
			err := ask(test.user, verb, test.namespace, test.pod)
			if may := apierrors.IsNotFound(err); may != test.may || !may && !apierrors.IsForbidden(err) {
				t.Errorf("%s: %s %s/%s: %v, want that it may: %t", test.user, verb, test.namespace, test.pod, err, test.may)
			}
		}
	}
}

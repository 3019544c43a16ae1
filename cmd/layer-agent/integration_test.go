//go:build integration

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
)

const namespace = "kube-system"

// plane is an apiserver with what deploy/agent installs, and Nodes.
type plane struct {
	t      *testing.T
	config *rest.Config
	admin  client.Client
	kube   kubernetes.Interface
	nodes  map[string]*corev1.Node
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, apiextensionsv1.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	return c
}

func start(t *testing.T) *plane {
	t.Helper()
	started, err := controlplane.StartWith("../..", controlplane.Settings{Stock: true, NoFsync: true})
	must(t, err)
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
	})
	p := &plane{t: t, config: started.Config, admin: newClient(t, started.Config), nodes: map[string]*corev1.Node{}}
	p.kube, err = kubernetes.NewForConfig(started.Config)
	must(t, err)
	for _, name := range []string{"n1", "n2"} {
		p.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must(t, p.admin.Create(t.Context(), p.nodes[name]))
	}
	p.install(t.Context())
	return p
}

// install installs what is shipped, or what is missing of it.
func (p *plane) install(ctx context.Context) {
	p.t.Helper()
	for _, overlay := range overlays {
		if overlay == "okd" {
			continue // SecurityContextConstraints are OpenShift's
		}
		for _, resource := range shipped(p.t, overlay).Resources() {
			object := &unstructured.Unstructured{}
			content, err := resource.Map()
			must(p.t, err)
			object.Object = content
			strict := client.WithFieldValidation(p.admin, metav1.FieldValidationStrict)
			must(p.t, strict.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership))
		}
	}
	// The policy takes effect a moment after it was made, as the resource does. It is asked with
	// a node that has no agent here.
	p.eventually(ctx, "nobody else may write", func(ctx context.Context) error {
		object := p.object("n2")
		err := p.admin.Create(ctx, object)
		if err == nil {
			return errors.Join(errors.New("an administrator may"), p.admin.Delete(ctx, object))
		}
		if strings.Contains(err.Error(), "written by layer-agent") {
			return nil
		}
		return err
	})
}

// eventually waits until check returns no error.
func (p *plane) eventually(ctx context.Context, what string, check func(context.Context) error) {
	p.t.Helper()
	const patience = time.Minute // a machine that is busy
	if err := poll.Until(ctx, 100*time.Millisecond, patience, check); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// with returns the same for a part of the test, which leaves no NodeLayers.
func (p *plane) with(t *testing.T) *plane {
	part := *p
	part.t = t
	t.Cleanup(func() { must(t, p.admin.DeleteAllOf(context.Background(), &v1alpha1.NodeLayers{})) })
	return &part
}

// token returns a token of the agent's service account that is bound to a Node, or to nothing.
func (p *plane) token(node string) string {
	p.t.Helper()
	return p.tokenOf("layer-agent", node)
}

func (p *plane) tokenOf(account, node string) string {
	p.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	if node != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: p.nodes[node].UID}
	}
	answer, err := p.kube.CoreV1().ServiceAccounts(namespace).CreateToken(p.t.Context(), account, request, metav1.CreateOptions{})
	must(p.t, err)
	return answer.Status.Token
}

// agent returns a client with such a token.
func (p *plane) agent(node string) client.Client {
	p.t.Helper()
	return p.as(p.token(node))
}

// as returns a client with a token.
func (p *plane) as(token string) client.Client {
	p.t.Helper()
	config := rest.AnonymousClientConfig(p.config)
	config.BearerToken = token
	return newClient(p.t, config)
}

// object returns the NodeLayers of a node, as its agent would write it.
func (p *plane) object(node string) *v1alpha1.NodeLayers {
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: "unknown"}
	if n := p.nodes[node]; n != nil {
		owner.UID = n.UID
	}
	return &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: node, OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.Now()},
	}
}

// A real apiserver with the shipped policy and roles, and the shipped commands.
func TestShipped(t *testing.T) {
	p := start(t)
	for name, test := range map[string]func(*testing.T, *plane){"policy": testPolicy, "schema": testSchema, "agent": testAgent, "losses": testLosses} {
		t.Run(name, func(t *testing.T) { test(t, p.with(t)) })
	}
}

// Who may write what.
func testPolicy(t *testing.T, p *plane) {
	own, other, unbound := p.agent("n1"), p.agent("n2"), p.agent("")
	ctx := t.Context()
	refused := func(what, why string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", what, err, why)
		}
	}
	refused("of another node", "it may not write the NodeLayers of another one", other.Create(ctx, p.object("n1")))
	refused("with an unbound token", "written by layer-agent, with a token that is bound", unbound.Create(ctx, p.object("n1")))
	for what, change := range map[string]func(*v1alpha1.NodeLayers){
		"without an owner": func(o *v1alpha1.NodeLayers) { o.OwnerReferences = nil },
		"of two owners": func(o *v1alpha1.NodeLayers) {
			o.OwnerReferences = append(o.OwnerReferences, p.object("n2").OwnerReferences[0])
		},
		"of another Node":      func(o *v1alpha1.NodeLayers) { o.OwnerReferences = p.object("n2").OwnerReferences },
		"of the Node before":   func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].UID = "before" },
		"of something of that": func(o *v1alpha1.NodeLayers) { o.OwnerReferences[0].Kind = "Pod" },
	} {
		object := p.object("n1")
		change(object)
		refused(what, "one owner, the Node of the token", own.Create(ctx, object))
	}

	current := &v1alpha1.NodeLayers{}
	// now reads the object as an administrator: an agent may not.
	now := func() *v1alpha1.NodeLayers {
		t.Helper()
		must(t, p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, current))
		return current
	}
	must(t, own.Create(ctx, p.object("n1")))
	now().Spec.TotalImages = 5
	must(t, own.Update(ctx, current))
	current.Spec.TotalImages = 6

	// An agent reads nothing, its own object included.
	for _, try := range []struct {
		verb string
		do   func() error
	}{
		{"get", func() error { return own.Get(ctx, client.ObjectKey{Name: "n1"}, &v1alpha1.NodeLayers{}) }},
		{"get", func() error { return own.Get(ctx, client.ObjectKey{Name: "n2"}, &v1alpha1.NodeLayers{}) }},
		{"list", func() error { return own.List(ctx, &v1alpha1.NodeLayersList{}) }},
		{"deletecollection", func() error { return own.DeleteAllOf(ctx, &v1alpha1.NodeLayers{}) }},
		{"get", func() error { return own.Get(ctx, client.ObjectKey{Name: "n1"}, &corev1.Node{}) }},
	} {
		refused("what it has no right to", "cannot "+try.verb, try.do())
	}
	// Nor by a patch: an apiserver answers one that makes an object invalid with that object.
	for what, patch := range map[string]client.Patch{
		"that changes nothing":  client.RawPatch(types.MergePatchType, []byte(`{}`)),
		"of a number":           client.RawPatch(types.MergePatchType, []byte(`{"spec":{"totalImages":9}}`)),
		"that makes it invalid": client.RawPatch(types.JSONPatchType, []byte(`[{"op":"copy","from":"/spec/reuse","path":"/metadata/labels"}]`)),
		"that is applied":       client.RawPatch(types.ApplyPatchType, []byte(`{"apiVersion":"layerlocality.io/v1alpha1","kind":"NodeLayers","metadata":{"name":"n1"},"spec":{"totalImages":9}}`)),
	} {
		var options []client.PatchOption
		if patch.Type() == types.ApplyPatchType {
			options = append(options, client.FieldOwner("another"), client.ForceOwnership)
		}
		for whose, agent := range map[string]client.Client{"of its own": own, "of another node": other} {
			refused("a patch "+what+" "+whose, "cannot patch", agent.Patch(ctx, p.object("n1"), patch, options...))
		}
	}

	// Nor does any other way to write reach the object of another node.
	refused("an update of another node", "another one", other.Update(ctx, current.DeepCopy()))
	refused("an update with an unbound token", "written by layer-agent", unbound.Update(ctx, current.DeepCopy()))
	refused("a deletion of another node", "another one", other.Delete(ctx, current.DeepCopy()))
	refused("a deletion with an unbound token", "written by layer-agent", unbound.Delete(ctx, current.DeepCopy()))
	generated := p.object("n1")
	generated.Name, generated.GenerateName = "", "n"
	refused("a name that the server makes", "another one", own.Create(ctx, generated))
	for what, change := range map[string]func(*metav1.OwnerReference){
		"another UID":           func(o *metav1.OwnerReference) { o.UID = "another" },
		"another node":          func(o *metav1.OwnerReference) { *o = p.object("n2").OwnerReferences[0] },
		"one that controls it":  func(o *metav1.OwnerReference) { o.Controller = ptr.To(true) },
		"one that waits for it": func(o *metav1.OwnerReference) { o.BlockOwnerDeletion = ptr.To(true) },
	} {
		changed := current.DeepCopy()
		change(&changed.OwnerReferences[0])
		refused("a change of the owner to "+what, "one owner", own.Update(ctx, changed))
	}

	// A finalizer would keep it for ever; what makes it large is not its own either.
	for what, change := range map[string]func(*v1alpha1.NodeLayers) string{
		"a finalizer": func(o *v1alpha1.NodeLayers) string {
			o.Finalizers = []string{"example.com/for-ever"}
			return "adds no finalizers"
		},
		"many labels": func(o *v1alpha1.NodeLayers) string {
			o.Labels = map[string]string{}
			for i := range 9 {
				o.Labels[fmt.Sprint("example.com/", i)] = ""
			}
			return "writes no labels and annotations"
		},
		"a long annotation": func(o *v1alpha1.NodeLayers) string {
			o.Annotations = map[string]string{"example.com/long": strings.Repeat("x", 257)}
			return "writes no labels and annotations"
		},
	} {
		changed := current.DeepCopy()
		why := change(changed)
		refused("an update with "+what, why, own.Update(ctx, changed))
	}

	// An agent that was started again does not have the version: it replaces the object.
	must(t, own.Delete(ctx, current.DeepCopy()))
	must(t, own.Create(ctx, p.object("n1")))
	now()

	// Others leave its spec as it is.
	current.Annotations = map[string]string{"example.com/note": "by an administrator"}
	must(t, p.admin.Update(ctx, current))
	changed := current.DeepCopy()
	changed.Spec.TotalImages = 9
	refused("what an administrator writes", "written by layer-agent", p.admin.Update(ctx, changed))
	changed = current.DeepCopy()
	changed.OwnerReferences = p.object("n2").OwnerReferences
	refused("another owner by an administrator", "written by layer-agent", p.admin.Update(ctx, changed))
	changed = current.DeepCopy()
	changed.Annotations = map[string]string{"example.com/note": "by an agent"}
	refused("a note by another agent", "another one", other.Update(ctx, changed))
	// An administrator's tool may be in a pod, whose token is bound to a node as well.
	tool := metav1.ObjectMeta{Namespace: namespace, Name: "tool"}
	must(t, p.admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: tool}))
	must(t, p.admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tool"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: tool.Namespace, Name: tool.Name}},
	}))
	byTool := p.as(p.tokenOf(tool.Name, "n2"))
	current.Annotations["example.com/note"] = "by a tool"
	must(t, byTool.Update(ctx, current))
	changed = current.DeepCopy()
	changed.Spec.TotalImages = 9
	refused("what a tool writes", "written by layer-agent", byTool.Update(ctx, changed))
	refused("what a tool writes for its own node", "written by layer-agent", byTool.Create(ctx, p.object("n2")))
	// As the garbage collector does when a Node is deleted and what it owns is to stay.
	current.OwnerReferences = nil
	must(t, p.admin.Update(ctx, current))
	current.OwnerReferences = p.object("n1").OwnerReferences
	must(t, own.Update(ctx, current))

	// The garbage collector, which is no agent, takes its finalizer from what is being deleted.
	must(t, p.admin.Delete(ctx, now(), client.PropagationPolicy(metav1.DeletePropagationForeground)))
	must(t, p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, current))
	if len(current.Finalizers) != 1 {
		t.Fatalf("finalizers %q", current.Finalizers)
	}
	forged := current.DeepCopy()
	forged.Spec.TotalImages, forged.Finalizers = 7, nil
	refused("another content while it is deleted", "written by layer-agent", p.admin.Update(ctx, forged))
	current.Finalizers = nil
	must(t, p.admin.Update(ctx, current))
	if err := p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, current); !apierrors.IsNotFound(err) {
		t.Errorf("it is left: %v", err)
	}
}

// The schema bounds what an agent may write.
func testSchema(t *testing.T, p *plane) {
	own := p.agent("n1")
	digest := "sha256:" + strings.Repeat("a", 64)
	for why, change := range map[string]func(*v1alpha1.NodeLayersSpec){
		"spec.layers[0]": func(s *v1alpha1.NodeLayersSpec) { s.Layers = []string{digest} },
		"spec.layers[1]": func(s *v1alpha1.NodeLayersSpec) { s.Layers = []string{digest + " 1", strings.ToUpper(digest) + " 1"} },
		"spec.layers: Too many": func(s *v1alpha1.NodeLayersSpec) {
			s.Layers = slices.Repeat([]string{digest + " 1"}, v1alpha1.MaxNodeLayers+1)
		},
		"spec.layers":            func(s *v1alpha1.NodeLayersSpec) { s.Layers = []string{digest + " 12345678901234"} },
		"spec.images[0]":         func(s *v1alpha1.NodeLayersSpec) { s.Images = []string{"0"} },
		"spec.images[0] in body": func(s *v1alpha1.NodeLayersSpec) { s.Images = []string{"0,, a"} },
		"spec.images[1] in body": func(s *v1alpha1.NodeLayersSpec) { s.Images = []string{"- a", "- a\x1b[2J"} },
		"spec.images[2] in body": func(s *v1alpha1.NodeLayersSpec) { s.Images = []string{"- a", "- a", "- a\n"} },
		"spec.images[3] in body": func(s *v1alpha1.NodeLayersSpec) {
			s.Images = []string{"- a", "- a", "- a", "-" + strings.Repeat(" a", v1alpha1.MaxNodeImageNames+1)}
		},
		"spec.images: Too many": func(s *v1alpha1.NodeLayersSpec) { s.Images = slices.Repeat([]string{"- a"}, v1alpha1.MaxNodeImages+1) },
		"both lists may take 128 KiB": func(s *v1alpha1.NodeLayersSpec) {
			s.Images = slices.Repeat([]string{"- " + strings.Repeat("a", 123)}, v1alpha1.MaxNodeImages)
			s.Layers = []string{digest + " 1"}
		},
		"both lists may take 128 KiB as": func(s *v1alpha1.NodeLayersSpec) {
			s.Layers = slices.Repeat([]string{digest + " 1"}, v1alpha1.MaxNodeLayers)
		},
		"may not be more than": func(s *v1alpha1.NodeLayersSpec) {
			s.Images = []string{"- " + strings.Repeat("a", v1alpha1.MaxNodeImageLength)}
		},
		"spec.runtime":      func(s *v1alpha1.NodeLayersSpec) { s.Runtime = "\x1b]0;title\x07" },
		"spec.reuse":        func(s *v1alpha1.NodeLayersSpec) { s.Reuse = "Sometimes" },
		"spec.renewSeconds": func(s *v1alpha1.NodeLayersSpec) { s.RenewSeconds = 0 },
		"spec.totalBytes":   func(s *v1alpha1.NodeLayersSpec) { s.TotalBytes = -1 },
	} {
		object := p.object("n1")
		change(&object.Spec)
		if err := own.Create(t.Context(), object); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %.300v", why, err)
		}
		// The agent does not even ask.
		if errs := object.Validate(); len(errs) == 0 {
			t.Errorf("%s: Validate takes it", why)
		}
	}
	// As much as there may be, to the byte.
	object := p.object("n1")
	object.Spec.Images = slices.Repeat([]string{"- " + strings.Repeat("a", 123)}, v1alpha1.MaxNodeImages)
	if errs := object.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
	must(t, own.Create(t.Context(), object))
}

// store makes a containers-storage with images, each with one layer.
func store(t *testing.T, root string, images ...string) {
	t.Helper()
	folder := filepath.Join(root, "overlay-images")
	list := []map[string]any{}
	for i, name := range images {
		id := fmt.Sprintf("image%d", i)
		manifest := fmt.Sprintf(`{"schemaVersion":2,"config":{"digest":"sha256:%064x","size":1},"layers":[{"digest":"sha256:%064x","size":%d}]}`, i, i, 2<<20)
		must(t, os.MkdirAll(filepath.Join(folder, id), 0o700))
		must(t, os.WriteFile(filepath.Join(folder, id, "manifest"), []byte(manifest), 0o600))
		list = append(list, map[string]any{"id": id, "names": []string{name}, "layer": "top"})
	}
	text, err := json.Marshal(list)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, ".new"), text, 0o600))
	must(t, os.Rename(filepath.Join(folder, ".new"), filepath.Join(folder, "images.json")))
}

// runs runs the shipped commands until the part of the test ends, with a token as the kubelet gives
// it. It returns the root of the store that they read, and functions that wait until they have
// published images, and until writing has failed for a reason.
func (p *plane) runs() (root string, published func(images ...string), failed func(reason string)) {
	t := p.t
	t.Helper()
	folder := t.TempDir()
	root = filepath.Join(folder, "storage")
	handover, token := filepath.Join(folder, "handover"), filepath.Join(folder, "token")
	must(t, os.MkdirAll(filepath.Join(root, "overlay-images"), 0o700))
	must(t, os.Mkdir(handover, 0o700))
	must(t, os.WriteFile(token, []byte(p.token("n1")), 0o600))
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: p.config.Host, CertificateAuthorityData: p.config.CAData}
	kubeconfig.AuthInfos["a"] = &clientcmdapi.AuthInfo{TokenFile: token}
	kubeconfig.Contexts["x"], kubeconfig.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "a"}, "x"
	must(t, clientcmd.WriteToFile(*kubeconfig, filepath.Join(folder, "kubeconfig")))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := free.Addr().String()
	must(t, free.Close())
	for _, args := range [][]string{
		{"read", "--runtime=auto", "--storage=" + root, "--socket=" + folder + "/none", "--handover=" + handover},
		{"publish", "--kubeconfig=" + folder + "/kubeconfig", "--token-file=" + token, "--handover=" + handover, "--spread=0s", "--bind-address=" + address},
	} {
		command := newCommand()
		command.SetArgs(args)
		go func() { ended <- command.ExecuteContext(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range 2 {
			must(t, <-ended)
		}
	})
	published = func(images ...string) {
		t.Helper()
		p.eventually(ctx, fmt.Sprintf("%q are published", images), func(ctx context.Context) error {
			select {
			case err := <-ended:
				ended <- nil
				return poll.Permanent(fmt.Errorf("a command ended: %w", err))
			default:
			}
			object, got := &v1alpha1.NodeLayers{}, []string{}
			if err := p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, object); err != nil {
				return err
			}
			for _, text := range object.Spec.Images {
				_, name, _ := strings.Cut(text, " ")
				got = append(got, name)
			}
			if !slices.Equal(got, images) {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
	failed = func(reason string) {
		t.Helper()
		p.eventually(ctx, "writing fails", func(context.Context) error {
			response, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return err
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err == nil && !bytes.Contains(text, fmt.Appendf(nil, `layerlocality_agent_errors_total{in="write",reason=%q}`, reason)) {
				err = fmt.Errorf("the metrics have no error %s:\n%s", reason, text)
			}
			return err
		})
	}
	return root, published, failed
}

// The shipped commands, with the rights of deploy/agent, publish what is in a store, and follow it.
func testAgent(t *testing.T, p *plane) {
	ctx := t.Context()
	root, published, _ := p.runs()
	store(t, root, "quay.io/a:1")
	published("quay.io/a:1")
	store(t, root, "quay.io/a:1", "quay.io/b:1")
	published("quay.io/a:1", "quay.io/b:1")
	store(t, root, "quay.io/b:1")
	published("quay.io/b:1")
	// Somebody deletes it: a renewal would bring it back, and so does the next change.
	must(t, p.admin.Delete(ctx, p.object("n1")))
	store(t, root, "quay.io/c:1")
	published("quay.io/c:1")
	// Somebody labels it, which makes another version of it.
	labelled := &v1alpha1.NodeLayers{}
	must(t, p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, labelled))
	labelled.Labels = map[string]string{"example.com/note": ""}
	must(t, p.admin.Update(ctx, labelled))
	store(t, root, "quay.io/d:1")
	published("quay.io/d:1")

	var table metav1.Table
	must(t, p.kube.Discovery().RESTClient().Get().AbsPath("/apis/layerlocality.io/v1alpha1/nodelayers").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Into(&table))
	var columns []string
	for _, column := range table.ColumnDefinitions {
		columns = append(columns, column.Name)
	}
	if want := []string{"Name", "Images", "Layers", "Bytes", "Runtime", "Reuse", "Renewed", "Renews"}; !slices.Equal(columns, want) || len(table.Rows) != 1 {
		t.Fatalf("columns %q, want %q", columns, want)
	}
	if cells := fmt.Sprint(table.Rows[0].Cells[:6]); cells != "[n1 1 1 2097152 cri-o Digest]" {
		t.Errorf("%s", cells)
	}
}

// What was installed is lost while an agent runs, part by part, and comes back: the agent goes on
// where it can, and catches up.
func testLosses(t *testing.T, p *plane) {
	ctx := t.Context()
	// Also if this fails, what follows finds all that is shipped.
	t.Cleanup(func() { p.install(context.WithoutCancel(ctx)) })
	root, published, failed := p.runs()
	store(t, root, "quay.io/a:1")
	published("quay.io/a:1")
	named := func(object client.Object, name string) client.Object {
		object.SetName(name)
		return object
	}

	// The policy: agents write all the same.
	must(t, p.admin.Delete(ctx, named(&admissionv1.ValidatingAdmissionPolicyBinding{}, policyName)))
	must(t, p.admin.Delete(ctx, named(&admissionv1.ValidatingAdmissionPolicy{}, policyName)))
	store(t, root, "quay.io/b:1")
	published("quay.io/b:1")

	// The rights: nothing is written until they are back.
	must(t, p.admin.Delete(ctx, named(&rbacv1.ClusterRoleBinding{}, "layer-agent")))
	store(t, root, "quay.io/c:1")
	failed("Forbidden")
	p.install(ctx)
	published("quay.io/c:1")

	// The resource: with all objects.
	must(t, p.admin.Delete(ctx, named(&apiextensionsv1.CustomResourceDefinition{}, crdName)))
	p.eventually(ctx, "the resource is gone", func(ctx context.Context) error {
		if err := p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, &v1alpha1.NodeLayers{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading: %w", err)
		}
		if err := p.admin.Get(ctx, client.ObjectKey{Name: crdName}, &apiextensionsv1.CustomResourceDefinition{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its definition: %w", err)
		}
		return nil
	})
	store(t, root, "quay.io/d:1")
	failed("NotFound")
	p.install(ctx)
	published("quay.io/d:1")

	// A definition of before, without a field that this agent writes: the rest is published.
	older := &apiextensionsv1.CustomResourceDefinition{}
	must(t, p.admin.Get(ctx, client.ObjectKey{Name: crdName}, older))
	for i := range older.Spec.Versions {
		delete(older.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "runtime")
	}
	must(t, p.admin.Update(ctx, older))
	images := []string{"quay.io/e:00"}
	p.eventually(ctx, "the field is dropped", func(ctx context.Context) error {
		images = append(images, fmt.Sprintf("quay.io/e:%02d", len(images)))
		store(t, root, images...)
		published(images...)
		object := &v1alpha1.NodeLayers{}
		if err := p.admin.Get(ctx, client.ObjectKey{Name: "n1"}, object); err != nil {
			return err
		}
		if s := object.Spec; s.Runtime != "" || int(s.TotalImages) != len(images) || len(s.Layers) != len(images) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// Names of what deploy/agent installs.
const (
	policyName = "layer-agent"
	crdName    = "nodelayers.layerlocality.io"
)

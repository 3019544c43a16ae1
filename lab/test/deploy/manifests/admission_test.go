package manifests

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// withSchemas is a client of an apiserver that has the schemas of Kubernetes' own types.
type withSchemas struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported is of the client within, which sends no bookmarks.
func (withSchemas) IsWatchListSemanticsUnSupported() bool { return true }

type discoverySchemas struct{ discovery.DiscoveryInterface }

func (c withSchemas) Discovery() discovery.DiscoveryInterface {
	return discoverySchemas{c.Interface.Discovery()}
}

func (discoverySchemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

// policyPlugin is a part of an apiserver that applies policies.
type policyPlugin interface {
	admission.Interface
	admission.InitializationValidator
	WaitForReady() bool
}

// policies starts a part of an apiserver that applies policies, with these objects in it.
func policies[P policyPlugin](t *testing.T, plugin P, objects ...runtime.Object) P {
	t.Helper()
	for _, object := range objects {
		legacyscheme.Scheme.Default(object)
	}
	client := withSchemas{fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(client, 0)
	initializer.New(client, dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), factory, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), t.Context().Done(), meta.NewDefaultRESTMapper(nil)).Initialize(plugin)
	must(t, plugin.ValidateInitialization())
	factory.Start(t.Context().Done())
	for tries := 1; !plugin.WaitForReady(); tries++ { // ten seconds each
		if tries == 6 {
			t.Fatal("the plugin is not ready")
		}
	}
	return plugin
}

// internal returns a pod with its defaults, as an apiserver has it.
func internal(t *testing.T, pod *corev1.Pod) *core.Pod {
	t.Helper()
	pod = pod.DeepCopy()
	legacyscheme.Scheme.Default(pod)
	converted := &core.Pod{}
	must(t, legacyscheme.Scheme.Convert(pod, converted, nil))
	return converted
}

// external undoes internal, but for the defaults.
func external(t *testing.T, pod *core.Pod) *corev1.Pod {
	t.Helper()
	converted := &corev1.Pod{}
	must(t, legacyscheme.Scheme.Convert(pod, converted, nil))
	return converted
}

// admit returns a pod as it is after the plugin. old is what an update replaces.
func admit(t *testing.T, plugin *mutating.Plugin, operation admission.Operation, pod, old *corev1.Pod) *corev1.Pod {
	t.Helper()
	object := internal(t, pod)
	var oldObject, options runtime.Object = nil, &metav1.CreateOptions{}
	if operation == admission.Update {
		oldObject, options = internal(t, old), &metav1.UpdateOptions{}
	}
	attributes := admission.NewAttributesRecord(object, oldObject, corev1.SchemeGroupVersion.WithKind("Pod"), pod.Namespace, pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", operation, options, false, &user.DefaultInfo{Name: "somebody"})
	must(t, plugin.Admit(t.Context(), attributes, admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)))
	return external(t, object)
}

// Which pods the policy of by-namespace gives to the second scheduler, decided by the code of
// an apiserver.
func TestByNamespaceChooses(t *testing.T) {
	const ours, theirs = "ours", "theirs"
	scheduler, usual := variants["second-scheduler"].scheduler, corev1.DefaultSchedulerName
	space := func(name string, labelled bool) *corev1.Namespace {
		labels := map[string]string{corev1.LabelMetadataName: name}
		if labelled {
			labels["layerlocality.io/scheduler"] = scheduler
		}
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	mutations, err := mutating.NewPlugin(nil)
	must(t, err)
	plugin := policies(t, mutations, append(build(t, "by-namespace"), space(ours, true), space(theirs, false), space(namespace, true))...)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "p"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "quay.io/a/b:1"}}},
		}
		change(pod)
		return pod
	}
	ownedBy := func(version, kind string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			controller := true
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "x", UID: "x", Controller: &controller}}
		}
	}
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"plain":             {func(*corev1.Pod) {}, scheduler},
		"of a ReplicaSet":   {ownedBy("apps/v1", "ReplicaSet"), scheduler},
		"of a StatefulSet":  {ownedBy("apps/v1", "StatefulSet"), scheduler},
		"of a Job":          {ownedBy("batch/v1", "Job"), scheduler},
		"of a DaemonSet":    {ownedBy("apps/v1", "DaemonSet"), usual},
		"another namespace": {func(pod *corev1.Pod) { pod.Namespace = theirs }, usual},
		"kube-system":       {func(pod *corev1.Pod) { pod.Namespace = namespace }, usual},
		"names another":     {func(pod *corev1.Pod) { pod.Spec.SchedulerName = "another" }, "another"},
		"names the default": {func(pod *corev1.Pod) { pod.Spec.SchedulerName = usual }, scheduler}, // cannot be told apart
		"has labels":        {func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "x"} }, scheduler},
		"of this project": {func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"app.kubernetes.io/part-of": "layer-locality"}
		}, usual},
		"static": {func(pod *corev1.Pod) { // the mirror pod that a kubelet makes
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			pod.Spec.NodeName = "n1"
			ownedBy("v1", "Node")(pod)
		}, usual},
		"gated": {func(pod *corev1.Pod) { pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/g"}} }, scheduler},
		"duplicates": {func(pod *corev1.Pod) { // allowed, with a warning
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "A", Value: "3"}}
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "x", ContainerPort: 80}, {Name: "y", ContainerPort: 80}}
		}, scheduler},
	}
	for _, deployment := range []*appsv1.Deployment{one[*appsv1.Deployment](t, build(t, "second-scheduler")), one[*appsv1.Deployment](t, buildResolver(t))} {
		tests["of "+deployment.Name] = struct {
			change func(*corev1.Pod)
			want   string
		}{func(pod *corev1.Pod) { // in a namespace of its own
			pod.Labels, pod.Spec = deployment.Spec.Template.Labels, *deployment.Spec.Template.Spec.DeepCopy()
			ownedBy("apps/v1", "ReplicaSet")(pod)
		}, usual}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			submitted := pod(test.change)
			admitted := admit(t, plugin, admission.Create, submitted, nil)
			if admitted.Spec.SchedulerName != test.want {
				t.Errorf("for %s, want %s", admitted.Spec.SchedulerName, test.want)
			}
			unchanged := external(t, internal(t, submitted))
			unchanged.Spec.SchedulerName = test.want
			if diff := cmp.Diff(unchanged, admitted); diff != "" {
				t.Errorf("it changes more than that:\n%s", diff)
			}
		})
	}
	existing := pod(func(*corev1.Pod) {})
	if updated := admit(t, plugin, admission.Update, existing, existing); updated.Spec.SchedulerName != usual {
		t.Errorf("a pod that is there already is given to %s, which the apiserver refuses", updated.Spec.SchedulerName)
	}
}

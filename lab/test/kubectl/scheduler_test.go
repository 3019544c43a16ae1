//go:build integration

package kubectl

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/internal/poll"
)

func nameOf(namespace, name string) client.ObjectKey {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// rating is what the debug endpoint and plan have of a node.
type rating struct {
	Node                                                                              string
	TotalBytes, PresentBytes, ArrivingBytes, CrowdedBytes, MissingBytes, PendingBytes int64
}

// debugToken returns a token of the service account that may read debug paths.
func debugToken(t *testing.T) string {
	t.Helper()
	token, err := core.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "layer-locality-debug", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return token.Status.Token
}

// endpoint asks the scheduler as an administrator.
func endpoint(t *testing.T, query url.Values) map[string]rating {
	t.Helper()
	token := debugToken(t)
	var answer struct{ Nodes []rating }
	// The scheduler hears of a new pod a moment later.
	must(t, poll.Until(t.Context(), 20*time.Millisecond, time.Minute, func(ctx context.Context) error {
		text, err := get(ctx, schedulerURL+"/debug/layerlocality?"+query.Encode(), token)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), &answer)
	}))
	all := map[string]rating{}
	for _, n := range answer.Nodes {
		all[n.Node] = n
	}
	return all
}

// What plan prints of 100 random pods is what the scheduler's debug endpoint answers, while pods that
// were placed bring layers to nodes.
func TestPlanIsWhatTheSchedulerSays(t *testing.T) {
	rnd := rand.New(rand.NewPCG(25, 4))
	image := func() string { return fmt.Sprintf("registry.example.com/team/app-%d:v1", rnd.IntN(9)) }
	for i := range 5 {
		placed(t, pod(t, fmt.Sprint("before-", i), "layer-locality", image()))
	}
	placed(t, pod(t, "brings", "layer-locality", "registry.example.com/team/app-8:v1")) // no node has it
	present, arriving, asked := false, false, 0
	compare := func(what any, args []string, query url.Values) {
		t.Helper()
		type rated struct {
			Nodes             []rating
			RatedBy, NotAsked string
		}
		var plan rated
		answers(t, &plan, append([]string{"plan"}, args...)...)
		want := endpoint(t, query)
		if asked++; asked%5 == 0 { // each way is asked for
			var by rated
			answers(t, &by, append([]string{"plan", "--scheduler-url", schedulerURL}, args...)...)
			if by.NotAsked != "" || !strings.HasSuffix(by.RatedBy, ", profile layer-locality") && !strings.HasSuffix(by.RatedBy, ", profile overruled") || plan.RatedBy != "" || !strings.Contains(plan.NotAsked, "is no pod in namespace kube-system") || !slices.Equal(by.Nodes, plan.Nodes) {
				t.Fatalf("%q: the scheduler rates %+v, the program %+v", what, by, plan)
			}
		}
		if len(plan.Nodes) != len(want) || len(want) == 0 {
			t.Fatalf("%d nodes, want %d", len(plan.Nodes), len(want))
		}
		for _, n := range plan.Nodes {
			if n != want[n.Node] {
				t.Fatalf("%q: plan has %+v, the scheduler %+v", what, n, want[n.Node])
			}
			present, arriving = present || n.PresentBytes > 0, arriving || n.ArrivingBytes > 0
		}
	}
	policies := []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	for i := range 100 {
		images := []string{image(), image(), "registry.example.com/team/unknown:v1", "registry.example.com/other/thing:v1"}[:1+rnd.IntN(4)]
		if i%2 == 0 {
			var args []string
			for _, i := range images {
				args = append(args, "--image", i)
			}
			compare(images, args, url.Values{"image": images})
			continue
		}
		// A pod that nobody places, with all that has images.
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("random-", i)}, Spec: corev1.PodSpec{SchedulerName: "nobody"}}
		for i, image := range images {
			container := corev1.Container{Name: fmt.Sprint("c", i), Image: image, ImagePullPolicy: policies[rnd.IntN(len(policies))]}
			switch kind := rnd.IntN(3); {
			case i == 0 || kind == 0:
				p.Spec.Containers = append(p.Spec.Containers, container)
			case kind == 1:
				p.Spec.InitContainers = append(p.Spec.InitContainers, container)
			default:
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: container.Name, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image, PullPolicy: container.ImagePullPolicy}}})
			}
		}
		must(t, objects.Create(t.Context(), p))
		compare(p.Spec, []string{"pod/" + p.Name}, url.Values{"pod": {"default/" + p.Name}})
		must(t, objects.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
	}
	if !present || !arriving {
		t.Errorf("something was present %t, arriving %t", present, arriving)
	}
}

// placed waits until a pod has a node.
func placed(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	return placedIn(t, objects, p)
}

func placedIn(t *testing.T, objects client.Client, p *corev1.Pod) string {
	t.Helper()
	must(t, poll.Until(t.Context(), 50*time.Millisecond, time.Minute, func(ctx context.Context) error {
		if err := objects.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Spec.NodeName == "" {
			return fmt.Errorf("pod %s has no node: %+v", p.Name, p.Status.Conditions)
		}
		return nil
	}))
	return p.Spec.NodeName
}

type decision struct {
	Pod, Node, Forgotten string
	SavedBytes           *float64
	Decision             *struct {
		Profile       string
		FeasibleNodes int
		Chosen, Best  rating
		Mean          struct{ MissingBytes float64 }
	}
	Now   *struct{ OtherNodes int }
	Pulls []struct {
		Image   string
		Present bool
		Seconds float64
	}
	Words []string
}

// plan, then the scheduler places the pod, then why: the same bytes.
func TestWhy(t *testing.T) {
	const image = "registry.example.com/team/app-8:v1"
	var plan struct{ Nodes []rating }
	answers(t, &plan, "plan", "--image", image)
	p := pod(t, "why", "layer-locality", image)
	on := placed(t, p)
	event(t, p, `Successfully pulled image "`+image+`" in 1.5s (2.25s including waiting). Image size: 5 bytes.`+"\x1b[2J")
	var all []decision
	answers(t, &all, "why", "why", "--scheduler-url", schedulerURL)
	a := all[0]
	if a.Decision == nil || a.Node != on || a.Decision.Profile != "layer-locality" || a.Decision.FeasibleNodes != 6 || a.Decision.Chosen.Node != on || a.Decision.Best.Node != on {
		t.Fatalf("%+v", a)
	}
	var sum int64
	for _, n := range plan.Nodes {
		sum += n.MissingBytes
		if n.Node == on && (n.MissingBytes != a.Decision.Chosen.MissingBytes || n.TotalBytes != a.Decision.Chosen.TotalBytes) {
			t.Errorf("plan had %+v, the decision was %+v", n, a.Decision.Chosen)
		}
	}
	mean := float64(sum) / 6
	if diff := a.Decision.Mean.MissingBytes - mean; diff > 1 || diff < -1 || a.SavedBytes == nil || *a.SavedBytes < mean-float64(a.Decision.Chosen.MissingBytes)-1 {
		t.Errorf("the mean node lacked %f, plan has %f: %+v", a.Decision.Mean.MissingBytes, mean, a)
	}
	if len(a.Pulls) != 1 || a.Pulls[0].Seconds != 1.5 || a.Pulls[0].Image != image {
		t.Errorf("%+v", a.Pulls)
	}
	words := layers(t, "why", "why", "--scheduler-url", schedulerURL)
	if words.code != 0 || !strings.Contains(words.out, "No other node scored more.") || !strings.Contains(words.out, "pulled "+image+" in 1.5 s, 2.2 s with waiting") && !strings.Contains(words.out, "2.3 s with waiting") {
		t.Errorf("%+v", words)
	}

	// Other plugins decide.
	q := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prefers"}, Spec: corev1.PodSpec{
		SchedulerName: "overruled", Containers: []corev1.Container{{Name: "c", Image: image}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kind", Operator: corev1.NodeSelectorOpIn, Values: []string{empty}}}},
		}}}},
	}}
	must(t, objects.Create(t.Context(), q))
	if on := placed(t, q); on != empty {
		t.Fatalf("it is on %s", on)
	}
	if words := layers(t, "why", "prefers", "--scheduler-url", schedulerURL); !strings.Contains(words.out, "Other plugins overruled layers: ") {
		t.Errorf("%+v", words)
	}

	// A pod that our scheduler did not place: a stock one did.
	stock, err := plane.StartScheduler(root, "stock", "")
	must(t, err)
	defer stock.Stop()
	placed(t, pod(t, "of-another", "default-scheduler", image))
	all = nil
	answers(t, &all, "why", "of-another", "--scheduler-url", schedulerURL)
	if all[0].Decision != nil || all[0].Now == nil || all[0].Now.OtherNodes != 5 || !strings.Contains(all[0].Forgotten, "of the scheduler default-scheduler") {
		t.Errorf("%+v", all[0])
	}

	// Several, of which one has no node.
	pod(t, "nowhere", "nobody", image)
	several := layers(t, "why", "-l", "app in (why,of-another,nowhere)", "--scheduler-url", schedulerURL)
	if several.code != 0 || strings.Count(several.out, "\n") != 4 || !strings.Contains(several.out, "\nWithout a node: default/nowhere. kubectl layers plan POD shows what nodes have for one.\n") {
		t.Errorf("%+v", several)
	}
	if names := layers(t, "why", "-l", "app in (why,nowhere)", "--scheduler-url", schedulerURL, "-o", "name"); names.out != "node/"+on+"\n" {
		t.Errorf("%+v", names)
	}

	var savings struct {
		Profiles []struct {
			Profile          string
			Pods             int
			MissingBytes     int64
			MeanMissingBytes float64
		}
	}
	answers(t, &savings, "savings", "--scheduler-url", schedulerURL)
	found := 0
	for _, s := range savings.Profiles {
		if s.Pods > 0 && s.MeanMissingBytes > 0 {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%+v", savings)
	}
}

// A pod whose node is nominated would fit on six nodes: kube-scheduler looks at that one alone, and why
// does not print that it fitted on no other.
func TestNominated(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nominated"}, Spec: corev1.PodSpec{
		SchedulerName: "layer-locality", SchedulingGates: []corev1.PodSchedulingGate{{Name: "test/nomination"}},
		Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/team/app-8:v1"}},
	}}
	must(t, objects.Create(t.Context(), p))
	p.Status.NominatedNodeName = empty // what preemption writes
	must(t, objects.Status().Update(t.Context(), p))
	p.Spec.SchedulingGates = nil
	must(t, objects.Update(t.Context(), p))
	if on := placed(t, p); on != empty {
		t.Fatalf("it is on %s", on)
	}
	var all []decision
	answers(t, &all, "why", "nominated", "--scheduler-url", schedulerURL)
	if d := all[0].Decision; d == nil || d.FeasibleNodes != 1 || all[0].SavedBytes != nil || !slices.ContainsFunc(all[0].Words, func(s string) bool { return strings.Contains(s, "or it was tried first, because it was nominated") }) {
		t.Errorf("%+v", all[0])
	}
}

// A pod that has ended: plan is for another one like it, and why shows how it was.
func TestEnded(t *testing.T) {
	const image = "registry.example.com/team/app-8:v1"
	end := func(p *corev1.Pod, phase corev1.PodPhase) {
		p.Status.Phase = phase
		must(t, objects.Status().Update(t.Context(), p))
	}
	p := pod(t, "succeeded", "layer-locality", image)
	on := placed(t, p)
	end(p, corev1.PodSucceeded)
	q := pod(t, "failed", "nobody", image)
	must(t, core.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: q.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: byNames}}, metav1.CreateOptions{}))
	must(t, objects.Get(t.Context(), client.ObjectKeyFromObject(q), q))
	end(q, corev1.PodFailed)
	r := pod(t, "failed-before", "nobody", image)
	end(r, corev1.PodFailed)
	for _, test := range []struct {
		args string
		code int
		want []string
	}{
		{"plan succeeded", 0, []string{"pod/succeeded fits on 6 of 6 nodes", "It has ended (Succeeded): this is for another one like it."}},
		{"plan failed", 0, []string{"It has ended (Failed): this is for another one like it."}},
		{"plan failed-before", 0, []string{"It has ended (Failed): this is for another one like it."}},
		{"why succeeded", 0, []string{"Pod default/succeeded was on " + on + ", placed by layer-locality, and has ended (Succeeded).", "When it was placed, " + on + " had"}},
		{"why failed", 0, []string{"Pod default/failed was on by-names, placed by nobody, and has ended (Failed).", "Of 5 other nodes that it fits on"}},
		{"why failed-before", 1, []string{"pod default/failed-before has ended (Failed) and never had a node: kubectl layers plan pod/failed-before shows what nodes have for one like it"}},
	} {
		r := layers(t, append(strings.Fields(test.args), "--scheduler-url", schedulerURL)...)
		for _, want := range test.want {
			if r.code != test.code || !strings.Contains(r.out+r.err, want) {
				t.Errorf("%s: %+v\nwant %d %s", test.args, r, test.code, want)
			}
		}
	}
	// It is on its node no more: why names what rules that out.
	node := &corev1.Node{}
	must(t, objects.Get(t.Context(), nameOf("", byNames), node))
	node.Spec.Unschedulable = true
	must(t, objects.Update(t.Context(), node))
	defer func() {
		node.Spec.Unschedulable, node.Spec.Taints = false, nil
		must(t, objects.Update(t.Context(), node))
	}()
	if r := layers(t, "plan", "failed"); !strings.Contains(r.out, "pod/failed fits on 5 of 6 nodes") {
		t.Errorf("%+v", r)
	}
}

// event writes an event as a kubelet does.
func event(t *testing.T, p *corev1.Pod, message string) {
	t.Helper()
	must(t, objects.Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: "pulled-"}, Reason: "Pulled", Message: message, Type: corev1.EventTypeNormal,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, FirstTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "kubelet"},
	}))
}

// Whoever poses as the scheduler gets a token that lasts ten minutes and is of the service
// account, not the user's.
func TestTheUsersTokenStaysHere(t *testing.T) {
	var got string
	impostor := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		http.Error(w, "\x1b[2Jno", http.StatusTeapot)
	}))
	defer impostor.Close()
	users, err := core.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	bind(t, "default-is-admin", "ClusterRole", "cluster-admin", "", "system:serviceaccount:default:default")
	r := layersIn(t, nil, "--server", plane.Config.Host, "--insecure-skip-tls-verify", "--token", users.Status.Token, "savings", "--scheduler-url", impostor.URL)
	if r.code != 1 || !strings.Contains(r.err, "answers 418") {
		t.Errorf("%+v", r)
	}
	parts := strings.Split(strings.TrimPrefix(got, "Bearer "), ".")
	if len(parts) != 3 || strings.Contains(got, users.Status.Token) {
		t.Fatalf("it got %q", got)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	must(t, err)
	var claims struct {
		Sub      string
		Exp, Iat int64
	}
	must(t, json.Unmarshal(text, &claims))
	if claims.Sub != "system:serviceaccount:kube-system:layer-locality-debug" || claims.Exp-claims.Iat != 600 {
		t.Errorf("%s", text)
	}
	// It may do nothing but read the debug path, and what everybody may.
	stolen := rest.AnonymousClientConfig(plane.Config)
	stolen.BearerToken = strings.TrimPrefix(got, "Bearer ")
	other, err := client.New(stolen, client.Options{})
	must(t, err)
	if err := other.List(t.Context(), &corev1.PodList{}); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("listing pods: %v", err)
	}
	review, err := kubernetes.NewForConfig(stolen)
	must(t, err)
	rules, err := review.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "kube-system"}}, metav1.CreateOptions{})
	must(t, err)
	for _, rule := range rules.Status.ResourceRules {
		if !slices.Equal(rule.APIGroups, []string{"authorization.k8s.io"}) && !slices.Equal(rule.APIGroups, []string{"authentication.k8s.io"}) {
			t.Errorf("the token may %q %q of %q", rule.Verbs, rule.Resources, rule.APIGroups)
		}
	}
	var paths []string
	for _, rule := range rules.Status.NonResourceRules {
		for _, path := range rule.NonResourceURLs {
			if !slices.Equal(rule.Verbs, []string{"get"}) {
				t.Errorf("the token may %q %s", rule.Verbs, path)
			}
			// What Kubernetes lets every user or service account read: system:discovery,
			// system:public-info-viewer, system:service-account-issuer-discovery.
			if !regexp.MustCompile(`^/(api|apis|openapi|version|healthz|livez|readyz|openid/v1/jwks|\.well-known/openid-configuration)(/\*)?/?$`).MatchString(path) {
				paths = append(paths, path)
			}
		}
	}
	if !slices.Equal(paths, []string{"/debug/layerlocality", "/debug/qosaware"}) {
		t.Errorf("the token may read %q", paths)
	}
}

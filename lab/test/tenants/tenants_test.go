//go:build e2e

package tenants

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	stock, patched = "n1", "n2"

	baseBytes, ownBytes = 20_000_000, 100_000
)

// Teams that own images, each in repositories of its own.
const owner, other = "owner", "other"

// Namespaces, by the secret for the owner's images that they have.
const (
	twin    = "twin"    // the owner's
	without = "without" // none
	wrong   = "wrong"   // one with a wrong password
	refused = "refused" // the owner's, and a policy that allows no image
)

// secret is the name of the only secret of a namespace.
const secret = "pull"

// What becomes of a pod.
const (
	runs         = "runs"
	unauthorized = "the registry refuses it"
	disallowed   = "the policy refuses it"
)

// everybody is whom a record names that has no secret.
const everybody = "everybody"

var (
	c      *cluster.Cluster
	client kubernetes.Interface
)

func TestMain(m *testing.M) {
	// Both nodes and both ways to pull at once, however few processors there are.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	config := cluster.Config{
		Name: livetest.ClusterName("tenants"), Nodes: 2, Flavour: cluster.Patched,
		PerNode: func(node string, crio, kubelet *cluster.Component) {
			if node == stock {
				crio.Flavour, kubelet.Flavour = cluster.Stock, cluster.Stock
			}
		},
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

// setting is one of the kubelet's, with what it means for pods without a secret whose image is there.
type setting struct {
	policy string
	// listed is whether the images are in the kubelet's list of those that need no secret.
	listed bool
	// given is whether such pods get the image, unless each pod pulls.
	given bool
	// long is whether it is tried with FULL=1 only.
	long bool
}

var settings = []setting{
	{policy: "NeverVerify", given: true},
	{policy: "NeverVerifyPreloadedImages"},
	{policy: "NeverVerifyAllowlistedImages", long: true},
	{policy: "NeverVerifyAllowlistedImages", listed: true, given: true, long: true},
	{policy: "AlwaysVerify", long: true},
}

func (s setting) String() string {
	if s.listed {
		return s.policy + ", listed"
	}
	return s.policy
}

// use restarts the kubelets with the setting.
func (s setting) use(t *testing.T, d *door) {
	t.Helper()
	config := map[string]any{"imagePullCredentialsVerificationPolicy": s.policy}
	if s.policy == "NeverVerifyAllowlistedImages" {
		config["preloadedImagesVerificationAllowlist"] = []string{d.address + "/nobody/*"}
		if s.listed {
			config["preloadedImagesVerificationAllowlist"] = []string{d.address + "/" + owner + "/*"}
		}
	}
	group, ctx := errgroup.WithContext(t.Context())
	for _, node := range c.Nodes() {
		group.Go(func() error {
			if err := node.Kubelet().Restart(ctx, func(s *cluster.Component) { s.Config = config }); err != nil {
				return err
			}
			return c.WaitNodeReady(ctx, node.Name)
		})
	}
	must(t, group.Wait())
}

// TestTenants has pods of all namespaces start from one private image while its owner's pods pull
// it, and again when it is there.
func TestTenants(t *testing.T) {
	d := openDoor(t)
	populate(t, d)
	for i, setting := range settings {
		t.Run(setting.String(), func(t *testing.T) {
			if setting.long {
				livetest.Long(t, "TestTenants with NeverVerifyPreloadedImages, the default, and with NeverVerify")
			}
			setting.use(t, d)
			for _, pulls := range []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent} {
				name := fmt.Sprintf("image%d-%s", i, strings.ToLower(string(pulls)))
				base := common(t, push(t, name, owner), push(t, name, other))
				for _, node := range c.Nodes() {
					t.Run(fmt.Sprintf("%s on %s", pulls, node.Name), func(t *testing.T) {
						t.Parallel()
						s := story{
							door: d, node: node, pulls: pulls, name: name, base: base,
							private: d.address + "/" + owner + "/" + name + ":v1", further: d.address + "/" + other + "/" + name + ":v1",
							given: setting.given,
						}
						s.play(t)
					})
				}
			}
		})
	}
	t.Run("a file of a credential provider", func(t *testing.T) { testProvider(t, d) })
}

// story is that of two images on one base, on one node.
type story struct {
	*door
	node             *cluster.Node
	pulls            corev1.PullPolicy
	name             string
	private, further string // references to the owner's and to the other team's
	base             v1.Descriptor
	given            bool // as in setting
}

func (s story) play(t *testing.T) {
	address, blob := s.node.Address.String(), s.base.Digest.String()
	release := s.hold(address, blob, s.base.Size)
	t.Cleanup(release)

	first := s.start(t, owner, "first", secret, s.private)
	livetest.Eventually(t, time.Minute, "the owner's pull is in the base", func(context.Context) error {
		if asked, _ := s.requests(address, blob); asked == 0 {
			return errors.New("nobody asked for it")
		}
		return nil
	})
	pulling := []pod{s.start(t, owner, "second", secret, s.private), s.start(t, twin, "during", secret, s.private), s.start(t, other, "during", secret, s.further)}
	s.strangers(t, "during", unauthorized)
	for _, p := range pulling {
		p.pulls(t)
	}
	// Stock downloads the base for each; of ours, those of one namespace share a pull, and the
	// others prove that they may read the base.
	livetest.Eventually(t, time.Minute, "all others are in the base, or wait for it", func(context.Context) error {
		want := 1 + len(pulling)
		if s.node.Name == patched {
			want--
		}
		if asked, _ := s.requests(address, blob); asked < want {
			return fmt.Errorf("%d requests for it, want %d", asked, want)
		}
		return nil
	})
	if _, sent := s.requests(address, blob); sent > 0 {
		t.Error("the base is there already: nothing was shown")
	}
	release()
	for _, p := range append(pulling, first) {
		p.becomes(t, runs)
	}
	switch _, sent := s.requests(address, blob); {
	case s.node.Name == patched && (sent < 1 || sent > 2): // twice if a pull waited too long, as on a slow machine
		t.Errorf("the base was downloaded %d times, want once or twice", sent)
	case s.node.Name == stock && sent != 1+len(pulling):
		t.Errorf("stock downloaded the base %d times, want %d", sent, 1+len(pulling))
	}
	s.noted(t, s.private, owner, twin)
	s.noted(t, s.further, other)

	want, openers := unauthorized, []string{owner, twin}
	switch {
	case s.pulls == corev1.PullAlways:
	case s.given:
		want = runs
	default:
		// The kubelet notes a secret of the same content, before the policy for signatures counts.
		openers = append(openers, refused)
	}
	s.strangers(t, "after", want)
	s.start(t, owner, "after", secret, s.private).becomes(t, runs)
	s.noted(t, s.private, openers...)
	s.noted(t, s.further, other)
}

// strangers starts pods that have no right to the owner's image, one of them in the owner's namespace,
// and one whose secret is right and whose policy is not. It checks what becomes of them.
func (s story) strangers(t *testing.T, when, want string) {
	t.Helper()
	all := map[pod]string{
		s.start(t, without, when, "", s.private):           want,
		s.start(t, wrong, when, secret, s.private):         want,
		s.start(t, owner, when+"-stranger", "", s.private): want,
		s.start(t, refused, when, secret, s.private):       disallowed,
	}
	for p, want := range all {
		p.becomes(t, want)
		p.remove(t)
	}
}

// pod is one that runs, or should, on a node.
type pod struct{ namespace, name string }

// start creates a pod, and removes it at the end of the test.
func (s story) start(t *testing.T, namespace, name, secret, image string) pod {
	t.Helper()
	p := pod{namespace, s.name + "-" + s.node.Name + "-" + name}
	no, now := false, int64(0)
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec: corev1.PodSpec{
			NodeName: s.node.Name, TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: s.pulls}},
		},
	}
	if secret != "" {
		object.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { p.remove(t) })
	return p
}

func (p pod) remove(t *testing.T) {
	t.Helper()
	now := int64(0)
	err := client.CoreV1().Pods(p.namespace).Delete(context.WithoutCancel(t.Context()), p.name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// becomes waits until it is clear what becomes of the pod, and checks that it is so.
func (p pod) becomes(t *testing.T, want string) {
	t.Helper()
	livetest.Eventually(t, 2*time.Minute, fmt.Sprintf("pod %s of %s: %s", p.name, p.namespace, want), func(context.Context) error {
		// The client refuses to ask right before the end, which would hide why.
		found, err := client.CoreV1().Pods(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(found.Status.ContainerStatuses) == 0 {
			return errors.New("it has no status")
		}
		state := found.Status.ContainerStatuses[0].State
		var got string
		switch {
		case state.Running != nil:
			got = runs
		case state.Waiting == nil:
			return fmt.Errorf("its container is neither running nor waiting: %+v", state)
		case strings.Contains(state.Waiting.Message, "unauthorized") || strings.Contains(state.Waiting.Message, "authentication required"):
			got = unauthorized
		case strings.Contains(state.Waiting.Message, "SignatureValidationFailed") || state.Waiting.Reason == "SignatureValidationFailed":
			got = disallowed
		default:
			return fmt.Errorf("its container waits: %s: %s", state.Waiting.Reason, state.Waiting.Message)
		}
		if got != want {
			return fmt.Errorf("%s: %+v", got, state)
		}
		return nil
	})
}

// pulls waits until the kubelet pulls the pod's image.
func (p pod) pulls(t *testing.T) {
	t.Helper()
	livetest.Eventually(t, time.Minute, p.name+" pulls", func(ctx context.Context) error {
		list, err := client.CoreV1().Events(p.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Pulling,involvedObject.name=" + p.name})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is no such event")
		}
		return err
	})
}

// record is the part that is compared of what a kubelet notes of an image (KEP-2535).
type record struct {
	CredentialMapping map[string]struct {
		KubernetesSecrets         []struct{ Namespace, Name string }
		KubernetesServiceAccounts []struct{ Namespace, Name string }
		NodePodsAccessible        bool
	}
}

// notes returns for each image the namespaces whose secrets the kubelet has noted as those that open
// it, or everybody.
func notes(t *testing.T, node *cluster.Node) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	// As a node sees it: /var/lib/kubelet/image_manager/pulled.
	files, err := filepath.Glob(filepath.Join(node.Dir(), "root", "var/lib/kubelet/image_manager/pulled/sha256-*"))
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was replaced
		}
		must(t, err)
		var r record
		must(t, json.Unmarshal(text, &r))
		for image, opens := range r.CredentialMapping {
			if opens.NodePodsAccessible {
				found[image] = append(found[image], everybody)
			}
			for _, secret := range opens.KubernetesSecrets {
				found[image] = append(found[image], secret.Namespace)
			}
			for _, account := range opens.KubernetesServiceAccounts {
				found[image] = append(found[image], "account of "+account.Namespace)
			}
		}
	}
	return found
}

// noted waits until the kubelet has noted for the image the secrets of these namespaces, and no others.
func (s story) noted(t *testing.T, image string, namespaces ...string) {
	t.Helper()
	image, _, _ = strings.Cut(image, ":v1")
	slices.Sort(namespaces)
	livetest.Eventually(t, 30*time.Second, "records of "+image, func(context.Context) error {
		got := slices.Sorted(slices.Values(notes(t, s.node)[image]))
		if !slices.Equal(got, namespaces) {
			return fmt.Errorf("they have %v, want %v", got, namespaces)
		}
		return nil
	})
}

// populate makes the namespaces with their secrets and policies.
func populate(t *testing.T, d *door) {
	t.Helper()
	for namespace, login := range map[string]*[2]string{
		owner: {owner, passwordOf(owner)}, twin: {owner, passwordOf(owner)}, refused: {owner, passwordOf(owner)},
		wrong: {owner, "not the " + passwordOf(owner)}, other: {other, passwordOf(other)}, without: nil,
	} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
		if login != nil {
			_, err := client.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: secret}, Type: corev1.SecretTypeDockerConfigJson,
				Data: map[string][]byte{corev1.DockerConfigJsonKey: logins(t, d, login[0], login[1])},
			}, metav1.CreateOptions{})
			must(t, err)
		}
		livetest.Eventually(t, time.Minute, "service account of "+namespace, func(ctx context.Context) error {
			_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}
	policies := filepath.Join(c.Dir(), "config", "policies")
	must(t, os.MkdirAll(policies, 0o755))
	must(t, os.WriteFile(filepath.Join(policies, refused+".json"), []byte(`{"default":[{"type":"reject"}]}`), 0o644))
}

// logins is a file with the user and password for the door.
func logins(t *testing.T, d *door, user, password string) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"auths": map[string]any{d.address: map[string][]byte{"auth": []byte(user + ":" + password)}}})
	must(t, err)
	return text
}

// push pushes a team's image, of the base of that name and a layer of its own.
func push(t *testing.T, name, team string) *images.Pushed {
	t.Helper()
	return livetest.Push(t, c.Registry().Address+"/"+team+"/"+name+":v1", images.Image{
		Layers: []images.Layer{{Name: name, Size: baseBytes}, {Name: name + team, Size: ownBytes}},
	})
}

// common returns the large layer that both images have.
func common(t *testing.T, one, two *images.Pushed) v1.Descriptor {
	t.Helper()
	for _, layer := range one.Layers {
		if layer.Size >= baseBytes && slices.ContainsFunc(two.Layers, func(d v1.Descriptor) bool { return d.Digest == layer.Digest }) {
			return layer
		}
	}
	t.Fatal("the images have no base in common")
	return v1.Descriptor{}
}

// testProvider has a namespace without a secret pull with a file as crio-credential-provider writes
// it. For the kubelet that is a pull without credentials: it notes that everybody may have the image,
// and gives it to everybody on the node, whatever its policy.
func testProvider(t *testing.T, d *door) {
	const name = "provider"
	setting{policy: "AlwaysVerify"}.use(t, d)
	push(t, name, owner)
	image := d.address + "/" + owner + "/" + name
	for _, node := range c.Nodes() {
		t.Run("on "+node.Name, func(t *testing.T) {
			t.Parallel()
			s := story{door: d, node: node, pulls: corev1.PullIfNotPresent, name: name}
			write := node.Command("sh", "-c", fmt.Sprintf("mkdir -p /run/crio/auth && cat >/run/crio/auth/%s-%x.json", without, sha256.Sum256([]byte(image))))
			write.Stdin = bytes.NewReader(logins(t, d, owner, passwordOf(owner)))
			must(t, node.Run(t.Context(), write))

			s.start(t, without, "file", "", image+":v1").becomes(t, runs)
			s.noted(t, image+":v1", everybody)
			s.start(t, wrong, "no-file", secret, image+":v1").becomes(t, runs)
		})
	}
}

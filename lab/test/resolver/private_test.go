//go:build e2e

package resolver

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const user, password = "puller", "a-password-that-is-nowhere-else"

// TestPrivateImages asks a real registry with authentication, with the pull
// secrets of the pods' namespace.
func TestPrivateImages(t *testing.T) {
	for kind, authentication := range map[string]func(*testing.T) map[string]any{"basic": basicAuth, "token": tokenAuth} {
		t.Run(kind, func(t *testing.T) { testPrivate(t, kind, authentication(t)) })
	}
}

func testPrivate(t *testing.T, kind string, authentication map[string]any) {
	const holder = "n2"
	address, accessLog := startRegistry(t, authentication)
	good, bad := kind+"-right", kind+"-wrong"
	createSecret(t, metav1.NamespaceDefault, good, address, password)
	createSecret(t, metav1.NamespaceDefault, bad, address, "not-"+password)
	shared := base("private-" + kind)
	push := func(repository string) string {
		image, err := images.Build(images.Image{Layers: []images.Layer{shared, {Name: kind + repository, Size: ownBytes}}})
		must(t, err)
		reference, err := name.ParseReference(address+"/"+repository+":v1", name.Insecure)
		must(t, err)
		must(t, remote.Write(reference, image, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: user, Password: password})))
		return reference.String()
	}
	hold(t, scenario.Pod{Name: kind + "-holder", Image: push("team/holder"), Node: holder, PullSecret: good})

	t.Run("right secret", func(t *testing.T) {
		pod := scenario.Pod{Name: kind + "-right", Image: push("team/right"), Scheduler: scenario.Layers, PullSecret: good}
		announce(t, pod)
		must(t, lab.Resolved(t.Context(), pod.Image))
		must(t, lab.Present(t.Context(), pod.Image, holder, baseBytes))
		removeAtEnd(t, pod.Name)
		must(t, lab.Submit(t.Context(), pod))
		must(t, lab.Ready(t.Context(), pod.Name))
		nodes, err := lab.Placed(t.Context(), pod.Name)
		must(t, err)
		pulled, err := scenario.PulledFrom(c, accessLog, "team/right")
		must(t, err)
		t.Logf("%s, %s", nodes[pod.Name], livetest.Megabytes(pulled.Total()))
		if nodes[pod.Name] != holder || pulled.Total() < ownBytes || pulled.Total() > ownBytes+tolerance {
			t.Errorf("the base is on %s, the pod went to %s and %d bytes were pulled", holder, nodes[pod.Name], pulled.Total())
		}
	})

	t.Run("wrong secret", func(t *testing.T) {
		pod := scenario.Pod{Name: kind + "-wrong", Image: push("team/wrong"), Scheduler: scenario.Layers, PullSecret: bad}
		announce(t, pod)
		_, condition, err := lab.Failed(t.Context(), pod.Image, v1alpha1.ReasonUnauthorized)
		must(t, err)
		t.Logf("condition %s: %s", condition.Reason, condition.Message)
		if !strings.Contains(condition.Message, "it requires credentials") {
			t.Errorf("message %q, want what the registry answers to everybody", condition.Message)
		}
		note := event(t, pod.Name)
		t.Logf("event on the Deployment: %s", note)
		if !strings.Contains(note, "("+v1alpha1.ReasonUnauthorized+")") || !strings.Contains(note, "credentials, or other ones") {
			t.Errorf("event %q", note)
		}
		removeAtEnd(t, pod.Name)
		must(t, lab.Submit(t.Context(), pod))
		_, err = lab.Placed(t.Context(), pod.Name)
		must(t, err)

		// After another workload with the right one, the image is known.
		pod.Name, pod.PullSecret = kind+"-mended", good
		announce(t, pod)
		must(t, lab.Resolved(t.Context(), pod.Image))
	})

	t.Run("another namespace", func(t *testing.T) {
		// In a namespace where the role is not bound, the resolver reads no
		// secret.
		other := kind + "-other"
		_, err := lab.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{})
		must(t, err)
		createSecret(t, other, "right", address, password)
		deployment := scenario.Deployment("other", 0, scenario.Pod{Image: push("team/other"), PullSecret: "right"})
		deployment.Namespace = other
		_, err = lab.Client.AppsV1().Deployments(other).Create(t.Context(), deployment, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			if err := lab.Client.CoreV1().Namespaces().Delete(context.Background(), other, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		_, condition, err := lab.Failed(t.Context(), deployment.Spec.Template.Spec.Containers[0].Image, v1alpha1.ReasonUnauthorized)
		must(t, err)
		t.Logf("condition %s: %s", condition.Reason, condition.Message)
		if strings.Contains(condition.Message, other) {
			t.Errorf("the message %q, which other namespaces may read, names the secret", condition.Message)
		}
		note := eventIn(t, other, "other")
		if want := "pull secret " + other + "/right may not be read: bind the ClusterRole layer-resolver-pull-secrets"; !strings.Contains(note, want) {
			t.Errorf("event %q lacks %q", note, want)
		}
	})

	for _, log := range []string{c.Addon(addons.LayerResolver).Log(), c.Scheduler().Log()} {
		text, err := os.ReadFile(log)
		must(t, err)
		if encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + password)); strings.Contains(string(text), password) || strings.Contains(string(text), encoded) {
			t.Errorf("%s has the password", log)
		}
	}
}

// startRegistry runs the registry of the local cluster a second time, on this
// machine's address, until the end of the test.
func startRegistry(t *testing.T, authentication map[string]any) (address, accessLog string) {
	t.Helper()
	return startRegistryWith(t, authentication, nil)
}

// startRegistryWith is startRegistry with TLS; nil for plain HTTP.
func startRegistryWith(t *testing.T, authentication, tls map[string]any) (address, accessLog string) {
	t.Helper()
	address = freeAddress(t)
	dir := t.TempDir()
	listener := map[string]any{"addr": address}
	if tls != nil {
		listener["tls"] = tls
	}
	config, err := yaml.Marshal(map[string]any{
		"version": "0.1",
		"log":     map[string]any{"accesslog": map[string]any{"disabled": false}},
		"storage": map[string]any{"filesystem": map[string]any{"rootdirectory": filepath.Join(dir, "data")}},
		"http":    listener,
		"auth":    authentication,
	})
	must(t, err)
	path := filepath.Join(dir, "registry.yaml")
	must(t, os.WriteFile(path, config, 0o600))
	accessLog = filepath.Join(dir, "access.log")
	out, err := os.Create(accessLog)
	must(t, err)
	defer out.Close()
	log, err := os.Create(filepath.Join(dir, "registry.log"))
	must(t, err)
	defer log.Close()

	registry := exec.Command(c.Tool("registry"), "serve", path)
	registry.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	registry.Stdout, registry.Stderr = out, log
	must(t, registry.Start())
	t.Cleanup(func() {
		_ = registry.Process.Kill()
		_ = registry.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the registry's log ends with:\n%s", text[max(0, len(text)-2000):])
		}
	})
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			err = connection.Close()
		}
		return err
	}))
	return address, accessLog
}

// freeAddress returns an address and port of this machine in the cluster's network
// on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t, "0")
	must(t, listener.Close())
	return listener.Addr().String()
}

func listen(t *testing.T, port string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(c.HostAddress().String(), port))
	must(t, err)
	return listener
}

// basicAuth returns the registry's configuration of basic authentication.
func basicAuth(t *testing.T) map[string]any {
	path := filepath.Join(t.TempDir(), "htpasswd")
	writePassword(t, path, user, password)
	return map[string]any{"htpasswd": map[string]any{"realm": "private", "path": path}}
}

// writePassword writes the file of basic authentication, which the registry reads again when it
// has changed.
func writePassword(t *testing.T, path, user, password string) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	must(t, err)
	must(t, os.WriteFile(path, []byte(user+":"+string(hash)+"\n"), 0o600))
}

// tokenAuth starts a token server for the user, and returns the registry's
// configuration that trusts it (distribution specification, "token
// authentication").
func tokenAuth(t *testing.T) map[string]any {
	const issuer, service, key = "tokens.example", "registry.example", "the-key"
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	base64URL := base64.RawURLEncoding
	jwks, err := json.Marshal(map[string]any{"keys": []map[string]string{{"kty": "OKP", "crv": "Ed25519", "kid": key, "x": base64URL.EncodeToString(public)}}})
	must(t, err)
	path := filepath.Join(t.TempDir(), "jwks.json")
	must(t, os.WriteFile(path, jwks, 0o600))

	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if given, secret, ok := r.BasicAuth(); !ok || given != user || secret != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var access []map[string]any
		for _, scope := range r.URL.Query()["scope"] {
			if part := strings.Split(scope, ":"); len(part) == 3 {
				access = append(access, map[string]any{"type": part[0], "name": part[1], "actions": strings.Split(part[2], ",")})
			}
		}
		now := time.Now()
		token := jwt(private, map[string]any{"alg": "EdDSA", "typ": "JWT", "kid": key}, map[string]any{
			"iss": issuer, "aud": service, "sub": user, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
			"jti": fmt.Sprint(now.UnixNano()), "access": access,
		})
		_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300})
	})
	return map[string]any{"token": map[string]any{
		"realm": "http://" + address + "/token", "service": service, "issuer": issuer, "jwks": path,
	}}
}

// jwt returns a signed JSON web token.
func jwt(key ed25519.PrivateKey, parts ...map[string]any) string {
	var text []string
	for _, part := range parts {
		data, err := json.Marshal(part)
		if err != nil {
			panic(err)
		}
		text = append(text, base64.RawURLEncoding.EncodeToString(data))
	}
	signed := strings.Join(text, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

// serve serves on this machine's address in the cluster's network until the end of
// the test.
func serve(t *testing.T, handler http.HandlerFunc) (address string) {
	t.Helper()
	return serveOn(t, "0", handler)
}

func serveOn(t *testing.T, port string, handler http.HandlerFunc) (address string) {
	t.Helper()
	listener := listen(t, port)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func createSecret(t *testing.T, namespace, name, address, password string) {
	t.Helper()
	config, err := json.Marshal(map[string]any{"auths": map[string]any{address: map[string]string{"username": user, "password": password}}})
	must(t, err)
	_, err = lab.Client.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: config},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Client.CoreV1().Secrets(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) { // deleted with its namespace
			t.Error(err)
		}
	})
}

// event waits for the event on a Deployment or pod that its image is not known.
func event(t *testing.T, name string) (note string) {
	t.Helper()
	return eventIn(t, metav1.NamespaceDefault, name)
}

func eventIn(t *testing.T, namespace, name string) (note string) {
	t.Helper()
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		events, err := lab.Client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=ImageNotResolved"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == name && e.Type == corev1.EventTypeWarning {
				note = e.Note
				return nil
			}
		}
		return fmt.Errorf("no event ImageNotResolved on %s among %d", name, len(events.Items))
	}))
	return note
}

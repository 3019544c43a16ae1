package keychains

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
)

// TestKeyringAsKubelet: of generated pull secrets, the credentials for an image and their order are those of the kubelet
// (k8s.io/kubernetes/pkg/credentialprovider/secrets).
func TestKeyringAsKubelet(t *testing.T) {
	klog.SetLogger(logr.Discard()) // the kubelet logs what it ignores
	t.Cleanup(klog.ClearLogger)
	random := rand.New(rand.NewPCG(48, 5)) //nolint:gosec // chance, not secrets
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	images := [][2]string{
		{"docker.io", "library/nginx"}, {"docker.io", "team/app"}, {"reg.example.com", "team/app"}, {"reg.example.com", "other"},
		{"reg.example.com:5000", "team/app"}, {"reg.example.com:443", "team/app"}, {"a.reg.example.com", "x"}, {"10.0.0.1:5000", "x"},
	}
	matched := 0
	for range 3000 {
		user := 0
		config := func() map[string]any {
			auths, seen := map[string]any{}, []string{}
			for range random.IntN(5) {
				user++
				key := pick("", "https://", "http://") + pick("docker.io", "index.docker.io", "index.docker.io/v1/", "registry-1.docker.io", "reg.example.com", "reg.example.com:5000",
					"reg.example.com:443", "*.example.com", "*.*.example.com", "*.example.com:5000", "*", "REG.example.com", "10.0.0.1:5000", "not a registry", "") +
					pick("", "", "", "/", "/v1/", "/v2/", "/team", "/team/app", "/tea", "/library/nginx")
				// The kubelet tries what is for the same part of a name in the order of a map.
				same := strings.TrimRight(strings.NewReplacer("https://", "", "http://", "", "/v1/", "/", "/v2/", "/").Replace(key), "/")
				if slices.Contains(seen, same) {
					continue
				}
				seen = append(seen, same)
				switch name := fmt.Sprint("user", user); random.IntN(3) {
				case 0:
					auths[key] = map[string]string{"username": name, "password": "p:w"}
				case 1:
					auths[key] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(name + ":p:w"))}
				default:
					auths[key] = map[string]string{"username": "other", "password": "x", "auth": base64.StdEncoding.EncodeToString([]byte(name + ":pw"))}
				}
			}
			return auths
		}
		var ours Keyring
		var theirs []corev1.Secret
		for range 1 + random.IntN(3) {
			kind, key, content := corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, any(map[string]any{"auths": config()})
			if random.IntN(3) == 0 {
				kind, key, content = corev1.SecretTypeDockercfg, corev1.DockerConfigKey, config()
			}
			text, err := json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := ours.Add(kind, text); err != nil {
				t.Fatal(err)
			}
			theirs = append(theirs, corev1.Secret{Type: kind, Data: map[string][]byte{key: text}})
		}
		kubelet, err := secrets.MakeDockerKeyring(theirs, &credentialprovider.BasicDockerKeyring{})
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range images {
			var want, got []string
			known, _ := kubelet.Lookup(image[0] + "/" + image[1])
			for i := range known {
				if text := known[i].Username + " " + known[i].Password; !slices.Contains(want, text) {
					want = append(want, text)
				}
			}
			found, err := For(t.Context(), image[0], image[1], []authn.Keychain{&ours, NotAnonymously})
			for i := range found {
				got = append(got, found[i].Config.Username+" "+found[i].Config.Password)
			}
			if matched += len(want); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: %q, error %v; the kubelet has %q of %v", image, got, err, want, theirs)
			}
		}
	}
	if matched < 1000 {
		t.Errorf("only %d credentials were compared", matched)
	}
}

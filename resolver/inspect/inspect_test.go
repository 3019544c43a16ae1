package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/internal/registrytest"
)

var (
	base   = strings.Repeat("base", 250) // 1,000 bytes
	shared = strings.Repeat("shared", 10)
)

func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	client, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTable(t *testing.T) {
	r := registrytest.New(t)
	one, two := r.Image(base, shared, "one"), r.Image(base, shared, "second")
	image := r.Push("app:1", one)
	reference, index := r.PushIndex("app:2", map[string]v1.Image{"linux/amd64": two, "linux/arm64": r.Image("arm")})

	report, errs := Images(t.Context(), newClient(t, Options{RegistriesConf: r.Conf}), []string{image, reference}, []string{"linux/amd64"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	want := fmt.Sprintf(`%[1]s
manifest  %[3]s
  BYTES  LAYER
   1000  %[6]s
     60  %[7]s
      3  %[8]s
   1063  in 3 layers

%[2]s  linux/amd64
index     %[5]s
manifest  %[4]s
  BYTES  LAYER
   1000  %[6]s
     60  %[7]s
      6  %[9]s
   1066  in 3 layers

Shared on linux/amd64
  BYTES  LAYERS  IMAGES
   1060       2  %[1]s and %[2]s
   2129          all 2 images, each on its own
   1069          all 2 images, every layer once
`, image, reference, registrytest.Digest(t, one), registrytest.Digest(t, two), index,
		registrytest.Layer(t, base), registrytest.Layer(t, shared), registrytest.Layer(t, "one"), registrytest.Layer(t, "second"))
	var got bytes.Buffer
	if err := report.WriteTable(&got); err != nil || got.String() != want {
		t.Errorf("error %v, got\n%s\nwant\n%s", err, &got, want)
	}
}

func TestJSON(t *testing.T) {
	r := registrytest.New(t)
	images := map[string]v1.Image{"linux/amd64": r.Image(base, "x"), "linux/arm64": r.Image("arm base", "x")}
	reference, index := r.PushIndex("app:1", images)
	plain := r.Image(base, "plain")
	other := r.Push("other", plain)
	none := r.Push("none:1", r.Image("nothing in common"))

	report, errs := Images(t.Context(), newClient(t, Options{RegistriesConf: r.Conf}),
		[]string{"app:1", other + "@" + registrytest.Digest(t, plain), none}, []string{"linux/amd64", "linux/arm64"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	type entry struct {
		image, reference, index, platform, digest string
		size                                      int64
		layers                                    int
	}
	var entries []entry
	for _, i := range got.Images {
		entries = append(entries, entry{i.Image, i.Reference, i.Index, i.Platform, i.Digest, i.Size, len(i.Layers)})
	}
	byDigest := strings.TrimSuffix(other, ":latest") + "@" + registrytest.Digest(t, plain)
	noneDigest := registrytest.Digest(t, r.Image("nothing in common"))
	// The short name refers to the registry that registries.conf lists for
	// searching.
	if want := []entry{
		{"app:1", reference, index, "linux/amd64", registrytest.Digest(t, images["linux/amd64"]), 1001, 2},
		{"app:1", reference, index, "linux/arm64", registrytest.Digest(t, images["linux/arm64"]), 9, 2},
		{other + "@" + registrytest.Digest(t, plain), byDigest, "", "", registrytest.Digest(t, plain), 1005, 2},
		{none, none, "", "", noneDigest, 17, 1},
	}; !reflect.DeepEqual(entries, want) {
		t.Errorf("images:\ngot  %+v\nwant %+v", entries, want)
	}
	if want := []Comparison{
		{Platform: "linux/amd64", Sum: 1001 + 1005 + 17, Union: 1000 + 1 + 5 + 17, Pairs: []Pair{{Images: [2]string{reference, byDigest}, Layers: 1, Bytes: 1000}}},
		{Platform: "linux/arm64", Sum: 9 + 1005 + 17, Union: 9 + 1005 + 17, Pairs: []Pair{}},
	}; !reflect.DeepEqual(got.Comparisons, want) {
		t.Errorf("comparisons:\ngot  %+v\nwant %+v", got.Comparisons, want)
	}
}

// TestFailures: an image that fails gives an error, and the others are
// reported.
func TestFailures(t *testing.T) {
	r := registrytest.New(t)
	good := r.Push("good:1", r.Image(base))
	amd, _ := r.PushIndex("amd:1", map[string]v1.Image{"linux/amd64": r.Image("amd")})

	report, errs := Images(t.Context(), newClient(t, Options{RegistriesConf: r.Conf}),
		[]string{good, r.Host + "/missing:1", "Not A Name", amd}, []string{"linux/amd64", "linux/arm64"})
	var references []string
	for _, image := range report.Images {
		references = append(references, image.Reference)
	}
	if want := []string{good, amd}; !reflect.DeepEqual(references, want) {
		t.Errorf("images %q, want %q", references, want)
	}
	wants := []string{r.Host + "/missing:1: ", "Not A Name: ", amd + ": the index has no manifest for linux/arm64"}
	if len(errs) != len(wants) {
		t.Fatalf("errors %v", errs)
	}
	for i, want := range wants {
		if !strings.HasPrefix(errs[i].Error(), want) {
			t.Errorf("error %v, want %q", errs[i], want)
		}
	}
}

// TestCredentials: the user's credentials are used, or those of a file.
func TestCredentials(t *testing.T) {
	r := registrytest.New(t)
	image := r.Push("private:1", r.Image(base))
	r.WantPassword("user", "secret-word")
	config := func(password string) []byte {
		return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, r.Host, base64.StdEncoding.EncodeToString([]byte("user:"+password)))
	}
	right, wrong := filepath.Join(t.TempDir(), "any-name.json"), filepath.Join(t.TempDir(), "config.json")
	if err := errors.Join(os.WriteFile(right, config("secret-word"), 0o600), os.WriteFile(wrong, config("wrong-word"), 0o600)); err != nil {
		t.Fatal(err)
	}
	ask := func(dockerConfig string) error {
		client := newClient(t, Options{RegistriesConf: r.Conf, DockerConfig: dockerConfig})
		report, errs := Images(t.Context(), client, []string{image}, []string{"linux/amd64"})
		if len(errs) == 0 && (len(report.Images) != 1 || report.Images[0].Reference != image) {
			t.Errorf("no error, and the images %+v", report.Images)
		}
		return errors.Join(errs...)
	}
	if err := ask(""); err == nil || !strings.Contains(err.Error(), image) {
		t.Errorf("without credentials: error %v", err)
	}
	if err := ask(right); err != nil {
		t.Errorf("with a file: %v", err)
	}
	if err := ask(wrong); err == nil || strings.Contains(err.Error(), "wrong-word") {
		t.Errorf("wrong password: error %v", err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), config("secret-word"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(""); err != nil {
		t.Errorf("DOCKER_CONFIG: %v", err)
	}
}

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var (
	base   = strings.Repeat("base", 250) // 1,000 bytes
	shared = strings.Repeat("shared", 10)
)

func TestInspectTable(t *testing.T) {
	l := newLab(t)
	one, two := l.image(base, shared, "one"), l.image(base, shared, "second")
	image := l.push("app:1", one)
	reference, index := l.pushIndex("app:2", map[string]v1.Image{"linux/amd64": two, "linux/arm64": l.image("arm")})

	stdout, stderr, err := l.run(newInspectCommand(), nil, "--platform", "linux/amd64", image, reference)
	if err != nil || stderr != "" {
		t.Fatalf("error %v, %s", err, stderr)
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
`, image, reference, digest(t, one), digest(t, two), index, layer(t, base), layer(t, shared), layer(t, "one"), layer(t, "second"))
	if stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
}

func TestInspectJSON(t *testing.T) {
	l := newLab(t)
	images := map[string]v1.Image{"linux/amd64": l.image(base, "x"), "linux/arm64": l.image("arm base", "x")}
	reference, index := l.pushIndex("app:1", images)
	plain := l.image(base, "plain")
	other := l.push("other", plain)
	none := l.push("none:1", l.image("nothing in common"))

	stdout, _, err := l.run(newInspectCommand(), nil, "-o", "json",
		"--platform", "linux/amd64", "--platform", "linux/arm64", "app:1", other+"@"+digest(t, plain), none)
	if err != nil {
		t.Fatal(err)
	}
	var got inspection
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
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
	byDigest := strings.TrimSuffix(other, ":latest") + "@" + digest(t, plain)
	noneDigest := digest(t, l.image("nothing in common"))
	// The short name is of the registry that registries.conf searches.
	if want := []entry{
		{"app:1", reference, index, "linux/amd64", digest(t, images["linux/amd64"]), 1001, 2},
		{"app:1", reference, index, "linux/arm64", digest(t, images["linux/arm64"]), 9, 2},
		{other + "@" + digest(t, plain), byDigest, "", "", digest(t, plain), 1005, 2},
		{none, none, "", "", noneDigest, 17, 1},
	}; !reflect.DeepEqual(entries, want) {
		t.Errorf("images:\ngot  %+v\nwant %+v", entries, want)
	}
	if want := []comparison{
		{Platform: "linux/amd64", Sum: 1001 + 1005 + 17, Union: 1000 + 1 + 5 + 17, Pairs: []pair{{Images: [2]string{reference, byDigest}, Layers: 1, Bytes: 1000}}},
		{Platform: "linux/arm64", Sum: 9 + 1005 + 17, Union: 9 + 1005 + 17, Pairs: []pair{}},
	}; !reflect.DeepEqual(got.Comparisons, want) {
		t.Errorf("comparisons:\ngot  %+v\nwant %+v", got.Comparisons, want)
	}
}

func TestInspectFailures(t *testing.T) {
	l := newLab(t)
	good := l.push("good:1", l.image(base))
	amd, _ := l.pushIndex("amd:1", map[string]v1.Image{"linux/amd64": l.image("amd")})

	stdout, stderr, err := l.run(newInspectCommand(), nil, "--platform=linux/amd64,linux/arm64",
		good, l.host+"/missing:1", "Not A Name", amd)
	if err == nil || !strings.Contains(err.Error(), "3 failed") {
		t.Errorf("error %v", err)
	}
	for _, line := range []string{
		"Error: " + l.host + "/missing:1: ", `Error: Not A Name: `, "Error: " + amd + ": the index has no manifest for linux/arm64\n",
	} {
		if strings.Count(stderr, line) != 1 {
			t.Errorf("%q is not told once in\n%s", line, stderr)
		}
	}
	for _, image := range []string{good + "\n", amd + "  linux/amd64\n"} {
		if strings.Count(stdout, image) != 1 {
			t.Errorf("%q is not shown once in\n%s", image, stdout)
		}
	}

	for _, arguments := range [][]string{{}, {"-o", "yaml", good}, {"--platform", "amd64", good}, {"--platform", "linux/", good}, {"--docker-config", "/does/not/exist", good}, {"--registries-conf", "/does/not/exist", good}} {
		l.forget()
		if stdout, _, err := l.run(newInspectCommand(), nil, arguments...); err == nil || stdout != "" || len(l.questions()) > 0 {
			t.Errorf("%q: error %v, output %q, asked %v", arguments, err, stdout, l.questions())
		}
	}
}

// TestInspectCredentials: those of the user, or those of a file.
func TestInspectCredentials(t *testing.T) {
	l := newLab(t)
	image := l.push("private:1", l.image(base))
	l.user, l.password = "user", "secret-word"
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, l.host, base64.StdEncoding.EncodeToString([]byte("user:secret-word")))
	file := filepath.Join(t.TempDir(), "any-name.json")
	l.write(file, config)

	if _, stderr, err := l.run(newInspectCommand(), nil, image); err == nil || !strings.Contains(stderr, image) {
		t.Errorf("without credentials: error %v, %s", err, stderr)
	}
	if stdout, stderr, err := l.run(newInspectCommand(), nil, "--docker-config", file, image); err != nil || !strings.Contains(stdout, image) || strings.Contains(stdout+stderr, "secret-word") {
		t.Errorf("--docker-config: error %v, %s%s", err, stdout, stderr)
	}
	l.write(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), config)
	if _, stderr, err := l.run(newInspectCommand(), nil, image); err != nil {
		t.Errorf("DOCKER_CONFIG: error %v, %s", err, stderr)
	}
	l.write(file, strings.ReplaceAll(config, base64.StdEncoding.EncodeToString([]byte("user:secret-word")), base64.StdEncoding.EncodeToString([]byte("user:wrong-word"))))
	if stdout, stderr, err := l.run(newInspectCommand(), nil, "--docker-config", file, image); err == nil || strings.Contains(stdout+stderr+err.Error(), "wrong-word") {
		t.Errorf("wrong password: error %v, %s%s", err, stdout, stderr)
	}
}

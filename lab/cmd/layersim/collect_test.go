package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

var (
	base   = strings.Repeat("base", 250) // 1,000 bytes
	shared = strings.Repeat("shared", 10)
)

// collectFrom runs the command as at the shell.
func collectFrom(ctx context.Context, r *registrytest.Registry, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	c := command()
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SilenceUsage = true
	c.SetIn(stdin)
	c.SetArgs(append([]string{"collect", "--registries-conf", r.Conf}, args...))
	err = c.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

var must = testkit.Must

// TestCollect: what is collected is what lab/eval/dataset reads.
func TestCollect(t *testing.T) {
	r := registrytest.New(t)
	app, other := r.Image(base, shared, "app"), r.Image(base, "other")
	index := map[string]v1.Image{"linux/amd64": r.Image(base, "amd"), "linux/arm64": r.Image(base, "arm")}
	stable, latest := r.Push("app:stable", app), r.Push("app:latest", app)
	multi, _ := r.PushIndex("multi:1", index)
	pinned := strings.TrimSuffix(r.Push("other:1", other), ":1") + "@" + registrytest.Digest(t, other)

	want := []dataset.Image{
		{Image: latest, Digest: registrytest.Digest(t, app), Aliases: []string{stable},
			Layers: []dataset.Layer{{Digest: registrytest.Layer(t, base), Size: 1000}, {Digest: registrytest.Layer(t, shared), Size: 60}, {Digest: registrytest.Layer(t, "app"), Size: 3}}},
		{Image: multi, Digest: registrytest.Digest(t, index["linux/amd64"]),
			Layers: []dataset.Layer{{Digest: registrytest.Layer(t, base), Size: 1000}, {Digest: registrytest.Layer(t, "amd"), Size: 3}}},
		{Image: pinned, Digest: registrytest.Digest(t, other),
			Layers: []dataset.Layer{{Digest: registrytest.Layer(t, base), Size: 1000}, {Digest: registrytest.Layer(t, "other"), Size: 5}}},
	}
	dir := t.TempDir()
	plain, compressed := filepath.Join(dir, "images.jsonl"), filepath.Join(dir, "images.jsonl.gz")
	must(t, os.WriteFile(plain, []byte("what was there before"), 0o600))
	for _, run := range []struct {
		output, stdin string
		args          []string
	}{
		{plain, "# comment\n\n" + pinned + "\n  " + multi + "\n", []string{stable, "-", "app"}}, // app:latest, by its short name
		{compressed, "", []string{pinned, multi, latest, stable, stable}},
	} {
		r.Forget()
		stdout, stderr, err := collectFrom(t.Context(), r, strings.NewReader(run.stdin), append(run.args, "-o", run.output)...)
		if err != nil || stdout != "" || stderr != "3 images written; registries were asked about 4; 0 failed\n" {
			t.Errorf("%s: error %v, output %q, %s", run.output, err, stdout, stderr)
		}
		if got, err := dataset.Load(run.output); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: error %v\ngot  %+v\nwant %+v", run.output, err, got, want)
		}
		for question, n := range r.Questions() {
			if n != 1 {
				t.Errorf("%s was asked %d times", question, n)
			}
		}
	}

	// The same images, the same bytes, whatever the order.
	text, err := os.ReadFile(plain)
	must(t, err)
	file, err := os.Open(compressed)
	must(t, err)
	defer file.Close()
	reader, err := gzip.NewReader(file)
	must(t, err)
	if inside, err := io.ReadAll(reader); err != nil || string(inside) != string(text) || !reader.ModTime.IsZero() {
		t.Errorf("compressed: error %v, time %v\n%s\nplain\n%s", err, reader.ModTime, inside, text)
	}
	stdout, _, err := collectFrom(t.Context(), r, nil, multi, pinned, stable, latest)
	if err != nil || stdout != string(text) {
		t.Errorf("standard output: error %v\n%s", err, stdout)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}

	// Another platform is another manifest.
	stdout, _, err = collectFrom(t.Context(), r, nil, "--platform", "linux/arm64", multi)
	if got, readErr := dataset.Read(strings.NewReader(stdout)); err != nil || readErr != nil || got[0].Digest != registrytest.Digest(t, index["linux/arm64"]) {
		t.Errorf("arm64: error %v, %v, got %+v", err, readErr, got)
	}
}

func TestCollectFailures(t *testing.T) {
	r := registrytest.New(t)
	good, empty := r.Push("good:1", r.Image(base)), r.Push("empty:1", r.Image())
	file := filepath.Join(t.TempDir(), "images.jsonl")

	_, stderr, err := collectFrom(t.Context(), r, nil, "-o", file, r.Host+"/missing:1", good, "Not A Name", empty)
	if err == nil {
		t.Error("no error although images are missing")
	}
	for _, line := range []string{"error: " + r.Host + "/missing:1: ", "error: Not A Name: ", "error: " + empty + ": the image has no layers\n", "1 images written; registries were asked about 3; 3 failed\n"} {
		if strings.Count(stderr, line) != 1 {
			t.Errorf("%q is not once in\n%s", line, stderr)
		}
	}
	if got, err := dataset.Load(file); err != nil || len(got) != 1 || got[0].Image != good {
		t.Errorf("written: %+v, error %v", got, err)
	}

	// Nothing to write: what was there stays.
	must(t, os.WriteFile(file, []byte("before"), 0o600))
	if _, stderr, err := collectFrom(t.Context(), r, nil, "-o", file, empty); err == nil || !strings.Contains(stderr, "0 images written") {
		t.Errorf("error %v, %s", err, stderr)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "before" {
		t.Errorf("file is %q, error %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := collectFrom(ctx, r, nil, "-o", file, good); err == nil || !strings.Contains(err.Error(), "nothing is written") {
		t.Errorf("interrupted: error %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "before" {
		t.Errorf("file is %q, error %v", text, err)
	}

	for _, arguments := range [][]string{{}, {"--platform", "arm64", good}, {"-o", t.TempDir(), good}, {"-o", os.DevNull, good}, {"--from-cluster", "--kubeconfig", "/does/not/exist"}} {
		r.Forget()
		if stdout, _, err := collectFrom(t.Context(), r, nil, arguments...); err == nil || stdout != "" || len(r.Questions()) > 0 {
			t.Errorf("%q: error %v, output %q, asked %v", arguments, err, stdout, r.Questions())
		}
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%s is %v, error %v", os.DevNull, info, err)
	}
}

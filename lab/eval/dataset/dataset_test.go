package dataset

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const validDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestRead(t *testing.T) {
	for name, tc := range map[string]struct{ input, err string }{
		"empty":          {"", "no images"},
		"blank lines":    {"\n\n", "no images"},
		"no JSON":        {"image", "line 1 is not an image"},
		"no name":        {`{"layers":[]}`, `line 1: "image" is missing`},
		"no layers":      {`{"image":"a"}`, `line 1: a has no "layers"`},
		"digest":         {`{"image":"a","layers":[{"digest":"sha256:0","size":1}]}`, `line 1: a: layer "sha256:0": invalid`},
		"imageID":        {`{"image":"a","imageID":"x","layers":[{"digest":"` + validDigest + `","size":1}]}`, `line 1: a: imageID "x": invalid`},
		"negative size":  {`{"image":"a","layers":[{"digest":"` + validDigest + `","size":-1}]}`, "has the negative size -1"},
		"second line":    {`{"image":"a","layers":[{"digest":"` + validDigest + `","size":1}]}` + "\n{", "line 2 is not an image"},
		"line too long":  {strings.Repeat(" ", maxLine+1), "line 1: bufio.Scanner: token too long"},
		"size too large": {`{"image":"a","layers":[{"digest":"` + validDigest + `","size":1e30}]}`, "line 1 is not an image"},
	} {
		t.Run(name, func(t *testing.T) {
			images, err := Read(strings.NewReader(tc.input))
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v and error %v, want error %q", images, err, tc.err)
			}
		})
	}

	images, err := Read(strings.NewReader(`
{"image":"a:1","digest":"` + validDigest + `","imageID":"` + validDigest + `","aliases":["a:2"],"first_seen":"2016-09-09T21:27:07Z","size":7,"layers":[{"digest":"` + validDigest + `","size":7}]}`))
	want := []Image{{
		Image: "a:1", Digest: validDigest, ImageID: validDigest, Aliases: []string{"a:2"}, FirstSeen: time.Date(2016, 9, 9, 21, 27, 7, 0, time.UTC),
		Layers: []Layer{{validDigest, 7}},
	}}
	if err != nil || !reflect.DeepEqual(images, want) {
		t.Errorf("got %v, %v, want %v", images, err, want)
	}
}

func TestWrite(t *testing.T) {
	images := Generate(rand.New(rand.NewPCG(1, 1)), 100)
	images[6].ImageID, images[6].FirstSeen = validDigest, time.Date(2016, 9, 9, 21, 27, 7, 0, time.UTC)
	images[7].Aliases = []string{"registry.example/library/image-7:1", "registry.example/library/image-7:<&>"}
	var text bytes.Buffer
	if err := Write(&text, images); err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(text.Bytes(), []byte("\n")); lines != len(images) {
		t.Errorf("%d lines", lines)
	}
	plain := filepath.Join(t.TempDir(), "images.jsonl")
	if err := os.WriteFile(plain, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(text.Bytes()); err != nil || writer.Close() != nil {
		t.Fatal("cannot compress")
	}
	if err := os.WriteFile(plain+".gz", compressed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{plain, plain + ".gz"} {
		if read, err := Load(name); err != nil || !reflect.DeepEqual(read, images) {
			t.Errorf("%s: read %d images of %d, error %v", name, len(read), len(images), err)
		}
	}
	// Named as if compressed, but not.
	if err := os.WriteFile(plain+".gz", text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(plain + ".gz"); !errors.Is(err, gzip.ErrHeader) {
		t.Errorf("got error %v", err)
	}

	for name, image := range map[string]Image{
		"no name":   {Layers: images[0].Layers},
		"no layers": {Image: "a"},
		"digest":    {Image: "a", Layers: []Layer{{Digest: "sha256:0"}}},
		"too long":  {Image: strings.Repeat("a", maxLine), Layers: images[0].Layers},
	} {
		text.Reset()
		if err := Write(&text, []Image{images[0], image, images[1]}); err == nil || bytes.Count(text.Bytes(), []byte("\n")) != 1 {
			t.Errorf("%s: error %v, written %q", name, err, text.Bytes())
		}
	}
}

func TestFromEnv(t *testing.T) {
	t.Setenv(Env, "/does/not/exist")
	if _, _, err := FromEnv(); err == nil || !strings.Contains(err.Error(), Env) {
		t.Errorf("got error %v, want one that names %s", err, Env)
	}
	t.Setenv(Env, "")
	images, source, err := FromEnv()
	if err != nil || source != "generated" || len(images) != 1000 {
		t.Errorf("got %d images, source %q, error %v", len(images), source, err)
	}
}

func TestDraw(t *testing.T) {
	images := Generate(rand.New(rand.NewPCG(1, 1)), 60)
	draw := func(seed uint64, n int) []Image { return Draw(rand.New(rand.NewPCG(seed, 0)), images, n) }
	drawn := draw(1, 50)
	names := map[string]bool{}
	for _, image := range drawn {
		names[image.Image] = true
	}
	if len(drawn) != 50 || len(names) != 50 {
		t.Errorf("%d images, %d different ones", len(drawn), len(names))
	}
	if !reflect.DeepEqual(drawn, draw(1, 50)) {
		t.Error("the same seed draws others")
	}
	if reflect.DeepEqual(drawn, draw(2, 50)) {
		t.Error("another seed draws the same")
	}
	if all := draw(1, 100); len(all) != len(images) {
		t.Errorf("%d of %d images", len(all), len(images))
	}
}

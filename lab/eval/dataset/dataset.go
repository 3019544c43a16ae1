// Package dataset provides image manifests for measurements: real ones from a
// file, or generated ones that resemble real ones statistically.
package dataset

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Env names the environment variable with the file of FromEnv.
const Env = "LAYER_DATA"

// maxLine bounds one line of a file, maxBytes the whole file, uncompressed.
const (
	maxLine  = 1 << 20
	maxBytes = 1 << 30
)

// Layer is a layer as a manifest lists it.
type Layer struct {
	Digest string `json:"digest"`
	// Size is in compressed bytes.
	Size int64 `json:"size"`
}

// Image is an image with its layers in the order of the manifest, base first.
type Image struct {
	// Image is the name, with the tag, under which it was read.
	Image string `json:"image"`
	// Digest of the manifest.
	Digest string `json:"digest,omitempty"`
	// ImageID is the digest of the configuration. It distinguishes versions of a
	// tag when the manifest is not known. Moves refer to images by it.
	ImageID string `json:"imageID,omitempty"`
	// FirstSeen is when the image was published or first seen.
	FirstSeen time.Time `json:"first_seen,omitzero"`
	// Aliases are other names of the same image.
	Aliases []string `json:"aliases,omitempty"`
	Layers  []Layer  `json:"layers"`
}

// FromEnv returns the images of the file in LAYER_DATA, or 1,000 generated ones
// if it is not set. source is the file, or "generated".
func FromEnv() (images []Image, source string, err error) {
	name := os.Getenv(Env)
	if name == "" {
		return Generate(rand.New(rand.NewPCG(1, 1)), 1000), "generated", nil
	}
	if images, err = Load(name); err != nil {
		return nil, "", fmt.Errorf("the images of %s: %w", Env, err)
	}
	return images, name, nil
}

// Load reads images from a file of JSON lines, compressed if its name ends in
// .gz.
func Load(name string) ([]Image, error) { return load(name, Read) }

// Read reads images from JSON lines, one image per line; blank lines are ignored.
func Read(r io.Reader) ([]Image, error) { return read[Image](r, "image") }

// Write writes images as Read reads them. It stops before the first image that
// Read would refuse.
func Write(w io.Writer, images []Image) error {
	for _, image := range images {
		if err := image.validate(); err != nil {
			return err
		}
		line, err := json.Marshal(image)
		if err != nil {
			return fmt.Errorf("%v: %w", image, err)
		}
		if len(line) >= maxLine {
			return fmt.Errorf("%.100s...: its %d bytes are more than a line may have", line, len(line))
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// record is the content of a line.
type record interface {
	// validate returns what is wrong with a record, and names the record.
	validate() error
}

// load reads a file that may be compressed.
func load[T record](name string, read func(io.Reader) ([]T, error)) ([]T, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	records, err := read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return records, nil
}

// read reads one record per line; "what" is what errors call a record.
func read[T record](r io.Reader, what string) ([]T, error) {
	var records []T
	left := &io.LimitedReader{R: r, N: maxBytes + 1}
	lines := bufio.NewScanner(left)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		if left.N == 0 {
			return nil, fmt.Errorf("line %d: more than %d bytes: split the file", n, maxBytes)
		}
		if len(lines.Bytes()) == 0 {
			continue
		}
		var record T
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("line %d is not an %s: %w", n, what, err)
		}
		if err := record.validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		records = append(records, record)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("no %ss: one JSON object a line expected", what)
	}
	return records, nil
}

func (i Image) validate() error {
	if i.Image == "" {
		return errors.New(`"image" is missing`)
	}
	if len(i.Layers) == 0 {
		return fmt.Errorf(`%s has no "layers"`, i.Image)
	}
	if i.ImageID != "" {
		if err := digest.Digest(i.ImageID).Validate(); err != nil {
			return fmt.Errorf("%s: imageID %q: %w", i.Image, i.ImageID, err)
		}
	}
	for _, layer := range i.Layers {
		if err := digest.Digest(layer.Digest).Validate(); err != nil {
			return fmt.Errorf("%s: layer %q: %w", i.Image, layer.Digest, err)
		}
		if layer.Size < 0 {
			return fmt.Errorf("%s: layer %s has the negative size %d", i.Image, layer.Digest, layer.Size)
		}
	}
	return nil
}

// Draw returns n different images, or all in another order if there are fewer.
func Draw(r *rand.Rand, images []Image, n int) []Image {
	drawn := make([]Image, 0, min(n, len(images)))
	for _, i := range r.Perm(len(images))[:min(n, len(images))] {
		drawn = append(drawn, images[i])
	}
	return drawn
}

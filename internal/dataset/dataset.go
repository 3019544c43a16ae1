// Package dataset provides image manifests to measure with: real ones from a
// file, or generated ones with the statistics that matter of real ones.
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

	"github.com/opencontainers/go-digest"
)

// Env names the environment variable with the file of FromEnv.
const Env = "LAYER_DATA"

// maxLine bounds one image of a file.
const maxLine = 1 << 20

// Layer is a layer as a manifest lists it.
type Layer struct {
	Digest string `json:"digest"`
	// Size is in compressed bytes.
	Size int64 `json:"size"`
}

// Image is an image with its layers in the order of the manifest, base first.
type Image struct {
	// Image is the name with the tag it was read by.
	Image string `json:"image"`
	// Digest of the manifest.
	Digest string `json:"digest,omitempty"`
	// Aliases are other names of the same image.
	Aliases []string `json:"aliases,omitempty"`
	Layers  []Layer  `json:"layers"`
}

// FromEnv returns the images of the file in LAYER_DATA, or 1,000 generated
// ones if that is not set, and says which.
func FromEnv() (images []Image, source string, err error) {
	name := os.Getenv(Env)
	if name == "" {
		return Generate(rand.New(rand.NewPCG(1, 1)), 1000), "generated", nil
	}
	images, err = Load(name)
	return images, name, err
}

// Load reads images from a file of JSON lines, compressed if its name ends in
// .gz.
func Load(name string) ([]Image, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot open the images of %s: %w", Env, err)
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	images, err := Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return images, nil
}

// Read reads images from JSON lines, one an image; blank lines do not count.
func Read(r io.Reader) ([]Image, error) {
	var images []Image
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var image Image
		if err := json.Unmarshal(lines.Bytes(), &image); err != nil {
			return nil, fmt.Errorf("line %d is not an image: %w", n, err)
		}
		if err := image.validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		images = append(images, image)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if len(images) == 0 {
		return nil, errors.New("no images: one JSON object a line expected")
	}
	return images, nil
}

// Write writes images as Read reads them. It writes nothing of an image that Read
// would refuse, and nothing after it.
func Write(w io.Writer, images []Image) error {
	for _, image := range images {
		if err := image.validate(); err != nil {
			return err
		}
		line, err := json.Marshal(image)
		if err != nil {
			return fmt.Errorf("%s: %w", image.Image, err)
		}
		if len(line) >= maxLine {
			return fmt.Errorf("%s: its %d bytes are more than a line may have", image.Image, len(line))
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (i Image) validate() error {
	if i.Image == "" {
		return errors.New(`"image" is missing`)
	}
	if len(i.Layers) == 0 {
		return fmt.Errorf(`%s has no "layers"`, i.Image)
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

// Draw returns n different images, or all in another order if there are less.
func Draw(r *rand.Rand, images []Image, n int) []Image {
	drawn := make([]Image, 0, min(n, len(images)))
	for _, i := range r.Perm(len(images))[:min(n, len(images))] {
		drawn = append(drawn, images[i])
	}
	return drawn
}

package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
)

// NodeImage is an image in the list of NodeLayers.
type NodeImage struct {
	// Layers are the places of its layers in the list of layers, in the order of its
	// manifest, the base first.
	Layers []int
	// Names are tags and digests.
	Names []string
}

// String returns the image as NodeLayers list it. It is not valid without a name.
func (i NodeImage) String() string {
	var text strings.Builder
	for n, place := range i.Layers {
		if n > 0 {
			text.WriteByte(',')
		}
		text.WriteString(strconv.Itoa(place))
	}
	if len(i.Layers) == 0 {
		text.WriteByte('-')
	}
	for _, name := range i.Names {
		text.WriteByte(' ')
		text.WriteString(name)
	}
	return text.String()
}

// ParseNodeImage reads what NodeImage.String wrote. The places are below layers, the length
// of the list of layers.
func ParseNodeImage(text string, layers int) (NodeImage, error) {
	invalid := func(why string) error {
		return fmt.Errorf("image %.100q: %s: want \"<places of layers, or -> <names>\"", text, why)
	}
	if len(text) > MaxNodeImageLength {
		return NodeImage{}, invalid(fmt.Sprintf("%d characters, at most %d are possible", len(text), MaxNodeImageLength))
	}
	fields := strings.Split(text, " ")
	if len(fields) < 2 {
		return NodeImage{}, invalid("it has no name")
	}
	image := NodeImage{Names: fields[1:]}
	if len(image.Names) > MaxNodeImageNames {
		return NodeImage{}, invalid(fmt.Sprintf("%d names, at most %d are possible", len(image.Names), MaxNodeImageNames))
	}
	for _, name := range image.Names {
		if !IsNodeImageName(name) {
			return NodeImage{}, invalid(fmt.Sprintf("%.50q is no name", name))
		}
	}
	if fields[0] == "-" {
		return image, nil
	}
	count := strings.Count(fields[0], ",") + 1
	if count > MaxLayers {
		return NodeImage{}, invalid(fmt.Sprintf("%d layers, at most %d are possible", count, MaxLayers))
	}
	image.Layers = make([]int, 0, count)
	for number := range strings.SplitSeq(fields[0], ",") {
		place, ok := decimal(number, int64(layers)-1)
		if !ok {
			return NodeImage{}, invalid(fmt.Sprintf("there is no layer %.20q", number))
		}
		image.Layers = append(image.Layers, int(place))
	}
	return image, nil
}

// IsNodeImageName reports whether a text can be a name in a list: no spaces, and nothing that takes
// more than a byte in JSON.
func IsNodeImageName(text string) bool {
	if text == "" || len(text) > MaxNodeNameLength {
		return false
	}
	for i := range len(text) {
		switch c := text[i]; {
		case c <= ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// String returns the layer as NodeLayers list it.
func (l ImageLayer) String() string { return l.Digest + " " + strconv.FormatInt(l.Size, 10) }

// ParseLayer reads what ImageLayer.String wrote.
func ParseLayer(text string) (ImageLayer, error) {
	digest, size, _ := strings.Cut(text, " ")
	bytes, ok := decimal(size, MaxLayerBytes)
	if !ok || !IsDigest(digest) {
		return ImageLayer{}, fmt.Errorf("layer %.170q: want \"<digest> <bytes>\", with a digest of sha256 or sha512 and at most %d bytes", text, int64(MaxLayerBytes))
	}
	return ImageLayer{Digest: digest, Size: bytes}, nil
}

// IsDigest reports whether a text is a digest as the schema allows it: of sha256 or sha512, in
// lower-case hexadecimal digits.
func IsDigest(text string) bool {
	algorithm, encoded, _ := strings.Cut(text, ":")
	switch {
	case algorithm == "sha256" && len(encoded) == 64, algorithm == "sha512" && len(encoded) == 128:
		for _, c := range []byte(encoded) { // a set of strings.Trim takes six times as long
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
		return true
	}
	return false
}

// decimal reads a number without sign, as strconv.Itoa writes it, from 0 to most.
func decimal(text string, most int64) (n int64, ok bool) {
	if len(text) == 0 || len(text) > 13 || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, n <= most
}

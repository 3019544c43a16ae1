package v1alpha1

import (
	"reflect"
	"strings"
	"testing"
)

var digestOfA = "sha256:" + strings.Repeat("a", 64)

func TestNodeImage(t *testing.T) {
	for text, want := range map[string]NodeImage{
		"- quay.io/a/b:1":                        {Names: []string{"quay.io/a/b:1"}},
		"0 " + digestOfA:                         {Layers: []int{0}, Names: []string{digestOfA}},
		"4,0,4 quay.io/a/b:1 quay.io/a/b:latest": {Layers: []int{4, 0, 4}, Names: []string{"quay.io/a/b:1", "quay.io/a/b:latest"}},
	} {
		got, err := ParseNodeImage(text, 5)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	for text, why := range map[string]string{
		"":           "no name",
		"0":          "no name",
		"-":          "no name",
		"0 ":         `"" is no name`,
		"0  a":       `"" is no name`,
		"0 a\x1b[2J": `is no name`,
		"0 é":        `is no name`,
		"0 <a>":      `is no name`,
		"-" + strings.Repeat(" a", MaxNodeImageNames+1): "17 names",
		"- " + strings.Repeat("a", MaxNodeNameLength+1): "is no name",
		"5 a":                                   `no layer "5"`,
		"-1 a":                                  `no layer "-1"`,
		"1,,2 a":                                `no layer ""`,
		"01 a":                                  `no layer "01"`,
		"+1 a":                                  `no layer "+1"`,
		"a a":                                   `no layer "a"`,
		" a":                                    `no layer ""`,
		"1234567890123":                         "no name",
		strings.Repeat("0,", MaxLayers) + "0 a": "513 layers",
		"- " + strings.Repeat("a", MaxNodeImageLength): "8194 characters",
	} {
		if _, err := ParseNodeImage(text, 5); err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 300 {
			t.Errorf("%.30q: %v, want %s", text, err, why)
		}
	}
}

func TestLayer(t *testing.T) {
	sha512 := "sha512:" + strings.Repeat("0123456789abcdef", 8)
	for text, want := range map[string]ImageLayer{
		digestOfA + " 0":             {Digest: digestOfA},
		digestOfA + " 1099511627776": {Digest: digestOfA, Size: MaxLayerBytes},
		sha512 + " 32":               {Digest: sha512, Size: 32},
	} {
		got, err := ParseLayer(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", digestOfA, digestOfA + " ", digestOfA + " -1", digestOfA + " 1 ", digestOfA + "  1", digestOfA + " 1099511627777", digestOfA + " 99999999999999",
		strings.ToUpper(digestOfA) + " 1", "sha256:" + strings.Repeat("g", 64) + " 1", "sha512:" + strings.Repeat("a", 64) + " 1", "md5:" + strings.Repeat("a", 64) + " 1", strings.Repeat("x", 10_000),
	} {
		if got, err := ParseLayer(text); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.30q: %+v, %v", text, got, err)
		}
	}
}

// FuzzNodeImage: what is read is written in the same way.
func FuzzNodeImage(f *testing.F) {
	for _, text := range []string{"- a", "0,1 a b", "1,0 " + digestOfA, "9 a", "0, a", "00 a", digestOfA + " 5"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if image, err := ParseNodeImage(text, 2); err == nil && image.String() != text {
			t.Errorf("%q became %q", text, image)
		}
		if layer, err := ParseLayer(text); err == nil && layer.String() != text {
			t.Errorf("%q became %q", text, layer)
		}
	})
}

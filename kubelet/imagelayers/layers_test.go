/*
Copyright The Kubernetes Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package imagelayers

import (
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// sha returns the digest that has n as its last digits.
func sha(n int) string {
	s := strconv.Itoa(n)
	return "sha256:" + strings.Repeat("0", 64-len(s)) + s
}

func annotations(pairs ...string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := 0; i < len(pairs); i += 2 {
			if !yield(pairs[i], pairs[i+1]) {
				return
			}
		}
	}
}

func TestParse(t *testing.T) {
	a, b := sha(1), sha(2)
	valid := AnnotationPrefix + a
	sha512 := "sha512:" + strings.Repeat("f", 128)
	for name, tc := range map[string]struct {
		annotations []string
		want        []Layer
	}{
		"no annotations":       {nil, nil},
		"another annotation":   {[]string{"org.opencontainers.image.title", "1"}, nil},
		"one layer":            {[]string{valid, "42"}, []Layer{{a, 42}}},
		"sorted by digest":     {[]string{AnnotationPrefix + b, "1", valid, "2"}, []Layer{{a, 2}, {b, 1}}},
		"another algorithm":    {[]string{AnnotationPrefix + sha512, "1"}, []Layer{{sha512, 1}}},
		"empty layer":          {[]string{valid, "0"}, []Layer{{a, 0}}},
		"leading zeros":        {[]string{valid, "007"}, []Layer{{a, 7}}},
		"largest size":         {[]string{valid, "9223372036854775807"}, []Layer{{a, math.MaxInt64}}},
		"first of a name":      {[]string{valid, "1", valid, "2"}, []Layer{{a, 1}}},
		"valid among invalid":  {[]string{AnnotationPrefix, "1", valid, "2", AnnotationPrefix + b, "x"}, []Layer{{a, 2}}},
		"size overflows":       {[]string{valid, "9223372036854775808"}, nil},
		"size negative":        {[]string{valid, "-1"}, nil},
		"size with plus":       {[]string{valid, "+1"}, nil},
		"size empty":           {[]string{valid, ""}, nil},
		"size with space":      {[]string{valid, " 1"}, nil},
		"size with newline":    {[]string{valid, "1\n"}, nil},
		"size hexadecimal":     {[]string{valid, "0x10"}, nil},
		"size with underscore": {[]string{valid, "1_000"}, nil},
		"size with fraction":   {[]string{valid, "1.0"}, nil},
		"size with exponent":   {[]string{valid, "1e3"}, nil},
		"size in other digits": {[]string{valid, "١"}, nil},
		"prefix only":          {[]string{AnnotationPrefix, "1"}, nil},
		"prefix in other case": {[]string{"imagelayer." + a, "1"}, nil},
		"no algorithm":         {[]string{AnnotationPrefix + strings.TrimPrefix(a, "sha256:"), "1"}, nil},
		"unknown algorithm":    {[]string{AnnotationPrefix + "md5:" + strings.Repeat("0", 32), "1"}, nil},
		"digest too short":     {[]string{AnnotationPrefix + a[:len(a)-1], "1"}, nil},
		"digest too long":      {[]string{valid + "0", "1"}, nil},
		"digest upper case":    {[]string{AnnotationPrefix + "sha256:" + strings.Repeat("A", 64), "1"}, nil},
		"digest not hex":       {[]string{AnnotationPrefix + "sha256:" + strings.Repeat("g", 64), "1"}, nil},
		"digest with space":    {[]string{AnnotationPrefix + " " + a, "1"}, nil},
		"digest with newline":  {[]string{valid + "\n", "1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Parse(annotations(tc.annotations...)); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseIsBounded(t *testing.T) {
	read := 0
	layers := Parse(func(yield func(string, string) bool) {
		for {
			read++
			if !yield(AnnotationPrefix+sha(read), "1") {
				return
			}
		}
	})
	if len(layers) != MaxLayersPerImage || read != MaxLayersPerImage+1 {
		t.Errorf("got %d layers from %d annotations, want %d and one annotation more", len(layers), read, MaxLayersPerImage)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(AnnotationPrefix+sha(1), "1", AnnotationPrefix+sha(2), "2")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		layers := Parse(annotations(name1, value1, name2, value2))
		if !slices.IsSortedFunc(layers, byDigest) {
			t.Errorf("not sorted: %v", layers)
		}
		given := map[string]string{name2: value2}
		given[name1] = value1 // the first of a name counts
		for i, l := range layers {
			if i > 0 && layers[i-1].Digest == l.Digest {
				t.Errorf("twice: %v", l)
			}
			if digest.Digest(l.Digest).Validate() != nil || l.SizeBytes < 0 {
				t.Errorf("invalid: %v", l)
			}
			value, ok := given[AnnotationPrefix+l.Digest]
			if !ok {
				t.Fatalf("%v was not given", l)
			}
			// Leading zeros are the only other way to write a size. A name that
			// was given twice counts with the first valid value.
			if trimmed := strings.TrimLeft(value, "0"); name1 != name2 && cmpSize(trimmed) != l.SizeBytes {
				t.Errorf("%v was given with %q", l, value)
			}
		}
	})
}

// cmpSize reads digits without help, so as not to test a function with itself.
func cmpSize(digits string) (n int64) {
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

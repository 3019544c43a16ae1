package collect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// eachNodeLayers calls f with the objects of a list, and returns how many there are. NodeLayers consist of
// two lists of texts, and a large cluster has 300 MB of them. encoding/json goes through them twice, byte by
// byte, so these two lists are taken out here; it reads all the rest. Of the lists, only what is wanted becomes a
// text: images that are not are left out, layers are empty, since images have their places.
func eachNodeLayers(text []byte, of *wanted, f func(*v1alpha1.NodeLayers)) (count int, err error) {
	s := &scanner{text: text}
	var rest remainder
	s.object(func(key []byte) {
		if string(key) != `"items"` || s.next() != '[' {
			rest.add(key, s.value())
			return
		}
		s.array(func() {
			o, err := s.nodeLayers(of)
			if err != nil {
				s.fail(err)
			}
			if s.err == nil {
				count++
				f(o)
			}
		})
	})
	if s.next(); s.err == nil && s.at != len(text) {
		s.fail(errors.New("there is more behind it"))
	}
	var list metav1.TypeMeta
	if s.err == nil {
		s.fail(json.Unmarshal(rest.object(), &list))
	}
	if s.err == nil {
		s.fail(isList(list.Kind))
	}
	return count, s.err
}

// nodeLayers reads an object.
func (s *scanner) nodeLayers(of *wanted) (*v1alpha1.NodeLayers, error) {
	var rest, restOfSpec remainder
	o := &v1alpha1.NodeLayers{}
	var layers, images [][]byte
	s.object(func(key []byte) {
		if string(key) != `"spec"` || s.next() != '{' {
			rest.add(key, s.value())
			return
		}
		s.object(func(key []byte) {
			switch string(key) {
			case `"layers"`:
				layers = s.strings(&s.layers)
			case `"images"`:
				images = s.strings(&s.images)
			default:
				restOfSpec.add(key, s.value())
			}
		})
		rest.add(key, restOfSpec.object())
	})
	if s.err != nil {
		return nil, s.err
	}
	if err := json.Unmarshal(rest.object(), o); err != nil {
		return nil, err
	}
	keptLayers, keptImages := of.lines(o.Spec.Reuse, layers, images)
	o.Spec.Layers, o.Spec.Images = s.texts(layers, keptLayers, true), s.texts(images, keptImages, false)
	return o, s.err
}

// remainder is an object of what was not taken out.
type remainder struct{ bytes.Buffer }

func (r *remainder) add(key, value []byte) {
	separator := byte(',')
	if r.Len() == 0 {
		separator = '{'
	}
	r.WriteByte(separator)
	r.Write(key)
	r.WriteByte(':')
	r.Write(value)
}

// object returns the object. Nothing may be added afterwards.
func (r *remainder) object() []byte {
	if r.Len() == 0 {
		r.WriteByte('{')
	}
	r.WriteByte('}')
	return r.Bytes()
}

// scanner goes through a JSON text once. It looks only at what separates values: what a value is made of is
// encoding/json's matter. After an error, it stays where it is.
type scanner struct {
	text []byte
	at   int
	err  error
	// layers and images are those of the object before: the next one's take their place.
	layers, images [][]byte
}

func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// next returns the next byte that is no space, and does not pass it; 0 at the end and after an error.
func (s *scanner) next() byte {
	for s.err == nil && s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) pass(c byte) {
	if s.next() != c {
		s.fail(fmt.Errorf("no %q at byte %d", c, s.at))
		return
	}
	s.at++
}

// object passes an object; member has to pass the value of each key, which has its quotes.
func (s *scanner) object(member func(key []byte)) {
	s.several('{', '}', func() {
		key := s.quoted()
		s.pass(':')
		if s.err == nil {
			member(key)
		}
	})
}

// array passes an array; element has to pass each of its values.
func (s *scanner) array(element func()) { s.several('[', ']', element) }

func (s *scanner) several(begin, end byte, one func()) {
	s.pass(begin)
	if s.next() == end {
		s.at++
		return
	}
	for s.err == nil {
		one()
		if s.next() != ',' {
			s.pass(end)
			return
		}
		s.at++
	}
}

// quoted passes a string, and returns it with its quotes.
func (s *scanner) quoted() []byte {
	begin := s.at
	if s.pass('"'); s.err != nil {
		return nil
	}
	begin = max(begin, s.at-1)
	for {
		end := bytes.IndexByte(s.text[s.at:], '"')
		if end < 0 {
			s.fail(errors.New("a string has no end"))
			return nil
		}
		// An odd number of backslashes before a quote makes it a part of the string.
		slashes := 0
		for i := s.at + end - 1; i > begin && s.text[i] == '\\'; i-- {
			slashes++
		}
		if s.at += end + 1; slashes%2 == 0 {
			return s.text[begin:s.at]
		}
	}
}

// value passes a value, and returns its text.
func (s *scanner) value() []byte {
	c := s.next()
	begin := s.at
	switch c {
	case '{':
		s.object(func([]byte) { s.value() })
	case '[':
		s.array(func() { s.value() })
	case '"':
		s.quoted()
	default:
		for s.at < len(s.text) && !bytes.ContainsRune([]byte(",]} \t\r\n"), rune(s.text[s.at])) {
			s.at++
		}
		if s.at == begin {
			s.fail(fmt.Errorf("no value at byte %d", s.at))
		}
	}
	if s.err != nil {
		return nil
	}
	return s.text[begin:s.at]
}

// strings passes an array of strings, or null, and returns them as they are between their quotes, in the buffer; nil for
// null.
func (s *scanner) strings(buffer *[][]byte) [][]byte {
	if s.next() != '[' {
		var none []string
		s.fail(json.Unmarshal(s.value(), &none))
		return nil
	}
	if *buffer = (*buffer)[:0]; *buffer == nil {
		*buffer = [][]byte{}
	}
	s.array(func() {
		if quoted := s.quoted(); s.err == nil {
			*buffer = append(*buffer, quoted[1:len(quoted)-1])
		}
	})
	return *buffer
}

// texts returns what strings stand for, in memory of its own; of those that are not kept the empty text, or nothing. A nil
// kept means all.
func (s *scanner) texts(from [][]byte, kept []bool, empty bool) (all []string) {
	if from == nil {
		return nil
	}
	all = make([]string, 0, len(from))
	for i, text := range from {
		switch {
		case kept != nil && !kept[i]:
			if empty {
				all = append(all, "")
			}
		case bytes.IndexByte(text, '\\') < 0:
			all = append(all, string(text))
		default:
			var one string
			s.fail(json.Unmarshal(slices.Concat([]byte{'"'}, text, []byte{'"'}), &one))
			all = append(all, one)
		}
	}
	return all
}

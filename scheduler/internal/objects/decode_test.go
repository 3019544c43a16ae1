package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	codecs "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// event is what a watch gives.
type event struct {
	Type   string
	Object runtime.Object
	Failed bool
}

// decoded returns all events of a stream.
func decoded(t *testing.T, by runtime.NegotiatedSerializer, stream string) (all []event) {
	t.Helper()
	object, of, framer, err := runtime.NewClientNegotiator(by, v1alpha1.GroupVersion).StreamDecoder(runtime.ContentTypeJSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	decoder := restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(io.NopCloser(strings.NewReader(stream))), of), object)
	for {
		kind, found, err := decoder.Decode()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all
		}
		all = append(all, event{string(kind), found, err != nil})
		if err != nil {
			return all
		}
	}
}

// Whatever comes, it is decoded as apimachinery does.
func TestDecode(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stock := codecs.NewCodecFactory(scheme).WithoutConversion()
	quick := newSerializer(stock, scheme, v1alpha1.GroupVersion)
	if len(quick.kinds) != 3 {
		t.Errorf("%v", quick.kinds)
	}
	object, err := json.Marshal(&v1alpha1.NodeLayers{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayers"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "7", Annotations: map[string]string{"a": `}"{`}},
		Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, Images: []string{"- quay.io/a:1"}, TotalBytes: 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Types' fields are in the order of the types, those of custom resources sorted.
	sorted := map[string]any{}
	if err := json.Unmarshal(object, &sorted); err != nil {
		t.Fatal(err)
	}
	custom, err := json.Marshal(sorted)
	if err != nil {
		t.Fatal(err)
	}
	added := `{"type":"ADDED","object":` + string(custom) + "}\n"
	for name, stream := range map[string]string{
		"as apiservers write": added + strings.Replace(added, "ADDED", "MODIFIED", 1) + strings.Replace(added, "ADDED", "DELETED", 1),
		"another order":       `{"type":"ADDED","object":` + string(object) + "}\n" + `{"object":` + string(custom) + `,"type":"ADDED"}` + "\n",
		"spaces":              strings.ReplaceAll(added, ":", " : ") + "\n\n" + added + `{"type":"ADDED","object":` + string(custom) + " \n}",
		"a bookmark":          strings.Replace(added, "ADDED", "BOOKMARK", 1),
		"an error":            `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","code":410}}` + "\n" + added,
		"another type":        strings.Replace(added, "ADDED", "SEEN", 1) + added,
		"another kind":        strings.Replace(added, `"kind":"NodeLayers"`, `"kind":"NodeLayer"`, 1),
		"another group":       strings.Replace(added, "layerlocality.io", "example.com", 1),
		"an invalid field":    strings.Replace(added, `"totalBytes":5`, `"totalBytes":"x"`, 1) + added,
		"fields of another":   strings.Replace(added, `"totalBytes":5`, `"TotalBytes":6,"totalbytes":7`, 1),
		"no object":           `{"type":"ADDED","object":null}` + "\n" + `{"type":"ADDED"}` + "\n",
		"a field after it":    `{"type":"ADDED","object":` + string(custom) + `,"type":"MODIFIED"}` + "\n",
		"no JSON":             added + "{",
	} {
		got, want := decoded(t, quick, stream), decoded(t, stock, stream)
		if name == "a field after it" { // which no apiserver writes: refused, at least
			if len(got) != 1 || !got[0].Failed {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, got, want)
		}
	}
	// The quick way is taken.
	if d := (events{}); true { // without a Serializer to fall back on
		var e metav1.WatchEvent
		if _, _, err := d.Decode([]byte(strings.TrimSpace(added)), nil, &e); err != nil || !bytes.Equal(e.Object.Raw, custom) {
			t.Errorf("%s, %v", e.Object.Raw, err)
		}
		if found, _, err := (decoder{serializer: quick}).Decode(e.Object.Raw, nil, nil); err != nil || found.(*v1alpha1.NodeLayers).Spec.TotalBytes != 5 {
			t.Errorf("%+v, %v", found, err)
		}
	}
}

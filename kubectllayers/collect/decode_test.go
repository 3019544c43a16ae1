package collect

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// listed returns the objects of a list as they are read, and as encoding/json reads them.
func listed(text string) (got, want []v1alpha1.NodeLayers, gotErr, wantErr error) {
	got = []v1alpha1.NodeLayers{}
	_, gotErr = eachNodeLayers([]byte(text), nil, func(o *v1alpha1.NodeLayers) { got = append(got, *o) })
	var list v1alpha1.NodeLayersList
	wantErr = json.Unmarshal([]byte(text), &list)
	want = append([]v1alpha1.NodeLayers{}, list.Items...)
	return got, want, gotErr, wantErr
}

func TestEachNodeLayers(t *testing.T) {
	list := v1alpha1.NodeLayersList{Items: []v1alpha1.NodeLayers{nodeLayers("n1", "0 quay.io/a:1", `0 "\quoted\" `+"\u00e9\u2028"), nodeLayers("n2")}}
	list.Kind, list.ResourceVersion = "NodeLayersList", "7"
	list.Items[1].Annotations = map[string]string{"a": `]}"layers":["`}
	plain, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(list, "", "\t ")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"as an apiserver writes it": string(plain) + "\n",
		"with spaces":               " " + string(indented) + " ",
		"no objects":                `{"kind":"NodeLayersList","items":[]}`,
		"null":                      `{"items":null,"kind":"NodeLayersList"}`,
		"empty objects":             `{"kind":"NodeLayersList","items":[{},{"spec":null},{"spec":{}},{"spec":{"layers":null,"images":[]}}]}`,
		"fields of later versions":  `{"kind":"NodeLayersList","later":[[{"a":[1,-2.5e3,true,null,"\\"]}]],"items":[{"later":{},"spec":{"later":[["layers"]],"layers":["a"],"totalImages":7},"status":[]}]}`,
	} {
		got, want, err, wantErr := listed(text)
		if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v:\n%+v\nwant\n%+v", name, err, wantErr, got, want)
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "no object": `[]`, "no end": string(plain[:len(plain)-1]), "cut in a string": string(plain[:strings.Index(string(plain), "quay")]),
		"more": string(plain) + "{}", "no list": `{"kind":"Status","items":[]}`, "another type": strings.Replace(string(plain), `"totalImages":9`, `"totalImages":"x"`, 1),
		"no strings": `{"kind":"NodeLayersList","items":[{"spec":{"layers":[7]}}]}`, "no array": `{"kind":"NodeLayersList","items":[{"spec":{"layers":"7"}}]}`,
		"no value": `{"kind":"NodeLayersList","items":[{"spec":{"reuse":}}]}`, "no literal": `{"kind":"NodeLayersList","items":[{"spec":{"reuse":nul}}]}`,
		"a comma": `{"kind":"NodeLayersList","items":[{},]}`, "no key": `{"kind":"NodeLayersList",,"items":[]}`,
		"a bad escape": `{"kind":"NodeLayersList","items":[{"spec":{"layers":["\x"]}}]}`,
	} {
		if got, _, err, _ := listed(text); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Any text ends with an error or without, and whatever texts objects have, they are read as encoding/json
// reads them.
func FuzzEachNodeLayers(f *testing.F) {
	f.Add(`{"kind":"NodeLayersList","items":[{"metadata":{"name":"a"},"spec":{"layers":["a 1","\u001b\\"],"images":["0 b"],"renewSeconds":5}}]}`, "n1", "a 1", "0 b", int64(5))
	f.Add(`{"kind":"NodeLayersList","items":[{"spec":{"layers":null}},null,{"spec":[]}]}`, "", `"]}`, `\\\"`, int64(-1))
	f.Add("{\"kind\" :\t\"NodeLayersList\",\r\n\"items\": [ { \"spec\" : { } } ] }", "\u2028", "\x1b", "\xff", int64(0))
	f.Fuzz(func(t *testing.T, text, name, layer, image string, number int64) {
		calls := 0
		if count, err := eachNodeLayers([]byte(text), nil, func(*v1alpha1.NodeLayers) { calls++ }); err == nil && count != calls {
			t.Errorf("%d objects, and %d calls", count, calls)
		}
		o := nodeLayers(name, image, name, layer+image)
		o.Spec.Layers, o.Spec.TotalBytes, o.Annotations = []string{layer, image, ""}, number, map[string]string{image: layer}
		list := v1alpha1.NodeLayersList{Items: []v1alpha1.NodeLayers{o, {}, o}}
		list.Kind = "NodeLayersList"
		for _, indent := range []string{"", " \t"} {
			written, err := json.MarshalIndent(list, indent, indent)
			if err != nil {
				t.Fatal(err)
			}
			got, want, err, wantErr := listed(string(written))
			if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, %v:\n%+v\nwant\n%+v", written, err, wantErr, got, want)
			}
		}
	})
}

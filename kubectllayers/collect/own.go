package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// page is a list as the apiserver sent it, of which only the metadata is known. NodeLayers are most
// of what is read of a large cluster, 300 MB from 5,000 nodes. A client would decode each list twice,
// and ask for the next one then. A page is decoded once, while the next one is on its way.
type page struct {
	metav1.TypeMeta
	metav1.ListMeta
	// Items has one: the text of the list.
	Items []runtime.Unknown
}

// DeepCopyObject implements runtime.Object.
func (p *page) DeepCopyObject() runtime.Object {
	same := *p
	return &same
}

// own lists objects of this project in chunks, all or the one of a name, and calls f with each
// chunk; f returns how many objects it has.
func own[List any, L interface {
	*List
	runtime.Object
}](ctx context.Context, r *Reader, resource, what, name string, f func(L) int) *Problem {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if name != "" {
			o.FieldSelector = "metadata.name=" + name
		}
		text, err := r.own.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		meta, err := listMeta(text)
		return &page{ListMeta: meta, Items: []runtime.Unknown{{Raw: text}}}, err
	}
	return r.pages(ctx, what, ownChunks, list, func(object runtime.Object) (int, error) {
		var list L = new(List)
		if err := json.Unmarshal(object.(*runtime.Unknown).Raw, list); err != nil { //nolint:forcetypeassert // see page
			return 0, err
		}
		if kind := list.GetObjectKind().GroupVersionKind().Kind; !strings.HasSuffix(kind, "List") {
			return 0, fmt.Errorf("the server answers with a %q in place of a list", kind)
		}
		return f(list), nil
	})
}

// listMeta returns the metadata of a list. An apiserver writes it last, so that nothing else has to
// be read: an object at the end is the list's if nothing but the list's own bracket follows it.
func listMeta(text []byte) (metav1.ListMeta, error) {
	const key = `"metadata":`
	var last metav1.ListMeta
	if at := bytes.LastIndex(text, []byte(key)); at >= 0 {
		end := json.NewDecoder(bytes.NewReader(text[at+len(key):]))
		if err := end.Decode(&last); err == nil {
			if rest := text[at+len(key)+int(end.InputOffset()):]; string(bytes.TrimSpace(rest)) == "}" {
				return last, nil
			}
		}
	}
	var list struct {
		Metadata metav1.ListMeta `json:"metadata"`
	}
	err := json.Unmarshal(text, &list)
	return list.Metadata, err
}

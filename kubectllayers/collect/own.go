package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
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

// own lists objects of this project in chunks, all or the one of a name, and calls f with the text of each
// chunk; f returns how many objects it has.
func (r *Reader) own(ctx context.Context, resource, what, name string, f func(text []byte) (int, error)) *Problem {
	packing := &packing{plain: r.Config.DisableCompression, settled: r.Config.DisableCompression}
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if name != "" {
			o.FieldSelector = "metadata.name=" + name
		}
		request := r.ours.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec)
		if packing.plain {
			request.SetHeader("Accept-Encoding", "identity")
		}
		began := time.Now()
		text, err := request.DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		packing.took(len(text), time.Since(began))
		meta, err := listMeta(text)
		return &page{ListMeta: meta, Items: []runtime.Unknown{{Raw: text}}}, err
	}
	return r.pages(ctx, what, ownChunks, list, func(object runtime.Object) (int, error) {
		return f(object.(*runtime.Unknown).Raw) //nolint:forcetypeassert // see page
	})
}

const imagePrefetches = "ImagePrefetches"

// Prefetches returns the ImagePrefetches of a namespace, of all if it is empty.
func (r *Reader) Prefetches(ctx context.Context, namespace string) (all []v1alpha1.ImagePrefetch, problem *Problem) {
	problem = r.each(ctx, imagePrefetches, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := &v1alpha1.ImagePrefetchList{}
		text, err := r.ours.Get().Namespace(namespace).Resource("imageprefetches").VersionedParams(&o, metav1.ParameterCodec).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(text, list)
		}
		if err == nil {
			err = isList(list.Kind)
		}
		return list, err
	}, func(object runtime.Object) {
		if one, ok := object.(*v1alpha1.ImagePrefetch); ok {
			all = append(all, *one)
		}
	})
	return all, problem
}

// packing decides whether pages are asked for plain. The apiserver packs them with gzip if they may be
// packed, which takes both sides more time than a fast link takes for three times the bytes. So the first
// page comes packed. If that is fast, the second one comes plain, and the faster way is that of the others.
type packing struct {
	plain, settled bool
	// packed is how fast the first page came, in bytes of text a second.
	packed float64
}

// worthTrying is how fast the first page has to come for another one to be tried plain: over a link that
// is slow, in bytes a second, that page alone would take seconds.
const worthTrying = 8e6

func (p *packing) took(size int, took time.Duration) {
	speed := float64(size) / max(took.Seconds(), 1e-6)
	switch {
	case p.settled:
	case p.plain:
		p.plain, p.settled = speed > p.packed, true
	case speed < worthTrying:
		p.settled = true
	default:
		p.plain, p.packed = true, speed
	}
}

// decoded returns a function that decodes a list and calls f with it.
func decoded[List any, L interface {
	*List
	runtime.Object
}](f func(L) int) func([]byte) (int, error) {
	return func(text []byte) (int, error) {
		var list L = new(List)
		if err := json.Unmarshal(text, list); err != nil {
			return 0, err
		}
		return f(list), isList(list.GetObjectKind().GroupVersionKind().Kind)
	}
}

// isList returns an error if something of a kind is no list.
func isList(kind string) error {
	if !strings.HasSuffix(kind, "List") {
		return fmt.Errorf("the server answers with a %q in place of a list", kind)
	}
	return nil
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

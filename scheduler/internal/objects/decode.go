package objects

import (
	"bytes"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
)

// serializer decodes the events of a watch in half the time of apimachinery's, which goes through
// each object some ten times: thousands of NodeLayers come as events when a scheduler starts. What
// does not look as apiservers write it is apimachinery's matter.
type serializer struct {
	runtime.NegotiatedSerializer
	scheme *runtime.Scheme
	// kinds are those of objects, by how their texts begin.
	kinds map[string]schema.GroupVersionKind
}

func newSerializer(stock runtime.NegotiatedSerializer, scheme *runtime.Scheme, version schema.GroupVersion) serializer {
	kinds := map[string]schema.GroupVersionKind{}
	for kind, of := range scheme.KnownTypes(version) {
		if _, ok := of.FieldByName("ObjectMeta"); ok {
			kinds[fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, version, kind)] = version.WithKind(kind)
		}
	}
	return serializer{stock, scheme, kinds}
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s serializer) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if stream := all[i].StreamSerializer; stream != nil && all[i].MediaType == runtime.ContentTypeJSON {
			quick := *stream
			quick.Serializer = events{stream.Serializer}
			all[i].StreamSerializer = &quick
		}
	}
	return all
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s serializer) DecoderToVersion(stock runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return decoder{s.NegotiatedSerializer.DecoderToVersion(stock, version), s}
}

// events decodes events.
type events struct{ runtime.Serializer }

// Decode implements runtime.Decoder. The text is valid JSON, as its framer has decoded it: so what
// follows the beginning of an event, up to its last bracket, is the object.
func (e events) Decode(text []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			if object, ok := bytes.CutPrefix(text, []byte(`{"type":"`+string(kind)+`","object":`)); ok {
				event.Type, event.Object.Raw = string(kind), bytes.TrimSuffix(object, []byte("}"))
				return event, nil, nil
			}
		}
	}
	return e.Serializer.Decode(text, defaults, into)
}

// decoder decodes objects.
type decoder struct {
	runtime.Decoder
	serializer
}

// beginning is as long as that of any object of ours.
const beginning = 100

// Decode implements runtime.Decoder.
func (o decoder) Decode(text []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	end := bytes.Index(text[:min(len(text), beginning)], []byte(`"metadata"`))
	kind, known := o.kinds[string(text[:max(end, 0)])]
	if !known || into != nil {
		return o.Decoder.Decode(text, defaults, into)
	}
	object, err := o.scheme.New(kind)
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(text, object); err != nil {
		return nil, nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // as apimachinery's
	return object, &kind, nil
}

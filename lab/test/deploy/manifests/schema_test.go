package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// validated is an object that is checked before it is written.
type validated interface{ Validate() field.ErrorList }

var aDigest = "sha256:" + strings.Repeat("a", 64)

// manifest and holds have every field.
func manifest() *v1alpha1.ImageManifest {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(aDigest)},
		Spec:       v1alpha1.ImageManifestSpec{Digest: aDigest, MediaType: "m", Platform: "linux/amd64", Size: 1, Layers: []v1alpha1.ImageLayer{{Digest: aDigest, Size: 1}}},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: "n", Digest: aDigest, Platforms: []string{"linux/amd64"}, LastConfirmed: &now, UnusedSince: &now, Private: true}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, Message: "m", ObservedGeneration: 1, LastTransitionTime: now}},
			Failures:   1, RetryTime: &now,
		},
	}
}

func holds() *v1alpha1.NodeLayers {
	yes := true
	return &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: v1alpha1.NodeLayersSpec{
			Runtime: "containerd 2.3.1", Reuse: v1alpha1.ReuseByDigest, JoinsDownloads: &yes, MinLayerBytes: 1, RenewSeconds: 1, RenewTime: metav1.NewTime(time.Unix(1_700_000_000, 0)),
			TotalImages: 1, TotalLayers: 1, TotalBytes: 1, Layers: []string{aDigest + " 1"}, Images: []string{"0 " + aDigest + " quay.io/a:1"},
			Peer: &v1alpha1.NodePeer{Address: "10.1.2.3:9451", Keys: []string{strings.Repeat("a", 64)}, Zone: "z"},
		},
	}
}

func TestValidateAcceptsWhatIsThere(t *testing.T) {
	for name, object := range map[string]validated{"manifest": manifest(), "empty": &v1alpha1.ImageManifest{}, "holds": holds()} {
		if errs := object.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// shippedSchemas are those of this project's resources.
var shippedSchemas = map[string]struct {
	full func() validated
	// printable: no text may have control characters.
	printable bool
	// rules are those of CEL. Tests of their own are below.
	rules []string
}{
	// The first rule is about a change, which the store never makes.
	"resolver/crd/layerlocality.io_imagemanifests.yaml": {func() validated { return manifest() }, false, []string{"self == oldSelf", "has(self.digest) || !has(self.layers)"}},
	"agent/crd/layerlocality.io_nodelayers.yaml": {func() validated { return holds() }, true, []string{fmt.Sprint("(has(self.layers) ? self.layers.map(l, size(l) + 3).sum() : 0)",
		" + (has(self.images) ? self.images.map(i, size(i) + 3).sum() : 0) <= ", v1alpha1.MaxNodeListBytes)}},
}

// TestValidateKnowsTheSchema changes a valid object in each way that a bound of the shipped schema
// forbids, and looks for texts, lists and maps that have none.
func TestValidateKnowsTheSchema(t *testing.T) {
	tried := map[string]bool{}
	for path, shipped := range shippedSchemas {
		text, err := os.ReadFile("../../../../deploy/" + path)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, version := range crd.Spec.Versions {
			w := &walk{t: t, full: shipped.full, printable: shipped.printable, tried: tried}
			w.schema("", version.Schema.OpenAPIV3Schema, func(object map[string]any) any { return object }, nil)
			slices.Sort(w.rules)
			if want := slices.Sorted(slices.Values(shipped.rules)); !slices.Equal(w.rules, want) {
				t.Errorf("%s has the rules %q, want %q", path, w.rules, want)
			}
		}
	}
	for _, bound := range []string{"maxLength", "minLength", "pattern", "minimum", "maximum", "enum", "maxItems", "keys"} {
		if !tried[bound] {
			t.Errorf("no %s was found in the schemas: the test is wrong", bound)
		}
	}
	object := manifest()
	object.Spec.Digest = ""
	if errs := object.Validate(); len(errs) != 1 {
		t.Errorf("layers without a digest: %v", errs)
	}
	// Lists that take as much as they may, and one byte more. The schema is asked in cmd/layer-agent.
	large := holds()
	large.Spec.Images = nil
	for left := v1alpha1.MaxNodeListBytes - len(aDigest+" 1") - 3; left > 0; left -= len(large.Spec.Images[len(large.Spec.Images)-1]) + 3 {
		large.Spec.Images = append(large.Spec.Images, "- "+strings.Repeat("a", min(left-5, 123)))
	}
	if errs := large.Validate(); len(errs) > 0 {
		t.Errorf("as much as there may be: %v", errs)
	}
	large.Spec.Images[0] += "a"
	if errs := large.Validate(); len(errs) != 1 || errs[0].Field != "spec" {
		t.Errorf("a byte more: %v", errs)
	}
}

// walk is a walk through a schema.
type walk struct {
	t         *testing.T
	full      func() validated
	printable bool
	// tried are the bounds that were found, rules those of CEL.
	tried map[string]bool
	rules []string
}

// schema looks at one place, which get finds in an object, and set changes.
func (w *walk) schema(path string, schema *apiextensionsv1.JSONSchemaProps, get func(map[string]any) any, set func(map[string]any, any)) {
	w.bounded(path, schema)
	try := func(bound string, value any) {
		w.tried[bound] = true
		object := parse(w.t, w.full())
		set(object, value)
		encoded, err := json.Marshal(object)
		if err != nil {
			w.t.Fatal(err)
		}
		changed := reflect.New(reflect.TypeOf(w.full()).Elem()).Interface().(validated)
		if err := json.Unmarshal(encoded, changed); err != nil {
			w.t.Fatalf("%s, %s: %v", path, bound, err)
		}
		errs := changed.Validate()
		if !slices.ContainsFunc(errs, func(e *field.Error) bool {
			return e.Field == strings.TrimPrefix(path, ".") || bound == "keys" && e.Type == field.ErrorTypeDuplicate
		}) {
			w.t.Errorf("%s: beyond its %s: %v", path, bound, errs)
		}
	}
	if schema.MaxLength != nil {
		try("maxLength", strings.Repeat("a", int(*schema.MaxLength)+1))
	}
	if schema.MinLength != nil {
		try("minLength", strings.Repeat("a", int(*schema.MinLength)-1))
	}
	if schema.Pattern != "" {
		try("pattern", "\x1b[0m ")
	}
	if schema.Minimum != nil {
		try("minimum", int64(*schema.Minimum)-1)
	}
	if schema.Maximum != nil {
		try("maximum", int64(*schema.Maximum)+1)
	}
	if len(schema.Enum) > 0 {
		try("enum", "another")
	}
	if schema.MaxItems != nil {
		try("maxItems", slices.Repeat(get(parse(w.t, w.full())).([]any)[:1], int(*schema.MaxItems)+1))
	}
	if schema.MinItems != nil {
		try("minItems", get(parse(w.t, w.full())).([]any)[:*schema.MinItems-1])
	}
	if schema.XListType != nil && *schema.XListType == "map" {
		one := get(parse(w.t, w.full())).([]any)[0]
		try("keys", []any{one, one})
	}
	for _, rule := range schema.XValidations {
		w.rules = append(w.rules, rule.Rule)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if path == "" && (name == "metadata" || name == "apiVersion" || name == "kind") {
			continue
		}
		property := schema.Properties[name]
		w.schema(path+"."+name, &property,
			func(object map[string]any) any { return get(object).(map[string]any)[name] },
			func(object map[string]any, value any) { get(object).(map[string]any)[name] = value })
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		w.schema(path+"[0]", schema.Items.Schema,
			func(object map[string]any) any { return get(object).([]any)[0] },
			func(object map[string]any, value any) { get(object).([]any)[0] = value })
	}
}

// bounded checks that what a place may hold has bounds, of the kinds that Validate and this test check.
func (w *walk) bounded(path string, schema *apiextensionsv1.JSONSchemaProps) {
	free := schema.XPreserveUnknownFields != nil || schema.XIntOrString || schema.AdditionalProperties != nil
	switch schema.Type {
	case "string":
		fixed := len(schema.Enum) > 0 || schema.Format == "date-time"
		free = free || schema.MaxLength == nil && !fixed
		if w.printable && schema.Pattern == "" && !fixed {
			w.t.Errorf("%s has no pattern: its texts may have control characters", path)
		}
	case "array":
		free = free || schema.MaxItems == nil || schema.Items == nil || schema.Items.Schema == nil
	case "object":
		free = free || len(schema.Properties) == 0
	case "integer", "boolean":
	default:
		free = true
	}
	if free {
		w.t.Errorf("%s, a %s, is unbounded", path, schema.Type)
	}
	if schema.UniqueItems || schema.MultipleOf != nil || schema.MaxProperties != nil || schema.MinProperties != nil ||
		schema.ExclusiveMaximum || schema.ExclusiveMinimum || schema.Not != nil || len(schema.OneOf)+len(schema.AnyOf)+len(schema.AllOf) > 0 {
		w.t.Errorf("%s: Validate and this test do not check all of its bounds", path)
	}
}

func parse(t *testing.T, object any) (parsed map[string]any) {
	t.Helper()
	encoded, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(encoded, &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Errors quote no text that is too long, and none with control characters as they are.
func TestValidateQuotes(t *testing.T) {
	object := manifest()
	object.Spec.Platform, object.Spec.Digest = strings.Repeat("v", 1<<20), "\x1b]0;title\x07"
	node := holds()
	hostile := strings.Repeat("\x1b", 1<<20)
	node.Spec.Runtime, node.Spec.Reuse, node.Spec.Layers[0], node.Spec.Images[0] = "\x1b]0;title\x07", "\x1b", hostile, hostile
	for _, object := range []validated{object, node} {
		if text := fmt.Sprint(object.Validate()); len(text) > 2000 || strings.ContainsAny(text, "\x1b\x07") {
			t.Errorf("%d bytes: %.3000q", len(text), text)
		}
	}
}

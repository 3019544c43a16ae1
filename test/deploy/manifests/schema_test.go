package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
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

// full has every field.
func full() *v1alpha1.ImageManifest {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	digest := "sha256:" + strings.Repeat("a", 64)
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(digest)},
		Spec:       v1alpha1.ImageManifestSpec{Digest: digest, MediaType: "m", Platform: "linux/amd64", Size: 1, Layers: []v1alpha1.ImageLayer{{Digest: digest, Size: 1}}},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: "n", Digest: digest, Platforms: []string{"linux/amd64"}, LastConfirmed: &now, UnusedSince: &now, Private: true}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, Message: "m", ObservedGeneration: 1, LastTransitionTime: now}},
			Failures:   1, RetryTime: &now,
		},
	}
}

func TestValidateAcceptsWhatIsThere(t *testing.T) {
	for name, object := range map[string]*v1alpha1.ImageManifest{"full": full(), "empty": {}} {
		if errs := object.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestValidateKnowsTheSchema changes a valid object in each way that a bound of the shipped schema
// forbids.
func TestValidateKnowsTheSchema(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/resolver/crd/layerlocality.io_imagemanifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	// walk calls set with values that the schema of one place forbids.
	var walk func(path string, schema *apiextensionsv1.JSONSchemaProps, get func(object map[string]any) any, set func(object map[string]any, value any))
	walk = func(path string, schema *apiextensionsv1.JSONSchemaProps, get func(map[string]any) any, set func(map[string]any, any)) {
		try := func(bound string, value any) {
			tried[bound] = true
			var object map[string]any
			encoded, err := json.Marshal(full())
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(encoded, &object); err != nil {
				t.Fatal(err)
			}
			set(object, value)
			changed := &v1alpha1.ImageManifest{}
			if encoded, err = json.Marshal(object); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(encoded, changed); err != nil {
				t.Fatalf("%s, %s: %v", path, bound, err)
			}
			errs := changed.Validate()
			if !slices.ContainsFunc(errs, func(e *field.Error) bool {
				return e.Field == strings.TrimPrefix(path, ".") || bound == "keys" && e.Type == field.ErrorTypeDuplicate
			}) {
				t.Errorf("%s: beyond its %s: %v", path, bound, errs)
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
			try("minimum", *schema.Minimum-1)
		}
		if schema.Maximum != nil {
			try("maximum", *schema.Maximum+1)
		}
		if len(schema.Enum) > 0 {
			try("enum", "another")
		}
		if schema.MaxItems != nil {
			var all []any
			for range *schema.MaxItems + 1 {
				all = append(all, get(parse(t, full())).([]any)[0])
			}
			try("maxItems", all)
		}
		if schema.XListType != nil && *schema.XListType == "map" {
			one := get(parse(t, full())).([]any)[0]
			try("keys", []any{one, one})
		}
		for _, rule := range schema.XValidations {
			tried[rule.Rule] = true // below
		}
		// What else can be bounded is not used.
		if schema.MinItems != nil || schema.UniqueItems || schema.MultipleOf != nil || schema.MaxProperties != nil || schema.MinProperties != nil ||
			schema.ExclusiveMaximum || schema.ExclusiveMinimum || schema.Not != nil || len(schema.OneOf)+len(schema.AnyOf)+len(schema.AllOf) > 0 {
			t.Errorf("%s: Validate and this test do not know all of its bounds", path)
		}
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
			property := schema.Properties[name]
			if path == "" && name == "metadata" {
				continue
			}
			walk(path+"."+name, &property,
				func(object map[string]any) any { return get(object).(map[string]any)[name] },
				func(object map[string]any, value any) { get(object).(map[string]any)[name] = value })
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			walk(path+"[0]", schema.Items.Schema,
				func(object map[string]any) any { return get(object).([]any)[0] },
				func(object map[string]any, value any) { get(object).([]any)[0] = value })
		}
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	walk("", schema, func(object map[string]any) any { return object }, nil)
	for _, bound := range []string{"maxLength", "minLength", "pattern", "minimum", "maximum", "enum", "maxItems", "keys"} {
		if !tried[bound] {
			t.Errorf("no %s was found in the schema: the test is wrong", bound)
		}
		delete(tried, bound)
	}
	// The first rule is about a change, which the store never makes.
	for _, rule := range []string{"self == oldSelf", "has(self.digest) || !has(self.layers)"} {
		if !tried[rule] {
			t.Errorf("the schema has no rule %q", rule)
		}
		delete(tried, rule)
	}
	if len(tried) > 0 {
		t.Errorf("Validate does not know %v", tried)
	}
	object := full()
	object.Spec.Digest = ""
	if errs := object.Validate(); len(errs) != 1 {
		t.Errorf("layers without a digest: %v", errs)
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
	object := full()
	object.Spec.Platform, object.Spec.Digest = strings.Repeat("v", 1<<20), "\x1b]0;title\x07"
	if text := fmt.Sprint(object.Validate()); len(text) > 1000 || strings.ContainsAny(text, "\x1b\x07") {
		t.Errorf("%d bytes: %.2000q", len(text), text)
	}
}

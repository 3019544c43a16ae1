package v1alpha1

import (
	"regexp"
	"strconv"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxConditions = 8
	maxLayerSize  = 1 << 40 // compressed bytes
)

var (
	digests         = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
	conditionTypes  = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`)
	conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
)

// Validate returns what an API server with the schema of ImageManifest would refuse, and all of
// that. Texts come from registries and from the authors of images.
func (m *ImageManifest) Validate() (errs field.ErrorList) {
	return append(m.Spec.validate(field.NewPath("spec")), m.Status.validate(field.NewPath("status"))...)
}

// ValidateStatus is Validate for the status alone.
func (m *ImageManifest) ValidateStatus() field.ErrorList {
	return m.Status.validate(field.NewPath("status"))
}

func (s *ImageManifestSpec) validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, text(path.Child("digest"), s.Digest, 135, digests, s.Digest != "")...)
	errs = append(errs, text(path.Child("mediaType"), s.MediaType, 255, nil, false)...)
	errs = append(errs, text(path.Child("platform"), s.Platform, 64, nil, false)...)
	errs = append(errs, atLeastZero(path.Child("size"), s.Size)...)
	if len(s.Layers) > 0 && s.Digest == "" {
		errs = append(errs, field.Invalid(path, "", "layers need a digest"))
	}
	layers := path.Child("layers")
	errs = append(errs, atMost(layers, len(s.Layers), MaxLayers)...)
	for i := range s.Layers {
		layer := &s.Layers[i]
		errs = append(errs, text(layers.Index(i).Child("digest"), layer.Digest, 135, digests, true)...)
		errs = append(errs, atLeastZero(layers.Index(i).Child("size"), layer.Size)...)
		if layer.Size > maxLayerSize {
			errs = append(errs, field.Invalid(layers.Index(i).Child("size"), layer.Size, "at most "+strconv.Itoa(maxLayerSize)))
		}
	}
	return errs
}

func (s *ImageManifestStatus) validate(path *field.Path) (errs field.ErrorList) {
	references := path.Child("references")
	errs = append(errs, atMost(references, len(s.References), MaxReferences)...)
	names := sets.New[string]()
	for i := range s.References {
		ref, at := &s.References[i], references.Index(i)
		errs = append(errs, text(at.Child("name"), ref.Name, 1024, nil, true)...)
		errs = append(errs, text(at.Child("digest"), ref.Digest, 135, nil, false)...)
		errs = append(errs, atMost(at.Child("platforms"), len(ref.Platforms), MaxPlatforms)...)
		errs = append(errs, once(at.Child("name"), names, ref.Name)...)
	}
	conditions := path.Child("conditions")
	errs = append(errs, atMost(conditions, len(s.Conditions), maxConditions)...)
	kinds := sets.New[string]()
	for i := range s.Conditions {
		errs = append(errs, condition(conditions.Index(i), &s.Conditions[i])...)
		errs = append(errs, once(conditions.Index(i).Child("type"), kinds, s.Conditions[i].Type)...)
	}
	return append(errs, atLeastZero(path.Child("failures"), int64(s.Failures))...)
}

// condition has the bounds of every metav1.Condition.
func condition(path *field.Path, c *metav1.Condition) (errs field.ErrorList) {
	errs = append(errs, text(path.Child("type"), c.Type, 316, conditionTypes, true)...)
	errs = append(errs, text(path.Child("reason"), c.Reason, 1024, conditionReason, true)...)
	errs = append(errs, text(path.Child("message"), c.Message, 32768, nil, false)...)
	errs = append(errs, atLeastZero(path.Child("observedGeneration"), c.ObservedGeneration)...)
	switch c.Status {
	case metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown:
	default:
		errs = append(errs, field.NotSupported(path.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}))
	}
	return errs
}

// text checks one of so many characters at the most.
func text(path *field.Path, value string, characters int, pattern *regexp.Regexp, required bool) field.ErrorList {
	switch {
	case required && value == "":
		return field.ErrorList{field.Required(path, "")}
	case utf8.RuneCountInString(value) > characters:
		return field.ErrorList{field.TooLong(path, "", characters)}
	case required && pattern != nil && !pattern.MatchString(value):
		return field.ErrorList{field.Invalid(path, value, "want "+pattern.String())}
	}
	return nil
}

func atMost(path *field.Path, items, limit int) field.ErrorList {
	if items > limit {
		return field.ErrorList{field.TooMany(path, items, limit)}
	}
	return nil
}

func atLeastZero(path *field.Path, value int64) field.ErrorList {
	if value < 0 {
		return field.ErrorList{field.Invalid(path, value, "at least 0")}
	}
	return nil
}

// once checks that a list has no other item of that key.
func once(path *field.Path, seen sets.Set[string], key string) field.ErrorList {
	if seen.Has(key) {
		return field.ErrorList{field.Duplicate(path, "")}
	}
	seen.Insert(key)
	return nil
}

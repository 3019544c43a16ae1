package v1alpha1

import (
	"regexp"
	"strconv"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxConditions = 8

var (
	digests         = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
	conditionTypes  = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`)
	runtimes        = regexp.MustCompile(`^[ -~]*$`)
	addresses       = regexp.MustCompile(`^(\[[0-9a-f:.]+\]|[0-9.]+):[0-9]{1,5}$`)
	zones           = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z_.-]*[0-9A-Za-z])?$`)
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
	errs = append(errs, text(path.Child("platform"), s.Platform, MaxPlatformLength, nil, false)...)
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
		errs = append(errs, noMore(layers.Index(i).Child("size"), layer.Size, MaxLayerBytes)...)
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
		for n, platform := range ref.Platforms {
			errs = append(errs, text(at.Child("platforms").Index(n), platform, MaxPlatformLength, nil, false)...)
		}
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

// Validate returns what an API server with the schema of NodeLayers would refuse, and what
// readers leave out. Texts come from whoever may have images pulled.
func (n *NodeLayers) Validate() (errs field.ErrorList) {
	s, path := &n.Spec, field.NewPath("spec")
	errs = append(errs, text(path.Child("runtime"), s.Runtime, MaxRuntimeLength, runtimes, s.Runtime != "")...)
	if s.Reuse != ReuseByDigest && s.Reuse != ReuseInChains {
		errs = append(errs, field.NotSupported(path.Child("reuse"), s.Reuse, []LayerReuse{ReuseByDigest, ReuseInChains}))
	}
	for name, value := range map[string]int64{"minLayerBytes": s.MinLayerBytes, "totalImages": int64(s.TotalImages), "totalLayers": int64(s.TotalLayers), "totalBytes": s.TotalBytes} {
		errs = append(errs, atLeastZero(path.Child(name), value)...)
	}
	errs = append(errs, noMore(path.Child("minLayerBytes"), s.MinLayerBytes, MaxLayerBytes)...)
	if s.RenewSeconds < 1 {
		errs = append(errs, field.Invalid(path.Child("renewSeconds"), s.RenewSeconds, "at least 1"))
	}
	errs = append(errs, noMore(path.Child("renewSeconds"), int64(s.RenewSeconds), MaxRenewSeconds)...)
	layers, images, size := path.Child("layers"), path.Child("images"), 0
	errs = append(errs, atMost(layers, len(s.Layers), MaxNodeLayers)...)
	for i, text := range s.Layers {
		if _, err := ParseLayer(text); err != nil {
			errs = append(errs, field.Invalid(layers.Index(i), field.OmitValueType{}, err.Error()))
		}
		size += len(text) + len(`"",`)
	}
	errs = append(errs, atMost(images, len(s.Images), MaxNodeImages)...)
	for i, text := range s.Images {
		if _, err := ParseNodeImage(text, len(s.Layers)); err != nil {
			errs = append(errs, field.Invalid(images.Index(i), field.OmitValueType{}, err.Error()))
		}
		size += len(text) + len(`"",`)
	}
	if size > MaxNodeListBytes {
		errs = append(errs, field.TooLong(path, "", MaxNodeListBytes))
	}
	if s.Peer != nil {
		errs = append(errs, s.Peer.Validate(path.Child("peer"))...)
	}
	return errs
}

// Validate returns what an API server with the schema of NodeLayers would refuse.
func (p *NodePeer) Validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, text(path.Child("address"), p.Address, MaxPeerAddress, addresses, true)...)
	errs = append(errs, text(path.Child("zone"), p.Zone, MaxPeerZone, zones, p.Zone != "")...)
	keys := path.Child("keys")
	errs = append(errs, atMost(keys, len(p.Keys), MaxPeerKeys)...)
	if len(p.Keys) == 0 {
		errs = append(errs, field.Required(keys, ""))
	}
	for i, key := range p.Keys {
		if !IsDigest("sha256:" + key) {
			errs = append(errs, field.Invalid(keys.Index(i), field.OmitValueType{}, "64 hexadecimal digits"))
		}
	}
	return errs
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

func noMore(path *field.Path, value, limit int64) field.ErrorList {
	if value > limit {
		return field.ErrorList{field.Invalid(path, value, "at most "+strconv.FormatInt(limit, 10))}
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

// Package podtemplate finds the pod templates in an object of any kind, by their shape: an object
// whose spec.containers is a list of objects with images.
package podtemplate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Max bounds the pod templates of an object, because its author is anyone who may create one.
const Max = 32

// What is looked at of an object besides its templates: so many levels and values, and no longer keys.
const (
	maxDepth  = 16
	maxValues = 10_000
	maxKey    = 253
)

// Found is a pod template in an object.
type Found struct {
	// Path leads to it: spec.replicatedJobs[0].template.spec.template.
	Path string
	// Name is what distinguishes it from the object's other ones to a reader: the name of the item
	// of a list that it is in, or else the last field on its path that is not there in all kinds.
	Name     string
	Template v1.PodTemplateSpec
}

// In returns the pod templates of an object below spec, sorted by the fields on their paths, and what a
// PodTemplate has beside it. What is no valid template is passed over.
func In(object map[string]any) []Found {
	w := walk{values: maxValues}
	for _, field := range []string{"spec", "template"} {
		w.path = []string{field}
		w.value(object[field], "template")
	}
	return w.found
}

type walk struct {
	path   []string
	values int // left to look at
	found  []Found
}

// common are fields that many kinds have on the path to their templates.
var common = []string{"spec", "template", "podTemplate", "jobTemplate"}

// value looks at a value at the path. The name is what a template there is called.
func (w *walk) value(value any, name string) {
	if w.values--; w.values < 0 || len(w.path) > maxDepth || len(w.found) == Max {
		return
	}
	into := func(step string, value any, name string) {
		w.path = append(w.path, step)
		w.value(value, name)
		w.path = w.path[:len(w.path)-1]
	}
	switch value := value.(type) {
	case map[string]any:
		if isTemplate(value) {
			found := Found{Path: strings.Join(w.path, ""), Name: name}
			if runtime.DefaultUnstructuredConverter.FromUnstructured(value, &found.Template) == nil {
				w.found = append(w.found, found)
			}
			return
		}
		if len(value) > w.values { // before they are sorted
			w.values = 0
			return
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			switch {
			case len(key) > maxKey:
			case slices.Contains(common, key):
				into("."+key, value[key], name)
			default:
				into("."+key, value[key], key)
			}
		}
	case []any:
		for i, item := range value {
			step := fmt.Sprintf("[%d]", i)
			into(step, item, nameOf(item, name+step))
		}
	}
}

// nameOf returns the name in an item of a list, of which RayClusters have another one.
func nameOf(item any, otherwise string) string {
	fields, _ := item.(map[string]any)
	for _, field := range []string{"name", "groupName"} {
		if name, _ := fields[field].(string); name != "" && len(name) <= maxKey {
			return name
		}
	}
	return otherwise
}

// isTemplate reports whether an object has the shape of a pod template.
func isTemplate(value map[string]any) bool {
	spec, _ := value["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	images := 0
	for _, container := range containers {
		fields, ok := container.(map[string]any)
		if !ok {
			return false
		}
		if image, _ := fields["image"].(string); image != "" {
			images++
		}
	}
	return images > 0
}

package command

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// kinds are what json and yaml print, by the kind of the document.
var kinds = map[string]any{
	"Nodes": []inventory.Node{}, "Node": inventory.NodeImages{}, "Images": []inventory.Image{}, "Shared": inventory.Shared{}, "Matrix": inventory.Matrix{},
	"Plan": plan.Plan{}, "Why": []plan.Why{}, "ImageLocality": []points{}, "Qos": []promise{}, "Advice": []inventory.Advice{}, "Prefetch": []prefetched{}, "Savings": placements.Savings{},
}

// fieldsOf returns the paths of a type's fields as json names them, below a path.
func fieldsOf(path string, t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			path += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return []string{path}
	}
	var all []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			all = append(all, fieldsOf(path, field.Type)...)
		} else {
			all = append(all, fieldsOf(path+"."+name, field.Type)...)
		}
	}
	return all
}

// kubectllayers/fields.txt, to which docs/kubectl-layers.md links, has every kind of document with all its fields.
func TestDocumentedFields(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "fields.txt"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	kind := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		field, found := strings.CutPrefix(line, "  ")
		switch {
		case found:
			documented[kind] = append(documented[kind], field)
		case line != "" && !strings.HasPrefix(line, "#"):
			kind, _, _ = strings.Cut(line, ":")
		}
	}
	for kind, value := range kinds {
		if want := fieldsOf("answer", reflect.TypeOf(value)); !slices.Equal(documented[kind], want) {
			t.Errorf("%s: fields.txt has\n  %s\nwant\n  %s", kind, strings.Join(documented[kind], "\n  "), strings.Join(want, "\n  "))
		}
	}
	// These are all the kinds that commands print.
	printed := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`&answer\{kind: "([A-Za-z]+)"`).FindAllStringSubmatch(string(source), -1) {
			printed[match[1]] = true
		}
	}
	if a, b := slices.Sorted(maps.Keys(printed)), slices.Sorted(maps.Keys(documented)); !slices.Equal(a, b) {
		t.Errorf("commands print %q, fields.txt has %q", a, b)
	}
}

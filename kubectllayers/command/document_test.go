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
	"Plan": plan.Plan{}, "Why": []plan.Why{}, "ImageLocality": []points{}, "Savings": placements.Savings{},
}

// fieldsOf returns the fields of a type as json names them, those of structures in parentheses.
func fieldsOf(t reflect.Type) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return ""
	}
	var all []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		inner := fieldsOf(field.Type)
		switch {
		case field.Anonymous:
			all = append(all, inner)
		case inner != "":
			all = append(all, name+" ("+inner+")")
		default:
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// docs/kubectl-layers.md has every kind of document with all its fields.
func TestDocumentedFields(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubectl-layers.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `[^|]+ \\| `([A-Za-z]+)` \\| (.+) \\|$").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = row[2]
	}
	for kind, value := range kinds {
		want := fieldsOf(reflect.TypeOf(value))
		if reflect.TypeOf(value).Kind() == reflect.Slice {
			want = "a list: " + want
		}
		if documented[kind] != want {
			t.Errorf("%s: the document says\n%s\nwant\n%s", kind, documented[kind], want)
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
		t.Errorf("commands print %q, the document has %q", a, b)
	}
}

package validation_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// TestDocumentedRanges: each number and each time in the tables of docs/configuration.md has its range there, whose
// ends are valid, and what is beyond them is not.
func TestDocumentedRanges(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/configuration.md")
	if _, missing := os.Stat("../../../../docs"); os.IsNotExist(missing) {
		t.Skip("this copy of the source is without docs: the root module's tests check them")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Run("LayerLocalityArgs", func(t *testing.T) {
		ranges(t, string(text), &v1.LayerLocalityArgs{}, &config.LayerLocalityArgs{}, validation.LayerLocalityArgs)
	})
	t.Run("QosAwareArgs", func(t *testing.T) {
		ranges(t, string(text), &v1.QosAwareArgs{}, &config.QosAwareArgs{}, validation.QosAwareArgs)
	})
	t.Run("SafeArgs", func(t *testing.T) {
		ranges(t, string(text), &v1.SafeArgs{}, &config.SafeArgs{}, validation.SafeArgs)
	})
	t.Run("CongestionArgs", func(t *testing.T) {
		ranges(t, string(text), &v1.CongestionArgs{}, &config.CongestionArgs{}, validation.CongestionArgs)
	})
}

// row is a field with its default and meaning: of the fields whose default is a number or a time.
var row = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([\\d.]+(?:[smh]+)?) \\| (.*) \\|$")

// interval is what a meaning has of the values that are valid.
var interval = regexp.MustCompile(`\b([\d.]+)(\w*) to ([\d.]+)([smh]*)(\^40)?\b`)

func ranges[External, Internal runtime.Object](t *testing.T, text string, external External, internal Internal, validate func(Internal) error) {
	name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	_, section, _ := strings.Cut(text, "\n### "+name+"\n")
	section, _, _ = strings.Cut(section, "\n#")
	rows := row.FindAllStringSubmatch(section, -1)
	if len(rows) == 0 {
		t.Fatal("no field has a number")
	}
	valid := func(field, value string) bool {
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			value = strconv.Quote(value)
		}
		set := external.DeepCopyObject()
		if err := json.Unmarshal(fmt.Appendf(nil, `{%q: %s}`, field, value), set); err != nil {
			t.Fatal(err)
		}
		kubescheduler.Scheme.Default(set)
		args := internal.DeepCopyObject().(Internal)
		if err := kubescheduler.Scheme.Convert(set, args, nil); err != nil {
			t.Fatal(err)
		}
		return validate(args) == nil
	}
	for _, match := range rows {
		field, ends := match[1], interval.FindStringSubmatch(match[3])
		if ends == nil {
			t.Errorf("%s: the row has no range: want LOW to HIGH", field)
			continue
		}
		low, high := ends[1]+ends[2], ends[3]+ends[4]
		if ends[5] != "" {
			high = strconv.Itoa(1 << 40)
		}
		for value, want := range map[string]bool{low: true, high: true, beside(t, low, -1): false, beside(t, high, 1): false} {
			// A value that means never may lie outside.
			if want = want || strings.Contains(match[3], "; "+value+":"); valid(field, value) != want {
				t.Errorf("%s: documented %s to %s; %s is valid: %v", field, low, high, value, !want)
			}
		}
	}
}

// beside returns the next number or, of a time, that of a second more or less.
func beside(t *testing.T, value string, by int) string {
	if n, err := strconv.Atoi(value); err == nil {
		return strconv.Itoa(n + by)
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return (d + time.Duration(by)*time.Second).String()
}

package v1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

// TestQosAwareDefaults checks that what is set stays: also values that look as if nothing was.
func TestQosAwareDefaults(t *testing.T) {
	set := &v1.QosAwareArgs{
		SafetyMargin: duration(0), MinimumRunningTime: duration(0), AcceptablePreemptionOverhead: ptr.To(0.), MaxPreemptionsPerMinute: ptr.To[int32](0),
		LongWait: duration(0), RespectPriority: ptr.To(false), Window: duration(0), MeasureFrom: ptr.To("Bound"), ReconsiderEvery: duration(time.Second),
		StateConfigMap: ptr.To(""), DefaultSLO: ptr.To(.5), LegacyAnnotations: ptr.To(true), DebugBindAddress: "127.0.0.1:1",
	}
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	got := set.DeepCopy()
	if scheme.Default(got); !reflect.DeepEqual(got, set) {
		t.Errorf("got  %+v\nwant %+v", got, set)
	}
	got = &v1.QosAwareArgs{}
	scheme.Default(got)
	want := &v1.QosAwareArgs{
		SafetyMargin: duration(30 * time.Second), MinimumRunningTime: duration(5 * time.Minute), AcceptablePreemptionOverhead: ptr.To(1.),
		MaxPreemptionsPerMinute: ptr.To[int32](60), LongWait: duration(10 * time.Minute), RespectPriority: ptr.To(true), Window: duration(24 * time.Hour),
		MeasureFrom: ptr.To("Ready"), ReconsiderEvery: duration(5 * time.Second), StateConfigMap: ptr.To("layerlocality-qosaware"), LegacyAnnotations: ptr.To(false),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestAgentDefaults checks that what is set stays: also values that look as if nothing was.
func TestAgentDefaults(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ set, want runtime.Object }{
		{&v1.SafeArgs{}, &v1.SafeArgs{UtilizationPercent: ptr.To[int32](90), RiskPercent: ptr.To[int32](30), ForecastPercent: ptr.To[int32](20), Score: ptr.To("Overload"), LogRatings: ptr.To(false)}},
		{
			&v1.SafeArgs{UtilizationPercent: ptr.To[int32](0), RiskPercent: ptr.To[int32](0), ForecastPercent: ptr.To[int32](0), Score: ptr.To(""), LogRatings: ptr.To(true)},
			&v1.SafeArgs{UtilizationPercent: ptr.To[int32](0), RiskPercent: ptr.To[int32](0), ForecastPercent: ptr.To[int32](0), Score: ptr.To(""), LogRatings: ptr.To(true)},
		},
		{&v1.PackingArgs{}, &v1.PackingArgs{Objective: ptr.To("BinPack"), Resources: []string{"cpu", "memory"}}},
		{&v1.PackingArgs{Objective: ptr.To(""), Resources: []string{}}, &v1.PackingArgs{Objective: ptr.To(""), Resources: []string{}}},
		{&v1.CongestionArgs{}, &v1.CongestionArgs{MaxFactor: ptr.To[int64](100)}},
		{&v1.CongestionArgs{MaxFactor: ptr.To[int64](0)}, &v1.CongestionArgs{MaxFactor: ptr.To[int64](0)}},
	} {
		got := c.set.DeepCopyObject()
		if scheme.Default(got); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v becomes %+v, want %+v", c.set, got, c.want)
		}
	}
}

// defaulted are the arguments after the defaulting that kube-scheduler does.
func defaulted(t *testing.T, args v1.LayerLocalityArgs) v1.LayerLocalityArgs {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	scheme.Default(&args)
	return args
}

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestDefaults(t *testing.T) {
	defaults := func() v1.LayerLocalityArgs {
		return v1.LayerLocalityArgs{
			MinImageBytes:         ptr.To[int64](100_000_000),
			UnknownImageBytes:     ptr.To[int64](100_000_000),
			LoadPenalty:           ptr.To[int32](6),
			NoRequestPenalty:      ptr.To[int32](3),
			LinkPenalty:           ptr.To[int32](100),
			MaxWaitingPods:        ptr.To[int32](10),
			JoinsDownloads:        ptr.To(false),
			LayerReuse:            ptr.To("Digest"),
			NodeLayers:            ptr.To(true),
			ArrivalTimeout:        duration(10 * time.Minute),
			ReportTimeout:         duration(2 * time.Minute),
			NodeStatusMaxImages:   ptr.To[int32](50),
			UnlistedTimeout:       duration(24 * time.Hour),
			WaitForManifest:       duration(time.Second),
			UnqualifiedRegistries: []string{"docker.io"},
		}
	}
	// Each function sets one field; all other fields must get their default.
	for name, set := range map[string]func(*v1.LayerLocalityArgs){
		"nothing":                  func(*v1.LayerLocalityArgs) {},
		"minImageBytes":            func(a *v1.LayerLocalityArgs) { a.MinImageBytes = ptr.To[int64](1) },
		"unknownImageBytes":        func(a *v1.LayerLocalityArgs) { a.UnknownImageBytes = ptr.To[int64](1) },
		"loadPenalty":              func(a *v1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](1) },
		"loadPenalty off":          func(a *v1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](0) },
		"noRequestPenalty":         func(a *v1.LayerLocalityArgs) { a.NoRequestPenalty = ptr.To[int32](1) },
		"noRequestPenalty off":     func(a *v1.LayerLocalityArgs) { a.NoRequestPenalty = ptr.To[int32](0) },
		"linkPenalty off":          func(a *v1.LayerLocalityArgs) { a.LinkPenalty = ptr.To[int32](0) },
		"maxWaitingPods none":      func(a *v1.LayerLocalityArgs) { a.MaxWaitingPods = ptr.To[int32](0) },
		"joinsDownloads":           func(a *v1.LayerLocalityArgs) { a.JoinsDownloads = ptr.To(true) },
		"layerReuse":               func(a *v1.LayerLocalityArgs) { a.LayerReuse = ptr.To("Chain") },
		"nodeLayers off":           func(a *v1.LayerLocalityArgs) { a.NodeLayers = ptr.To(false) },
		"arrivalTimeout":           func(a *v1.LayerLocalityArgs) { a.ArrivalTimeout = duration(time.Second) },
		"arrivalTimeout invalid":   func(a *v1.LayerLocalityArgs) { a.ArrivalTimeout = duration(0) }, // for validation to refuse
		"reportTimeout":            func(a *v1.LayerLocalityArgs) { a.ReportTimeout = duration(time.Second) },
		"nodeStatusMaxImages all":  func(a *v1.LayerLocalityArgs) { a.NodeStatusMaxImages = ptr.To[int32](0) },
		"unlistedTimeout off":      func(a *v1.LayerLocalityArgs) { a.UnlistedTimeout = duration(0) },
		"waitForManifest":          func(a *v1.LayerLocalityArgs) { a.WaitForManifest = duration(5 * time.Second) },
		"registries":               func(a *v1.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"quay.io"} },
		"registries explicit none": func(a *v1.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{} }, // for validation to refuse
		"shortNames": func(a *v1.LayerLocalityArgs) {
			a.ShortNames = []v1.ShortName{{Name: "a", Repository: "quay.io/a"}}
		},
		"mirrors": func(a *v1.LayerLocalityArgs) {
			a.Mirrors = []v1.Mirror{{Prefix: "docker.io", Locations: []string{"a.example"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var args v1.LayerLocalityArgs
			set(&args)
			want := defaults()
			set(&want)
			got := defaulted(t, args)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if again := defaulted(t, got); !reflect.DeepEqual(again, got) {
				t.Errorf("defaulted once more: %+v", again)
			}
		})
	}
}

// all are the arguments of every plugin.
var all = []runtime.Object{&v1.LayerLocalityArgs{}, &v1.QosAwareArgs{}, &v1.SafeArgs{}, &v1.PackingArgs{}, &v1.CongestionArgs{}}

// nameOf returns the name of a type of arguments.
func nameOf(args runtime.Object) string { return reflect.TypeOf(args).Elem().Name() }

// documented returns the default values that the documentation should state,
// by the fields' JSON names. A field without a default is left out.
func documented(t *testing.T, args runtime.Object) map[string]any {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	args = args.DeepCopyObject()
	scheme.Default(args)
	data, err := yaml.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// fields returns the JSON names of the arguments, in order.
func fields(args runtime.Object) []string {
	var names []string
	for field := range reflect.TypeOf(args).Elem().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// same compares a value from the documentation with the default.
func same(t *testing.T, text string, value any) bool {
	t.Helper()
	if of, ok := value.(string); ok {
		got, err := time.ParseDuration(text)
		want, wantErr := time.ParseDuration(of)
		return text == of || err == nil && wantErr == nil && got == want
	}
	var got any
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return reflect.DeepEqual(got, value)
}

// TestComments checks that the comment of every field ends with its default,
// or states none.
func TestComments(t *testing.T) {
	form := regexp.MustCompile(`Default (\S+?)(?: \([^)]*\))?\.(?:\n|$)`)
	for i, file := range []string{"types.go", "types_qosaware.go", "types_agents.go", "types_agents.go", "types_agents.go"} {
		args := all[i]
		file, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		values, seen := documented(t, args), 0
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok || spec.Name.Name != nameOf(args) {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				if len(field.Names) == 0 {
					continue // TypeMeta
				}
				seen++
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
				value, has := values[name]
				switch match := form.FindStringSubmatch(field.Doc.Text()); {
				case has != (match != nil):
					t.Errorf("%s: default %v, documented: %q", name, value, field.Doc.Text())
				case has && !same(t, match[1], value):
					t.Errorf("%s: the comment says %s, the default is %v", name, match[1], value)
				}
			}
			return false
		})
		if seen != len(fields(args)) {
			t.Errorf("%s: %d commented fields of %d", nameOf(args), seen, len(fields(args)))
		}
	}
}

// TestDocumentation checks that docs/configuration.md has every field with
// its default.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/configuration.md")
	if _, missing := os.Stat("../../../../docs"); os.IsNotExist(missing) {
		t.Skip("this copy of the source is without docs: the root module's tests check them")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range all {
		_, section, ok := strings.Cut(string(text), "\n### "+nameOf(args)+"\n")
		if !ok {
			t.Fatalf("no section %s", nameOf(args))
		}
		section, _, _ = strings.Cut(section, "\n#")
		values := documented(t, args)
		for _, name := range fields(args) {
			match := regexp.MustCompile("(?m)^\\| `" + name + "` \\| ([^|]*) \\| ").FindStringSubmatch(section)
			if match == nil {
				t.Errorf("%s is not in the table", name)
				continue
			}
			value, has := values[name]
			switch got := strings.Trim(match[1], "`"); {
			case !has && got != "none":
				t.Errorf("%s: documented default %s, there is none", name, got)
			case has && !same(t, got, value):
				t.Errorf("%s: documented default %s, it is %v", name, got, value)
			}
		}
		if rows := len(regexp.MustCompile("(?m)^\\| `").FindAllString(section, -1)); rows != len(fields(args)) {
			t.Errorf("%s: %d rows for %d fields", nameOf(args), rows, len(fields(args)))
		}
	}
}

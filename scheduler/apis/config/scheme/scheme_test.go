package scheme_test

import (
	mathrand "math/rand"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeschedulerscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	kubeschedulervalidation "k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// profile is a whole configuration with LayerLocality enabled and the given
// lines of pluginConfig.
func profile(pluginConfig ...string) string {
	text := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: layer-locality
  plugins:
    multiPoint:
      enabled:
      - name: LayerLocality
        weight: 4
`
	if len(pluginConfig) > 0 {
		text += "  pluginConfig:\n"
	}
	for _, line := range pluginConfig {
		text += "  " + line + "\n"
	}
	return text
}

// load reads a configuration as kube-scheduler does with its --config.
func load(t *testing.T, text string) (*kubescheduler.KubeSchedulerConfiguration, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil {
		return nil, err
	}
	if err := kubeschedulervalidation.ValidateKubeSchedulerConfiguration(loaded); err != nil {
		return nil, err
	}
	return loaded, nil
}

// arguments returns those of LayerLocality in a loaded configuration.
func arguments(t *testing.T, loaded *kubescheduler.KubeSchedulerConfiguration) *config.LayerLocalityArgs {
	t.Helper()
	for _, plugin := range loaded.Profiles[0].PluginConfig {
		if plugin.Name == "LayerLocality" {
			args, ok := plugin.Args.(*config.LayerLocalityArgs)
			if !ok {
				t.Fatalf("the arguments are a %T", plugin.Args)
			}
			return args
		}
	}
	t.Fatal("no arguments")
	return nil
}

func defaults() *config.LayerLocalityArgs {
	return &config.LayerLocalityArgs{
		MinImageBytes:         v1.DefaultMinImageBytes,
		UnknownImageBytes:     v1.DefaultUnknownImageBytes,
		LoadPenalty:           v1.DefaultLoadPenalty,
		NoRequestPenalty:      v1.DefaultNoRequestPenalty,
		LinkPenalty:           v1.DefaultLinkPenalty,
		MaxWaitingPods:        v1.DefaultMaxWaitingPods,
		LayerReuse:            v1.DefaultLayerReuse,
		NodeLayers:            v1.DefaultNodeLayers,
		NodeStatusMaxImages:   v1.DefaultNodeStatusMaxImages,
		UnlistedTimeout:       metav1.Duration{Duration: v1.DefaultUnlistedTimeout},
		WaitForManifest:       metav1.Duration{Duration: v1.DefaultWaitForManifest},
		ArrivalTimeout:        metav1.Duration{Duration: v1.DefaultArrivalTimeout},
		ReportTimeout:         metav1.Duration{Duration: v1.DefaultReportTimeout},
		UnqualifiedRegistries: []string{v1.DefaultUnqualifiedRegistry},
	}
}

func TestLoad(t *testing.T) {
	for name, test := range map[string]struct {
		pluginConfig []string
		want         func(*config.LayerLocalityArgs)
	}{
		"no plugin configuration": {},
		"no arguments":            {pluginConfig: []string{"- name: LayerLocality", "  args: {}"}},
		"with kind": {pluginConfig: []string{
			"- name: LayerLocality", "  args:",
			"    apiVersion: kubescheduler.config.k8s.io/v1", "    kind: LayerLocalityArgs", "    loadPenalty: 0"},
			want: func(a *config.LayerLocalityArgs) { a.LoadPenalty = 0 },
		},
		"everything": {pluginConfig: []string{
			"- name: LayerLocality", "  args:",
			"    minImageBytes: 1", "    unknownImageBytes: 2", "    loadPenalty: 3", "    noRequestPenalty: 6", "    linkPenalty: 4", "    maxWaitingPods: 5", "    joinsDownloads: true", "    layerReuse: Chain", "    nodeLayers: false",
			"    arrivalTimeout: 1h1m1s", "    reportTimeout: 90s", "    waitForManifest: 5s", "    nodeStatusMaxImages: 8", "    unlistedTimeout: 2h",
			"    shortNames: [{name: fedora, repository: registry.fedoraproject.org/fedora}]",
			"    unqualifiedRegistries: [quay.io, docker.io]",
			"    mirrors: [{prefix: docker.io, locations: [mirror.example.com/hub]}]"},
			want: func(a *config.LayerLocalityArgs) {
				*a = config.LayerLocalityArgs{
					MinImageBytes: 1, UnknownImageBytes: 2, LoadPenalty: 3, NoRequestPenalty: 6, LinkPenalty: 4, MaxWaitingPods: 5, JoinsDownloads: true, LayerReuse: config.ReuseInChains,
					ArrivalTimeout:        metav1.Duration{Duration: time.Hour + time.Minute + time.Second},
					ReportTimeout:         metav1.Duration{Duration: 90 * time.Second},
					WaitForManifest:       metav1.Duration{Duration: 5 * time.Second},
					NodeStatusMaxImages:   8,
					UnlistedTimeout:       metav1.Duration{Duration: 2 * time.Hour},
					ShortNames:            []config.ShortName{{Name: "fedora", Repository: "registry.fedoraproject.org/fedora"}},
					UnqualifiedRegistries: []string{"quay.io", "docker.io"},
					Mirrors:               []config.Mirror{{Prefix: "docker.io", Locations: []string{"mirror.example.com/hub"}}},
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := load(t, profile(test.pluginConfig...))
			if err != nil {
				t.Fatal(err)
			}
			got, want := arguments(t, loaded), defaults()
			if test.want != nil {
				test.want(want)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if err := validation.LayerLocalityArgs(got); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	one := func(argument string) []string {
		return []string{"- name: LayerLocality", "  args: {" + argument + "}"}
	}
	for name, test := range map[string]struct {
		pluginConfig []string
		want         string
	}{
		"unknown field":            {one("cpuPenality: 3"), `unknown field "cpuPenality"`},
		"field with another case":  {one("LoadPenalty: 3"), `unknown field "LoadPenalty"`},
		"unknown field in a list":  {one("mirrors: [{prefix: docker.io, location: a.example}]"), `unknown field "mirrors[0].location"`},
		"the same field twice":     {append(one("loadPenalty: 3")[:1], "  args:", "    loadPenalty: 3", "    loadPenalty: 4"), `key "loadPenalty" already set`},
		"text for a number":        {one(`minImageBytes: "100MB"`), "minImageBytes of type int64"},
		"fraction":                 {one("loadPenalty: 1.5"), "loadPenalty of type int32"},
		"number beyond its type":   {one("loadPenalty: 4294967296"), "loadPenalty of type int32"},
		"list for text":            {one("shortNames: [{name: [a]}]"), "shortNames.name of type string"},
		"text for a list":          {one("unqualifiedRegistries: docker.io"), "unqualifiedRegistries of type []string"},
		"duration without unit":    {one("arrivalTimeout: 600"), "cannot unmarshal number"},
		"duration of another form": {one("arrivalTimeout: 10 minutes"), `unknown unit " minutes" in duration "10 minutes"`},
		"days":                     {one("arrivalTimeout: 1d"), `unknown unit "d" in duration "1d"`},
		"another version":          {one("apiVersion: kubescheduler.config.k8s.io/v1beta3, kind: LayerLocalityArgs"), `kubescheduler.config.k8s.io/v1beta3`},
		"another kind":             {one("apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs"), "args for plugin LayerLocality were not of type LayerLocalityArgs"},
		"the plugin twice":         {append(one("loadPenalty: 3"), one("loadPenalty: 3")...), `profiles[0].pluginConfig[1]: Duplicate value: "LayerLocality"`},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := load(t, profile(test.pluginConfig...))
			if err == nil {
				t.Fatalf("loaded: %+v", loaded.Profiles[0].PluginConfig)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant ... %s ...", err, test.want)
			}
		})
	}
}

// TestLoadAgents reads the arguments of the agents' plugins, of which a wrong one is refused.
func TestLoadAgents(t *testing.T) {
	load := func(plugin, args string) (runtime.Object, error) {
		loaded, err := load(t, strings.ReplaceAll(profile("- name: "+plugin, "  args: {"+args+"}"), "LayerLocality\n        weight: 4", plugin))
		if err != nil {
			return nil, err
		}
		for _, p := range loaded.Profiles[0].PluginConfig {
			if p.Name == plugin {
				return p.Args, nil
			}
		}
		return nil, nil
	}
	for _, c := range []struct {
		plugin, args string
		want         runtime.Object // nil: refused
	}{
		{"Safe", "", &config.SafeArgs{UtilizationPercent: 90, RiskPercent: 30, ForecastPercent: 20, Score: "Overload"}},
		{"Safe", "riskPercent: 0, score: Balance, logRatings: true", &config.SafeArgs{UtilizationPercent: 90, ForecastPercent: 20, Score: "Balance", LogRatings: true}},
		{"Safe", "risk: 1", nil},
		{"Safe", "riskPercent: 1.5", nil},
		{"Packing", "", &config.PackingArgs{Objective: "BinPack", Resources: []string{"cpu", "memory"}}},
		{"Packing", "objective: LoadBalance, resources: [pods]", &config.PackingArgs{Objective: "LoadBalance", Resources: []string{"pods"}}},
		{"Packing", "resources: pods", nil},
		{"Congestion", "", &config.CongestionArgs{MaxFactor: 100}},
		{"Congestion", "maxFactor: 7", &config.CongestionArgs{MaxFactor: 7}},
		{"Congestion", "maxFactor: seven", nil},
	} {
		got, err := load(c.plugin, c.args)
		if (err != nil) != (c.want == nil) || c.want != nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %s: %+v %v, want %+v", c.plugin, c.args, got, err, c.want)
		}
	}
}

// TestWrite does what kube-scheduler does for --write-config-to and its log.
func TestWrite(t *testing.T) {
	loaded, err := load(t, profile("- name: LayerLocality", "  args: {arrivalTimeout: 90s, loadPenalty: 0}"))
	if err != nil {
		t.Fatal(err)
	}
	info, ok := runtime.SerializerInfoForMediaType(kubeschedulerscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		t.Fatal("no YAML")
	}
	written, err := runtime.Encode(kubeschedulerscheme.Codecs.EncoderForVersion(info.Serializer, v1.SchemeGroupVersion), loaded)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Profiles []struct {
			PluginConfig []struct {
				Name string
				Args map[string]any
			}
		}
	}
	if err := yaml.Unmarshal(written, &read); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "LayerLocalityArgs",
		"minImageBytes": 1e8, "unknownImageBytes": 1e8, "loadPenalty": 0., "noRequestPenalty": 3., "linkPenalty": 100., "maxWaitingPods": 10., "joinsDownloads": false, "layerReuse": "Digest", "nodeLayers": true,
		"arrivalTimeout": "1m30s", "reportTimeout": "2m0s", "waitForManifest": "1s", "nodeStatusMaxImages": 50., "unlistedTimeout": "24h0m0s", "unqualifiedRegistries": []any{"docker.io"},
	}
	for _, plugin := range read.Profiles[0].PluginConfig {
		if plugin.Name == "LayerLocality" {
			if !reflect.DeepEqual(plugin.Args, want) {
				t.Errorf("got  %v\nwant %v", plugin.Args, want)
			}
			again, err := load(t, string(written))
			if err != nil {
				t.Fatalf("what was written cannot be loaded: %v", err)
			}
			if !reflect.DeepEqual(arguments(t, again), arguments(t, loaded)) {
				t.Errorf("got  %+v\nwant %+v", arguments(t, again), arguments(t, loaded))
			}
			return
		}
	}
	t.Errorf("no arguments in\n%s", written)
}

// TestRoundTrip tests the generated code with random arguments, from the
// internal type to v1, JSON and YAML and back. It fails if the generators
// were not run after a field was added, and for deep copies that share
// memory.
func TestRoundTrip(t *testing.T) {
	values := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{func(args *config.LayerLocalityArgs, c randfill.Continue) {
			c.FillNoCustom(args)
			if len(args.UnqualifiedRegistries) == 0 { // is read back as the default
				args.UnqualifiedRegistries = []string{c.String(0)}
			}
		}, func(args *config.PackingArgs, c randfill.Continue) {
			c.FillNoCustom(args)
			if len(args.Resources) == 0 { // the same
				args.Resources = []string{c.String(0)}
			}
		}}
	})
	codecs := kubeschedulerscheme.Codecs
	seed := rand.Int64()
	t.Logf("seed %d", seed)
	random := fuzzer.FuzzerFor(values, mathrand.NewSource(seed), codecs).NilChance(0.2).NumElements(1, 4)
	for _, name := range []string{"LayerLocalityArgs", "QosAwareArgs", "SafeArgs", "PackingArgs", "CongestionArgs"} {
		for range 20 {
			roundtrip.RoundTripSpecificKindWithoutProtobuf(t, config.SchemeGroupVersion.WithKind(name), kubeschedulerscheme.Scheme, codecs, random, nil)
		}
	}
}

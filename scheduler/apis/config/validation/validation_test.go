package validation_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// defaults returns the arguments of a user who sets none.
func defaults(t testing.TB) *config.LayerLocalityArgs {
	t.Helper()
	var unset v1.LayerLocalityArgs
	kubescheduler.Scheme.Default(&unset)
	args := &config.LayerLocalityArgs{}
	if err := kubescheduler.Scheme.Convert(&unset, args, nil); err != nil {
		t.Fatal(err)
	}
	return args
}

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

func mirror(prefix string, locations ...string) []config.Mirror {
	return []config.Mirror{{Prefix: prefix, Locations: locations}}
}

func short(name, repository string) []config.ShortName {
	return []config.ShortName{{Name: name, Repository: repository}}
}

// many returns n different names.
func many(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("r%d.example.com", i)
	}
	return names
}

func TestValid(t *testing.T) {
	for name, set := range map[string]func(*config.LayerLocalityArgs){
		"defaults": func(*config.LayerLocalityArgs) {},
		"lowest": func(a *config.LayerLocalityArgs) {
			a.MinImageBytes, a.UnknownImageBytes = 1, 1
			a.LoadPenalty, a.NoRequestPenalty, a.LinkPenalty, a.MaxWaitingPods = 0, 0, 0, 0
			a.ArrivalTimeout, a.ReportTimeout = duration(time.Second), duration(time.Second)
			a.WaitForManifest, a.UnlistedTimeout, a.NodeStatusMaxImages = duration(0), duration(0), 0
		},
		"highest": func(a *config.LayerLocalityArgs) {
			a.MinImageBytes, a.UnknownImageBytes = 1<<40, 1<<40
			a.LoadPenalty, a.NoRequestPenalty, a.LinkPenalty, a.MaxWaitingPods = 100, 100, 1000, 100_000
			a.ArrivalTimeout, a.ReportTimeout = duration(24*time.Hour), duration(24*time.Hour)
			a.WaitForManifest, a.UnlistedTimeout, a.NodeStatusMaxImages = duration(time.Minute), duration(720*time.Hour), 1000
			a.UnqualifiedRegistries = many(16)
			a.ShortNames, a.Mirrors = nil, nil
			for i, name := range many(1000) {
				a.ShortNames = append(a.ShortNames, config.ShortName{Name: fmt.Sprintf("a%d", i), Repository: name + "/a"})
				a.Mirrors = append(a.Mirrors, config.Mirror{Prefix: name, Locations: many(16)})
			}
		},
		"layers in chains":         func(a *config.LayerLocalityArgs) { a.LayerReuse = config.ReuseInChains },
		"registry with a port":     func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"localhost:5000"} },
		"localhost":                func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"localhost"} },
		"registry by address":      func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"192.0.2.1"} },
		"registry by IPv6 address": func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"[2001:db8::1]:5000"} },
		"alias on docker.io":       func(a *config.LayerLocalityArgs) { a.ShortNames = short("nginx", "docker.io/library/nginx") },
		"alias in parts": func(a *config.LayerLocalityArgs) {
			a.ShortNames = short("opensuse/tumbleweed", "registry.opensuse.org/opensuse/tumbleweed")
		},
		"alias of a repository in folders": func(a *config.LayerLocalityArgs) { a.ShortNames = short("app", "quay.io/team/group/app") },
		"mirror of a registry":             func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io", "mirror.example.com:5000") },
		"mirror of a folder":               func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io/team", "mirror.example.com/quay/team") },
	} {
		t.Run(name, func(t *testing.T) {
			args := defaults(t)
			set(args)
			if err := validation.LayerLocalityArgs(args); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInvalid compares the whole message that the user reads, with the field,
// the value, and the valid values.
func TestInvalid(t *testing.T) {
	const (
		aRegistry   = `must be the host of a registry, such as "quay.io" or "localhost:5000"`
		aRepository = `must be a repository with its registry, such as "quay.io/team/app", without tag and digest`
		aPrefix     = `must be a registry, or a registry and the beginning of a repository, such as "quay.io/team"`
		aName       = `must be a name without registry, tag and digest, such as "fedora" or "opensuse/tumbleweed"`
		digest      = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	)
	for want, set := range map[string]func(*config.LayerLocalityArgs){
		`minImageBytes: Invalid value: 0: must be between 1 and 1099511627776`:                 func(a *config.LayerLocalityArgs) { a.MinImageBytes = 0 },
		`minImageBytes: Invalid value: 1099511627777: must be between 1 and 1099511627776`:     func(a *config.LayerLocalityArgs) { a.MinImageBytes = 1<<40 + 1 },
		`unknownImageBytes: Invalid value: -1: must be between 1 and 1099511627776`:            func(a *config.LayerLocalityArgs) { a.UnknownImageBytes = -1 },
		`unknownImageBytes: Invalid value: 1099511627777: must be between 1 and 1099511627776`: func(a *config.LayerLocalityArgs) { a.UnknownImageBytes = 1<<40 + 1 },
		`loadPenalty: Invalid value: -1: must be between 0 and 100`:                            func(a *config.LayerLocalityArgs) { a.LoadPenalty = -1 },
		`loadPenalty: Invalid value: 101: must be between 0 and 100`:                           func(a *config.LayerLocalityArgs) { a.LoadPenalty = 101 },
		`noRequestPenalty: Invalid value: -1: must be between 0 and 100`:                       func(a *config.LayerLocalityArgs) { a.NoRequestPenalty = -1 },
		`noRequestPenalty: Invalid value: 101: must be between 0 and 100`:                      func(a *config.LayerLocalityArgs) { a.NoRequestPenalty = 101 },
		`linkPenalty: Invalid value: -1: must be between 0 and 1000`:                           func(a *config.LayerLocalityArgs) { a.LinkPenalty = -1 },
		`linkPenalty: Invalid value: 1001: must be between 0 and 1000`:                         func(a *config.LayerLocalityArgs) { a.LinkPenalty = 1001 },
		`maxWaitingPods: Invalid value: -1: must be between 0 and 100000`:                      func(a *config.LayerLocalityArgs) { a.MaxWaitingPods = -1 },
		`maxWaitingPods: Invalid value: 100001: must be between 0 and 100000`:                  func(a *config.LayerLocalityArgs) { a.MaxWaitingPods = 100_001 },
		`arrivalTimeout: Invalid value: "0s": must be between 1s and 24h`:                      func(a *config.LayerLocalityArgs) { a.ArrivalTimeout = duration(0) },
		`arrivalTimeout: Invalid value: "24h0m1s": must be between 1s and 24h`:                 func(a *config.LayerLocalityArgs) { a.ArrivalTimeout = duration(24*time.Hour + time.Second) },
		`reportTimeout: Invalid value: "-2m0s": must be between 1s and 24h`:                    func(a *config.LayerLocalityArgs) { a.ReportTimeout = duration(-2 * time.Minute) },
		`reportTimeout: Invalid value: "999ms": must be between 1s and 24h`:                    func(a *config.LayerLocalityArgs) { a.ReportTimeout = duration(999 * time.Millisecond) },
		`layerReuse: Unsupported value: "chain": supported values: "Digest", "Chain"`:          func(a *config.LayerLocalityArgs) { a.LayerReuse = "chain" },
		`nodeStatusMaxImages: Invalid value: -1: must be between 0 and 1000`:                   func(a *config.LayerLocalityArgs) { a.NodeStatusMaxImages = -1 },
		`nodeStatusMaxImages: Invalid value: 1001: must be between 0 and 1000`:                 func(a *config.LayerLocalityArgs) { a.NodeStatusMaxImages = 1001 },
		`unlistedTimeout: Invalid value: "-1ns": must be between 0s and 720h`:                  func(a *config.LayerLocalityArgs) { a.UnlistedTimeout = duration(-1) },
		`unlistedTimeout: Invalid value: "720h0m1s": must be between 0s and 720h`:              func(a *config.LayerLocalityArgs) { a.UnlistedTimeout = duration(720*time.Hour + time.Second) },
		`waitForManifest: Invalid value: "-1ns": must be between 0s and 1m`:                    func(a *config.LayerLocalityArgs) { a.WaitForManifest = duration(-1) },
		`waitForManifest: Invalid value: "1m0.001s": must be between 0s and 1m`:                func(a *config.LayerLocalityArgs) { a.WaitForManifest = duration(time.Minute + time.Millisecond) },

		`shortNames[0].name: Invalid value: "": ` + aName:                    func(a *config.LayerLocalityArgs) { a.ShortNames = short("", "quay.io/a") },
		`shortNames[0].name: Invalid value: "quay.io/nginx": ` + aName:       func(a *config.LayerLocalityArgs) { a.ShortNames = short("quay.io/nginx", "quay.io/a") },
		`shortNames[0].name: Invalid value: "localhost/nginx": ` + aName:     func(a *config.LayerLocalityArgs) { a.ShortNames = short("localhost/nginx", "quay.io/a") },
		`shortNames[0].name: Invalid value: "library/": ` + aName:            func(a *config.LayerLocalityArgs) { a.ShortNames = short("library/", "quay.io/a") },
		`shortNames[0].name: Invalid value: "nginx:1.29": ` + aName:          func(a *config.LayerLocalityArgs) { a.ShortNames = short("nginx:1.29", "quay.io/a") },
		`shortNames[0].name: Invalid value: "nginx` + digest + `": ` + aName: func(a *config.LayerLocalityArgs) { a.ShortNames = short("nginx"+digest, "quay.io/a") },
		`shortNames[0].name: Invalid value: "Nginx": ` + aName:               func(a *config.LayerLocalityArgs) { a.ShortNames = short("Nginx", "quay.io/a") },
		`shortNames[1].name: Duplicate value: "a"`: func(a *config.LayerLocalityArgs) {
			a.ShortNames = append(short("a", "quay.io/a"), short("a", "quay.io/b")...)
		},
		`shortNames[0].repository: Invalid value: "": ` + aRepository:                func(a *config.LayerLocalityArgs) { a.ShortNames = short("a", "") },
		`shortNames[0].repository: Invalid value: "quay.io": ` + aRepository:         func(a *config.LayerLocalityArgs) { a.ShortNames = short("a", "quay.io") },
		`shortNames[0].repository: Invalid value: "library/nginx": ` + aRepository:   func(a *config.LayerLocalityArgs) { a.ShortNames = short("a", "library/nginx") },
		`shortNames[0].repository: Invalid value: "docker.io/nginx": ` + aRepository: func(a *config.LayerLocalityArgs) { a.ShortNames = short("a", "docker.io/nginx") },
		`shortNames[0].repository: Invalid value: "quay.io/a:1": ` + aRepository:     func(a *config.LayerLocalityArgs) { a.ShortNames = short("a", "quay.io/a:1") },
		`shortNames: Too many: 1001: must have at most 1000 items`: func(a *config.LayerLocalityArgs) {
			a.ShortNames = make([]config.ShortName, 1001)
		},

		`unqualifiedRegistries: Required value: leave it out for docker.io`:        func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{} },
		`unqualifiedRegistries[0]: Invalid value: "": ` + aRegistry:                func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{""} },
		`unqualifiedRegistries[0]: Invalid value: "quay.io/team": ` + aRegistry:    func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"quay.io/team"} },
		`unqualifiedRegistries[0]: Invalid value: "https://quay.io": ` + aRegistry: func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"https://quay.io"} },
		`unqualifiedRegistries[0]: Invalid value: "registry": ` + aRegistry:        func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"registry"} },
		`unqualifiedRegistries[0]: Invalid value: "index.docker.io": ` + aRegistry: func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"index.docker.io"} },
		`unqualifiedRegistries[1]: Duplicate value: "quay.io"`:                     func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = []string{"quay.io", "quay.io"} },
		`unqualifiedRegistries: Too many: 17: must have at most 16 items`:          func(a *config.LayerLocalityArgs) { a.UnqualifiedRegistries = many(17) },
		`mirrors[0].prefix: Invalid value: "": ` + aPrefix:                         func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("", "quay.io") },
		`mirrors[0].prefix: Invalid value: "quay.io/": ` + aPrefix:                 func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io/", "a.example") },
		`mirrors[0].prefix: Invalid value: "team/app": ` + aPrefix:                 func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("team/app", "a.example") },
		`mirrors[0].prefix: Invalid value: "*.example.com": ` + aPrefix:            func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("*.example.com", "a.example") },
		`mirrors[0].locations[0]: Invalid value: "a.example/b:1": ` + aPrefix:      func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io", "a.example/b:1") },
		`mirrors[0].locations[1]: Invalid value: "http://a.example": ` + aPrefix:   func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io", "a.example", "http://a.example") },
		`mirrors[0].locations: Required value: name at least one mirror`:           func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io") },
		`mirrors[0].locations: Too many: 17: must have at most 16 items`:           func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io", many(17)...) },
		`mirrors[0].locations[1]: Duplicate value: "a.example"`:                    func(a *config.LayerLocalityArgs) { a.Mirrors = mirror("quay.io", "a.example", "a.example") },
		`mirrors[1].prefix: Duplicate value: "quay.io"`: func(a *config.LayerLocalityArgs) {
			a.Mirrors = append(mirror("quay.io", "a.example"), mirror("quay.io", "b.example")...)
		},
		`mirrors: Too many: 1001: must have at most 1000 items`: func(a *config.LayerLocalityArgs) { a.Mirrors = make([]config.Mirror, 1001) },
	} {
		t.Run(want, func(t *testing.T) {
			args := defaults(t)
			set(args)
			if err := validation.LayerLocalityArgs(args); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// TestAllAtOnce checks that one message shows everything that has to change.
func TestAllAtOnce(t *testing.T) {
	err := validation.LayerLocalityArgs(&config.LayerLocalityArgs{LoadPenalty: -1, Mirrors: mirror("q", "w")})
	var all utilerrors.Aggregate
	if !errors.As(err, &all) {
		t.Fatalf("%T: %v", err, err)
	}
	var fields []string
	for _, one := range all.Errors() {
		field, _, _ := strings.Cut(one.Error(), ":")
		fields = append(fields, field)
	}
	want := []string{"minImageBytes", "unknownImageBytes", "loadPenalty", "layerReuse", "arrivalTimeout", "reportTimeout",
		"unqualifiedRegistries", "mirrors[0].prefix", "mirrors[0].locations[0]"}
	if !slices.Equal(fields, want) {
		t.Errorf("got %v, want %v", fields, want)
	}
}

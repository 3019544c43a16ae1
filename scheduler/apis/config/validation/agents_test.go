package validation_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// unset returns the arguments of a user who sets none of them in the external type.
func unset[T runtime.Object](t testing.TB, external runtime.Object, args T) T {
	t.Helper()
	kubescheduler.Scheme.Default(external)
	if err := kubescheduler.Scheme.Convert(external, args, nil); err != nil {
		t.Fatal(err)
	}
	return args
}

// refused checks the error of a validation: empty means that there is none.
func refused(t *testing.T, name string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want ... %s ...", name, err, want)
	}
}

func TestSafeArgs(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*config.SafeArgs)
		want string
	}{
		"defaults":          {func(*config.SafeArgs) {}, ""},
		"lowest":            {func(a *config.SafeArgs) { a.UtilizationPercent, a.RiskPercent, a.ForecastPercent = 0, 0, 0 }, ""},
		"highest":           {func(a *config.SafeArgs) { a.UtilizationPercent, a.RiskPercent, a.ForecastPercent = 100, 100, 100 }, ""},
		"balance":           {func(a *config.SafeArgs) { a.Score = "Balance" }, ""},
		"utilization below": {func(a *config.SafeArgs) { a.UtilizationPercent = -1 }, "utilizationPercent: Invalid value: -1: must be between 0 and 100"},
		"utilization above": {func(a *config.SafeArgs) { a.UtilizationPercent = 101 }, "utilizationPercent"},
		"risk below":        {func(a *config.SafeArgs) { a.RiskPercent = -1 }, "riskPercent"},
		"risk above":        {func(a *config.SafeArgs) { a.RiskPercent = 101 }, "riskPercent"},
		"forecast below":    {func(a *config.SafeArgs) { a.ForecastPercent = -1 }, "forecastPercent"},
		"forecast above":    {func(a *config.SafeArgs) { a.ForecastPercent = 101 }, "forecastPercent"},
		"score":             {func(a *config.SafeArgs) { a.Score = "overload" }, `score: Unsupported value: "overload": supported values: "Overload", "Balance"`},
	} {
		args := unset(t, &v1.SafeArgs{}, &config.SafeArgs{})
		test.set(args)
		refused(t, name, validation.SafeArgs(args), test.want)
	}
}

func TestPackingArgs(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*config.PackingArgs)
		want string
	}{
		"defaults": {func(*config.PackingArgs) {}, ""},
		"one":      {func(a *config.PackingArgs) { a.Objective, a.Resources = "Consolidate", []string{"pods"} }, ""},
		"five": {func(a *config.PackingArgs) {
			a.Resources = []string{"cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"}
		}, ""},
		"objective":     {func(a *config.PackingArgs) { a.Objective = "A_BINPACK" }, `objective: Unsupported value: "A_BINPACK": supported values: "BinPack", "LoadBalance", "Consolidate"`},
		"no resource":   {func(a *config.PackingArgs) { a.Resources = []string{} }, "resources: Invalid value: 0: must be 1 to 5 resources"},
		"six":           {func(a *config.PackingArgs) { a.Resources = strings.Fields("cpu memory pods a/b a/c a/d") }, "resources: Invalid value: 6"},
		"twice":         {func(a *config.PackingArgs) { a.Resources = []string{"cpu", "cpu"} }, `resources[1]: Duplicate value: "cpu"`},
		"another":       {func(a *config.PackingArgs) { a.Resources = []string{"disk"} }, `resources[0]: Invalid value: "disk"`},
		"no valid name": {func(a *config.PackingArgs) { a.Resources = []string{"a/b/c"} }, `resources[0]: Invalid value: "a/b/c"`},
	} {
		args := unset(t, &v1.PackingArgs{}, &config.PackingArgs{})
		test.set(args)
		refused(t, name, validation.PackingArgs(args), test.want)
	}
}

func TestCongestionArgs(t *testing.T) {
	for value, want := range map[int64]string{
		1: "", 100: "", 1_000_000_000: "", 0: "maxFactor: Invalid value: 0: must be between 1 and 1000000000", -1: "maxFactor", 1_000_000_001: "maxFactor",
	} {
		args := unset(t, &v1.CongestionArgs{}, &config.CongestionArgs{})
		args.MaxFactor = value
		refused(t, "maxFactor", validation.CongestionArgs(args), want)
	}
}

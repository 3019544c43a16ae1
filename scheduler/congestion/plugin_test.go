package congestion

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2/ktesting"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
)

func args(t testing.TB, most int64) *config.CongestionArgs {
	return frameworktest.Args(t, &configv1.CongestionArgs{}, &config.CongestionArgs{}, func(a *configv1.CongestionArgs) {
		if most != 0 {
			a.MaxFactor = &most
		}
	})
}

func congested(factor string) *v1.Node {
	return frameworktest.Node("n-"+factor[:min(len(factor), 10)], "4", "1Gi", map[string]string{Annotation: factor})
}

// TestGolden has the published figures: a node that states nothing, or what cannot be read,
// has no congestion. The latter is counted, and once in the log.
func TestGolden(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	nodes := []*v1.Node{
		congested("25"), congested("30"), congested("130"), congested("0"), congested("100"), congested("33.5"), frameworktest.Node("none", "4", "1Gi", nil),
		congested("-3"), congested("NaN"), congested("1e400"), congested("high"), congested(strings.Repeat("9", 1<<20)),
	}
	f := frameworktest.New(t, logger, Name, New, args(t, 0), nodes)
	for range 2 {
		if got, want := f.Scores(t, frameworktest.Pod("p", "1", "")), []int64{75, 70, 0, 100, 0, 66, 100, 100, 100, 100, 100, 100}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	counted, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "scheduler_nodes_without_statistics_total", map[string]string{"plugin": Name, "reason": "invalid"}, "reason")
	if err != nil || counted["invalid"] != 8 {
		t.Errorf("counted: %v %v", counted, err)
	}
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	const best = `Scored nodes plugin="Congestion" pod="default/p" nodes=12 best=[{"node":"n--3","score":100}`
	if strings.Count(text, best) != 2 || strings.Count(text, "rated without statistics") != 1 || len(text) > 2000 {
		t.Errorf("log: %.500s", text)
	}
}

// TestMax has another largest factor.
func TestMax(t *testing.T) {
	f := frameworktest.New(t, ktesting.NewLogger(t, ktesting.NewConfig()), Name, New, args(t, 10), []*v1.Node{congested("3"), congested("10"), congested("11")})
	if got := f.Scores(t, frameworktest.Pod("p", "1", "")); !slices.Equal(got, []int64{70, 0, 0}) {
		t.Errorf("%v", got)
	}
}

func TestArguments(t *testing.T) {
	if _, err := New(t.Context(), args(t, -1), nil); err == nil || !strings.Contains(err.Error(), "maxFactor: Invalid value: -1") {
		t.Errorf("%v", err)
	}
	if _, err := New(t.Context(), &config.SafeArgs{}, nil); err == nil || !strings.Contains(err.Error(), "want CongestionArgs") {
		t.Errorf("%v", err)
	}
}

func FuzzScore(f *testing.F) {
	f.Add(25., int64(100))
	f.Add(1e300, int64(1))
	f.Fuzz(func(t *testing.T, factor float64, most int64) {
		if !(factor >= 0) || most < 1 {
			t.Skip("refused before")
		}
		if got := score(factor, float64(most)); got < 0 || got > 100 {
			t.Errorf("%v of %d: %d", factor, most, got)
		}
	})
}

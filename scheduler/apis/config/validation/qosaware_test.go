package validation_test

import (
	"math"
	"strings"
	"testing"
	"time"

	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

// qosDefaults returns the arguments of a user who sets none.
func qosDefaults(t testing.TB) *config.QosAwareArgs {
	t.Helper()
	var unset v1.QosAwareArgs
	kubescheduler.Scheme.Default(&unset)
	args := &config.QosAwareArgs{}
	if err := kubescheduler.Scheme.Convert(&unset, args, nil); err != nil {
		t.Fatal(err)
	}
	return args
}

func TestQosAwareArgs(t *testing.T) {
	type qos = config.QosAwareArgs
	for name, test := range map[string]struct {
		set  func(*qos)
		want string // part of the error; empty: valid
	}{
		"defaults": {func(*qos) {}, ""},
		"published": {func(a *qos) {
			a.Window, a.MeasureFrom, a.DebugBindAddress, a.LegacyAnnotations = duration(0), "Bound", "127.0.0.1:10000", true
		}, ""},
		"lowest": {func(a *qos) {
			a.SafetyMargin, a.MinimumRunningTime, a.AcceptablePreemptionOverhead, a.MaxPreemptionsPerMinute = duration(0), duration(0), 0, 0
			a.Window, a.ReconsiderEvery, a.LongWait, a.StateConfigMap, a.DefaultSLO = duration(time.Minute), duration(time.Second), duration(time.Second), "", ptr.To(1e-9)
		}, ""},
		"highest": {func(a *qos) {
			a.SafetyMargin, a.MinimumRunningTime, a.MaxPreemptionsPerMinute = duration(24*time.Hour), duration(24*time.Hour), 100_000
			a.Window, a.ReconsiderEvery, a.DefaultSLO, a.LongWait, a.DebugBindAddress = duration(2160*time.Hour), duration(time.Hour), ptr.To(1.), duration(24*time.Hour), "[::1]:0"
		}, ""},
		"margin below":       {func(a *qos) { a.SafetyMargin = duration(-1) }, "safetyMargin: Invalid value: \"-1ns\": must be between 0s and 24h"},
		"margin above":       {func(a *qos) { a.SafetyMargin = duration(24*time.Hour + 1) }, "safetyMargin"},
		"running time below": {func(a *qos) { a.MinimumRunningTime = duration(-1) }, "minimumRunningTime"},
		"running time above": {func(a *qos) { a.MinimumRunningTime = duration(25 * time.Hour) }, "minimumRunningTime"},
		"overhead below":     {func(a *qos) { a.AcceptablePreemptionOverhead = -.1 }, "acceptablePreemptionOverhead: Invalid value: -0.1: must be between 0 and 1"},
		"overhead above":     {func(a *qos) { a.AcceptablePreemptionOverhead = 1.1 }, "acceptablePreemptionOverhead"},
		"overhead NaN":       {func(a *qos) { a.AcceptablePreemptionOverhead = math.NaN() }, "acceptablePreemptionOverhead"},
		"preemptions below":  {func(a *qos) { a.MaxPreemptionsPerMinute = -1 }, "maxPreemptionsPerMinute"},
		"preemptions above":  {func(a *qos) { a.MaxPreemptionsPerMinute = 100_001 }, "maxPreemptionsPerMinute"},
		"long wait below":    {func(a *qos) { a.LongWait = duration(time.Second - 1) }, `longWait: Invalid value: "999.999999ms": must be between 1s and 24h`},
		"long wait above":    {func(a *qos) { a.LongWait = duration(24*time.Hour + 1) }, "longWait"},
		"window below":       {func(a *qos) { a.Window = duration(time.Minute - 1) }, "window"},
		"window above":       {func(a *qos) { a.Window = duration(2160*time.Hour + 1) }, "window"},
		"window negative":    {func(a *qos) { a.Window = duration(-time.Hour) }, "or 0s to never forget"},
		"measureFrom":        {func(a *qos) { a.MeasureFrom = "" }, `measureFrom: Unsupported value: ""`},
		"reconsider below":   {func(a *qos) { a.ReconsiderEvery = duration(time.Second - 1) }, "reconsiderEvery"},
		"reconsider above":   {func(a *qos) { a.ReconsiderEvery = duration(time.Hour + 1) }, "reconsiderEvery"},
		"ConfigMap":          {func(a *qos) { a.StateConfigMap = "kube-system/state" }, "must be the name of a ConfigMap in kube-system"},
		"all interfaces":     {func(a *qos) { a.DebugBindAddress = ":10000" }, "debugBindAddress"},
		"another interface":  {func(a *qos) { a.DebugBindAddress = "10.0.0.1:10000" }, "loopback device"},
		"a name":             {func(a *qos) { a.DebugBindAddress = "localhost:10000" }, "loopback device"},
		"no port":            {func(a *qos) { a.DebugBindAddress = "127.0.0.1" }, "loopback device"},
		"port above":         {func(a *qos) { a.DebugBindAddress = "127.0.0.1:65536" }, "loopback device"},
		"default 0":          {func(a *qos) { a.DefaultSLO = ptr.To(0.) }, "defaultSLO: Invalid value: 0: must be above 0 and at most 1"},
		"default above":      {func(a *qos) { a.DefaultSLO = ptr.To(1.01) }, "defaultSLO"},
		"default NaN":        {func(a *qos) { a.DefaultSLO = ptr.To(math.NaN()) }, "defaultSLO"},
	} {
		t.Run(name, func(t *testing.T) {
			args := qosDefaults(t)
			test.set(args)
			err := validation.QosAwareArgs(args)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want ... %s ...", err, test.want)
			}
		})
	}
	args := qosDefaults(t)
	args.LongWait, args.MeasureFrom = duration(0), "y"
	if err := validation.QosAwareArgs(args); err == nil || !strings.Contains(err.Error(), "longWait") || !strings.Contains(err.Error(), "measureFrom") {
		t.Errorf("not everything that is wrong: %v", err)
	}
}

package validation

import (
	"net"
	"strconv"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

const (
	maxPreemptions = 100_000
	maxWindow      = 90 * 24 * time.Hour
)

// QosAwareArgs returns one error with everything that is wrong with the arguments. Every
// message names the field and its valid values.
func QosAwareArgs(args *config.QosAwareArgs) error {
	var errs field.ErrorList
	invalid := func(name string, value any, want string) {
		errs = append(errs, field.Invalid(field.NewPath(name), value, want))
	}
	oneOf := func(name, value string, values ...string) {
		for _, valid := range values {
			if value == valid {
				return
			}
		}
		errs = append(errs, field.NotSupported(field.NewPath(name), value, values))
	}
	if d := args.SafetyMargin.Duration; d < 0 || d > maxTimeout {
		invalid("safetyMargin", d.String(), "must be between 0s and 24h")
	}
	if d := args.MinimumRunningTime.Duration; d < 0 || d > maxTimeout {
		invalid("minimumRunningTime", d.String(), "must be between 0s and 24h")
	}
	if x := args.AcceptablePreemptionOverhead; !(x >= 0 && x <= 1) { // also if it is not a number
		invalid("acceptablePreemptionOverhead", x, "must be between 0 and 1")
	}
	if n := args.MaxPreemptionsPerMinute; n < 0 || n > maxPreemptions {
		invalid("maxPreemptionsPerMinute", n, "must be between 0 and "+strconv.Itoa(maxPreemptions))
	}
	if d := args.LongWait.Duration; d < time.Second || d > maxTimeout {
		invalid("longWait", d.String(), "must be between 1s and 24h")
	}
	if d := args.Window.Duration; d != 0 && (d < time.Minute || d > maxWindow) {
		invalid("window", d.String(), "must be between 1m and 2160h, or 0s to never forget")
	}
	oneOf("measureFrom", args.MeasureFrom, config.MeasureFromReady, config.MeasureFromBound)
	if d := args.ReconsiderEvery.Duration; d < time.Second || d > time.Hour {
		invalid("reconsiderEvery", d.String(), "must be between 1s and 1h")
	}
	if name := args.StateConfigMap; name != "" && len(apivalidation.NameIsDNSSubdomain(name, false)) > 0 {
		invalid("stateConfigMap", name, `must be the name of a ConfigMap in kube-system, such as "layerlocality-qosaware", or empty`)
	}
	if address := args.DebugBindAddress; address != "" && !isLoopback(address) {
		invalid("debugBindAddress", address, "must be an address of the loopback device with a port, such as 127.0.0.1:10000, because it has no authentication; the secure port of kube-scheduler serves the same at /debug/qosaware")
	}
	if slo := args.DefaultSLO; slo != nil && !(*slo > 0 && *slo <= 1) {
		invalid("defaultSLO", *slo, "must be above 0 and at most 1")
	}
	return errs.ToAggregate()
}

// isLoopback reports whether an address is one of the loopback device and has a port.
func isLoopback(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

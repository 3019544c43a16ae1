package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// The defaults of the arguments. The v1 types document their meaning.
const (
	DefaultSafetyMargin                         = 30 * time.Second
	DefaultMinimumRunningTime                   = 5 * time.Minute
	DefaultAcceptablePreemptionOverhead float64 = 1
	DefaultMaxPreemptionsPerMinute      int32   = 60
	DefaultLongWait                             = 10 * time.Minute
	DefaultRespectPriority                      = true
	DefaultWindow                               = 24 * time.Hour
	DefaultMeasureFrom                          = config.MeasureFromReady
	DefaultReconsiderEvery                      = 5 * time.Second
	DefaultStateConfigMap                       = "layerlocality-qosaware"
	DefaultLegacyAnnotations                    = false
)

// SetDefaults_QosAwareArgs fills in what is not set.
func SetDefaults_QosAwareArgs(args *QosAwareArgs) { //nolint:revive // the generator asks for this name
	setDefault(&args.SafetyMargin, metav1.Duration{Duration: DefaultSafetyMargin})
	setDefault(&args.MinimumRunningTime, metav1.Duration{Duration: DefaultMinimumRunningTime})
	setDefault(&args.AcceptablePreemptionOverhead, DefaultAcceptablePreemptionOverhead)
	setDefault(&args.MaxPreemptionsPerMinute, DefaultMaxPreemptionsPerMinute)
	setDefault(&args.LongWait, metav1.Duration{Duration: DefaultLongWait})
	setDefault(&args.RespectPriority, DefaultRespectPriority)
	setDefault(&args.Window, metav1.Duration{Duration: DefaultWindow})
	setDefault(&args.MeasureFrom, DefaultMeasureFrom)
	setDefault(&args.ReconsiderEvery, metav1.Duration{Duration: DefaultReconsiderEvery})
	setDefault(&args.StateConfigMap, DefaultStateConfigMap)
	setDefault(&args.LegacyAnnotations, DefaultLegacyAnnotations)
}

package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// QosAwareArgs holds the arguments of the QosAware plugin. The v1 type documents every field;
// here all of them but DefaultSLO have a value.
type QosAwareArgs struct {
	metav1.TypeMeta

	SafetyMargin                 metav1.Duration
	MinimumRunningTime           metav1.Duration
	AcceptablePreemptionOverhead float64
	MaxPreemptionsPerMinute      int32
	LongWait                     metav1.Duration
	RespectPriority              bool
	Window                       metav1.Duration
	MeasureFrom                  string
	ReconsiderEvery              metav1.Duration
	StateConfigMap               string
	DebugBindAddress             string
	DefaultSLO                   *float64
	LegacyAnnotations            bool
}

// The values of MeasureFrom: from when on a pod counts as running.
const (
	MeasureFromReady = "Ready"
	MeasureFromBound = "Bound"
)

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// QosAwareArgs holds the arguments of the QosAware plugin. All profiles of a scheduler have
// to have the same, because they share one queue.
type QosAwareArgs struct {
	metav1.TypeMeta `json:",inline"`

	// SafetyMargin is how long before it breaks its SLO a workload becomes urgent: its
	// waiting pods come first, and it is spared as a victim. Default 30s.
	// +optional
	SafetyMargin *metav1.Duration `json:"safetyMargin,omitempty"`

	// MinimumRunningTime is how long ago a pod began to run before it may be preempted for a workload
	// with the same or a lower SLO. Default 5m.
	// +optional
	MinimumRunningTime *metav1.Duration `json:"minimumRunningTime,omitempty"`

	// AcceptablePreemptionOverhead is the share of its time on nodes that preemptions may
	// cost a workload that is short of service, from 0 to 1, unless it states its own. It is
	// never more than 1 less the SLO. Default 1.
	// +optional
	AcceptablePreemptionOverhead *float64 `json:"acceptablePreemptionOverhead,omitempty"`

	// MaxPreemptionsPerMinute limits how many pods are preempted for the sake of SLOs, by
	// this scheduler. Preemptions of pods with a lower priority are not limited.
	// Default 60.
	// +optional
	MaxPreemptionsPerMinute *int32 `json:"maxPreemptionsPerMinute,omitempty"`

	// LongWait is how long a pod without an SLO, or whose SLO is not admitted, waits behind
	// urgent ones of its priority. After that one of ten places goes to those that wait longer,
	// the first one first. Default 10m.
	// +optional
	LongWait *metav1.Duration `json:"longWait,omitempty"`

	// RespectPriority has the queue sort by priority first, and by SLO only among pods of
	// the same priority. Pods are never preempted by pods with a lower priority, whatever
	// is set here. Default true.
	// +optional
	RespectPriority *bool `json:"respectPriority,omitempty"`

	// Window is the time after which the past has lost most of its weight: a second that
	// passed x ago weighs exp(-x/window). 0s: the past is never forgotten.
	// Default 24h.
	// +optional
	Window *metav1.Duration `json:"window,omitempty"`

	// MeasureFrom is from when on a pod counts as running: when it is ready (Ready), so
	// that pulls of images count as waiting, or when it has its node (Bound).
	// Default Ready.
	// +optional
	MeasureFrom *string `json:"measureFrom,omitempty"`

	// ReconsiderEvery is the interval at which urgent pods that fit nowhere are tried again:
	// that an SLO is about to be broken is no event in the cluster. Default 5s.
	// +optional
	ReconsiderEvery *metav1.Duration `json:"reconsiderEvery,omitempty"`

	// StateConfigMap is the name of the ConfigMap in kube-system that keeps what ended pods
	// got. Empty: nothing is kept, and every start of the scheduler begins anew.
	// Default layerlocality-qosaware.
	// +optional
	StateConfigMap *string `json:"stateConfigMap,omitempty"`

	// DebugBindAddress is the address, on the loopback device, at which the debug table is
	// served without authentication, such as 127.0.0.1:10000. Empty: only the secure port
	// serves it.
	// +optional
	DebugBindAddress string `json:"debugBindAddress,omitempty"`

	// DefaultSLO is the SLO of all pods that state none, above 0 and at most 1. Not set: they
	// have none.
	// +optional
	DefaultSLO *float64 `json:"defaultSLO,omitempty"`

	// LegacyAnnotations has the plugin also read the published annotations slo, controller,
	// qosMeasuring and acceptablePreemptionOverhead. Default false.
	// +optional
	LegacyAnnotations *bool `json:"legacyAnnotations,omitempty"`
}

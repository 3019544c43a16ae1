package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// SafeArgs holds the arguments of the Safe plugin.
type SafeArgs struct {
	metav1.TypeMeta `json:",inline"`

	// UtilizationPercent is how much of a resource may be used: a node that uses more is
	// overloaded. 0 to 100. Default 90.
	// +optional
	UtilizationPercent *int32 `json:"utilizationPercent,omitempty"`

	// RiskPercent is which risk of being overloaded is accepted: a pod does not go to a node
	// for which it is larger, be it for CPU or for memory. 0 to 100. Default 30.
	// +optional
	RiskPercent *int32 `json:"riskPercent,omitempty"`

	// ForecastPercent is the weight of a forecast of what is free, where there is one,
	// against what was measured. 0 to 100. Default 20.
	// +optional
	ForecastPercent *int32 `json:"forecastPercent,omitempty"`

	// Score is what decides about the score of a node: the risk that it is overloaded
	// (Overload), or how much it uses and how steadily (Balance). Default Overload.
	// +optional
	Score *string `json:"score,omitempty"`

	// LogRatings has the scheduler log how it rates nodes, up to 100 of them, for each pod.
	// Default false.
	// +optional
	LogRatings *bool `json:"logRatings,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// PackingArgs holds the arguments of the Packing plugin.
type PackingArgs struct {
	metav1.TypeMeta `json:",inline"`

	// Objective is what is to become small over all nodes: how much nodes differ otherwise
	// than pods do (BinPack), how much nodes differ in the first resource (LoadBalance), or
	// how far they are from being empty or full of it (Consolidate). Default BinPack.
	// +optional
	Objective *string `json:"objective,omitempty"`

	// Resources are those that count: 1 to 5 of cpu, memory, ephemeral-storage, pods and
	// extended resources such as nvidia.com/gpu. Default [cpu,memory].
	// +optional
	// +listType=atomic
	Resources []string `json:"resources,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// CongestionArgs holds the arguments of the Congestion plugin.
type CongestionArgs struct {
	metav1.TypeMeta `json:",inline"`

	// MaxFactor is the congestion-factor of a node that gets no points: more than that is
	// not worse. 1 to 1000000000. Default 100.
	// +optional
	MaxFactor *int64 `json:"maxFactor,omitempty"`
}

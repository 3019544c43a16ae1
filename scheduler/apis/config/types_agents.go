package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// SafeArgs holds the arguments of the Safe plugin. The v1 type documents every field; here
// all of them have a value.
type SafeArgs struct {
	metav1.TypeMeta

	UtilizationPercent int32
	RiskPercent        int32
	ForecastPercent    int32
	Score              string
	LogRatings         bool
}

// The values of Score: what of a node decides about its score.
const (
	// ScoreOverload prefers a small risk of overload.
	ScoreOverload = "Overload"
	// ScoreBalance prefers a small and steady use.
	ScoreBalance = "Balance"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PackingArgs holds the arguments of the Packing plugin. The v1 type documents every field;
// here all of them have a value.
type PackingArgs struct {
	metav1.TypeMeta

	Objective string
	Resources []string
}

// The values of Objective: what is to become small over all nodes.
const (
	// BinPack is how much nodes differ otherwise than pods do.
	BinPack = "BinPack"
	// LoadBalance is how much nodes differ.
	LoadBalance = "LoadBalance"
	// Consolidate is how far nodes are from being empty or full.
	Consolidate = "Consolidate"
)

// MaxResources is how many resources Packing considers at most.
const MaxResources = 5

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// CongestionArgs holds the arguments of the Congestion plugin. The v1 type documents every
// field; here all of them have a value.
type CongestionArgs struct {
	metav1.TypeMeta

	MaxFactor int64
}

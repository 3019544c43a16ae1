package v1

import (
	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// The defaults of the arguments. The v1 types document their meaning.
const (
	DefaultUtilizationPercent int32 = 90
	DefaultRiskPercent        int32 = 30
	DefaultForecastPercent    int32 = 20
	DefaultScore                    = config.ScoreOverload
	DefaultLogRatings               = false
	DefaultObjective                = config.BinPack
	DefaultMaxFactor          int64 = 100
)

// DefaultResources returns the resources that Packing considers by default.
func DefaultResources() []string { return []string{string(v1.ResourceCPU), string(v1.ResourceMemory)} }

// SetDefaults_SafeArgs fills in what is not set.
func SetDefaults_SafeArgs(args *SafeArgs) { //nolint:revive // the generator asks for this name
	setDefault(&args.UtilizationPercent, DefaultUtilizationPercent)
	setDefault(&args.RiskPercent, DefaultRiskPercent)
	setDefault(&args.ForecastPercent, DefaultForecastPercent)
	setDefault(&args.Score, DefaultScore)
	setDefault(&args.LogRatings, DefaultLogRatings)
}

// SetDefaults_PackingArgs fills in what is not set.
func SetDefaults_PackingArgs(args *PackingArgs) { //nolint:revive // the generator asks for this name
	setDefault(&args.Objective, DefaultObjective)
	if args.Resources == nil {
		args.Resources = DefaultResources()
	}
}

// SetDefaults_CongestionArgs fills in what is not set.
func SetDefaults_CongestionArgs(args *CongestionArgs) { //nolint:revive // the generator asks for this name
	setDefault(&args.MaxFactor, DefaultMaxFactor)
}

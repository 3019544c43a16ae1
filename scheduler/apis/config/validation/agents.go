package validation

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

const maxFactor = 1_000_000_000

// SafeArgs returns one error with everything that is wrong with the arguments. Every message
// names the field and its valid values.
func SafeArgs(args *config.SafeArgs) error {
	var errs field.ErrorList
	for _, percent := range []struct {
		name  string
		value int32
	}{
		{"utilizationPercent", args.UtilizationPercent}, {"riskPercent", args.RiskPercent}, {"forecastPercent", args.ForecastPercent},
	} {
		if percent.value < 0 || percent.value > 100 {
			errs = append(errs, field.Invalid(field.NewPath(percent.name), percent.value, "must be between 0 and 100"))
		}
	}
	if scores := []string{config.ScoreOverload, config.ScoreBalance}; !slices.Contains(scores, args.Score) {
		errs = append(errs, field.NotSupported(field.NewPath("score"), args.Score, scores))
	}
	return errs.ToAggregate()
}

// PackingArgs returns one error with everything that is wrong with the arguments. Every
// message names the field and its valid values.
func PackingArgs(args *config.PackingArgs) error {
	var errs field.ErrorList
	if objectives := []string{config.BinPack, config.LoadBalance, config.Consolidate}; !slices.Contains(objectives, args.Objective) {
		errs = append(errs, field.NotSupported(field.NewPath("objective"), args.Objective, objectives))
	}
	path, seen := field.NewPath("resources"), sets.New[string]()
	if n := len(args.Resources); n < 1 || n > config.MaxResources {
		errs = append(errs, field.Invalid(path, n, "must be 1 to "+strconv.Itoa(config.MaxResources)+" resources"))
		return errs.ToAggregate()
	}
	for i, name := range args.Resources {
		switch {
		case !isResource(name):
			errs = append(errs, field.Invalid(path.Index(i), name, `must be cpu, memory, ephemeral-storage, pods or an extended resource, such as "nvidia.com/gpu"`))
		case seen.Has(name):
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		seen.Insert(name)
	}
	return errs.ToAggregate()
}

// isResource reports whether the name is that of a resource of nodes.
func isResource(name string) bool {
	switch v1.ResourceName(name) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourcePods:
		return true
	}
	return strings.Contains(name, "/") && len(utilvalidation.IsQualifiedName(name)) == 0
}

// CongestionArgs returns an error that names the field and its valid values.
func CongestionArgs(args *config.CongestionArgs) error {
	var errs field.ErrorList
	if args.MaxFactor < 1 || args.MaxFactor > maxFactor {
		errs = append(errs, field.Invalid(field.NewPath("maxFactor"), args.MaxFactor, "must be between 1 and "+strconv.Itoa(maxFactor)))
	}
	return errs.ToAggregate()
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/congestion"
	"github.com/layer-locality/layer-locality/scheduler/packing"
	"github.com/layer-locality/layer-locality/scheduler/safe"
)

// variable is an environment variable of the ancestor of this program that is an argument of
// a plugin now.
type variable struct {
	name, plugin, argument string
	value                  func(text string) (any, error)
}

// prime are the resources in the order in which the ancestor counts them.
var prime = []any{string(v1.ResourceCPU), string(v1.ResourceMemory), string(v1.ResourcePods), "nvidia.com/gpu", string(v1.ResourceEphemeralStorage)}

var variables = []variable{
	{"SAFEUTILIZATION", safe.Name, "utilizationPercent", number(0, 100)},
	{"SAFEPERCENTILE", safe.Name, "riskPercent", number(0, 100)},
	{"SAFEFORECASTWEIGHT", safe.Name, "forecastPercent", number(0, 100)},
	{"SAFEPRINTTABLE", safe.Name, "logRatings", func(text string) (any, error) {
		yes, err := strconv.ParseBool(text)
		if err != nil {
			return nil, errors.New("want true or false")
		}
		return yes, nil
	}},
	{"POLICY_OBJECTIVE", packing.Name, "objective", func(text string) (any, error) {
		objective, ok := map[string]string{"A_BINPACK": config.BinPack, "LOAD_BALANCE": config.LoadBalance, "CONSOLIDATE": config.Consolidate}[strings.ToUpper(text)]
		if !ok {
			return nil, errors.New("want A_BINPACK, LOAD_BALANCE or CONSOLIDATE")
		}
		return objective, nil
	}},
	{"NUM_RESOURCES", packing.Name, "resources", func(text string) (any, error) {
		n, err := number(1, int64(len(prime)))(text)
		if err != nil {
			return nil, err
		}
		return prime[:n.(int64)], nil
	}},
	{"CONGESTION_FACTOR_MAX", congestion.Name, "maxFactor", number(1, 1_000_000_000)},
}

// number reads a whole number.
func number(low, high int64) func(string) (any, error) {
	return func(text string) (any, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < low || n > high {
			return nil, fmt.Errorf("want a whole number, %d to %d", low, high)
		}
		return n, nil
	}
}

// withVariables returns the arguments of the plugins of agents, with those that are only set
// by an environment variable. What cannot be read, or has no agent, is reported and left out.
func withVariables(configs []agent.PluginConfig, kinds []agent.Kind, lookup func(string) (string, bool), warn func(string)) []agent.PluginConfig {
	configs = slices.Clone(configs)
	of := map[string]map[string]any{} // the arguments that variables set, by plugin
	for _, v := range variables {
		text, ok := lookup(v.name)
		if !ok || text == "" {
			continue
		}
		if !slices.ContainsFunc(kinds, func(k agent.Kind) bool { return k.Plugin == v.plugin }) {
			warn(fmt.Sprintf("%s=%q is left out: it belongs to an agent that does not run (--agents)", v.name, text))
			continue
		}
		value, err := v.value(strings.TrimSpace(text))
		if err != nil {
			warn(fmt.Sprintf("%s=%q is left out: %v; better use %s of %s in --plugin-config", v.name, text, err, v.argument, v.plugin))
			continue
		}
		if of[v.plugin] == nil {
			of[v.plugin] = map[string]any{}
		}
		of[v.plugin][v.argument] = value
	}
	for plugin, args := range of {
		i := slices.IndexFunc(configs, func(c agent.PluginConfig) bool { return c.Name == plugin })
		if i < 0 {
			configs = append(configs, agent.PluginConfig{Name: plugin, Args: args})
			continue
		}
		for name, value := range configs[i].Args { // the file before variables
			args[name] = value
		}
		configs[i].Args = args
	}
	return configs
}

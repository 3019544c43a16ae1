package scenario

import "github.com/layer-locality/layer-locality/lab/cluster"

// The scheduler names in pods.
const (
	// Stock is kube-scheduler's default profile.
	Stock = "default-scheduler"
	// Layers is the profile that docs and manifests recommend.
	Layers = "layer-locality"
)

// plugin is the name of our score plugin.
const plugin = "LayerLocality"

// Schedulers configures one kube-scheduler with the profiles Stock, Layers and
// further ones. Both sides of a comparison are the same process: they see the
// same nodes and break ties the same way.
func Schedulers(further ...map[string]any) cluster.Component {
	profiles := append([]map[string]any{{"schedulerName": Stock}, Recommended(Layers, nil)}, further...)
	return cluster.Component{Config: map[string]any{"profiles": profiles}}
}

// Recommended returns the profile that deploy/scheduler installs, with another
// name and with arguments of LayerLocality that differ from their defaults.
func Recommended(name string, args map[string]any) map[string]any {
	profile := map[string]any{
		"schedulerName": name,
		"plugins": map[string]any{"multiPoint": map[string]any{
			"enabled":  []map[string]any{{"name": plugin, "weight": 4}},
			"disabled": []map[string]any{{"name": "ImageLocality"}},
		}},
	}
	if args != nil {
		profile["pluginConfig"] = []map[string]any{{"name": plugin, "args": args}}
	}
	return profile
}

// Only returns a profile that scores with a single plugin.
func Only(name, score string) map[string]any {
	plugins := map[string]any{"score": map[string]any{
		"enabled":  []map[string]any{{"name": score}},
		"disabled": []map[string]any{{"name": "*"}},
	}}
	if score == plugin {
		plugins["multiPoint"] = map[string]any{"enabled": []map[string]any{{"name": plugin}}}
	}
	return map[string]any{"schedulerName": name, "plugins": plugins}
}

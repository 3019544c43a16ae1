package scenario

import "github.com/layer-locality/layer-locality/cluster"

// The schedulers by the names that pods ask for.
const (
	// Stock is kube-scheduler's default profile.
	Stock = "default-scheduler"
	// Layers is the profile that docs and manifests recommend.
	Layers = "layer-locality"
)

// plugin is the score plugin this is about.
const plugin = "LayerLocality"

// Schedulers configures one kube-scheduler with the profiles Stock and Layers,
// and with further ones. Both sides of a comparison are the same process: they
// see the same nodes and break ties the same way.
func Schedulers(further ...map[string]any) cluster.Component {
	profiles := append([]map[string]any{{"schedulerName": Stock}, Recommended(Layers, nil)}, further...)
	return cluster.Component{Config: map[string]any{"profiles": profiles}}
}

// Recommended is the profile that deploy/scheduler installs, under a name, and
// with arguments of LayerLocality that differ from their defaults.
func Recommended(name string, args map[string]any) map[string]any {
	profile := map[string]any{
		"schedulerName":            name,
		"percentageOfNodesToScore": 100,
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

// Only is a profile that scores with one plugin and with nothing else.
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

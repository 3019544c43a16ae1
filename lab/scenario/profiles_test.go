package scenario

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"
)

// The demonstrated profile must be the one that is installed.
func TestRecommendedIsDeployed(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../deploy/scheduler/second-scheduler/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployed struct {
		Profiles []map[string]any `json:"profiles"`
	}
	if err := yaml.Unmarshal(data, &deployed); err != nil {
		t.Fatal(err)
	}
	ours, err := json.Marshal(Recommended(Layers, nil))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(ours, &want); err != nil {
		t.Fatal(err)
	}
	if len(deployed.Profiles) != 1 || !reflect.DeepEqual(deployed.Profiles[0], want) {
		t.Errorf("deployed: %v\nshown:    %v", deployed.Profiles, want)
	}
}

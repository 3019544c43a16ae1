package collect

import (
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

// defaultArgs returns the arguments of a plugin that has none.
func defaultArgs() (*config.LayerLocalityArgs, error) {
	external := &configv1.LayerLocalityArgs{}
	configv1.SetDefaults_LayerLocalityArgs(external)
	args := &config.LayerLocalityArgs{}
	if err := configv1.Convert_v1_LayerLocalityArgs_To_config_LayerLocalityArgs(external, args, nil); err != nil {
		return nil, err
	}
	return args, nil
}

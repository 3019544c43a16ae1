// Package scheme makes the arguments of the plugins known to kube-scheduler, which then
// decodes them strictly, defaults them, and writes them back in /configz. Import it for its
// effect.
package scheme

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	kubeschedulerv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

func init() {
	for _, scheme := range []*runtime.Scheme{
		kubescheduler.Scheme,
		// Another scheme defaults and converts the arguments inside a
		// KubeSchedulerConfiguration.
		kubeschedulerv1.GetPluginArgConversionScheme(),
	} {
		utilruntime.Must(config.AddToScheme(scheme))
		utilruntime.Must(v1.AddToScheme(scheme))
	}
}

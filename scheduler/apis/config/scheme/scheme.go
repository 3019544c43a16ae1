// Package scheme makes the arguments of the LayerLocality plugin known to
// kube-scheduler, which then decodes them strictly, defaults them, and writes
// them back in /configz. Import it for its effect.
package scheme

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

func init() {
	utilruntime.Must(config.AddToScheme(kubescheduler.Scheme))
	utilruntime.Must(v1.AddToScheme(kubescheduler.Scheme))
}

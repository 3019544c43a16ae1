package scenario

import (
	"context"
	"slices"

	"github.com/layer-locality/layer-locality/deploy/scheduler"
)

// AnnotationSLO is the annotation with which a pod states its SLO.
const AnnotationSLO = "qos.layerlocality.io/slo"

// Promising returns a profile with QosAware in place of upstream's queue and preemption, with
// a name and with arguments that differ from their defaults.
func Promising(name string, args map[string]any) map[string]any {
	return map[string]any{
		"schedulerName": name,
		"plugins": map[string]any{"multiPoint": map[string]any{
			"enabled":  []map[string]any{{"name": "QosAware"}},
			"disabled": []map[string]any{{"name": "PrioritySort"}, {"name": "DefaultPreemption"}},
		}},
		"pluginConfig": []map[string]any{{"name": "QosAware", "args": args}},
	}
}

// PromisingRights returns the rights that deploy/scheduler/qosaware ships, for a cluster's own
// kube-scheduler, which has a certificate and no service account.
func PromisingRights() []byte {
	return slices.Concat(scheduler.QosAwareRBAC, []byte("---\n"), scheduler.QosAwareUser)
}

// Promises reads the table of QosAware; wide has a line for each pod.
func (l *Lab) Promises(ctx context.Context, wide bool) (string, error) {
	return l.PromisesOf(ctx, l.Cluster.SchedulerURL(), wide)
}

// PromisesOf is Promises of a kube-scheduler at another URL.
func (l *Lab) PromisesOf(ctx context.Context, url string, wide bool) (string, error) {
	url += "/debug/qosaware"
	if wide {
		url += "?wide"
	}
	body, err := l.Ask(ctx, url)
	return string(body), err
}

// Preempted reads from the scheduler's metrics how many pods QosAware preempted, by reason.
func (l *Lab) Preempted(ctx context.Context) (map[string]int, error) {
	return l.metric(ctx, "scheduler_qosaware_preemptions_total", "reason")
}

// Services reads from the scheduler's metrics which share of its time each workload ran, by
// the workload's name.
func (l *Lab) Services(ctx context.Context) (map[string]float64, error) {
	return l.ServicesOf(ctx, l.Cluster.SchedulerURL())
}

// ServicesOf is Services of a kube-scheduler at another URL.
func (l *Lab) ServicesOf(ctx context.Context, url string) (map[string]float64, error) {
	body, err := l.Ask(ctx, url+"/metrics")
	if err != nil {
		return nil, err
	}
	return floats(string(body), "scheduler_qosaware_workload_service_ratio", "workload")
}

package qos

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

// Outcome is what was measured of an Arm.
type Outcome struct {
	Arm     string    `json:"arm"`
	Started time.Time `json:"started"`
	// Seconds is how long it was measured.
	Seconds float64 `json:"seconds"`
	// Gold and Silver are the shares of their time that workloads of SLO 1 and .5 got, sorted.
	Gold   []float64 `json:"gold"`
	Silver []float64 `json:"silver"`
	// Service is the share of the cluster's room that was used by pods that ran.
	Service float64 `json:"service"`
	// Preempted is how many pods QosAware preempted, by reason; not known of the other.
	Preempted map[string]int `json:"preempted,omitempty"`
	// Off is by how much QosAware's figure of a workload differs at most from what was
	// measured.
	Off float64 `json:"off,omitempty"`
	// Restarts are the errors that a restart of kube-scheduler brings into QosAware's figure
	// of a workload, at most; only of the default policy.
	Restarts *Restarts `json:"restarts,omitempty"`
}

// missed returns how many of the workloads of SLO .5 got less.
func (o *Outcome) missed() int {
	n, _ := slices.BinarySearch(o.Silver, silverSLO)
	return n
}

// workloadLabel is the label of pods with the name of their workload.
const workloadLabel = "workload"

// goldClass is the PriorityClass of workloads of SLO 1.
const goldClass = "gold"

// cleanup is how long the end of the cluster may take.
const cleanup = 2 * time.Minute

// play plays an arm.
func (c *Config) play(ctx context.Context, arm Arm) (_ *Outcome, err error) {
	logDir, err := filepath.Abs(filepath.Join(c.LogDir, arm.Name))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(logDir); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-qos-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	stages := filepath.Join(dir, "stages.yaml")
	text, err := c.stages(arm)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(stages, text, 0o644); err != nil {
		return nil, err
	}
	settings := c.cluster(arm, stages)
	settings.LogDir = logDir
	c.Logf("%s: starting a control plane", arm.Name)
	running, err := cluster.Start(ctx, settings)
	if err != nil {
		return nil, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = errors.Join(err, running.Stop(ending))
	}()
	lab, err := scenario.NewLab(running)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcome, err := c.follow(ctx, arm, lab)
	if err != nil {
		return nil, fmt.Errorf("%w; see %s", err, logDir)
	}
	return outcome, nil
}

//go:embed stages.yaml.tmpl
var stagesYAML string

var stagesTemplate = template.Must(template.New("stages").Delims("[[", "]]").Parse(stagesYAML))

// stages returns what kwok does for Nodes and pods.
func (c *Config) stages(arm Arm) ([]byte, error) {
	var text bytes.Buffer
	err := stagesTemplate.Execute(&text, map[string]any{
		"Milliseconds": c.scaled(arm.Pull).Milliseconds(),
		"Conditions":   []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady},
	})
	return text.Bytes(), err
}

// cluster returns the settings of an arm's control plane. What components do a second is
// their defaults times the scale.
func (c *Config) cluster(arm Arm, stages string) cluster.Config {
	rate := func(perSecond float64) int { return int(math.Round(perSecond * c.Scale)) }
	kwok := addons.Kwok(stages)
	profile := map[string]any{"schedulerName": scenario.Stock}
	if arm.Promises {
		profile = scenario.Promising(scenario.Stock, map[string]any{
			"safetyMargin": c.scaled(safetyMargin).String(), "minimumRunningTime": c.scaled(minimumRunningTime).String(),
			"reconsiderEvery":         max(time.Second, c.scaled(5*time.Second)).String(), // less is not valid
			"maxPreemptionsPerMinute": rate(float64(configv1.DefaultMaxPreemptionsPerMinute)), "longWait": c.scaled(longWait).String(), "window": "0s",
		})
		kwok.Manifests = string(scenario.PromisingRights()) // installed before the scheduler starts
	}
	return cluster.Config{
		Name: "bench-" + arm.Name, ControlPlaneOnly: true, Flavour: cluster.Patched,
		Scheduler: cluster.Component{Config: map[string]any{
			"profiles":         []map[string]any{profile},
			"clientConnection": map[string]any{"qps": rate(50), "burst": rate(100)},
		}},
		ControllerManager: cluster.Component{Args: []string{
			fmt.Sprintf("--kube-api-qps=%d", rate(20)), fmt.Sprintf("--kube-api-burst=%d", rate(30)),
		}},
		Addons: []cluster.Addon{kwok},
	}
}

// follow makes nodes and workloads, and measures for as long as is set.
func (c *Config) follow(ctx context.Context, arm Arm, lab *scenario.Lab) (*Outcome, error) {
	if err := c.room(ctx, lab); err != nil {
		return nil, err
	}
	measured := newLedger(time.Now)
	factory := informers.NewSharedInformerFactoryWithOptions(lab.Client, 0, informers.WithNamespace(metav1.NamespaceDefault))
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(measured); err != nil {
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), factory.Core().V1().Pods().Informer().HasSynced) {
		return nil, context.Cause(ctx)
	}
	begin := time.Now()
	outcome := &Outcome{Arm: arm.Name, Started: begin.UTC().Truncate(time.Second)}
	if err := submit(ctx, arm, lab); err != nil {
		return nil, err
	}
	end := begin.Add(time.Duration(c.Minutes * float64(time.Minute)))
	for time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(min(time.Until(end), 30*time.Second)):
		}
		running, waiting := measured.count()
		c.Logf("%s: after %.0f s %d pods run, %d wait", arm.Name, time.Since(begin).Seconds(), running, waiting)
	}
	outcome.Seconds = time.Since(begin).Seconds()
	services := measured.services()
	if err := outcome.take(services, arm, float64(c.Nodes*podsPerNode)*outcome.Seconds); err != nil {
		return nil, err
	}
	if !arm.Promises {
		return outcome, nil
	}
	if err := outcome.ask(ctx, lab, measured); err != nil {
		return nil, err
	}
	if arm.Name == qosaware+"-160" {
		restarts, err := c.restart(ctx, lab, measured)
		if err != nil {
			return nil, err
		}
		outcome.Restarts = restarts
	}
	return outcome, nil
}

// take takes what workloads got into the Outcome. capacity is what the cluster could give, in
// seconds of pods. It fails if a workload has no pod: then the arms cannot be compared.
func (o *Outcome) take(services map[string]service, arm Arm, capacity float64) error {
	running := 0.
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := services[name]
		running += s.running
		if strings.HasPrefix(name, goldName) {
			o.Gold = append(o.Gold, s.quality())
		} else {
			o.Silver = append(o.Silver, s.quality())
		}
	}
	if len(o.Gold) != arm.Gold || len(o.Silver) != arm.Silver {
		return fmt.Errorf("%d and %d workloads have pods, want %d and %d: give the arm more minutes", len(o.Gold), len(o.Silver), arm.Gold, arm.Silver)
	}
	slices.Sort(o.Gold)
	slices.Sort(o.Silver)
	o.Service = running / capacity
	return nil
}

// ask asks QosAware for its figures of the workloads.
func (o *Outcome) ask(ctx context.Context, lab *scenario.Lab, measured *ledger) (err error) {
	if o.Preempted, err = lab.Preempted(ctx); err != nil {
		return err
	}
	said, err := lab.Services(ctx)
	if err != nil {
		return err
	}
	for name, s := range measured.services() {
		o.Off = max(o.Off, math.Abs(said[name]-s.quality()))
	}
	return nil
}

// room makes the nodes, and waits until pods may be placed on them.
func (c *Config) room(ctx context.Context, lab *scenario.Lab) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(podsPerNode, resource.DecimalSI), corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceMemory: resource.MustParse("64Gi"),
	}
	for _, name := range scenario.Names("node", c.Nodes) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Status: corev1.NodeStatus{Capacity: room, Allocatable: room}}
		if _, err := lab.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, name := range scenario.Names("node", c.Nodes) {
		if err := lab.Cluster.WaitNodeReady(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// The beginnings of the names of workloads.
const (
	goldName   = "gold"
	silverName = "silver"
)

// submit creates the workloads: those of SLO 1 first.
func submit(ctx context.Context, arm Arm, lab *scenario.Lab) error {
	_, err := lab.Client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: goldClass}, Value: 1000,
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	create := func(names []string, slo float64, class string) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(8)
		for _, name := range names {
			group.Go(func() error {
				_, err := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Create(ctx, workload(name, slo, class), metav1.CreateOptions{})
				return err
			})
		}
		return group.Wait()
	}
	if err := create(scenario.Names(goldName, arm.Gold), goldSLO, goldClass); err != nil {
		return err
	}
	return create(scenario.Names(silverName, arm.Silver), silverSLO, "")
}

// workload returns a Deployment of one pod, which takes one place.
func workload(name string, slo float64, class string) *appsv1.Deployment {
	labels := map[string]string{workloadLabel: name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels}, ProgressDeadlineSeconds: ptr.To[int32](24 * 3600),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{scenario.AnnotationSLO: fmt.Sprint(slo)}},
				Spec: corev1.PodSpec{
					PriorityClassName: class, AutomountServiceAccountToken: ptr.To(false),
					Containers: []corev1.Container{{
						Name: "main", Image: "registry.example/none",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
					}},
				},
			},
		},
	}
}

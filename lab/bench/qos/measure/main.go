// Command measure measures what QosAware costs kube-scheduler: the processor time in which its
// queue takes pods and hands them out again, beside PrioritySort, and memory. The plugin is
// made as kube-scheduler makes it, with informers that have all pods and their owners.
//
// It is built against the patched Kubernetes: `lab/run bench qos --measure cost`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
)

type options struct {
	pods, workloads, rounds int
	heapPods, heapWorkloads int
	heapOf                  string
	out                     string
}

func main() {
	var o options
	flag.IntVar(&o.pods, "pods", 10_000, "pods in the queue")
	flag.IntVar(&o.workloads, "workloads", 500, "workloads that have them")
	flag.IntVar(&o.rounds, "rounds", 9, "rounds; in one, each way of sorting is measured twice")
	flag.IntVar(&o.heapPods, "heap-pods", 50_000, "pods for the measurement of memory")
	flag.IntVar(&o.heapWorkloads, "heap-workloads", 5_000, "workloads that have them")
	flag.StringVar(&o.heapOf, "heap-of", "", "print the heap, in MiB, of a scheduler with this plugin, and nothing else")
	flag.StringVar(&o.out, "out", "", "file for all that was measured (JSON)")
	flag.Parse()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// report is what was measured; lab/bench/qos has the meaning of the fields.
type report struct {
	SortMicros     float64 `json:"sortMicros"`
	AddedMicros    float64 `json:"addedMicros"`
	AddedSLOMicros float64 `json:"addedSLOMicros"`
	HeapMiB        float64 `json:"heapMiB"`
	HeapPods       int     `json:"heapPods"`
	HeapWorkloads  int     `json:"heapWorkloads"`
	// Rounds has for each round the microseconds a pod of each way of sorting.
	Rounds [][]float64 `json:"rounds"`
}

// ways are the ways of sorting that are compared: the plugin that sorts, and the SLO of all
// pods. The first is the one that others are compared with.
var ways = []struct{ plugin, slo string }{{queuesort.Name, ""}, {qosaware.Name, ""}, {qosaware.Name, "0.9"}}

func (o *options) run(ctx context.Context) error {
	if o.pods < 1 || o.workloads < 1 || o.workloads > o.pods || o.rounds < 1 || o.heapWorkloads < 1 || o.heapWorkloads > o.heapPods {
		return errors.New("want at least one pod, workload and round, and not more workloads than pods")
	}
	metrics.Register()
	ctx = klog.NewContext(ctx, klog.Logger{}) // silent: the queue would log each pod
	if o.heapOf != "" {
		used, err := o.heapWith(ctx, o.heapOf)
		fmt.Println(used)
		return err
	}
	runtime.LockOSThread() // for the thread's clock
	r := &report{HeapPods: o.heapPods, HeapWorkloads: o.heapWorkloads}
	for range o.rounds {
		// A B C C B A: a drift of the machine affects all alike.
		round := make([]float64, len(ways))
		for i := range 2 * len(ways) {
			way := min(i, 2*len(ways)-1-i)
			micros, err := o.queue(ctx, ways[way].plugin, ways[way].slo)
			if err != nil {
				return fmt.Errorf("%s, SLO %q: %w", ways[way].plugin, ways[way].slo, err)
			}
			round[way] += micros / 2
		}
		r.Rounds = append(r.Rounds, round)
		fmt.Printf("round sort_us=%.2f qosaware_us=%.2f qosaware_slo_us=%.2f\n", round[0], round[1], round[2])
	}
	added := func(way int) float64 {
		var values []float64
		for _, round := range r.Rounds {
			values = append(values, round[way]-round[0])
		}
		return timing.Median(values)
	}
	r.AddedMicros, r.AddedSLOMicros = added(1), added(2)
	for _, round := range r.Rounds {
		r.SortMicros += round[0] / float64(len(r.Rounds))
	}
	var err error
	if r.HeapMiB, err = o.heap(ctx); err != nil {
		return err
	}
	fmt.Printf("queue sort_us=%.2f added_us=%.2f added_slo_us=%.2f heap_mib=%.1f\n", r.SortMicros, r.AddedMicros, r.AddedSLOMicros, r.HeapMiB)
	if o.out == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(data, '\n'), 0o644)
}

// queue returns the microseconds in which the queue takes a pod and hands it out again. The
// scheduler is a new one, which has not seen the pods in its queue yet.
func (o *options) queue(ctx context.Context, plugin, slo string) (float64, error) {
	s, err := start(ctx, plugin, o.pods, o.workloads, slo)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	q := queue.NewTestQueue(s.ctx, s.less)
	defer q.Close()
	runtime.GC()
	begin := timing.Thread()
	for _, pod := range s.pods {
		q.Add(s.ctx, pod)
	}
	for range s.pods {
		if _, err := q.Pop(klog.FromContext(s.ctx)); err != nil {
			return 0, err
		}
	}
	took := timing.Thread() - begin
	return timing.Micros(took) / float64(len(s.pods)), nil
}

// heap returns by how many MiB the heap is larger with the plugin. Each is measured in a
// process of its own: what was there before ends when it pleases.
func (o *options) heap(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var used [2]float64
	for i, plugin := range []string{queuesort.Name, qosaware.Name} {
		command := exec.CommandContext(ctx, self, "-heap-of", plugin, "-heap-pods", strconv.Itoa(o.heapPods), "-heap-workloads", strconv.Itoa(o.heapWorkloads))
		command.Stderr = os.Stderr
		printed, err := command.Output()
		if err != nil {
			return 0, fmt.Errorf("the heap with %s: %w", plugin, err)
		}
		if used[i], err = strconv.ParseFloat(strings.TrimSpace(string(printed)), 64); err != nil {
			return 0, err
		}
	}
	return used[1] - used[0], nil
}

// heapWith returns the heap, in MiB, of a scheduler with a plugin, all of whose pods are in the
// queue.
func (o *options) heapWith(ctx context.Context, plugin string) (float64, error) {
	s, err := start(ctx, plugin, o.heapPods, o.heapWorkloads, "0.9")
	if err != nil {
		return 0, err
	}
	defer s.stop()
	for pods := range slices.Chunk(s.pods, 2) {
		s.less(queued(pods[0]), queued(pods[len(pods)-1])) // both have their places in the queue now
	}
	used := heapMiB()
	runtime.KeepAlive(s)
	return used, nil
}

func queued(pod *v1.Pod) *framework.QueuedPodInfo {
	return &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: pod}, Timestamp: time.Now()}
}

func heapMiB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

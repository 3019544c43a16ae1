package throughput

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Upstream among the workloads stands for all of scheduler_perf's own that have a threshold in pods a second. One of
// them is TOPIC/TEST CASE/WORKLOAD, as in misc/SchedulingBasic/5000Nodes_10000Pods.
const Upstream = "upstream"

// upstreamCase is a workload of scheduler_perf's own: the pods that it measures, and its threshold.
type upstreamCase struct {
	pods      int
	threshold float64
}

// upstreamCases reads all that have a threshold from the folder of scheduler_perf.
func upstreamCases(folder string) (map[string]upstreamCase, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*", "performance-config.yaml"))
	if err != nil {
		return nil, err
	}
	all := map[string]upstreamCase{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var cases []struct {
			Name      string
			Workloads []struct {
				Name      string
				Threshold any // of all topics, or a map
				Params    map[string]any
			}
		}
		if err := yaml.Unmarshal(text, &cases); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, c := range cases {
			for _, w := range c.Workloads {
				threshold, ok := w.Threshold.(float64)
				if !ok {
					continue
				}
				pods, _ := w.Params["measurePods"].(float64)
				all[strings.Join([]string{filepath.Base(filepath.Dir(file)), c.Name, w.Name}, "/")] = upstreamCase{max(1, int(pods)), threshold}
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no workloads with a threshold: %w", folder, fs.ErrNotExist)
	}
	return all, nil
}

// expand replaces Upstream among the workloads, and checks those that are upstream's.
func (b *benchmark) expand(folder string) (err error) {
	if !slices.ContainsFunc(b.Workloads, ofUpstream) {
		return nil
	}
	if b.upstream, err = upstreamCases(folder); err != nil {
		return err
	}
	var all []string
	for _, workload := range b.Workloads {
		if workload != Upstream {
			all = append(all, workload)
			continue
		}
		for name := range b.upstream {
			all = append(all, name)
		}
		slices.Sort(all)
	}
	for _, workload := range all {
		if _, ok := b.upstream[workload]; ofUpstream(workload) && !ok {
			err = errors.Join(err, fmt.Errorf("scheduler_perf has no workload %s with a threshold", workload))
		}
	}
	b.Workloads = all
	return err
}

func ofUpstream(workload string) bool { return workload == Upstream || strings.Contains(workload, "/") }

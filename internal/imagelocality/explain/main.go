// Command explain says which points the in-tree plugin ImageLocality gives each node for a
// pod, and why, from Node objects alone:
//
//	kubectl get nodes -o json | go run ./internal/imagelocality/explain busybox
//	kubectl get nodes -o json | go run ./internal/imagelocality/explain -f pod.yaml
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/imagelocality"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	file := flag.String("f", "", "`file` with a pod; without it, arguments are the images of a pod's containers")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: kubectl get nodes -o json | explain IMAGE...\n       kubectl get nodes -o json | explain -f POD.yaml")
	}
	flag.Parse()
	if err := run(os.Stdin, terminal.Stdout, *file, flag.Args()); err != nil {
		fmt.Fprintf(terminal.Stderr, "error: %s\n", terminal.Lines(err.Error()))
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, file string, images []string) error {
	pod, err := readPod(file, images)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := json.NewDecoder(in).Decode(&nodes); err != nil {
		return fmt.Errorf("standard input: want the output of 'kubectl get nodes -o json': %w", err)
	}
	if nodes.Kind != "List" && nodes.Kind != "NodeList" || len(nodes.Items) == 0 {
		return errors.New("standard input has no list of nodes: want the output of 'kubectl get nodes -o json'")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tPOINTS\tBECAUSE")
	for _, rating := range imagelocality.Explain(pod, nodes.Items) {
		fmt.Fprintf(table, "%s\t%d\t%s\n", rating.Node, rating.Points, rating.Why)
	}
	return table.Flush()
}

// readPod returns the pod of the file, or one with a container for each image.
func readPod(file string, images []string) (*corev1.PodSpec, error) {
	var pod corev1.Pod
	switch {
	case file == "" && len(images) == 0:
		return nil, errors.New("no image: name the images of a pod, or a file with -f")
	case file == "":
		for _, image := range images {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: image})
		}
		return &pod.Spec, nil
	case len(images) > 0:
		return nil, fmt.Errorf("-f %s and images: want one of them", file)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(data, &pod); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if pod.Kind != "Pod" || len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("%s: no pod with containers (kind %q): want one, not what makes pods", file, pod.Kind)
	}
	return &pod.Spec, nil
}

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Measurement is what the layers of one node's images add to its Node, with the
// default limits of a kubelet.
type Measurement struct {
	// Images and Layers are the numbers of images and layers reported.
	Images int `json:"images"`
	Layers int `json:"layers"`
	// AddedProtobufBytes and AddedJSONBytes are the growth of the Node.
	AddedProtobufBytes int `json:"addedProtobufBytes"`
	AddedJSONBytes     int `json:"addedJSONBytes"`
	// LayerBytes are the compressed bytes of all layers on the node, each counted
	// once. ReportedBytes are those of the layers in the Node.
	LayerBytes    int64 `json:"layerBytes"`
	ReportedBytes int64 `json:"reportedBytes"`
}

// Kept returns the share of layer bytes that the Node reports.
func (m Measurement) Kept() float64 {
	if m.LayerBytes == 0 {
		return 1
	}
	return float64(m.ReportedBytes) / float64(m.LayerBytes)
}

// Nodes draws the images of n nodes, perNode different ones for each. Node i
// always gets the same images.
func Nodes(images []dataset.Image, n, perNode int) [][]dataset.Image {
	nodes := make([][]dataset.Image, n)
	for i := range nodes {
		nodes[i] = dataset.Draw(rand.New(rand.NewPCG(uint64(i), 0)), images, perNode)
	}
	return nodes
}

// Measure measures nodes, and returns one result per node. The measurement is a
// test in the patched Kubernetes tree, because only that tree has the field.
// The test gets images and writes its results.
func Measure(ctx context.Context, tree string, nodes [][]dataset.Image) ([]Measurement, error) {
	dir, err := os.MkdirTemp("", "nodesize-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	input, output := filepath.Join(dir, "nodes.json"), filepath.Join(dir, "results.json")
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, images := range nodes {
		if err := encoder.Encode(images); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(input, lines.Bytes(), 0o600); err != nil {
		return nil, err
	}
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestImageLayersSize$", "./pkg/kubelet/nodestatus")
	test.Dir = tree
	// The tree has a go.work of its own and is built with its flags.
	test.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=", "NODE_STATUS_IMAGES="+input, "NODE_STATUS_RESULTS="+output)
	if out, err := test.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("measuring in %s, which 'make patches P=trees' assembles: %w\n%s", tree, err, out)
	}
	results, err := os.ReadFile(output)
	if err != nil {
		return nil, fmt.Errorf("the test in %s measured nothing: %w", tree, err)
	}
	return read(bytes.NewReader(results), len(nodes))
}

func read(r io.Reader, want int) ([]Measurement, error) {
	var measured []Measurement
	for decoder := json.NewDecoder(r); ; {
		var m Measurement
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("result %d: %w", len(measured)+1, err)
		}
		measured = append(measured, m)
	}
	if len(measured) != want {
		return nil, fmt.Errorf("%d results for %d nodes", len(measured), want)
	}
	return measured, nil
}

// Summary summarizes the measurements of several nodes.
type Summary struct {
	Images                              int
	MeanAddedProtobuf, MaxAddedProtobuf int
	MeanAddedJSON, MaxAddedJSON         int
	MeanKept, MinKept                   float64
}

// Summarize returns means and worst cases.
func Summarize(measured []Measurement) Summary {
	s := Summary{MinKept: 1}
	for _, m := range measured {
		s.Images = max(s.Images, m.Images)
		s.MeanAddedProtobuf += m.AddedProtobufBytes
		s.MaxAddedProtobuf = max(s.MaxAddedProtobuf, m.AddedProtobufBytes)
		s.MeanAddedJSON += m.AddedJSONBytes
		s.MaxAddedJSON = max(s.MaxAddedJSON, m.AddedJSONBytes)
		s.MeanKept += m.Kept()
		s.MinKept = min(s.MinKept, m.Kept())
	}
	if n := len(measured); n > 0 {
		s.MeanAddedProtobuf /= n
		s.MeanAddedJSON /= n
		s.MeanKept /= float64(n)
	}
	return s
}

package node

import (
	"context"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

func TestNodes(t *testing.T) {
	images := dataset.Generate(rand.New(rand.NewPCG(1, 1)), 100)
	nodes := Nodes(images, 3, 50)
	if len(nodes) != 3 || len(nodes[0]) != 50 {
		t.Fatalf("%d nodes with %d images", len(nodes), len(nodes[0]))
	}
	if reflect.DeepEqual(nodes[0], nodes[1]) {
		t.Error("two nodes have the same images")
	}
	if !reflect.DeepEqual(nodes, Nodes(images, 3, 50)) {
		t.Error("the same node has other images")
	}
}

func TestRead(t *testing.T) {
	got, err := read(strings.NewReader(`{"images":1,"addedProtobufBytes":2}`+"\n"+`{"layers":3}`+"\n"), 2)
	want := []Measurement{{Images: 1, AddedProtobufBytes: 2}, {Layers: 3}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for input, want := range map[string]string{
		"":                "0 results for 2 nodes",
		"{}":              "1 results for 2 nodes",
		"{}{}{}":          "3 results for 2 nodes",
		"{}\nno":          "result 2: invalid",
		`{"images":"no"}`: "result 1: json",
	} {
		if _, err := read(strings.NewReader(input), 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", input, err, want)
		}
	}
}

func TestSummarize(t *testing.T) {
	got := Summarize([]Measurement{
		{Images: 50, AddedProtobufBytes: 10, AddedJSONBytes: 30, LayerBytes: 100, ReportedBytes: 100},
		{Images: 50, AddedProtobufBytes: 20, AddedJSONBytes: 50, LayerBytes: 100, ReportedBytes: 50},
	})
	want := Summary{Images: 50, MeanAddedProtobuf: 15, MaxAddedProtobuf: 20, MeanAddedJSON: 40, MaxAddedJSON: 50, MeanKept: 0.75, MinKept: 0.5}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if kept := (Measurement{}).Kept(); kept != 1 {
		t.Errorf("a node without layers keeps %v", kept)
	}
	if got := Summarize(nil); got != (Summary{MinKept: 1}) {
		t.Errorf("nothing measured: %+v", got)
	}
}

func TestMeasureNamesTheWayOut(t *testing.T) {
	_, err := Measure(context.Background(), t.TempDir(), nil)
	if err == nil || !strings.Contains(err.Error(), "make patches P=trees") {
		t.Errorf("got %v", err)
	}
}

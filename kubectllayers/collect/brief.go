package collect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// Brief is what the agent of a node states in sum, without the lists of images and layers: a hundredth of the bytes.
type Brief struct {
	Name           string
	Images, Layers int
	Bytes          int64
	// Age is since the agent renewed its object, as the apiserver prints it.
	Age string
}

// Brief returns what agents state of the nodes with the labels of a selector, in the columns that the apiserver
// prints of NodeLayers. ok is false if more has to be read: an agent does not report one of the nodes, or the
// apiserver has no such columns.
func (r *Reader) Brief(ctx context.Context, selector string) (nodes []Brief, ok bool) {
	uids, p := r.NodeUIDs(ctx, selector)
	if p != nil || len(uids) == 0 {
		return nil, false
	}
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		text, err := r.ours.Get().Resource(v1alpha1.NodeLayersResource.Resource).VersionedParams(&o, metav1.ParameterCodec).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		meta, err := listMeta(text)
		return &page{ListMeta: meta, Items: []runtime.Unknown{{Raw: text}}}, err
	}
	if p := r.pages(ctx, "NodeLayers", chunk, list, func(object runtime.Object) (int, error) {
		part, err := briefs(object.(*runtime.Unknown).Raw, uids) //nolint:forcetypeassert // see page
		nodes = append(nodes, part...)
		return len(part), err
	}); p != nil || len(nodes) < len(uids) {
		return nil, false
	}
	slices.SortFunc(nodes, func(a, b Brief) int { return strings.Compare(a.Name, b.Name) })
	return nodes, true
}

// NodeUIDs returns the nodes with the labels of a selector by name.
func (r *Reader) NodeUIDs(ctx context.Context, selector string) (map[string]types.UID, *Problem) {
	client, err := metadata.NewForConfig(r.paced)
	if err != nil {
		return nil, r.explain("nodes", 0, err)
	}
	uids := map[string]types.UID{}
	p := r.each(ctx, "nodes", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.LabelSelector = selector
		return client.Resource(v1.SchemeGroupVersion.WithResource("nodes")).List(ctx, o)
	}, func(object runtime.Object) {
		if node, ok := object.(*metav1.PartialObjectMetadata); ok {
			uids[node.Name] = node.UID
		}
	})
	return uids, p
}

// briefs reads a table of NodeLayers: the rows that are about nodes with these UIDs and that are renewed.
func briefs(text []byte, uids map[string]types.UID) (found []Brief, err error) {
	var table struct {
		Columns []struct{ Name string } `json:"columnDefinitions"`
		Rows    []struct {
			Cells  []json.RawMessage
			Object struct{ Metadata metav1.ObjectMeta }
		}
	}
	if err := json.Unmarshal(text, &table); err != nil {
		return nil, err
	}
	for _, row := range table.Rows {
		b := Brief{Name: row.Object.Metadata.Name}
		renews := int32(0)
		for name, into := range map[string]any{"Images": &b.Images, "Layers": &b.Layers, "Bytes": &b.Bytes, "Renewed": &b.Age, "Renews": &renews} {
			at := slices.IndexFunc(table.Columns, func(c struct{ Name string }) bool { return c.Name == name })
			if at < 0 || at >= len(row.Cells) {
				return nil, fmt.Errorf("no column %s", name)
			}
			if err := json.Unmarshal(row.Cells[at], into); err != nil {
				return nil, err
			}
		}
		age, err := ageOf(b.Age)
		owners := row.Object.Metadata.OwnerReferences
		if err == nil && age <= nodelayers.Lasts(renews) && len(owners) == 1 && owners[0].UID != "" && owners[0].UID == uids[b.Name] {
			found = append(found, b)
		}
	}
	return found, nil
}

// ageOf reads an age of less than a year, as the apiserver prints it: 39s, 5m12s, 2d5h.
func ageOf(text string) (time.Duration, error) {
	days, rest, both := strings.Cut(text, "d")
	if !both {
		return time.ParseDuration(text)
	}
	n, err := strconv.Atoi(days)
	if err != nil {
		return 0, err
	}
	age, err := time.ParseDuration(cmp.Or(rest, "0s"))
	return age + time.Duration(n)*24*time.Hour, err
}

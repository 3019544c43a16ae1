//go:build integration

package nodepatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/controlplane"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPatchesThatNameNoImages sends patches that name no images to one Node, and to its twin
// with an escaped letter, which has the apiserver apply them as upstream does, to the whole Node.
// Both end the same.
func TestPatchesThatNameNoImages(t *testing.T) {
	plane, err := controlplane.StartWith("../..", controlplane.Settings{FeatureGates: "NodeStatusImageLayers=true"})
	must(t, err)
	t.Cleanup(func() { must(t, plane.Stop()) })
	client, err := kubernetes.NewForConfig(plane.Config)
	must(t, err)
	twins := []string{"twin-one", "twin-two"}
	nodes := client.CoreV1().Nodes()
	for _, name := range twins {
		_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	images := fmt.Sprintf(`[
		{"names":["example.com/first:v1"],"sizeBytes":5,"layers":[{"digest":"sha256:%064x","sizeBytes":3},{"digest":"sha256:%064x","sizeBytes":2}]},
		{"names":["example.com/second:v1"],"sizeBytes":6}]`, 1, 2)
	// reset gives a Node its images, and somebody who owns them.
	reset := func(t *testing.T, name string) {
		t.Helper()
		status := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"status":{"phase":"Running","images":%s}}`, name, images)
		force := true
		_, err := nodes.Patch(t.Context(), name, types.ApplyPatchType, []byte(status), metav1.PatchOptions{FieldManager: "reset", Force: &force}, "status")
		must(t, err)
	}
	// state returns what both have to have in common.
	state := func(t *testing.T, name string) map[string]any {
		t.Helper()
		data, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + name).DoRaw(t.Context())
		must(t, err)
		node := map[string]any{}
		must(t, json.Unmarshal(data, &node))
		metadata := node["metadata"].(map[string]any)
		for _, own := range []string{"name", "uid", "resourceVersion", "creationTimestamp"} {
			delete(metadata, own)
		}
		for _, entry := range metadata["managedFields"].([]any) {
			delete(entry.(map[string]any), "time")
		}
		return node
	}
	for _, tc := range []struct {
		patch      string
		status     bool // of the status, or of all but the status
		merge      bool // also as a merge patch
		lostImages bool
		refused    bool
		quoted     bool // in the error about a merge patch
	}{
		{patch: `{"metadata":{"labels":{"a":"b"}}}`, merge: true},
		{patch: `{"metadata":{"labels":null,"annotations":{"c":"d"}}}`, merge: true},
		{patch: `{"spec":{"unschedulable":true}}`, merge: true},
		{patch: `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`, merge: true},
		{patch: `{"status":null}`, merge: true},
		{patch: `{"status":{"phase":"Pending"}}`, merge: true},
		{patch: `{"spec":{"unschedulable":"perhaps"}}`, merge: true, refused: true, quoted: true},
		{patch: `{"spec":{"unknown":1}}`, merge: true, refused: true, quoted: true},
		{patch: `{"metadata":{"labels":{"not a label":"b"}}}`, merge: true, refused: true},
		{patch: `{"metadata":{"resourceVersion":"1"}}`, merge: true, refused: true},
		{patch: `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`, status: true, merge: true},
		{patch: `{"status":{"phase":null}}`, status: true, merge: true},
		{patch: `{"status":{"capacity":{"cpu":"4"},"allocatable":{"cpu":"3"}}}`, status: true, merge: true},
		{patch: `{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","status":"True"}]}}`, status: true},
		{patch: `{"status":{"addresses":[{"type":"Hostname","address":"twin"}]}}`, status: true, merge: true},
		{patch: `{"status":null}`, status: true, merge: true, lostImages: true},
		{patch: `{"status":{"$patch":"replace","phase":"Running"}}`, status: true, lostImages: true},
		{patch: `{"status":{"$patch":"delete"}}`, status: true, lostImages: true},
		{patch: `{"status":"none"}`, status: true, merge: true, refused: true},
	} {
		kinds := []types.PatchType{types.StrategicMergePatchType}
		if tc.merge {
			kinds = append(kinds, types.MergePatchType)
		}
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s %s status=%v", kind, tc.patch, tc.status), func(t *testing.T) {
				subresources := []string{}
				if tc.status {
					subresources = append(subresources, "status")
				}
				escaped := fmt.Sprintf(`{"\u%04x%s`, tc.patch[2], tc.patch[3:])
				errs := map[string]error{}
				for name, patch := range map[string]string{twins[0]: tc.patch, twins[1]: escaped} {
					reset(t, name)
					_, err := nodes.Patch(t.Context(), name, kind, []byte(patch), metav1.PatchOptions{FieldManager: "patch", FieldValidation: metav1.FieldValidationStrict}, subresources...)
					if (err != nil) != tc.refused {
						t.Fatalf("%s: %v", name, err)
					}
					errs[name] = err
				}
				one, two := errs[twins[0]], errs[twins[1]]
				if apierrors.ReasonForError(one) != apierrors.ReasonForError(two) {
					t.Errorf("refused with %v and %v", one, two)
				}
				// Errors that quote the patched object show that images were set aside.
				if tc.quoted && kind == types.MergePatchType && (strings.Contains(one.Error(), "sha256:") || !strings.Contains(two.Error(), "sha256:")) {
					t.Errorf("not what is quoted without images, and with them:\n%v\n%v", one, two)
				}
				node := state(t, twins[0])
				if diff := cmp.Diff(state(t, twins[1]), node); diff != "" {
					t.Errorf("unlike its twin:\n%s", diff)
				}
				data, err := json.Marshal(node["status"])
				must(t, err)
				if got := strings.Count(string(data), `"digest"`); got != 2 && !tc.lostImages || got != 0 && tc.lostImages {
					t.Errorf("%d layers are left: %s", got, data)
				}
			})
		}
	}
}

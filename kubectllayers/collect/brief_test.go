package collect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// What a table of an apiserver has about nodes counts if their agents renew their objects, and these are of the nodes.
func TestBriefs(t *testing.T) {
	const columns = `"columnDefinitions":[{"name":"Name"},{"name":"Images"},{"name":"Layers"},{"name":"Bytes"},{"name":"Runtime"},{"name":"Renewed"},{"name":"Renews","priority":1}]`
	row := func(node, uid, age string, renews int) string {
		return fmt.Sprintf(`{"cells":[%q,3,20,5000000000,"cri-o",%q,%d],"object":{"kind":"PartialObjectMetadata","metadata":{"name":%q,"ownerReferences":[{"kind":"Node","name":%q,"uid":%q}]}}}`, node, age, renews, node, node, uid)
	}
	uids := map[string]types.UID{}
	var rows []string
	for i, c := range []struct {
		uid, age string
		renews   int
	}{{"", "39s", 600}, {"other", "39s", 600}, {"", "31m", 600}, {"", "29m", 600}, {"", "<invalid>", 600}, {"", "2d5h", 86400}, {"", "4d", 86400}} {
		name := fmt.Sprint("n", i)
		uids[name] = types.UID("uid-" + name)
		uid := c.uid
		if uid == "" {
			uid = "uid-" + name
		}
		rows = append(rows, row(name, uid, c.age, c.renews))
	}
	rows = append(rows, row("unknown", "", "39s", 600))
	found, err := briefs([]byte(`{"kind":"Table",`+columns+`,"rows":[`+strings.Join(rows, ",")+`]}`), uids)
	if got, want := fmt.Sprintf("%+v %v", found, err), "[{Name:n0 Images:3 Layers:20 Bytes:5000000000 Age:39s} {Name:n3 Images:3 Layers:20 Bytes:5000000000 Age:29m} {Name:n5 Images:3 Layers:20 Bytes:5000000000 Age:2d5h}] <nil>"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for text, want := range map[string]string{
		`{"kind":"Table",` + strings.Replace(columns, "Renews", "Other", 1) + `,"rows":[` + rows[0] + `]}`: "no column Renews",
		`{"kind":"Table",` + columns + `,"rows":[` + strings.Replace(rows[0], "3,20", `"3",20`, 1) + `]}`:  "cannot unmarshal string",
		`{"kind":"Table",` + columns + `,"rows":[{"cells":[]}]}`:                                           "no column",
		`[`: "unexpected end",
	} {
		if _, err := briefs([]byte(text), uids); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]time.Duration{"39s": 39 * time.Second, "5m12s": 312 * time.Second, "3d": 72 * time.Hour, "2d5h": 53 * time.Hour} {
		if got, err := ageOf(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

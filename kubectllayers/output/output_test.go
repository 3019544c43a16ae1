package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func answer() *Answer {
	return &Answer{
		Value: map[string]any{"bytes": 62_000_000, "name": "a\x1b[2Jb"},
		Above: []string{"above\x1b"}, Below: []string{"below"},
		Columns: []Column{{Title: "NAME"}, {Title: "MORE", Wide: true}, {Title: "BYTES"}},
		Rows:    [][]string{{"n1", "more", "62.0 MB"}, {"bad\nname\u202E", "", ""}, {strings.Repeat("x", 1000), "", "1"}},
		Names:   []string{"node/n1", "node/bad\x1b"},
	}
}

func TestPrint(t *testing.T) {
	print := func(form Form) string {
		var out bytes.Buffer
		if err := Print(&out, form, answer()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	narrow := print(Table)
	lines := strings.Split(narrow, "\n")
	if lines[0] != "above\uFFFD" || strings.Contains(narrow, "MORE") || strings.Contains(narrow, "\x1b") || strings.Contains(narrow, "\u202E") ||
		len([]rune(lines[4])) > maxCell+20 || lines[5] != "below" || len(lines) != 7 {
		t.Errorf("%s", narrow)
	}
	if got := print(Wide); !strings.Contains(got, "MORE") || !strings.Contains(got, "more") {
		t.Errorf("%s", got)
	}
	if got := print(Name); got != "node/n1\nnode/bad\uFFFD\n" {
		t.Errorf("%q", got)
	}
	var value struct {
		Bytes int64  `json:"bytes"`
		Name  string `json:"name"`
	}
	if err := json.Unmarshal([]byte(print(JSON)), &value); err != nil || value.Bytes != 62_000_000 || strings.Contains(print(JSON), "\x1b") {
		t.Errorf("%+v, %v", value, err)
	}
	value.Bytes = 0
	if err := yaml.Unmarshal([]byte(print(YAML)), &value); err != nil || value.Bytes != 62_000_000 || strings.Contains(print(YAML), "\x1b") {
		t.Errorf("%+v, %v: %s", value, err, print(YAML))
	}
}

func TestParseForm(t *testing.T) {
	if form, err := ParseForm(""); form != Table || err != nil {
		t.Errorf("%s, %v", form, err)
	}
	if form, err := ParseForm("wide"); form != Wide || err != nil {
		t.Errorf("%s, %v", form, err)
	}
	if _, err := ParseForm("jsonpath={.x}"); err == nil || !strings.Contains(err.Error(), "want table, wide, json, yaml, name") {
		t.Error(err)
	}
}

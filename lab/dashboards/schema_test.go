//go:build integration

package dashboards

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// libraries is where lab/dashboards/schema/fetch.sh puts TypeScript and Grafana's types.
const libraries = root + "/_build/grafana-schema"

// compile returns TypeScript's errors of dashboards, whose texts have names.
func compile(t *testing.T, texts map[string]string) string {
	t.Helper()
	compiler, err := filepath.Abs(filepath.Join(libraries, "node_modules/typescript/bin/tsc"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(compiler); err != nil {
		t.Fatalf("%v: lab/dashboards/schema/fetch.sh fetches it", err)
	}
	// Beside the packages, so that they are found.
	folder, err := os.MkdirTemp(libraries, "check-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	types, err := os.ReadFile("schema/types.ts")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{compiler, "--noEmit", "--strict", "--skipLibCheck", "--pretty", "false", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"}
	files := map[string]string{"types.ts": string(types)}
	for name, text := range texts {
		files[name+".ts"] = "import type { Shipped } from './types';\nexport const dashboard: Shipped =\n" + text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, name)
	}
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	if (err == nil) != (len(out) == 0) {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// Dashboards have the types that Grafana has for them: no field that it does not have, no value
// that it does not take. Each of some mistakes is seen.
func TestSchema(t *testing.T) {
	texts := map[string]string{}
	for _, d := range read(t) {
		text, err := os.ReadFile(filepath.Join(root, Folder, d.File))
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(d.File, ".json")] = string(text)
	}
	mistakes := []struct{ right, wrong string }{
		{`"schemaVersion": `, `"schemeVersion": `},
		{`"gridPos": `, `"gridpos": `},
		{`"fillOpacity": `, `"fillOpacty": `},
		{`"mode": "palette-classic"`, `"mode": "palette-of-none"`},
		{`"unit": "decbytes"`, `"unit": 7`},
		{`"placement": "bottom"`, `"placement": "below"`},
		{`"colorMode": "value"`, `"colourMode": "value"`},
		{`"type": "timeseries"`, `"type": "graph"`},
		{`"uid": "${datasource}"`, `"uid": "of-one-installation"`},
		{`"legendFormat": `, `"legend": `},
	}
	for i, m := range mistakes {
		wrong := strings.Replace(texts["overview"], m.right, m.wrong, 1)
		if wrong == texts["overview"] {
			t.Errorf("there is no %s in the dashboard", m.right)
		}
		texts[fmt.Sprint("mistake-", i)] = wrong
	}
	said, shipped := compile(t, texts), regexp.MustCompile(`^(overview|components|types)\.ts`)
	for line := range strings.Lines(said) {
		if shipped.MatchString(line) {
			t.Error(line)
		}
	}
	for i, m := range mistakes {
		if !strings.Contains(said, fmt.Sprintf("mistake-%d.ts(", i)) {
			t.Errorf("not seen: %s", m.wrong)
		}
	}
}

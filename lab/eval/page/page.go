// Package page makes the page that shows the outcome of an evaluation: one
// HTML file with figures and tables that loads nothing from elsewhere.
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string

	pageTemplate = template.Must(template.New("page").Parse(pageHTML))
)

// Assets are the libraries that the page contains.
type Assets struct {
	// Scripts are in the order in which they run.
	Scripts []string
	// Licences of everything in the scripts.
	Licences []Licence
}

// Licence is a text and the packages it is for.
type Licence struct {
	Packages []string
	Text     string
}

// LoadAssets reads the assets that lab/eval/page/assets.sh put into the
// folder.
func LoadAssets(folder string) (*Assets, error) {
	const wayOut = "lab/eval/page/assets.sh fetches them"
	modules := filepath.Join(folder, "node_modules")
	assets := &Assets{}
	for _, file := range []string{"d3/dist/d3.min.js", "@observablehq/plot/dist/plot.umd.min.js"} {
		script, err := os.ReadFile(filepath.Join(modules, file))
		if err != nil {
			return nil, fmt.Errorf("the page's libraries are missing: %w; %s", err, wayOut)
		}
		assets.Scripts = append(assets.Scripts, string(script))
	}
	var files []string
	for _, pattern := range []string{"*/LICEN*", "@*/*/LICEN*"} {
		found, err := filepath.Glob(filepath.Join(modules, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	index := map[string]int{} // by text: many packages have the same
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("a licence is unreadable: %w; %s", err, wayOut)
		}
		name, err := filepath.Rel(modules, filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		i, ok := index[string(text)]
		if !ok {
			i = len(assets.Licences)
			index[string(text)] = i
			assets.Licences = append(assets.Licences, Licence{Text: string(text)})
		}
		assets.Licences[i].Packages = append(assets.Licences[i].Packages, filepath.ToSlash(name))
	}
	return assets, nil
}

// Write writes the page. The report must have passed its Check.
func Write(w io.Writer, report *evaluation.Report, assets *Assets) error {
	v := view{
		Report:   report,
		Style:    template.CSS(pageCSS),
		Policies: policiesOf(report),
		Licences: assets.Licences,
	}
	v.Figures.Policies, v.Figures.Experiments = v.Policies, []summary{}
	for i := range report.Experiments {
		experiment := &report.Experiments[i]
		s := summarise(experiment, v.Policies)
		v.Figures.Experiments = append(v.Figures.Experiments, s)
		v.Experiments = append(v.Experiments, section{Experiment: experiment, Table: tableOf(s, v.Policies)})
	}
	var hashes []string
	for _, script := range append(slices.Clone(assets.Scripts), pageJS) {
		// Remove what the browser's parser would change, or take for the end
		// of the script.
		script = strings.ReplaceAll(script, "\r", "")
		if lower := strings.ToLower(script); strings.Contains(lower, "</script") || strings.Contains(lower, "<!--") {
			return errors.New("a library of the page cannot be inlined: it contains </script or <!--")
		}
		v.Scripts = append(v.Scripts, template.JS(script))
		hash := sha256.Sum256([]byte(script))
		hashes = append(hashes, "'sha256-"+base64.StdEncoding.EncodeToString(hash[:])+"'")
	}
	// Nothing is loaded from elsewhere, and no other scripts run. Observable
	// Plot sets styles.
	v.Security = "default-src 'none'; script-src " + strings.Join(hashes, " ") +
		"; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
	return pageTemplate.Execute(w, v)
}

// view is what page.html shows.
type view struct {
	*evaluation.Report
	Security    string
	Style       template.CSS
	Scripts     []template.JS
	Policies    []policy
	Experiments []section
	Licences    []Licence
	// Figures is for page.js.
	Figures struct {
		Policies    []policy  `json:"policies"`
		Experiments []summary `json:"experiments"`
	}
}

type section struct {
	*evaluation.Experiment
	Table table
}

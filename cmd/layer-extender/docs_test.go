package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/prometheus"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// TestDocumentation: docs/extender.md has every flag, agent, variable and default query.
func TestDocumentation(t *testing.T) {
	in := func(page string) (want func(what string)) {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		return func(what string) {
			t.Helper()
			if !strings.Contains(string(text), what) {
				t.Errorf("docs/%s does not say: %s", page, what)
			}
		}
	}
	want, ofUsage := in("extender.md"), in("node-usage.md")
	o, flags, annotates := &options{}, pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addTo(flags)
	flags.VisitAll(func(flag *pflag.Flag) { want("`--" + flag.Name + "`") })
	(&annotateOptions{}).addTo(annotates)
	annotates.VisitAll(func(flag *pflag.Flag) { ofUsage("`--" + flag.Name + "`") })
	ofUsage("`" + usage.Until + "`")
	kinds, debug := agents()
	for _, kind := range kinds {
		for _, name := range kind.Names() {
			want("`" + name + "`")
		}
	}
	for path := range debug {
		want("`" + path + "`")
	}
	for _, v := range variables {
		want("| `" + v.name + "`")
	}
	want("| `policyResourceIndex`")
	for _, ancestors := range []string{"PROM_IP", "PROM_PORT", "NODE_EXP_PORT", "ANNOTATE_FREQ", "USE_FORECAST"} {
		ofUsage("`" + ancestors + "`")
	}
	for name, query := range prometheus.Queries() {
		if query != "" {
			ofUsage("| `" + name + "` | `" + query + "` |")
		}
	}
}

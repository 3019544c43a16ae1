package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/prometheus"
)

// TestDocumentation: docs/extender.md has every flag, agent, variable and default query.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/extender.md")
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string) {
		t.Helper()
		if !strings.Contains(string(text), what) {
			t.Errorf("docs/extender.md does not say: %s", what)
		}
	}
	o, flags := &options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addTo(flags)
	flags.VisitAll(func(flag *pflag.Flag) { want("`--" + flag.Name + "`") })
	kinds, debug := agents(nil)
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
	for name, query := range prometheus.Queries() {
		if query != "" {
			want("| `" + name + "` | `" + query + "` |")
		}
	}
}

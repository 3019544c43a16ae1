package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestParseBandwidth(t *testing.T) {
	for value, want := range map[string]int64{"": 0, "100M": 100e6, "100m": 100e6, "1Gbit": 1e9, "1gbit/s": 1e9, "2500000": 2500000, "12.5Mbps": 12.5e6, "1Gi": 1 << 30} {
		if got, err := parseBandwidth(value); got != want || err != nil {
			t.Errorf("%q: %d, %v", value, got, err)
		}
	}
	for _, value := range []string{"0", "-1M", "fast", "1e30", "100 M"} {
		if got, err := parseBandwidth(value); err == nil {
			t.Errorf("%q: %d", value, got)
		}
	}
}

// Every command has a sentence of help, and its arguments can be completed.
func TestCommands(t *testing.T) {
	root := newCommand(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{})
	names := map[string]bool{}
	for _, command := range root.Commands() {
		names[command.Name()] = true
		if command.Short == "" || command.ValidArgsFunction == nil || command.RunE == nil {
			t.Errorf("%s: %q", command.Name(), command.Short)
		}
	}
	for _, want := range strings.Fields("nodes node image pod deployment statefulset daemonset replicaset job cronjob shared plan why imagelocality savings") {
		if !names[want] {
			t.Errorf("no command %s", want)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/inspect"
)

// runInspect runs the command as a user does at the shell.
func runInspect(t *testing.T, r *registrytest.Registry, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	command := newInspectCommand()
	var out, errs bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SilenceUsage = true
	command.SetArgs(append([]string{"--registries-conf", r.Conf}, args...))
	err = command.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// TestInspect: known images are shown, and failures are reported.
func TestInspect(t *testing.T) {
	r := registrytest.New(t)
	good := r.Push("good:1", r.Image("base", "good"))

	stdout, stderr, err := runInspect(t, r, good, r.Host+"/missing:1", "Not A Name")
	if err == nil || !strings.Contains(err.Error(), "2 failed") {
		t.Errorf("error %v", err)
	}
	for _, line := range []string{"error: " + r.Host + "/missing:1: ", "error: Not A Name: "} {
		if strings.Count(stderr, line) != 1 {
			t.Errorf("%q is not told once in\n%s", line, stderr)
		}
	}
	if !strings.HasPrefix(stdout, good+"\nmanifest ") {
		t.Errorf("shown:\n%s", stdout)
	}

	stdout, stderr, err = runInspect(t, r, "-o", "json", good)
	var report inspect.Report
	if err != nil || stderr != "" || json.Unmarshal([]byte(stdout), &report) != nil || len(report.Images) != 1 {
		t.Errorf("error %v, %s\n%s", err, stderr, stdout)
	}

	for _, arguments := range [][]string{{}, {"-o", "yaml", good}, {"--platform", "amd64", good}, {"--platform", "linux/", good}, {"--docker-config", "/does/not/exist", good}, {"--registries-conf", "/does/not/exist", good}} {
		r.Forget()
		if stdout, _, err := runInspect(t, r, arguments...); err == nil || stdout != "" || len(r.Questions()) > 0 {
			t.Errorf("%q: error %v, output %q, asked %v", arguments, err, stdout, r.Questions())
		}
	}
}

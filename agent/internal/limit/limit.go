// Package limit runs tests in the memory that deploy/agent gives the container that reads.
package limit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// key is the variable with the bytes that a child may take, logged what its log has of its peak.
const (
	key    = "TEST_MEMORY_LIMIT"
	logged = "MiB at most"
)

// Child runs the same test again, in a process of its own, with an environment and that of the container.
// There, Peak has to be called.
func Child(t *testing.T, env ...string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/agent/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	child := exec.CommandContext(t.Context(), program, "-test.run="+pattern, "-test.v")
	child.Env = append(append(os.Environ(), "GOGC=25"), env...) // as cmd/layer-agent sets it
	limited := false
	for _, c := range set.Spec.Template.Spec.Containers {
		if c.Name != "read" {
			continue
		}
		bytes := c.Resources.Limits.Memory().Value()
		child.Env = append(child.Env, fmt.Sprint(key, "=", bytes), fmt.Sprint("GOMEMLIMIT=", bytes/10*9)) // as memlimit sets it
		limited = bytes > 0
	}
	if !limited {
		t.Fatal("no container read with an environment")
	}
	output, err := child.CombinedOutput()
	if err != nil || !bytes.Contains(output, []byte(logged)) {
		t.Fatalf("%v:\n%s", err, output)
	}
	t.Logf("%s", output)
}

// Peak fails the test if the process has taken more than it may.
func Peak(t *testing.T) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\nVmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no peak of memory in %s", status)
	}
	peak, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.ParseInt(os.Getenv(key), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("it took %d %s", peak>>10, logged); peak<<10 > limit {
		t.Errorf("the container has %d MiB", limit>>20)
	}
}

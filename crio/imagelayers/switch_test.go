package imagelayers

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"go.podman.io/image/v5/types"
)

func TestReadSwitch(t *testing.T) {
	logs := logrustest.NewGlobal()
	t.Cleanup(func() { logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{}) })

	for _, tc := range []struct {
		values []string
		want   bool
		warns  bool
	}{
		{values: []string{"", "on", "true", "1", "yes", "ON", "True", " on "}, want: true},
		{values: []string{"off", "false", "0", "no", "OFF", "False", "No", " off\n"}, want: false},
		{values: []string{"2", "disabled", "of", "-"}, want: true, warns: true},
	} {
		for _, value := range tc.values {
			t.Setenv(SwitchEnv, value)
			logs.Reset()

			if got := readSwitch(); got != tc.want {
				t.Errorf("%q: got %v, want %v", value, got, tc.want)
			}

			entry := logs.LastEntry()
			if warned := entry != nil && entry.Level == logrus.WarnLevel; warned != tc.warns {
				t.Errorf("%q: warned %v, want %v", value, warned, tc.warns)
			}

			if tc.warns && (!strings.Contains(entry.Message, SwitchEnv) || !strings.Contains(entry.Message, value)) {
				t.Errorf("%q: the warning names neither the variable nor the value: %q", value, entry.Message)
			}
		}
	}
}

// switchTestChild is set in the process that TestSwitch starts.
const switchTestChild = "IMAGELAYERS_TEST_CHILD"

// TestSwitch runs itself again with the variable set, as it is read only once in
// a process.
func TestSwitch(t *testing.T) {
	if os.Getenv(switchTestChild) != "" {
		for range 3 {
			layers := FromManifest([]types.BlobInfo{blob(digestA, 1)})
			os.Stdout.WriteString(map[bool]string{true: "none\n", false: "reported\n"}[layers == nil])
		}

		return
	}

	for _, tc := range []struct {
		value, want string
		// What is logged, at which level.
		infos, warnings int
	}{
		{"", "reported", 0, 0},
		{"off", "none", 1, 0},
		{"perhaps", "reported", 0, 1},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSwitch$")
		cmd.Env = append(os.Environ(), switchTestChild+"=1", SwitchEnv+"="+tc.value)

		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}

		if strings.Count(string(out), tc.want+"\n") != 3 ||
			strings.Count(string(out), "level=info") != tc.infos || strings.Count(string(out), "level=warning") != tc.warnings {
			t.Errorf("%s=%s: want %q, %d infos and %d warnings, got %s", SwitchEnv, tc.value, tc.want, tc.infos, tc.warnings, out)
		}
	}
}

package imagelayers

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"go.podman.io/image/v5/types"
)

func TestEnvSwitch(t *testing.T) {
	logs := logrustest.NewGlobal()
	t.Cleanup(func() { logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{}) })

	on := []string{"on", "true", "1", "yes", "ON", "True", " on "}
	off := []string{"off", "false", "0", "no", "OFF", "False", "No", " off\n"}
	other := []string{"2", "disabled", "of", "-"}

	for _, tc := range []struct {
		byDefault bool
		values    []string
		want      bool
		logs      string // at the beginning of the line, with the level
	}{
		{true, []string{""}, true, ""},
		{true, on, true, ""},
		{true, off, false, "info %s=%s: not doing what"},
		{true, other, true, `warning Unknown value "%[2]s" of %[1]s: set it to "on" or "off"; doing what`},
		{false, []string{""}, false, ""},
		{false, off, false, ""},
		{false, on, true, "info %s=%s: doing what"},
		{false, other, false, `warning Unknown value "%[2]s" of %[1]s: set it to "on" or "off"; not doing what`},
	} {
		for _, value := range tc.values {
			const env = "IMAGELAYERS_TEST_SWITCH"
			t.Setenv(env, value)
			logs.Reset()

			s := envSwitch{env: env, byDefault: tc.byDefault, what: "doing what"}
			for range 3 {
				if got := s.isOn(); got != tc.want {
					t.Errorf("%q, by default %v: got %v, want %v", value, tc.byDefault, got, tc.want)
				}
			}

			logged, want := "", ""
			for _, entry := range logs.AllEntries() {
				logged += entry.Level.String() + " " + entry.Message
			}

			if tc.logs != "" {
				want = fmt.Sprintf(tc.logs, env, value)
			}

			if logged != want {
				t.Errorf("%q, by default %v: logged %q, want %q", value, tc.byDefault, logged, want)
			}
		}
	}
}

// TestDefaults: exclusive bytes have to be wanted, sharing can be turned off.
func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		env     string
		enabled func() bool
		want    map[string]bool
	}{
		{ExclusiveSwitchEnv, ExclusiveEnabled, map[string]bool{"": false, "on": true, "perhaps": false}},
		{ShareSwitchEnv, ShareEnabled, map[string]bool{"": true, "off": false, "perhaps": true}},
	} {
		for value, want := range tc.want {
			t.Setenv(tc.env, value)

			if got := tc.enabled(); got != want {
				t.Errorf("%s=%s: got %v, want %v", tc.env, value, got, want)
			}
		}
	}
}

// switchTestChild is set in the process that TestSwitch starts.
const switchTestChild = "IMAGELAYERS_TEST_CHILD"

// TestSwitch runs itself again with the variable set.
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

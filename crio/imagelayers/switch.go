package imagelayers

import (
	"os"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// SwitchEnv is the environment variable of CRI-O that turns the reports off
// (off, false, 0, no) or on (on, true, 1, yes), in upper or lower case. They are
// on by default. It is read once: CRI-O has to be restarted for a change.
const SwitchEnv = "CRIO_IMAGE_LAYERS"

// enabled is a variable for the tests.
var enabled = sync.OnceValue(readSwitch)

func readSwitch() bool {
	value := os.Getenv(SwitchEnv)

	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "on", "true", "1", "yes":
		return true
	case "off", "false", "0", "no":
		logrus.Infof("%s=%s: not reporting the layers of images", SwitchEnv, value)

		return false
	default:
		logrus.Warnf("Unknown value %q of %s: reporting the layers of images; to turn this off, set it to \"off\"", value, SwitchEnv)

		return true
	}
}

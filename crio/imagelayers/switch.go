package imagelayers

import (
	"os"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// The environment variables of CRI-O that turn reports on (on, true, 1, yes) or off
// (off, false, 0, no), in upper or lower case. CRI-O has to be restarted for a
// change.
const (
	// SwitchEnv is for the layers of images. They are reported by default.
	SwitchEnv = "CRIO_IMAGE_LAYERS"

	// ExclusiveSwitchEnv is for the bytes that only one image needs (ExclusiveKey).
	// They are not reported by default: that takes a look at all layers of the store
	// for each list.
	ExclusiveSwitchEnv = "CRIO_IMAGE_EXCLUSIVE_BYTES"
)

var (
	layersSwitch    = reportSwitch{env: SwitchEnv, byDefault: true, what: "the layers of images"}
	exclusiveSwitch = reportSwitch{env: ExclusiveSwitchEnv, byDefault: false, what: "the bytes that only one image needs"}
)

// ExclusiveEnabled tells whether the bytes that only one image needs are reported.
func ExclusiveEnabled() bool { return exclusiveSwitch.isOn() }

// reportSwitch turns a report on or off.
type reportSwitch struct {
	env       string
	byDefault bool
	what      string

	lock sync.Mutex
	// on is what value says. That only changes in tests.
	known, on bool
	value     string
}

// isOn writes to the log only once what the variable says.
func (s *reportSwitch) isOn() bool {
	s.lock.Lock()
	defer s.lock.Unlock()

	if value := os.Getenv(s.env); !s.known || s.value != value {
		s.known, s.value, s.on = true, value, s.read(value)
	}

	return s.on
}

// read returns whether the value says on, or what is the default if it does not say.
// The log has what differs from the default.
func (s *reportSwitch) read(value string) bool {
	on := s.byDefault

	switch strings.ToLower(strings.TrimSpace(value)) {
	case "":
	case "on", "true", "1", "yes":
		on = true
	case "off", "false", "0", "no":
		on = false
	default:
		logrus.Warnf("Unknown value %q of %s: set it to \"on\" or \"off\"; %sreporting %s", value, s.env, not(s.byDefault), s.what)
	}

	if on != s.byDefault {
		logrus.Infof("%s=%s: %sreporting %s", s.env, value, not(on), s.what)
	}

	return on
}

func not(on bool) string {
	if on {
		return ""
	}

	return "not "
}

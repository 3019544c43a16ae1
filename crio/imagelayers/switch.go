package imagelayers

import (
	"os"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// The environment variables of CRI-O that turn what we add on (on, true, 1, yes) or
// off (off, false, 0, no), in upper or lower case. CRI-O has to be restarted for a
// change.
const (
	// SwitchEnv is for the layers of images. They are reported by default.
	SwitchEnv = "CRIO_IMAGE_LAYERS"

	// ExclusiveSwitchEnv is for the bytes that only one image needs (ExclusiveKey).
	// They are not reported by default: that takes a look at all layers of the store
	// for each list.
	ExclusiveSwitchEnv = "CRIO_IMAGE_EXCLUSIVE_BYTES"

	// ShareSwitchEnv is for pulls that wait for the layers which an earlier pull is
	// downloading (package layershare). They do by default.
	ShareSwitchEnv = "CRIO_SHARE_LAYERS"

	// PeersSwitchEnv is for layers from and for neighbours (package layercache). By default,
	// there are none.
	PeersSwitchEnv = "CRIO_LAYER_PEERS"
)

var (
	layersSwitch    = envSwitch{env: SwitchEnv, byDefault: true, what: "reporting the layers of images"}
	exclusiveSwitch = envSwitch{env: ExclusiveSwitchEnv, byDefault: false, what: "reporting the bytes that only one image needs"}
	shareSwitch     = envSwitch{env: ShareSwitchEnv, byDefault: true, what: "sharing layers that several pulls need"}
	peersSwitch     = envSwitch{env: PeersSwitchEnv, byDefault: false, what: "exchanging layers with neighbours"}
)

// ExclusiveEnabled reports whether the bytes that only one image needs are reported.
func ExclusiveEnabled() bool { return exclusiveSwitch.isOn() }

// ShareEnabled reports whether pulls share layers.
func ShareEnabled() bool { return shareSwitch.isOn() }

// PeersEnabled reports whether neighbours exchange layers.
func PeersEnabled() bool { return peersSwitch.isOn() }

// envSwitch turns something on or off.
type envSwitch struct {
	env       string
	byDefault bool
	what      string

	lock sync.Mutex
	// on is what value means. That only changes in tests.
	known, on bool
	value     string
}

// isOn logs the value of the variable only once.
func (s *envSwitch) isOn() bool {
	s.lock.Lock()
	defer s.lock.Unlock()

	if value := os.Getenv(s.env); !s.known || s.value != value {
		s.known, s.value, s.on = true, value, s.read(value)
	}

	return s.on
}

// read returns whether the value means on; if it is neither on nor off, the default.
// It logs what differs from the default.
func (s *envSwitch) read(value string) bool {
	on := s.byDefault

	switch strings.ToLower(strings.TrimSpace(value)) {
	case "":
	case "on", "true", "1", "yes":
		on = true
	case "off", "false", "0", "no":
		on = false
	default:
		logrus.Warnf("Unknown value %q of %s: set it to \"on\" or \"off\"; %s%s", value, s.env, not(s.byDefault), s.what)
	}

	if on != s.byDefault {
		logrus.Infof("%s=%s: %s%s", s.env, value, not(on), s.what)
	}

	return on
}

func not(on bool) string {
	if on {
		return ""
	}

	return "not "
}

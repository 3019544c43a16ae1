package mirrors

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"github.com/distribution/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/imageref"
)

// Conf is a containers-registries.conf(5) file. A nil pointer means
// that there is none.
type Conf struct {
	system *types.SystemContext
	short  imageref.ShortNames
}

// ShortNames returns the file's rules for names without a registry.
func (r *Conf) ShortNames() *imageref.ShortNames {
	if r == nil {
		return &imageref.ShortNames{}
	}
	return &r.short
}

// LoadConf reads the file at a path, with its drop-ins; nil if the path is empty.
func LoadConf(path string) (*Conf, error) {
	if path == "" {
		return nil, nil
	}
	// Both paths are given, so that the host's own configuration is not used.
	system := &types.SystemContext{SystemRegistriesConfPath: path, SystemRegistriesConfDirPath: path + ".d"}
	sysregistriesv2.InvalidateCache()
	search, err := sysregistriesv2.UnqualifiedSearchRegistries(system)
	if err != nil {
		return nil, err
	}
	// The library has checked the aliases, but it returns them only with a lock
	// file that it writes below /var/cache.
	aliases, err := loadAliases(path)
	if err != nil {
		return nil, err
	}
	return &Conf{system: system, short: imageref.ShortNames{Aliases: aliases, Search: search}}, nil
}

// loadAliases returns the short names of registries.conf. Those of drop-ins
// replace those of the file.
func loadAliases(path string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(path+".d", "*.conf"))
	if err != nil {
		return nil, err
	}
	aliases := map[string]string{}
	for _, file := range append([]string{path}, files...) {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue
		}
		var content struct {
			Aliases map[string]string `toml:"aliases"`
		}
		if _, err := toml.DecodeFile(file, &content); err != nil {
			return nil, fmt.Errorf("reading short-name aliases of %s: %w", file, err)
		}
		maps.Copy(aliases, content.Aliases)
	}
	return aliases, nil
}

// Find returns the rule for a reference; nil if there is none.
func (r *Conf) Find(named reference.Named) (*sysregistriesv2.Registry, error) {
	if r == nil {
		return nil, nil
	}
	return sysregistriesv2.FindRegistry(r.system, named.String())
}

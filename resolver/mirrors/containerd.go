package mirrors

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/resolver/policy"
)

// anyRegistry is the source of mirrors for registries that have none of their own.
const anyRegistry = "*"

// FromContainerd reads the mirrors of containerd: the hosts.toml of each registry in a folder
// (https://github.com/containerd/containerd/blob/main/docs/hosts.md), which is containerd's config_path. It also returns
// what is left out. Certificates that a file names are not read.
func FromContainerd(folder string) (entries []Entry, leftOut []error, err error) {
	folders, err := os.ReadDir(folder)
	if err != nil {
		return nil, nil, err
	}
	for _, of := range folders {
		file, source := filepath.Join(folder, of.Name(), "hosts.toml"), sourceOf(of.Name())
		if strings.HasPrefix(of.Name(), "*") {
			leftOut = append(leftOut, fmt.Errorf("%s: left out, since containerd knows no wildcards", file))
			continue
		}
		if source != anyRegistry {
			// Mirrors for any registry are not for one that has a folder, whatever that holds.
			entries = append(entries, Entry{Source: source})
		}
		if _, err := os.Stat(file); err != nil {
			continue
		}
		found, wrong := fromHosts(file, source)
		entries = append(entries, found...)
		for _, err := range wrong {
			leftOut = append(leftOut, fmt.Errorf("%s: %w", file, err))
		}
	}
	return entries, leftOut, nil
}

var withPort = regexp.MustCompile(`^(.+)_([0-9]+)_$`)

// sourceOf returns the registry that a folder is for: containerd writes host:port also as host_port_.
func sourceOf(folder string) string {
	if folder == "_default" {
		return anyRegistry
	}
	return withPort.ReplaceAllString(folder, "$1:$2")
}

// table is what hosts.toml states of a host.
type table struct {
	Capabilities []string `toml:"capabilities"`
	SkipVerify   bool     `toml:"skip_verify"`
	OverridePath bool     `toml:"override_path"`
	// Rewrite is read by the containerd of k3s.
	Rewrite map[string]string `toml:"rewrite"`
}

// rewrites change the path of a name before a mirror is asked for it: the first one that does. k3s takes any of several
// (withRewritesFromHost in github.com/k3s-io/containerd); here the one with the longest pattern counts.
type rewrites []rewrite

type rewrite struct {
	pattern *regexp.Regexp
	with    string
}

func rewritesOf(patterns map[string]string) (found rewrites, errs []error) {
	for _, text := range slices.SortedFunc(maps.Keys(patterns), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) }) {
		pattern, err := regexp.Compile(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("rewrite: %w", err))
			continue
		}
		found = append(found, rewrite{pattern, patterns[text]})
	}
	return found, errs
}

func (r rewrites) apply(repository string) string {
	for _, one := range r {
		if rewritten := one.pattern.ReplaceAllString(repository, one.with); rewritten != repository {
			return rewritten
		}
	}
	return repository
}

func fromHosts(file, source string) (entries []Entry, errs []error) {
	var content struct {
		table
		Server string           `toml:"server"`
		Host   map[string]table `toml:"host"`
	}
	meta, err := toml.DecodeFile(file, &content)
	if err != nil {
		return nil, []error{err}
	}
	digests, tags := Entry{Source: source}, Entry{Source: source, Tags: true}
	add := func(server string, h *table) {
		location, form, insecure, err := locationOf(server, h.OverridePath)
		if err != nil {
			errs = append(errs, err)
			return
		}
		var wrong []error
		form.rewrites, wrong = rewritesOf(h.Rewrite)
		errs = append(errs, wrong...)
		pulls := len(h.Capabilities) == 0 || slices.Contains(h.Capabilities, "pull")
		if pulls {
			if err := digests.add(location, form, insecure || h.SkipVerify); err != nil {
				errs = append(errs, err)
			}
		}
		if pulls && (len(h.Capabilities) == 0 || slices.Contains(h.Capabilities, "resolve")) {
			_ = tags.add(location, form, insecure || h.SkipVerify) // as of digests
		}
	}
	// Tables are tried in the order in which they stand in the file.
	seen := map[string]bool{}
	for _, key := range meta.Keys() {
		if len(key) < 2 || key[0] != "host" || seen[key[1]] {
			continue
		}
		seen[key[1]] = true
		h := content.Host[key[1]]
		add(key[1], &h)
	}
	// The server is asked last, in place of the registry itself if it is another.
	if content.Server != "" && (content.SkipVerify || !sameServer(content.Server, source)) {
		add(content.Server, &content.table)
		digests.Only, tags.Only = true, true
	}
	return slices.DeleteFunc([]Entry{digests, tags}, func(e Entry) bool { return len(e.Mirrors) == 0 }), errs
}

// add adds a mirror. Of two at a host with other paths, the first counts; the error is about the second.
func (e *Entry) add(location string, form Form, insecure bool) error {
	if slices.Contains(e.Mirrors, location) {
		if form.Path != e.Forms[location].Path {
			return fmt.Errorf("%s%s: left out, since a mirror at another path of this host is before it", location, form.Path)
		}
		return nil
	}
	e.Mirrors = append(e.Mirrors, location)
	if insecure {
		e.Insecure = append(e.Insecure, location)
	}
	if e.Forms == nil {
		e.Forms = map[string]Form{}
	}
	e.Forms[location] = form
	return nil
}

func sameServer(server, source string) bool {
	location, form, insecure, err := locationOf(server, false)
	return err == nil && form.Path == "" && !insecure && policy.Canonical(location) == policy.Canonical(source)
}

// locationOf returns the registry, or the repository in it, at an address, and the path there. containerd asks for /v2 below
// the path, unless that ends so or overrides it (parseHostConfig in core/remotes/docker/config).
func locationOf(server string, override bool) (location string, form Form, insecure bool, err error) {
	u, err := address(server)
	if err != nil {
		return "", Form{}, false, err
	}
	below := path.Clean("/" + u.Path)
	if !override && !strings.HasSuffix(below, "/v2") {
		below = path.Join(below, "v2")
	}
	rest, isV2 := strings.CutPrefix(below, "/v2/")
	switch {
	case below == "/v2":
		rest = ""
	case below == "/":
		return "", Form{}, false, fmt.Errorf("%s: left out, since override_path without a path is not supported", server)
	case isV2:
		rest = "/" + rest
	default:
		rest, form.Path = "", (&url.URL{Path: below}).EscapedPath()
	}
	return u.Host + rest, form, u.Scheme == "http", nil
}

func address(server string) (*url.URL, error) {
	if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") {
		server = "https://" + server
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%.100q is no address", server)
	}
	return u, nil
}

// FromK3s reads the mirrors of a registries.yaml of k3s or RKE2
// (https://docs.k3s.io/installation/private-registry). It also returns what is left out. Credentials and certificates that it
// has are not read.
func FromK3s(file string) (entries []Entry, leftOut []error, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	var content struct {
		Mirrors map[string]struct {
			Endpoints []string          `json:"endpoint"`
			Rewrites  map[string]string `json:"rewrite"`
		} `json:"mirrors"`
		Configs map[string]struct {
			TLS struct {
				SkipVerify bool `json:"insecure_skip_verify"`
			} `json:"tls"`
		} `json:"configs"`
	}
	if err := yaml.Unmarshal(text, &content); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	for source, mirror := range content.Mirrors {
		if source == "_default" { // k3s takes containerd's word for it, too
			source = anyRegistry
		}
		if source != anyRegistry {
			if strings.HasPrefix(source, "*") {
				leftOut = append(leftOut, fmt.Errorf("%s: mirrors of %s: left out, since k3s knows no wildcards but *", file, source))
				continue
			}
			entries = append(entries, Entry{Source: source}) // k3s writes a folder for it
		}
		rewritten, wrong := rewritesOf(mirror.Rewrites)
		for _, err := range wrong {
			leftOut = append(leftOut, fmt.Errorf("%s: mirrors of %s: %w", file, source, err))
		}
		e := Entry{Source: source}
		for _, endpoint := range mirror.Endpoints {
			u, err := address(endpoint)
			location, form, insecure := "", Form{}, false
			if err == nil {
				// A path is the whole path, as with override_path.
				location, form, insecure, err = locationOf(endpoint, strings.Trim(u.Path, "/") != "")
			}
			if err == nil {
				form.rewrites = rewritten
				err = e.add(location, form, insecure || content.Configs[u.Host].TLS.SkipVerify)
			}
			if err != nil {
				leftOut = append(leftOut, fmt.Errorf("%s: mirrors of %s: %w", file, source, err))
			}
		}
		if len(e.Mirrors) > 0 {
			tags := e
			tags.Tags = true
			entries = append(entries, e, tags)
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Source, b.Source) })
	return entries, leftOut, nil
}

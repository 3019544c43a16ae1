//go:build ignore

// This program answers, for each line of JSON, which manifest containerd's own code takes of an image on a platform, or
// where it asks for the images of a registry. The test compiles it in a module of its own, as containerd requires other versions of libraries than this repository.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

type store map[digest.Digest][]byte

// ReaderAt implements content.Provider.
func (s store) ReaderAt(_ context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	body, ok := s[d.Digest]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return readerAt{bytes.NewReader(body)}, nil
}

type readerAt struct{ *bytes.Reader }

func (readerAt) Close() error { return nil }

func main() {
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for questions.More() {
		var q struct {
			Blobs    store
			Top      ocispec.Descriptor
			Platform string
			// Folder with a hosts.toml for each registry, and one of these.
			Folder, Registry string
		}
		if err := questions.Decode(&q); err != nil {
			log.Fatal(err)
		}
		if q.Folder != "" {
			if err := answers.Encode(hosts(q.Folder, q.Registry)); err != nil {
				log.Fatal(err)
			}
			continue
		}
		// The digest of the configuration; empty if containerd takes nothing.
		config := ""
		switch found, err := images.Manifest(context.Background(), q.Blobs, q.Top, platforms.Only(platforms.MustParse(q.Platform))); {
		case err == nil:
			config = found.Config.Digest.String()
		case !errdefs.IsNotFound(err):
			log.Fatal(err)
		}
		if err := answers.Encode(config); err != nil {
			log.Fatal(err)
		}
	}
}

type host struct {
	Address                 string
	Pull, Resolve, Insecure bool
}

// hosts returns where containerd asks for the images of a registry, in that order; nil if it cannot read the file.
func hosts(folder, registry string) (asked []host) {
	all, err := config.ConfigureHosts(context.Background(), config.HostOptions{HostDir: config.HostDirFromRoot(folder)})(registry)
	if err != nil {
		return nil
	}
	for _, h := range all {
		transport, _ := h.Client.Transport.(*http.Transport)
		asked = append(asked, host{
			Address: h.Host + h.Path, Pull: h.Capabilities.Has(docker.HostCapabilityPull), Resolve: h.Capabilities.Has(docker.HostCapabilityResolve),
			Insecure: h.Scheme == "http" || transport != nil && transport.TLSClientConfig != nil && transport.TLSClientConfig.InsecureSkipVerify,
		})
	}
	return asked
}

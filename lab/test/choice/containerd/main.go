//go:build ignore

// This program answers, for each line of JSON, which manifest containerd's own code takes of an image on a platform. The
// test compiles it in a module of its own, as containerd requires other versions of libraries than this repository.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
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
		}
		if err := questions.Decode(&q); err != nil {
			log.Fatal(err)
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

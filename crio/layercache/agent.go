package layercache

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

const (
	// HeadBytes of a layer prove to a neighbour that the registry serves it to the pull: agent/peers
	// has the same number.
	HeadBytes = 256 << 10

	// smallBytes is up to which size layers are read from the registry, as NodeLayers do not list them.
	smallBytes = 1 << 20

	// answerTime is for how long the agent may think about which layers neighbours have, idleTime for
	// how long a connection to it is kept.
	answerTime = time.Second
	idleTime   = 5 * time.Second
)

// Socket returns where layer-agent listens, below the folder that a store has until the node is started
// anew, which is root's.
func Socket(runRoot string) string { return filepath.Join(runRoot, Folder, "agent.sock") }

// agent is layer-agent of this node.
type agent struct{ client *http.Client }

func newAgent(socket string) agent {
	dialer := &net.Dialer{Timeout: time.Second}

	return agent{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     idleTime,
	}}}
}

// held returns which of the layers neighbours seem to have.
func (a agent) held(ctx context.Context, layers []types.BlobInfo) (map[digest.Digest]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()

	var question strings.Builder
	for _, layer := range layers {
		fmt.Fprintln(&question, layer.Digest)
	}

	held := map[digest.Digest]bool{}

	err := a.post(ctx, "/held", strings.NewReader(question.String()), func(answer io.Reader) error {
		lines := bufio.NewScanner(io.LimitReader(answer, int64(question.Len())))
		for lines.Scan() {
			held[digest.Digest(lines.Text())] = true
		}

		return lines.Err() //nolint:wrapcheck // The caller does.
	})

	return held, err
}

// fetch writes what a neighbour sends as that layer, of which head is known. All that come shall
// have so many bytes a second.
func (a agent) fetch(ctx context.Context, layer types.BlobInfo, head []byte, rate int64, to io.Writer) error {
	path := fmt.Sprintf("/layers/%s?size=%d&rate=%d", layer.Digest, layer.Size, rate)

	return a.post(ctx, path, bytes.NewReader(head), func(answer io.Reader) error {
		sent, err := io.Copy(to, io.LimitReader(answer, layer.Size+1))

		switch {
		case err != nil:
			return fmt.Errorf("after %d bytes: %w", sent, err)
		case sent != layer.Size:
			return fmt.Errorf("%d bytes or more came instead of %d", sent, layer.Size)
		}

		return nil
	})
}

func (a agent) post(ctx context.Context, path string, body io.Reader, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://layer-agent"+path, body)
	if err != nil {
		return fmt.Errorf("question to layer-agent: %w", err)
	}

	answer, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("layer-agent: %w", err)
	}
	defer answer.Body.Close()

	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("layer-agent answers %s", answer.Status)
	}

	if err := read(answer.Body); err != nil {
		return fmt.Errorf("answer of layer-agent: %w", err)
	}

	return nil
}

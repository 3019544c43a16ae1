package choice

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/layer-locality/layer-locality/agent/containerd"
)

// agent is layer-agent's reader, and the API of a containerd that has all blobs of a store, unpacked, and one image.
type agent struct {
	reader *containerd.Reader
	holds  atomic.Pointer[holds]
}

type holds struct {
	blobs map[digest.Digest][]byte
	top   digest.Digest
}

func newAgent(t *testing.T) *agent {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := containerd.NewReader(socket, "k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{reader: reader}
	server := grpc.NewServer()
	imagesapi.RegisterImagesServer(server, imageService{agent: a})
	contentapi.RegisterContentServer(server, contentService{agent: a})
	versionapi.RegisterVersionServer(server, versionService{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		_ = reader.Close()
		server.Stop()
	})
	return a
}

// platform is that of this machine, for which the reader chooses.
func (*agent) platform() string {
	own := platforms.DefaultSpec()
	return own.OS + "/" + own.Architecture
}

// takes returns the manifest that layer-agent takes for the one of an image on this machine; empty if for none.
func (a *agent) takes(s *store, top *ocispec.Descriptor) (taken digest.Digest) {
	s.t.Helper()
	a.holds.Store(&holds{s.blobs, top.Digest})
	result, err := a.reader.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, image := range result.Contents.Images {
		for _, name := range image.Names {
			if d := digest.Digest(name); s.images[d].Author != "" {
				taken = d
			}
		}
	}
	return taken
}

type (
	imageService struct {
		imagesapi.UnimplementedImagesServer
		*agent
	}
	contentService struct {
		contentapi.UnimplementedContentServer
		*agent
	}
	versionService struct {
		versionapi.UnimplementedVersionServer
	}
)

func (versionService) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: "v2.0.0"}, nil
}

func (i imageService) List(context.Context, *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	target := &types.Descriptor{Digest: i.holds.Load().top.String()}
	return &imagesapi.ListImagesResponse{Images: []*imagesapi.Image{{Name: "registry.test/app:1", Target: target}}}, nil
}

func (c contentService) info(d digest.Digest) (*contentapi.Info, error) {
	body, ok := c.holds.Load().blobs[d]
	if !ok {
		return nil, status.Error(codes.NotFound, d.String())
	}
	unpacked := map[string]string{"containerd.io/gc.ref.snapshot.overlayfs": digest.FromString("chain").String()}
	return &contentapi.Info{Digest: d.String(), Size: int64(len(body)), Labels: unpacked}, nil
}

func (c contentService) List(_ *contentapi.ListContentRequest, stream contentapi.Content_ListServer) error {
	for d := range c.holds.Load().blobs {
		info, err := c.info(d)
		if err != nil {
			return err
		}
		if err := stream.Send(&contentapi.ListContentResponse{Info: []*contentapi.Info{info}}); err != nil {
			return err
		}
	}
	return nil
}

func (c contentService) Info(_ context.Context, r *contentapi.InfoRequest) (*contentapi.InfoResponse, error) {
	info, err := c.info(digest.Digest(r.GetDigest()))
	return &contentapi.InfoResponse{Info: info}, err
}

func (c contentService) Read(r *contentapi.ReadContentRequest, stream contentapi.Content_ReadServer) error {
	return stream.Send(&contentapi.ReadContentResponse{Data: c.holds.Load().blobs[digest.Digest(r.GetDigest())]})
}

func (contentService) ListStatuses(context.Context, *contentapi.ListStatusesRequest) (*contentapi.ListStatusesResponse, error) {
	return &contentapi.ListStatusesResponse{}, nil
}

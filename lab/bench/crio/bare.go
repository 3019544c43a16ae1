package crio

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// bareServer answers every list with the same images.
type bareServer struct {
	runtimeapi.UnimplementedImageServiceServer
	answer *runtimeapi.ListImagesResponse
}

func (s bareServer) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return s.answer, nil
}

// bareLists times lists of the images by a server in this process, over a socket as that
// of CRI-O.
func bareLists(ctx context.Context, answer *runtimeapi.ListImagesResponse, count int) (lists []time.Duration, err error) {
	dir, err := os.MkdirTemp("", "bare-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	runtimeapi.RegisterImageServiceServer(server, bareServer{answer: answer})
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := runtimeapi.NewImageServiceClient(conn)
	for range count {
		begin := time.Now()
		if _, err := client.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err != nil {
			return nil, err
		}
		lists = append(lists, time.Since(begin))
	}
	return lists, nil
}

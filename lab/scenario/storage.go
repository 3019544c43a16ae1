package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// SmallStorage gives a node an empty file system for images, of so many bytes, and starts its CRI-O again. A kubelet that
// is to collect images has to start afterwards: it learns about file systems from cadvisor, which looks for CRI-O at its
// usual address.
func SmallStorage(ctx context.Context, node *cluster.Node, size int64) error {
	errs := []error{node.Runtime().Stop(ctx)}
	for _, command := range [][]string{
		{"mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "tmpfs", "/var/lib/containers/storage"},
		{"mkdir", "-p", "/run/crio"},
		{"ln", "-sfn", node.CRISocket(), "/run/crio/crio.sock"},
	} {
		_, err := node.Exec(ctx, command[0], command[1:]...)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, node.Runtime().Start(ctx))...)
}

package folder

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// Keep is what Remove leaves of the folder.
type Keep int

// By default, nothing is left.
const (
	Nothing  Keep = iota
	KeepDir       // the folder itself, empty
	KeepLogs      // logs with the reason why a start failed, and cluster.json, by which the folder may be removed
)

// Remove ends every process of the cluster in dir and undoes everything that
// the cluster made. It needs nothing but the folder's path to find these,
// because a start may have been killed before it wrote anything. The caller has
// locked dir.
func Remove(ctx context.Context, dir string, keep Keep) error {
	if err := killAll(ctx, dir); err != nil {
		return err
	}
	// The machines' mounts and networks ended with their processes.
	if err := machine.RemoveLink(Identifier(dir)); err != nil {
		return err
	}
	if err := machine.RemoveCgroups(ctx, Cgroup(dir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, entry := range entries {
		if entry.Name() == State || keep == KeepLogs && entry.Name() == "log" {
			continue
		}
		group.Go(func() error { return os.RemoveAll(filepath.Join(dir, entry.Name())) })
	}
	if err := group.Wait(); err != nil || keep == KeepLogs {
		return err
	}
	// The state goes last, so that an interrupted removal can be resumed.
	if err := os.Remove(filepath.Join(dir, State)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if keep == KeepDir {
		return nil
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	// Remove the folder that all clusters share, if this was the last one.
	if filepath.Dir(dir) == parent {
		_ = os.Remove(parent)
	}
	return nil
}

// killAll ends the cluster's processes. A process that is started during the
// search is found in the next round.
func killAll(ctx context.Context, dir string) error {
	for {
		found, err := machine.Leftovers(dir)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, p := range found {
			if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return err
			}
		}
		for _, p := range found {
			if err := p.Gone(ctx); err != nil {
				return err
			}
		}
	}
}

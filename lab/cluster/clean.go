package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// cleanTimeout bounds the removal of a cluster.
const cleanTimeout = time.Minute

// keep is what remove leaves of the folder.
type keep int

const (
	keepDir  keep = iota + 1 // the folder itself, empty
	keepLogs                 // logs with the reason why a start failed, and cluster.json, by which the folder may be removed
)

// remove ends every process of the cluster in dir and undoes everything that
// the cluster made. It needs nothing but the folder's path to find these,
// because a start may have been killed before it wrote anything. The caller has
// locked dir.
func remove(ctx context.Context, dir string, what keep) error {
	if err := killAll(ctx, dir); err != nil {
		return err
	}
	// The machines' mounts and networks ended with their processes.
	if err := machine.RemoveLink(Identifier(dir)); err != nil {
		return err
	}
	if err := machine.RemoveCgroups(ctx, cgroup(dir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, entry := range entries {
		if entry.Name() == "cluster.json" || what == keepLogs && entry.Name() == "log" {
			continue
		}
		group.Go(func() error { return os.RemoveAll(filepath.Join(dir, entry.Name())) })
	}
	if err := group.Wait(); err != nil || what == keepLogs {
		return err
	}
	// The state goes last, so that an interrupted removal can be resumed.
	if err := os.Remove(statePath(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if what == keepDir {
		return nil
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	// Remove the folder that all clusters share, if this was the last one.
	if parent := filepath.Dir(dir); parent == defaultParent {
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

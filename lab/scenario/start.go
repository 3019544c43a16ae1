package scenario

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// StartCluster starts a cluster for one run of a benchmark, with an empty folder for logs: the registry appends to the one that
// Pulled counts in. stop removes the cluster, also after ctx has ended.
func StartCluster(ctx context.Context, config cluster.Config) (lab *Lab, running *cluster.Cluster, stop func() error, err error) {
	if err := os.RemoveAll(config.LogDir); err != nil {
		return nil, nil, nil, err
	}
	if running, err = cluster.Start(ctx, config); err != nil {
		return nil, nil, nil, err
	}
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		return running.Stop(ctx)
	}
	if lab, err = NewLab(running); err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return lab, running, stop, nil
}

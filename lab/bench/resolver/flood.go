package resolver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/internal/poll"
)

const (
	// FloodNames are made up in each update: as many images as count of a workload.
	FloodNames = 256
	// honestImages take turns while there is a flood, one each honestPeriod.
	honestImages = 200
	honestPeriod = time.Second
	// floodRestarts of floodLife each, after the flood. No process lives as long as unused
	// images are kept, floodKeep.
	floodRestarts = 10
	floodLife     = 10 * time.Second
	floodKeep     = time.Minute
	floodSpace    = "flood"
)

// Flood is what was measured while a namespace named millions of images.
type Flood struct {
	Updates int           `json:"updates"`
	Took    time.Duration `json:"took"`
	// Objects is the largest number of ImageManifests that a watch saw.
	Objects int `json:"objects"`
	// PeakRSS in bytes.
	PeakRSS int64 `json:"peakRSS"`
	// Honest are the times from the creation of a Deployment of another namespace until
	// its image was known.
	Honest []time.Duration `json:"honest"`
	// Left are the ImageManifests at the end.
	Left int `json:"left"`
}

// flood measures one process with default settings, and the restarts after it.
func (b *benchmark) flood(ctx context.Context) (*Flood, error) {
	b.registry.want(false)
	if err := b.empty(ctx); err != nil {
		return nil, err
	}
	p, err := b.start(ctx, "flood")
	if err != nil {
		return nil, err
	}
	f := &Flood{Updates: b.Updates}
	err = func() error {
		if _, err := p.ready(ctx); err != nil {
			return err
		}
		if err := b.during(ctx, p, f); err != nil {
			return err
		}
		f.PeakRSS, err = p.peakRSS()
		return err
	}()
	if _, stopped := p.stop(); err != nil || stopped != nil {
		return nil, errors.Join(err, stopped)
	}
	b.Logf("flood: %d updates in %.0f s, at most %d objects, %.1f MiB; restarting", b.Updates, f.Took.Seconds(), f.Objects, mib(f.PeakRSS))
	f.Left, err = b.restarts(ctx)
	return f, err
}

// empty removes the workloads of the other measurements and what is known of them.
func (b *benchmark) empty(ctx context.Context) error {
	b.Logf("removing all workloads")
	if err := b.server.removeWorkloads(ctx); err != nil {
		return err
	}
	return b.server.forget(ctx)
}

// during floods, resolves honest images meanwhile, and counts objects.
func (b *benchmark) during(ctx context.Context, p *process, f *Flood) error {
	begin := time.Now()
	flooding, ended := context.WithCancel(ctx)
	defer ended()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer ended()
		err := b.floods(ctx)
		f.Took = time.Since(begin)
		return err
	})
	group.Go(func() error {
		for i := 0; flooding.Err() == nil || i == 0; i++ {
			took, err := b.honestly(ctx, p, b.honest[i%len(b.honest)], i)
			if err != nil {
				return err
			}
			f.Honest = append(f.Honest, took)
			sleep(flooding, honestPeriod)
		}
		return nil
	})
	group.Go(func() error {
		for flooding.Err() == nil {
			f.Objects = max(f.Objects, b.server.view.count())
			sleep(flooding, 10*time.Millisecond)
		}
		return nil
	})
	return group.Wait()
}

// floods updates a suspended CronJob, each time with other images, and deletes it.
func (b *benchmark) floods(ctx context.Context) error {
	if err := b.server.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: floodSpace}}); err != nil {
		return err
	}
	job := cronJob(b.registry.host(), 0)
	if err := b.server.client.Create(ctx, job); err != nil {
		return err
	}
	for i := range b.Updates {
		job.Spec = cronJob(b.registry.host(), i+1).Spec
		if err := b.server.client.Update(ctx, job); err != nil {
			return err
		}
	}
	return b.server.client.Delete(ctx, job)
}

func cronJob(registry string, update int) *batchv1.CronJob {
	job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "flood", Namespace: floodSpace}}
	job.Spec.Schedule, job.Spec.Suspend = "0 0 1 1 *", ptr.To(true)
	spec := &job.Spec.JobTemplate.Spec.Template.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	for i := range FloodNames {
		spec.Containers = append(spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", i), Image: fmt.Sprintf("%s/made-up-%d/of-%d:v1", registry, i, update),
		})
	}
	return job
}

// honestly returns the time from the creation of a Deployment until its image is known.
// The image is not known before: its ImageManifest of an earlier turn is deleted.
func (b *benchmark) honestly(ctx context.Context, p *process, image image, number int) (time.Duration, error) {
	if err := b.server.remove(ctx, image); err != nil {
		return 0, err
	}
	d := deployment(fmt.Sprintf("honest-%d", number), image)
	begin := time.Now()
	if err := b.server.client.Create(ctx, d); err != nil {
		return 0, err
	}
	at, err := b.wait(ctx, p, image)
	if err != nil {
		return 0, err
	}
	return at.Sub(begin), b.server.client.Delete(ctx, d)
}

// restarts restarts layer-resolver until everything must be gone, and returns what is left.
func (b *benchmark) restarts(ctx context.Context) (left int, err error) {
	for i := range floodRestarts {
		p, err := b.start(ctx, fmt.Sprintf("flood-restart-%d", i+1), "--keep-unused", floodKeep.String())
		if err != nil {
			return 0, err
		}
		if _, err = p.ready(ctx); err == nil {
			sleep(ctx, floodLife)
		}
		if err == nil && i == floodRestarts-1 {
			// What the last process is about to remove.
			_ = poll.Until(ctx, 100*time.Millisecond, floodKeep/2, func(context.Context) error {
				if left = b.server.view.count(); left > 0 {
					return fmt.Errorf("%d objects", left)
				}
				return nil
			})
		}
		if _, stopped := p.stop(); err != nil || stopped != nil {
			return 0, errors.Join(err, stopped)
		}
	}
	return left, nil
}

// sleep waits, at most until the context is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

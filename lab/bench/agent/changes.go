package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench/store"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

const (
	// look is how often the index is asked.
	look = 50 * time.Millisecond
	// patience is how long a change may take; NodeStatus takes up to 40 s.
	patience = 2 * time.Minute
	// changeLayers and changeBytes are the layers of an image that is pulled: it is larger than
	// those in the store, or NodeStatus would not name it.
	changeLayers, changeBytes = 3, 1_500_000
)

// changes has each node pull images, and remove them, one change after the other; and measures
// when the index, and after pulls NodeStatus, has it.
func (m *measurement) changes(ctx context.Context) error {
	statuses := &statuses{seen: map[string]time.Time{}}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	group, watched := errgroup.WithContext(watched)
	group.Go(func() error { return statuses.watch(watched, m.lab.Client) })
	err := m.each(watched, func(ctx context.Context, node *node) error {
		pulled, ends, err := m.pulls(ctx, node, "change", m.Changes, apart, &node.measured.Seen)
		if err != nil {
			return err
		}
		for i, image := range pulled {
			var at time.Time
			err := poll.Until(ctx, look, patience, func(context.Context) error {
				var ok bool
				if at, ok = statuses.when(node.Name, image.Reference); !ok {
					return fmt.Errorf("NodeStatus of %s does not name %s", node.Name, image.Reference)
				}
				return nil
			})
			if err != nil {
				return err
			}
			node.measured.Status = append(node.measured.Status, at.Sub(ends[i]))
		}
		_, err = m.follow(ctx, node, pulled, apart, false, &node.measured.Gone)
		return err
	})
	stop()
	return errors.Join(group.Wait(), err)
}

// burst has each node pull images in quick succession, and remove them.
func (m *measurement) burst(ctx context.Context) error {
	return m.each(ctx, func(ctx context.Context, node *node) error {
		pulled, _, err := m.pulls(ctx, node, "burst", m.Burst, hurry, &node.measured.Burst)
		if err != nil {
			return err
		}
		_, err = m.follow(ctx, node, pulled, hurry, false, &node.measured.BurstGone)
		return err
	})
}

// pulls pushes images and has a node pull them as follow does. It returns the images and the ends
// of their pulls.
func (m *measurement) pulls(ctx context.Context, node *node, name string, n int, every time.Duration, seen *[]time.Duration) (pulled []*images.Pushed, ends []time.Time, err error) {
	for i := range n {
		name := fmt.Sprintf("%s-%s-%d", name, node.Name, i)
		image, err := store.Push(ctx, m.c, name, store.Layers(name, changeLayers, changeBytes)...)
		if err != nil {
			return nil, nil, err
		}
		pulled = append(pulled, image)
	}
	ends, err = m.follow(ctx, node, pulled, every, true, seen)
	return pulled, ends, err
}

// follow has a node pull images, or remove them if they shall not be there, one in every interval,
// and appends to known how long it takes from the end of each pull or removal until the index has
// that. It returns these ends.
func (m *measurement) follow(ctx context.Context, node *node, all []*images.Pushed, every time.Duration, there bool, known *[]time.Duration) (ends []time.Time, err error) {
	change, doing := store.Remove, "removing"
	if there {
		change, doing = store.Pull, "pulling"
	}
	m.Logf("%s: %s an image every %s", node.Name, doing, every)
	took := make([]time.Duration, len(all))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for i, image := range all {
		next := time.Now().Add(every)
		if err := change(ctx, node.cri, image.Reference); err != nil {
			return nil, err
		}
		ends = append(ends, time.Now())
		group.Go(func() (err error) {
			took[i], err = m.known(ctx, node, image, there)
			return err
		})
		if err := pause(ctx, time.Until(next)); err != nil {
			break // the reason is the group's
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	*known = append(*known, took...)
	return ends, nil
}

// known waits until the plugin's index has an image on a node with all its layers, or nothing of
// it, and returns how long that took.
func (m *measurement) known(ctx context.Context, node *node, image *images.Pushed, there bool) (time.Duration, error) {
	began := time.Now()
	err := poll.Until(ctx, look, patience, func(ctx context.Context) error {
		ratings, err := m.lab.Rate(ctx, image.Reference)
		if err != nil {
			return err
		}
		rating, _ := ratings.Node(node.Name)
		has := len(rating.Has) == 1 && rating.Has[0].By == "layers" && rating.MissingBytes == 0
		if has != there || !there && len(rating.Has) > 0 {
			return fmt.Errorf("the index has of %s on %s: %+v", image.Reference, node.Name, rating)
		}
		return nil
	})
	return time.Since(began), err
}

// statuses notes when NodeStatus first named images.
type statuses struct {
	mu   sync.Mutex
	seen map[string]time.Time // by node and name
}

// watch follows the nodes.
func (s *statuses) watch(ctx context.Context, client kubernetes.Interface) error {
	watcher, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			continue
		}
		s.mu.Lock()
		for _, image := range node.Status.Images {
			for _, name := range image.Names {
				if _, known := s.seen[node.Name+" "+name]; !known {
					s.seen[node.Name+" "+name] = time.Now()
				}
			}
		}
		s.mu.Unlock()
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("the watch of nodes ended")
}

// when returns when the NodeStatus of a node first named an image.
func (s *statuses) when(node, name string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.seen[node+" "+name]
	return at, ok
}

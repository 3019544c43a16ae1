package qosaware

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// stateKey is the key in the ConfigMap.
const stateKey = "state.json.gz"

const (
	// saveEvery is how often the state is written if no pod ended.
	saveEvery = time.Minute
	// leastPause is how long after one write the next one is, at least; and saveRate is how
	// many bytes a second are written on average: the largest state, of 900 kB, once a minute.
	leastPause = 2 * time.Second
	saveRate   = 15_000
	// lookEvery is how often it is looked whether the state has to be written.
	lookEvery = time.Second
	// stateTimeout is how long the API server may take.
	stateTimeout = 5 * time.Second
)

// store keeps in a ConfigMap what workloads got. Only the process that binds pods writes it:
// a standby follows the same pods, and would write the same or less.
type store struct {
	client clientset.Interface
	name   string
	ledger *ledger.Ledger
	count  func(result string)

	// binds means that this process has bound a pod.
	binds atomic.Bool
	// loaded means that the ConfigMap was read, or that there is none.
	loaded bool
	// tookOver means that it was read once more after this process began to bind pods: another
	// one may have written it meanwhile.
	tookOver bool
	// read and saved are when it was last tried to read and to write the state.
	read, saved time.Time
	// pause is for how long after saved no end of a pod has the state written again.
	pause time.Duration
}

// run reads and writes the state until the context is done, and then writes it once more.
func (s *store) run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if s.tookOver {
				s.save(context.WithoutCancel(ctx))
			}
			return
		case <-ticker.C:
			s.sync(ctx, s.ledger.Now())
		}
	}
}

// load reads the state. A state that cannot be used is not a reason not to schedule: the
// account begins anew then. Own is as in Ledger.Load.
func (s *store) load(ctx context.Context, own bool) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	s.loaded = false
	logger := klog.FromContext(ctx).WithValues("plugin", Name, "configMap", klog.KRef(metav1.NamespaceSystem, s.name))
	object, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.loaded = true
		logger.Info("There is no saved state: what workloads got is counted from the pods that exist")
	case err != nil:
		logger.Error(err, "The saved state cannot be read now, and will be read later")
	default:
		s.loaded = true
		skipped, err := s.ledger.Load(object.BinaryData[stateKey], own)
		switch {
		case err != nil:
			logger.Error(err, "The saved state cannot be used: what workloads got is counted anew from the pods that exist")
			s.count("unusable")
		case skipped > 0:
			logger.Error(nil, "The saved state of some workloads cannot be used: what they got is counted anew from the pods that exist", "workloads", skipped)
			s.count("incomplete")
		}
	}
}

// sync writes the state if it is time, and this process binds pods.
func (s *store) sync(ctx context.Context, now time.Time) {
	if !s.binds.Load() {
		return
	}
	if !s.tookOver {
		if now.Sub(s.read) < saveEvery {
			return
		}
		s.read = now
		s.load(ctx, false)
		if s.tookOver = s.loaded; !s.tookOver {
			return
		}
	}
	pause := saveEvery
	if s.ledger.Changed() {
		pause = s.pause
	}
	if now.Sub(s.saved) >= pause {
		s.saved = now
		s.save(ctx)
	}
}

// save writes the state.
func (s *store) save(ctx context.Context) {
	data, err := s.ledger.Save()
	if err == nil && data == nil {
		s.pause = leastPause
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	if err == nil {
		err = s.write(ctx, data)
	}
	if err != nil {
		s.pause = saveEvery
		s.ledger.Dirty()
		s.count("error")
		klog.FromContext(ctx).Error(err, "The state cannot be saved: a restart would count what workloads got from the pods that exist", "plugin", Name, "configMap", klog.KRef(metav1.NamespaceSystem, s.name))
		return
	}
	s.pause = pauseAfter(len(data))
	s.count("success")
}

// pauseAfter returns the pause after so many bytes were written.
func pauseAfter(bytes int) time.Duration {
	return min(max(time.Duration(bytes)*time.Second/saveRate, leastPause), saveEvery)
}

// write replaces the ConfigMap's data, or creates it.
func (s *store) write(ctx context.Context, data []byte) error {
	maps := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	object, err := maps.Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: s.name}, BinaryData: map[string][]byte{stateKey: data},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	object = object.DeepCopy()
	object.Data, object.BinaryData = nil, map[string][]byte{stateKey: data}
	_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	return err
}

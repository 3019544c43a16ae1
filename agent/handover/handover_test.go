package handover

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func TestHandover(t *testing.T) {
	folder := t.TempDir()
	w, r := NewWriter(folder), NewReader(folder)
	if report, err := r.Report(); report != nil || err != nil {
		t.Fatalf("before anything was written: %+v, %v", report, err)
	}
	if state, err := r.State(); state != nil || err != nil {
		t.Fatalf("before anything was written: %+v, %v", state, err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	one := &Report{Spec: &v1alpha1.NodeLayersSpec{Runtime: "cri-o", Images: []string{"- a"}}, Changed: now}
	expect := func(what string, want *Report) {
		t.Helper()
		if got, err := r.Report(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", what, got, err, want)
		}
	}
	write := func(report *Report) {
		t.Helper()
		if err := w.WriteReport(report); err != nil {
			t.Fatal(err)
		}
	}
	write(one)
	expect("the first", one)
	expect("the same again", nil)
	write(&Report{Spec: one.Spec, Changed: now.Add(time.Hour)})
	expect("nothing has changed", nil)
	two := &Report{Spec: &v1alpha1.NodeLayersSpec{Runtime: "cri-o", Images: []string{"- b"}}, Changed: now}
	write(two)
	expect("the second", two)
	// A reader that was started again writes what it finds.
	w = NewWriter(folder)
	write(two)
	expect("from a reader that was started again", two)

	peer := &v1alpha1.NodePeer{Address: "10.0.0.1:9451", Keys: []string{strings.Repeat("a", 64)}}
	if got, err := r.Peer(); got != nil || err != nil {
		t.Errorf("before there was a peer: %+v, %v", got, err)
	}
	if err := w.WritePeer(peer); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Peer(); err != nil || !reflect.DeepEqual(got, peer) {
		t.Errorf("%+v, %v", got, err)
	}

	if err := w.WritePeer(&v1alpha1.NodePeer{Address: "[FD00::1]:9451", Keys: peer.Keys}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Peer(); err == nil || !strings.Contains(err.Error(), peerFile) {
		t.Errorf("%+v, %v", got, err)
	}

	state := &State{Read: now, Pulls: 3, Errors: map[string]int64{"read": 2}, Skipped: map[string]int{"manifest": 1}}
	if err := w.WriteState(state); err != nil {
		t.Fatal(err)
	}
	if got, err := r.State(); err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("%+v, %v", got, err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v", entries, err)
	}
}

// A reader does not trust what it reads.
func TestRefused(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "nothing": "{}", "too large": strings.Repeat(" ", maxReport+1)} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, reportFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if report, err := NewReader(folder).Report(); err == nil || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
	}
	for name, leave := range map[string]func(path string) error{
		"what blocks":          func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"what leads elsewhere": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder":             func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		folder := t.TempDir()
		if err := errors.Join(leave(filepath.Join(folder, reportFile)), leave(filepath.Join(folder, stateFile))); err != nil {
			t.Fatal(err)
		}
		r := NewReader(folder)
		if report, err := r.Report(); err == nil || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		if state, err := r.State(); err == nil || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s: %+v, %v", name, state, err)
		}
	}
	if err := NewWriter(filepath.Join(t.TempDir(), "missing")).WriteState(&State{}); err == nil {
		t.Error("written into a folder that is not there")
	}
}

// Package handover passes what a reader found to the publisher, which runs beside it in a
// container of its own, through files in a folder in memory.
package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	reportFile = "report.json"
	stateFile  = "state.json"
	peerFile   = "peer.json"
	// maxReport bounds what the publisher reads: the lists, and the little else that there is.
	maxReport = v1alpha1.MaxNodeListBytes + 4<<10
	maxState  = 64 << 10
	maxPeer   = 1 << 10
)

// Spacing is the time between two writes, and so between two readings for changes: another one during
// the next pull would find nothing new.
const Spacing = 5 * time.Second

// Report is what the node holds.
type Report struct {
	// Changed is when the first change that is in here was noticed.
	Changed time.Time                `json:"changed"`
	Spec    *v1alpha1.NodeLayersSpec `json:"spec"`
}

// Failures of the reader: of reading the runtime, of watching it, of handing over.
const (
	ReadFailed     = "read"
	WatchFailed    = "watch"
	HandoverFailed = "handover"
)

// Why something of an image could not be used: it is beyond the bound; its manifest cannot be
// read; that has no usable layers; layers are missing. NoArtifacts is of a store whose list of artifacts cannot be read.
const (
	TooManyImages = "too-many-images"
	NoManifest    = "manifest"
	NoLayers      = "layers"
	NotUnpacked   = "not-unpacked"
	NoArtifacts   = "artifacts"
)

// State is how the reader does.
type State struct {
	// Read is when the runtime was last read. The report is of then.
	Read time.Time `json:"read"`
	// Pulls are how many downloads of layers are going on.
	Pulls int `json:"pulls"`
	// Errors counts failures since the start of the reader, by reason; Skipped what could
	// not be used at the last reading.
	Errors  map[string]int64 `json:"errors,omitempty"`
	Skipped map[string]int   `json:"skipped,omitempty"`
}

// Writer writes into a folder.
type Writer struct {
	folder string
	last   []byte
}

// NewWriter returns a writer into a folder, which must be there.
func NewWriter(folder string) *Writer { return &Writer{folder: folder} }

// WriteReport writes a report, unless it has the contents of the last one.
func (w *Writer) WriteReport(r *Report) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, spec, found := bytes.Cut(text, []byte(`"spec":`)) // the last field
	if !found {
		return errors.New("a report without a spec")
	}
	if bytes.Equal(spec, w.last) {
		return nil
	}
	if err := write(filepath.Join(w.folder, reportFile), text); err != nil {
		return err
	}
	w.last = spec
	return nil
}

// WriteState writes the state.
func (w *Writer) WriteState(s *State) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return write(filepath.Join(w.folder, stateFile), text)
}

// WritePeer writes where the node serves layers.
func (w *Writer) WritePeer(p *v1alpha1.NodePeer) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return write(filepath.Join(w.folder, peerFile), text)
}

// write replaces a file as a whole.
func write(path string, text []byte) error {
	// Readable for the publisher, which has another user.
	if err := os.WriteFile(path+".new", text, 0o644); err != nil { //nolint:gosec // no secrets: all of it is published
		return err
	}
	return os.Rename(path+".new", path)
}

// Reader reads from a folder.
type Reader struct {
	folder string
	last   os.FileInfo
}

// NewReader returns a reader of a folder.
func NewReader(folder string) *Reader { return &Reader{folder: folder} }

// Folder returns the folder, for whoever watches it.
func (r *Reader) Folder() string { return r.folder }

// Report returns the report if it is another one than the last time, otherwise nil.
func (r *Reader) Report() (*Report, error) {
	path := filepath.Join(r.folder, reportFile)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && r.last != nil && os.SameFile(info, r.last) && info.ModTime().Equal(r.last.ModTime()) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	report := &Report{}
	if err := readJSON(path, maxReport, report); err != nil {
		return nil, err
	}
	if report.Spec == nil {
		return nil, fmt.Errorf("%s has no spec", path)
	}
	r.last = info
	return report, nil
}

// State returns the state; nil if there is none yet.
func (r *Reader) State() (*State, error) {
	state := &State{}
	err := readJSON(filepath.Join(r.folder, stateFile), maxState, state)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return state, err
}

// Peer returns where the node serves layers; nil if it does not.
func (r *Reader) Peer() (*v1alpha1.NodePeer, error) {
	peer := &v1alpha1.NodePeer{}
	err := readJSON(filepath.Join(r.folder, peerFile), maxPeer, peer)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return peer, peer.Validate(field.NewPath(peerFile)).ToAggregate()
}

func readJSON(path string, most int64, value any) error {
	// Who took over the reader may leave something that blocks, or that leads elsewhere.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return err
	}
	if int64(len(text)) > most {
		return fmt.Errorf("%s has more than %d bytes", path, most)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

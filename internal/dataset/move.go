package dataset

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// HistoryEnv and MovesEnv name the environment variables with the files of a History:
// all images that were ever published, and the tag moves.
const (
	HistoryEnv = "LAYER_HISTORY"
	MovesEnv   = "LAYER_MOVES"
)

// Move is a tag that points to another image from a moment on: a new version.
type Move struct {
	Time time.Time `json:"t"`
	// Tag is the name with the tag that moved.
	Tag string `json:"tag"`
	// ImageID is that of the image it points to now.
	ImageID string `json:"imageID"`
}

// History is what was published over time.
type History struct {
	Images []Image
	// Moves are in the order of time.
	Moves []Move
}

// Version is a Move with the image it is about.
type Version struct {
	Move
	Image *Image
}

// LoadMoves reads an event file: JSON lines, compressed if its name ends in .gz.
func LoadMoves(name string) ([]Move, error) { return load(name, ReadMoves) }

// ReadMoves reads moves from JSON lines, one a move; blank lines do not count. It
// brings them into the order of time; those of the same moment stay as they are.
func ReadMoves(r io.Reader) ([]Move, error) {
	moves, err := read[Move](r, "event")
	slices.SortStableFunc(moves, func(a, b Move) int { return a.Time.Compare(b.Time) })
	return moves, err
}

// WriteMoves writes moves as ReadMoves reads them. It writes nothing of a move
// that ReadMoves would refuse, and nothing after it.
func WriteMoves(w io.Writer, moves []Move) error { return write(w, moves) }

func (m Move) validate() error {
	switch {
	case m.Time.IsZero():
		return errors.New(`"t" is missing`)
	case strings.LastIndexByte(m.Tag, ':') <= max(0, strings.LastIndexByte(m.Tag, '/')):
		return fmt.Errorf(`"tag" %q is not a name with a tag`, m.Tag)
	}
	if err := digest.Digest(m.ImageID).Validate(); err != nil {
		return fmt.Errorf("%s: imageID %q: %w", m.Tag, m.ImageID, err)
	}
	return nil
}

// Versions joins the moves with the images, in the order of the moves, and counts
// the moves to images that are not there: they are left out. Of two images with
// the same ImageID the first one counts.
func (h History) Versions() (versions []Version, dropped int) {
	byID := make(map[string]*Image, len(h.Images))
	for i := range h.Images {
		image := &h.Images[i]
		if _, ok := byID[image.ImageID]; !ok {
			byID[image.ImageID] = image
		}
	}
	versions = make([]Version, 0, len(h.Moves))
	for _, move := range h.Moves {
		if image := byID[move.ImageID]; image != nil {
			versions = append(versions, Version{move, image})
		} else {
			dropped++
		}
	}
	return versions, dropped
}

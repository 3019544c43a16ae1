package dataset

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// HistoryEnv and MovesEnv name the environment variables with the files of a History:
// all images ever published, and the tag moves.
const (
	HistoryEnv = "LAYER_HISTORY"
	MovesEnv   = "LAYER_MOVES"
)

// Move is that a tag points to another image, a new version, from a moment on.
type Move struct {
	Time time.Time `json:"t"`
	// Tag is the name with the tag that moved.
	Tag string `json:"tag"`
	// ImageID is the image that it then points to.
	ImageID string `json:"imageID"`
}

// History is what was published over time.
type History struct {
	Images []Image
	// Moves are in the order of time.
	Moves []Move
}

// Version is a Move with its image.
type Version struct {
	Move
	Image *Image
}

// LoadMoves reads an event file: JSON lines, compressed if its name ends in .gz.
func LoadMoves(name string) ([]Move, error) { return load(name, ReadMoves) }

// ReadMoves reads moves from JSON lines, one move per line; blank lines are ignored.
// It sorts them by time; moves of the same moment keep their order.
func ReadMoves(r io.Reader) ([]Move, error) {
	moves, err := read[Move](r, "event")
	slices.SortStableFunc(moves, func(a, b Move) int { return a.Time.Compare(b.Time) })
	return moves, err
}

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

// Versions joins the moves with their images, in the order of the moves. It leaves
// out moves to missing images and counts them as dropped. Of two images with the same
// ImageID the first one counts.
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

// At returns an image for each tag as it was at a moment, in the order of the tags; the tag
// is the name. It leaves out tags of missing images.
func (h History) At(moment time.Time) []Image {
	versions, _ := h.Versions()
	now := map[string]*Image{}
	for _, v := range versions {
		if v.Time.After(moment) {
			break
		}
		now[v.Tag] = v.Image
	}
	images := make([]Image, 0, len(now))
	for _, tag := range slices.Sorted(maps.Keys(now)) {
		image := *now[tag]
		image.Image, image.Aliases = tag, nil
		images = append(images, image)
	}
	return images
}

package suite

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Files are the files of a data set; each may be empty.
type Files struct {
	// Images that pods may use.
	Images string
	// History has all images ever published, Moves the moves of tags.
	History, Moves string
	// AsOf, if set, takes the images from the history, as tags were at that moment, and not
	// from Images.
	AsOf time.Time
}

// Data is the input from which workloads are made.
type Data struct {
	// Source is where it comes from: the names of files without their folders.
	Source  string
	Images  []dataset.Image
	History dataset.History
}

// generated is how many images are generated if none are given.
const generated = 1000

// generate makes images with the given share of bytes in layers of more than one
// image.
func generate(sharing float64) []dataset.Image {
	return references(dataset.Generator{Images: generated, Sharing: sharing}.Generate(rand.New(rand.NewPCG(1, 1))))
}

// Load reads a data set. It generates what no file is given for.
func Load(f Files) (*Data, error) {
	if (f.History == "") != (f.Moves == "") {
		return nil, fmt.Errorf("history %q, moves %q: one is of no use without the other", f.History, f.Moves)
	}
	d := &Data{}
	var err error
	var source string
	if d.History, source, err = loadHistory(f); err != nil {
		return nil, err
	}
	switch {
	case !f.AsOf.IsZero():
		day := f.AsOf.Format(time.DateOnly)
		d.Source = fmt.Sprintf("%s as of %s", source, day)
		if d.Images = d.History.At(f.AsOf); len(d.Images) == 0 {
			return nil, fmt.Errorf("as of %s: no tag points to an image in %s then", day, source)
		}
		return d, nil
	case f.Images != "":
		d.Source = filepath.Base(f.Images)
		if d.Images, err = dataset.Load(f.Images); err != nil {
			return nil, err
		}
		d.Images = references(d.Images)
	default:
		d.Source = fmt.Sprintf("%d generated images", generated)
		d.Images = generate(dataset.DefaultSharing)
	}
	if f.Images != "" || f.History != "" {
		d.Source += "; for rolling updates " + source
	}
	return d, nil
}

// loadHistory reads or generates the images and moves for rolling updates. source is the names of the
// files, or "generated ones".
func loadHistory(f Files) (h dataset.History, source string, err error) {
	if f.History == "" {
		g := dataset.Generator{Images: generated, Sharing: dataset.DefaultSharing}
		return g.History(rand.New(rand.NewPCG(1, 2)), time.Date(2016, 9, 9, 0, 0, 0, 0, time.UTC), 500*24*time.Hour), "generated ones", nil
	}
	if h.Images, err = dataset.Load(f.History); err != nil {
		return h, "", err
	}
	if h.Moves, err = dataset.LoadMoves(f.Moves); err != nil {
		return h, "", err
	}
	return h, filepath.Base(f.History) + " and " + filepath.Base(f.Moves), nil
}

// references returns an image for each name: pods name images by their tags, and
// several tags may stand for the same image.
func references(images []dataset.Image) []dataset.Image {
	var all []dataset.Image
	for _, image := range images {
		names := append([]string{image.Image}, image.Aliases...)
		image.Aliases = nil
		for _, name := range names {
			image.Image = name
			all = append(all, image)
		}
	}
	return all
}

package suite

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/layer-locality/layer-locality/internal/eval/dataset"
)

// Files are the files of a data set; each may be empty.
type Files struct {
	// Images that pods may use.
	Images string
	// History has all images ever published, Moves the moves of tags.
	History, Moves string
}

// Data is the input from which workloads are made.
type Data struct {
	// Source tells where it comes from: the names of files without their folders.
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
	d := &Data{Source: fmt.Sprintf("%d generated images", generated)}
	if (f.History == "") != (f.Moves == "") {
		return nil, fmt.Errorf("history %q, moves %q: one is of no use without the other", f.History, f.Moves)
	}
	var err error
	if f.Images != "" {
		d.Source = filepath.Base(f.Images)
		if d.Images, err = dataset.Load(f.Images); err != nil {
			return nil, err
		}
		d.Images = references(d.Images)
	} else {
		d.Images = generate(dataset.DefaultSharing)
	}
	if f.History == "" {
		if f.Images != "" {
			d.Source += "; for rolling updates generated ones"
		}
		g := dataset.Generator{Images: generated, Sharing: dataset.DefaultSharing}
		d.History = g.History(rand.New(rand.NewPCG(1, 2)), time.Date(2016, 9, 9, 0, 0, 0, 0, time.UTC), 500*24*time.Hour)
		return d, nil
	}
	if d.History.Images, err = dataset.Load(f.History); err != nil {
		return nil, err
	}
	if d.History.Moves, err = dataset.LoadMoves(f.Moves); err != nil {
		return nil, err
	}
	d.Source += "; for rolling updates " + filepath.Base(f.History) + " and " + filepath.Base(f.Moves)
	return d, nil
}

// references returns an image for each name: pods know images by their tags, and
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

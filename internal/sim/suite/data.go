package suite

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/layer-locality/layer-locality/internal/dataset"
)

// Files are those of a data set; all may be empty.
type Files struct {
	// Images that pods may use.
	Images string
	// History has all images ever published, Moves which tag was which when.
	History, Moves string
}

// Data is what workloads are made of.
type Data struct {
	// Source says where it comes from, by the names of files without their folders.
	Source  string
	Images  []dataset.Image
	History dataset.History
}

// generated is how many images are made where none are given.
const generated = 1000

// generate makes images of whose bytes a share is in layers of more than one.
func generate(sharing float64) []dataset.Image {
	return references(dataset.Generator{Images: generated, Sharing: sharing}.Generate(rand.New(rand.NewPCG(1, 1))))
}

// Load reads a data set; what no file is given for is generated.
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

// references has an image for each name: pods know images by their tags, of which
// several may be the same image.
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

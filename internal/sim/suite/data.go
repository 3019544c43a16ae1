package suite

import (
	"fmt"
	"math/rand/v2"
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
	// Source says where it comes from.
	Source  string
	Images  []dataset.Image
	History dataset.History
}

// Load reads a data set; what no file is given for is generated.
func Load(f Files) (*Data, error) {
	d := &Data{Source: "generated"}
	if (f.History == "") != (f.Moves == "") {
		return nil, fmt.Errorf("history %q, moves %q: one is of no use without the other", f.History, f.Moves)
	}
	var err error
	if f.Images != "" {
		d.Source = f.Images
		if d.Images, err = dataset.Load(f.Images); err != nil {
			return nil, err
		}
	} else {
		d.Images = dataset.Generate(rand.New(rand.NewPCG(1, 1)), 1000)
	}
	d.Images = references(d.Images)
	if f.History == "" {
		g := dataset.Generator{Images: 1000, Sharing: dataset.DefaultSharing}
		d.History = g.History(rand.New(rand.NewPCG(1, 2)), time.Date(2016, 9, 9, 0, 0, 0, 0, time.UTC), 500*24*time.Hour)
		return d, nil
	}
	if d.History.Images, err = dataset.Load(f.History); err != nil {
		return nil, err
	}
	d.History.Moves, err = dataset.LoadMoves(f.Moves)
	return d, err
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

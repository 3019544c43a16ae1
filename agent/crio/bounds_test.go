package crio

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/agent/manifest"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/documented"
)

// The documents state the bounds of the code.
func TestBoundsAreDocumented(t *testing.T) {
	documented.Check(t, "security.md",
		fmt.Sprintf("at most %d MiB, %d layers, %d MiB, %s images; %s layers in all", manifest.MaxBytes>>20, v1alpha1.MaxLayers, maxList>>20, documented.Number(maxImages), documented.Number(manifest.MaxTotal)))
	documented.Check(t, "agent.md",
		fmt.Sprintf("larger than %d MiB, of Docker's schema 1, with more than %d layers", manifest.MaxBytes>>20, v1alpha1.MaxLayers))
}

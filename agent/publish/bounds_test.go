package publish

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/documented"
)

// The documents state the bounds and times of the code.
func TestBoundsAreDocumented(t *testing.T) {
	number, short := documented.Number, documented.Time
	documented.Check(t, "agent.md",
		fmt.Sprintf("at most every %s", short(spacing)),
		fmt.Sprintf("at most every %s, as often as they are written", short(handover.Spacing)),
		fmt.Sprintf("At most %s images, %s layers and %d KiB of text", number(v1alpha1.MaxNodeImages), number(v1alpha1.MaxNodeLayers), v1alpha1.MaxNodeListBytes>>10),
		fmt.Sprintf("if the runtime has not been read for %d minutes", int(alive.Minutes())),
		fmt.Sprintf("pauses double from %s to %d minutes", short(firstRetry), int(lastRetry.Minutes())),
		fmt.Sprintf("obeyed, up to %d minutes", int(lastRetry.Minutes())),
		fmt.Sprintf("down to %d KiB; %s later", minBytes>>10, short(enlarge)))
	documented.Check(t, "api.md",
		fmt.Sprintf("At most %s layers and %s images, and both lists together %d KiB as JSON", number(v1alpha1.MaxNodeLayers), number(v1alpha1.MaxNodeImages), v1alpha1.MaxNodeListBytes>>10),
		fmt.Sprintf("a name has at most %d characters, an image %d names", v1alpha1.MaxNodeNameLength, v1alpha1.MaxNodeImageNames))
}

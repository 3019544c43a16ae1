package usage

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/internal/documented"
)

func TestUsageBoundsAreDocumented(t *testing.T) {
	number, word := documented.Number, documented.Word
	documented.Check(t, "resolver.md",
		fmt.Sprintf("unused ones %s and %s", number(MaxUnused.All), number(MaxUnused.Each)),
		fmt.Sprintf("of references that were never resolved %s and %s", number(MaxUnresolved.All), number(MaxUnresolved.Each)),
		fmt.Sprintf("counts once for each %d layers begun", layersPerUnit),
		fmt.Sprintf("at most %s at a time in the queue of a registry", word(MaxAsked)),
		fmt.Sprintf("up to %s %shs of `--max-images`", word(headroom-1), word(headroom)))
}

package queue

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/internal/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	word, short := documented.Word, documented.Time
	documented.Check(t, "resolver.md",
		fmt.Sprintf("There are at most %d, and %d for registries that one namespace named first", maxQueues, maxOpened),
		fmt.Sprintf("%s failures of a registry in a row | its queue waits %s, doubling up to %s", word(toleratedFailures), short(minPause), short(maxPause)),
		fmt.Sprintf("each %sh turn is a tag's", word(share[Confirming])))
}

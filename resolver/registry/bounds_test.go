package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/documented"
	"github.com/layer-locality/layer-locality/resolver/limits"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
)

func TestBoundsAreDocumented(t *testing.T) {
	word := documented.Word
	client, err := New(Config{Policy: mustPolicy(t)})
	if err != nil {
		t.Fatal(err)
	}
	documented.Check(t, "security.md",
		fmt.Sprintf("at most %d MiB, %d layers and %s per request", maxBody>>20, v1alpha1.MaxLayers, documented.Time(client.transport.timeout)),
		fmt.Sprintf("at most %s redirects, never from https to http", word(maxRedirects)),
		fmt.Sprintf("the password is not tried for other images for %d minutes", refusedLogin/time.Minute),
		fmt.Sprintf("beyond %d KiB, %s answers are read at a time, %s of one registry", smallBody>>10, word(maxLarge), word(maxLargeEach)),
		fmt.Sprintf("at most %s sources with %d mirrors each", documented.Number(mirrors.MaxSources), mirrors.MaxEach))
	documented.Check(t, "resolver.md",
		fmt.Sprintf("With the default of %.0f requests per second to one registry", client.transport.limit),
		fmt.Sprintf("new images wait %s minutes", word(int(limits.QuotaWait/time.Minute))))
}

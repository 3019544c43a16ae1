package imagelayers

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/types"
)

const configType = "application/vnd.oci.image.config.v1+json"

func artifact(event types.ProgressEvent, d digest.Digest, mediaType string) types.ProgressProperties {
	return types.ProgressProperties{Event: event, Artifact: types.BlobInfo{Digest: d, MediaType: mediaType}}
}

// storedManifest is what a copy makes: it has the digests of plain layers.
func storedManifest(t *testing.T, layers ...digest.Digest) []byte {
	t.Helper()

	m := specsv1.Manifest{
		MediaType: specsv1.MediaTypeImageManifest,
		Config:    specsv1.Descriptor{MediaType: configType, Digest: digest.FromString("config"), Size: 1},
	}
	m.SchemaVersion = 2

	for _, layer := range layers {
		m.Layers = append(m.Layers, specsv1.Descriptor{MediaType: specsv1.MediaTypeImageLayerGzip, Digest: layer, Size: 1})
	}

	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// A copy that stores no manifest, of which nothing was encrypted, has nothing to note.
func TestEncryptedWithoutManifest(t *testing.T) {
	for suffix, wantError := range map[string]bool{"": false, encryptedSuffix: true} {
		watch := WatchCopy(nil)
		watch.Reports() <- types.ProgressProperties{Artifact: types.BlobInfo{Digest: digestA, MediaType: specsv1.MediaTypeImageLayerGzip + suffix}}

		noted, err := watch.Encrypted(nil)
		watch.Close()

		if len(noted) > 0 || (err != nil) != wantError {
			t.Errorf("%q: %q, %v", suffix, noted, err)
		}
	}
}

func TestCopyWatch(t *testing.T) {
	const layerType, encryptedType = specsv1.MediaTypeImageLayerGzip, specsv1.MediaTypeImageLayerGzip + encryptedSuffix

	config, cipher, other := digest.FromString("config"), digest.FromString("cipher"), digest.FromString("other cipher")
	newBlob, skipped := types.ProgressEventNewArtifact, types.ProgressEventSkipped

	for name, tc := range map[string]struct {
		reports []types.ProgressProperties
		stored  []digest.Digest
		want    []digest.Digest
	}{
		"nothing encrypted": {
			[]types.ProgressProperties{artifact(newBlob, digestA, layerType), artifact(skipped, digestB, layerType), artifact(newBlob, config, configType)},
			[]digest.Digest{digestA, digestB}, nil,
		},
		"no reports": {nil, []digest.Digest{digestA}, nil},
		"all encrypted": {
			[]types.ProgressProperties{artifact(newBlob, cipher, encryptedType), artifact(newBlob, other, encryptedType), artifact(newBlob, config, configType)},
			[]digest.Digest{digestA, digestB},
			[]digest.Digest{digestA, digestB},
		},
		"a plain base, there already": {
			[]types.ProgressProperties{artifact(skipped, digestA, layerType), artifact(newBlob, cipher, encryptedType), artifact(newBlob, config, configType)},
			[]digest.Digest{digestA, digestB},
			[]digest.Digest{digestB},
		},
		"a layer without a report": {
			[]types.ProgressProperties{artifact(newBlob, cipher, encryptedType), artifact(newBlob, config, configType)},
			[]digest.Digest{digestA, digestB},
			[]digest.Digest{digestA, digestB},
		},
	} {
		t.Run(name, func(t *testing.T) {
			forwarded := make(chan types.ProgressProperties, len(tc.reports))
			observed := 0
			watch := WatchCopy(forwarded, func(*types.ProgressProperties) { observed++ })
			t.Cleanup(watch.Close)

			for _, report := range tc.reports {
				watch.Reports() <- report
			}

			encrypted, err := watch.Encrypted(storedManifest(t, tc.stored...))
			if err != nil {
				t.Fatal(err)
			}

			var want strings.Builder
			for _, d := range tc.want {
				want.WriteString(d.String() + "\n")
			}

			if string(encrypted) != want.String() {
				t.Errorf("encrypted %q, want %q", encrypted, want.String())
			}

			if len(forwarded) != len(tc.reports) || observed != len(tc.reports) {
				t.Errorf("%d of %d reports passed on, %d observed", len(forwarded), len(tc.reports), observed)
			}
		})
	}
}

func TestCopyWatchNeedsNobodyWhoListens(t *testing.T) {
	watch := WatchCopy(nil)
	watch.Reports() <- artifact(types.ProgressEventNewArtifact, digestA, specsv1.MediaTypeImageLayerGzip)

	watch.Close()
	watch.Close() // nothing happens
}

// Whoever closes it may close what the reports are passed on to.
func TestCopyWatchClosedWithAReportOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forwarded := make(chan types.ProgressProperties)
		watch := WatchCopy(forwarded)
		watch.Reports() <- artifact(types.ProgressEventNewArtifact, digestA, specsv1.MediaTypeImageLayerGzip)

		closed := false

		go func() {
			watch.Close()

			closed = true
		}()

		synctest.Wait()

		if closed {
			t.Error("closed while a report was passed on")
		}

		<-forwarded
		synctest.Wait()

		if !closed {
			t.Error("not closed")
		}
	})
}

func TestCopyWatchRefusesWhatIsNoManifest(t *testing.T) {
	watch := WatchCopy(nil)
	defer watch.Close()

	watch.Reports() <- artifact(types.ProgressEventNewArtifact, digestA, specsv1.MediaTypeImageLayerGzip+encryptedSuffix)

	if encrypted, err := watch.Encrypted([]byte("no")); err == nil {
		t.Errorf("got %q", encrypted)
	}
}

// An image is held back from when the copy sees that it is encrypted, which is
// before it is stored, until the copy is closed.
func TestBeingDecrypted(t *testing.T) {
	config := digest.FromString("config of a confidential image")
	names := []string{"manifest", "signatures", config.String()}
	expect := func(want bool) {
		t.Helper()

		if got := BeingDecrypted(names); got != want {
			t.Errorf("being decrypted is %v, want %v", got, want)
		}
	}

	watched := func(mediaTypes ...string) *CopyWatch {
		watch := WatchCopy(nil)
		for _, mediaType := range mediaTypes {
			d := digest.FromString(mediaType)
			if mediaType == configType {
				d = config
			}

			watch.Reports() <- artifact(types.ProgressEventNewArtifact, d, mediaType)
			watch.Reports() <- artifact(types.ProgressEventDone, d, mediaType)
		}

		if _, err := watch.Encrypted(storedManifest(t)); err != nil {
			t.Fatal(err)
		}

		return watch
	}

	const layerType, encryptedType = specsv1.MediaTypeImageLayerGzip, specsv1.MediaTypeImageLayerGzip + encryptedSuffix

	plain := watched(layerType, configType)
	expect(false)

	first := watched(layerType, encryptedType, configType)
	expect(true)

	second := watched(configType, encryptedType) // in whatever order
	expect(true)

	if BeingDecrypted([]string{"manifest", digestA.String()}) {
		t.Error("another image is held back, too")
	}

	first.Close()
	expect(true)
	plain.Close()
	second.Close()
	expect(false)

	if len(decrypting.counts) != 0 {
		t.Errorf("left behind: %v", decrypting.counts)
	}
}

func TestWithout(t *testing.T) {
	layers := FromManifest([]types.BlobInfo{blob(digestA, 1), blob(digestB, 2)})
	for encrypted, want := range map[string]map[string]string{
		"":                          {key(digestA): "1", key(digestB): "2"},
		"\n":                        {key(digestA): "1", key(digestB): "2"},
		digestC.String() + "\n":     {key(digestA): "1", key(digestB): "2"},
		digestB.String() + "\n":     {key(digestA): "1"},
		digestB.String():            {key(digestA): "1"},
		digestB.String() + "\nno\n": {key(digestA): "1"},
		digestA.String() + "\n" + digestB.String() + "\n": nil,
	} {
		if got := layers.Without([]byte(encrypted)).Spec().GetAnnotations(); !maps.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", encrypted, got, want)
		}
	}

	if (*Layers)(nil).Without([]byte(digestA.String())) != nil {
		t.Error("no layers became some")
	}
}

// A copy that failed is never asked for its layers: closing the watch ends it all the same.
func TestCopyWatchOfFailedCopy(t *testing.T) {
	watch := WatchCopy(nil)
	watch.Close()

	select {
	case _, open := <-watch.Reports():
		if open {
			t.Error("a report after the end")
		}
	default:
		t.Error("it still waits for reports")
	}
}

//go:build e2e

package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// testEncrypted pulls an image with a plain and an encrypted layer, of which
// CRI-O stores the same as if both were plain: the encrypted one must not be
// reported. It returns the image, which stays, and the layer that is.
func testEncrypted(t *testing.T, node *cluster.Node) (name string, visible livetest.Layers) {
	base := build(t, images.Image{Layers: layers("confidential-base", 1<<20)})
	secret := onlyLayer(t, build(t, images.Image{Layers: layers("secret", 1<<20)}))
	plain, err := mutate.Append(base, mutate.Addendum{Layer: secret})
	must(t, err)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	encrypted := withEncrypted(t, base, secret, &key.PublicKey)
	pushEncrypted := func() { name = push(t, "formats/confidential:v1", encrypted).Reference }

	pushEncrypted()
	if _, err := livetest.Pull(t.Context(), node, name); err == nil {
		t.Fatal("an encrypted image was pulled without a key: the test is wrong")
	}
	must(t, os.MkdirAll(decryptionKeys, 0o700))
	must(t, os.WriteFile(filepath.Join(decryptionKeys, "private.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))

	visible = sizes(t, onlyLayer(t, base))
	both := sizes(t, onlyLayer(t, base), secret)
	id, err := plain.ConfigName()
	must(t, err)
	check := func(want livetest.Layers) {
		t.Helper()
		pull(t, node, name)
		checkCRIHas(t, node, map[string]livetest.Layers{name: want})
		if got := statusOf(t, node, name).GetId(); got != id.Hex {
			t.Errorf("the image has the ID %s, in plain text it has %s: the test is wrong", got, id.Hex)
		}
	}
	check(visible)
	push(t, "formats/confidential:v1", plain)
	check(both)
	pushEncrypted()
	check(visible)
	must(t, node.Runtime().Restart(t.Context()))
	check(visible)
	return name, visible
}

func onlyLayer(t *testing.T, image v1.Image) v1.Layer {
	t.Helper()
	all, err := image.Layers()
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("%d layers", len(all))
	}
	return all[0]
}

// sizes returns the layers as they are reported.
func sizes(t *testing.T, all ...v1.Layer) livetest.Layers {
	t.Helper()
	layers := livetest.Layers{}
	for _, layer := range all {
		digest, err := layer.Digest()
		must(t, err)
		layers[digest.String()], err = layer.Size()
		must(t, err)
	}
	return layers
}

// encryptedLayer is a layer as a registry has it. Its diff ID is that of the
// plain one.
type encryptedLayer struct {
	v1.Layer
	diffID v1.Hash
}

// DiffID implements v1.Layer.
func (l encryptedLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// withEncrypted appends the layer to the image, encrypted for the holder of the
// key.
func withEncrypted(t *testing.T, base v1.Image, layer v1.Layer, key *rsa.PublicKey) v1.Image {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(key)
	must(t, err)
	crypto, err := config.EncryptWithJwe([][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})})
	must(t, err)
	compressed, err := layer.Compressed()
	must(t, err)
	defer compressed.Close()
	digested, err := layer.Digest()
	must(t, err)
	size, err := layer.Size()
	must(t, err)
	reader, finalize, err := ocicrypt.EncryptLayer(crypto.EncryptConfig, compressed,
		specsv1.Descriptor{MediaType: specsv1.MediaTypeImageLayerGzip, Digest: digest.Digest(digested.String()), Size: size})
	must(t, err)
	blob, err := io.ReadAll(reader)
	must(t, err)
	annotations, err := finalize()
	must(t, err)
	diffID, err := layer.DiffID()
	must(t, err)
	mediaType := types.MediaType(specsv1.MediaTypeImageLayerGzip + "+encrypted")
	image, err := mutate.Append(base, mutate.Addendum{
		Layer:       encryptedLayer{static.NewLayer(blob, mediaType), diffID},
		Annotations: annotations,
		MediaType:   mediaType,
	})
	must(t, err)
	return image
}

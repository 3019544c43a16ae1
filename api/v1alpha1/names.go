package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// ManifestName is the name of the object of a resolved manifest.
func ManifestName(digest string) string {
	return strings.Replace(digest, ":", "-", 1)
}

// UnresolvedName is the name of the object of a reference that was not resolved.
func UnresolvedName(reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return "unresolved-" + hex.EncodeToString(sum[:])
}

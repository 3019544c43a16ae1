package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// ManifestName is the name of the first object of a resolved manifest.
func ManifestName(digest string) string {
	return strings.Replace(digest, ":", "-", 1)
}

// PageName is the name of an object of a resolved manifest. If more references point to
// it than one object holds, there are further objects (page 1, 2, ...), which differ in
// their references only. Page 0 is ManifestName.
func PageName(digest string, page int) string {
	if page == 0 {
		return ManifestName(digest)
	}
	return ManifestName(digest) + "-" + strconv.Itoa(page+1)
}

// IsPageName reports whether an object of that name may hold a manifest.
func IsPageName(name, digest string) bool {
	rest, ok := strings.CutPrefix(name, ManifestName(digest))
	if !ok || rest == "" {
		return ok
	}
	number, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
	return err == nil && number > 1 && rest == "-"+strconv.Itoa(number)
}

// UnresolvedName is the name of the object of a reference that was not resolved.
func UnresolvedName(reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return "unresolved-" + hex.EncodeToString(sum[:])
}

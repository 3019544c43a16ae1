package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var addedField = regexp.MustCompile("^\t\\w+ .*`json:\"(\\w+)")

// TestCommentsOfFields: comments of the fields that patches add to API types begin with the
// names that users write, as upstream's kube-api-linter demands.
func TestCommentsOfFields(t *testing.T) {
	series, err := filepath.Glob(filepath.Join(root, "patches/kubernetes/*.patch"))
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for _, patch := range series {
		content, err := os.ReadFile(patch)
		if err != nil {
			t.Fatal(err)
		}
		types, comment := false, ""
		for line := range strings.Lines(string(content)) {
			if file, ok := strings.CutPrefix(line, "+++ "); ok {
				types = strings.HasPrefix(file, "b/staging/") && strings.HasSuffix(strings.TrimSpace(file), "/types.go")
				continue
			}
			added, ok := strings.CutPrefix(line, "+")
			switch text, isComment := strings.CutPrefix(strings.TrimSpace(added), "// "); {
			case !types || !ok:
				comment = ""
			case isComment && comment == "":
				comment = text
			case isComment:
			default:
				if field := addedField.FindStringSubmatch(added); field != nil {
					fields++
					if !strings.HasPrefix(comment, field[1]+" ") {
						t.Errorf("%s: the comment of field %s begins with %q", filepath.Base(patch), field[1], comment)
					}
				}
				comment = ""
			}
		}
	}
	if fields < 6 {
		t.Errorf("%d fields found: three of core/v1 and three of the kubelet's configuration are known", fields)
	}
}

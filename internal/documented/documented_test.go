// Package documented compares tables of documents with the constants that they name.
package documented

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	root   = "../.."
	module = "github.com/layer-locality/layer-locality/"
)

// value is a number in a table, and the constant of which it is the value: 4 MiB<!--agent/manifest.MaxBytes-->.
var value = regexp.MustCompile(`(?:(\d[\d.,]*(?: (?:ms|s|min|h|%|[KMGT]iB))?)|.?)<!--([\w/]+\.\w+)-->`)

// TestValues: documents have the values of the code. With the environment variable UPDATE_DOCS it writes them.
func TestValues(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"docs/*.md", "*/README.md", "*/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		pages = append(pages, found...)
	}
	code, found := &source{packages: map[string]*types.Package{}}, 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(text), "\n")
		for i, line := range lines {
			lines[i] = value.ReplaceAllStringFunc(line, func(now string) string {
				found++
				match := value.FindStringSubmatch(now)
				c, err := code.constant(match[2])
				if match[1] == "" || line[0] != '|' {
					err = errors.New("want a number in a row of a table")
				}
				if err != nil {
					t.Errorf("%s:%d: %s: %v", page, i+1, now, err)
					return now
				}
				want := format(c, match[1])
				if want != match[1] && os.Getenv("UPDATE_DOCS") == "" {
					t.Errorf("%s:%d has %s, %s is %s: UPDATE_DOCS=1 go test ./internal/documented writes it", page, i+1, match[1], match[2], want)
				}
				return strings.Replace(now, match[1], want, 1)
			})
		}
		if now := strings.Join(lines, ""); now != string(text) && os.Getenv("UPDATE_DOCS") != "" {
			if err = os.WriteFile(page, []byte(now), 0o644); err != nil { //nolint:gosec // a document
				t.Fatal(err)
			}
		}
	}
	if found == 0 {
		t.Error("no document has a value")
	}
}

// format writes a value: durations and bytes in the largest unit that divides them, others as numbers. What the
// document has now shows whether these are bytes or percent.
func format(c *types.Const, now string) string {
	if f, _ := constant.Float64Val(c.Val()); strings.HasSuffix(now, "%") {
		return fmt.Sprintf("%g %%", 100*f)
	} else if constant.ToInt(c.Val()).Kind() != constant.Int {
		return fmt.Sprintf("%g", f)
	}
	n, _ := constant.Int64Val(constant.ToInt(c.Val()))
	type unit struct {
		name string
		size int64
	}
	var units []unit
	switch {
	case c.Type().String() == "time.Duration":
		units = []unit{{"h", int64(time.Hour)}, {"min", int64(time.Minute)}, {"s", int64(time.Second)}, {"ms", int64(time.Millisecond)}}
	case strings.HasSuffix(now, "iB"):
		units = []unit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	}
	for i, u := range units {
		if n >= u.size && n%u.size == 0 || i == len(units)-1 {
			return fmt.Sprintf("%g %s", float64(n)/float64(u.size), u.name)
		}
	}
	digits := fmt.Sprint(n)
	if len(now) > 3 && !strings.Contains(now, ",") {
		return digits // as files of configurations have it
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// source has the packages of this module, without what they import from others.
type source struct{ packages map[string]*types.Package }

// constant returns the constant of a folder.name.
func (s *source) constant(of string) (*types.Const, error) {
	folder, name, _ := strings.Cut(of, ".")
	in, err := s.Import(module + folder)
	if err != nil {
		return nil, err
	}
	c, ok := in.Scope().Lookup(name).(*types.Const)
	if !ok || c.Val().Kind() == constant.Unknown {
		return nil, fmt.Errorf("%s is no constant", of)
	}
	return c, nil
}

// clock is what constants need of package time. The real one is not there to be read in a binary built with -trimpath.
func clock() *types.Package {
	p := types.NewPackage("time", "time")
	name := types.NewTypeName(token.NoPos, p, "Duration", nil)
	duration := types.NewNamed(name, types.Typ[types.Int64], nil)
	p.Scope().Insert(name)
	for name, d := range map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour} {
		p.Scope().Insert(types.NewConst(token.NoPos, p, name, duration, constant.MakeInt64(int64(d))))
	}
	p.MarkComplete()
	return p
}

// Import implements types.Importer.
func (s *source) Import(path string) (*types.Package, error) {
	folder, ours := strings.CutPrefix(path, module)
	switch {
	case path == "time":
		return clock(), nil
	case !ours:
		return nil, fmt.Errorf("%s: constants do not need it", path)
	case s.packages[path] != nil:
		return s.packages[path], nil
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		return nil, err
	}
	fset, parsed := token.NewFileSet(), []*ast.File(nil)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		p, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, p)
	}
	if len(parsed) == 0 {
		return nil, fmt.Errorf("%s has no Go files", folder)
	}
	ignore := func(error) {} // of types that are imported
	checked, _ := (&types.Config{Importer: s, IgnoreFuncBodies: true, Error: ignore}).Check(path, fset, parsed, nil)
	s.packages[path] = checked
	return checked, nil
}

package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Compiling is most of the work of one mutant. So those that change the body of a function
// are compiled together: each is a copy of its function, and a variable of the environment
// tells the function which copy to call.
const variable = "LAYER_LOCALITY_MUTANT"

// binary is a package's test binary with many mutants in it.
type binary struct {
	folder, work, path string
	// numbers are what the variable says of those that are in it, by their names.
	numbers map[string]int
	// refused do not compile.
	refused map[string]bool
	// parts are the quick tests, and after them the slow ones.
	parts []part
}

// part is some of the tests.
type part struct {
	flags []string // that choose them
	// timeout bounds the tests of one mutant: it may loop for ever.
	timeout time.Duration
}

// compile builds the test binary of a folder, in the directory work, with all mutants that
// it can have.
func compile(ctx context.Context, folder, work string, all []Mutant) (*binary, error) {
	b := &binary{folder: folder, work: work, path: filepath.Join(work, "mutants.test"), refused: map[string]bool{}}
	for {
		b.numbers = map[string]int{}
		rest := slices.DeleteFunc(slices.Clone(all), func(m Mutant) bool { return m.Locks || b.refused[m.Name()] })
		if len(rest) == 0 {
			return b, nil
		}
		copies, err := b.write(rest)
		if err != nil {
			return nil, err
		}
		// -e: all errors, not the first ten.
		out, err := command(ctx, folder, work, nil, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", filepath.Join(work, "overlay.json"), "-o", b.path, ".")
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			if _, err := os.Stat(b.path); errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s has no tests that could notice its mutants", folder)
			}
			return b, nil
		}
		before := len(b.refused)
		for _, at := range position.FindAllStringSubmatch(out, -1) {
			line, _ := strconv.Atoi(at[2])
			for _, copied := range copies[at[1]] {
				if copied.first <= line && line <= copied.last {
					b.refused[copied.name] = true
				}
			}
		}
		if len(b.refused) == before {
			return nil, fmt.Errorf("compile the mutants of %s: %w: %s", folder, err, out)
		}
	}
}

// knows reports whether try can tell what becomes of a mutant.
func (b *binary) knows(m Mutant) bool {
	_, ok := b.numbers[m.Name()]
	return ok || b.refused[m.Name()]
}

// position is where the compiler says that an error is.
var position = regexp.MustCompile(`([^/\s:]+\.go):(\d+):\d+: `)

// lines are those of a changed file that have the copy of a mutant.
type lines struct {
	name        string
	first, last int
}

// write writes changed files, and the overlay that has the go command take them.
func (b *binary) write(all []Mutant) (map[string][]lines, error) {
	absolute, err := filepath.Abs(b.folder)
	if err != nil {
		return nil, err
	}
	replace := map[string]string{}
	add := func(name string, text []byte) error {
		replace[filepath.Join(absolute, name)] = filepath.Join(b.work, name)
		return os.WriteFile(filepath.Join(b.work, name), text, 0o600)
	}
	copies := map[string][]lines{}
	var pkg string
	for i := 0; i < len(all); {
		end := i
		for end < len(all) && all[end].File == all[i].File {
			end++
		}
		name := filepath.Base(all[i].File)
		text, of, in, err := b.file(all[i:end])
		if err != nil {
			return nil, err
		}
		if err := add(name, text); err != nil {
			return nil, err
		}
		copies[name], pkg, i = of, in, end
	}
	choose := fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar theMutant, _ = strconv.Atoi(os.Getenv(%q))\n", pkg, variable)
	if err := add("the_mutant.go", []byte(choose)); err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	return copies, os.WriteFile(filepath.Join(b.work, "overlay.json"), overlay, 0o600)
}

// edit is text in place of a part of a file.
type edit struct {
	from, to int
	text     string
}

// file returns a file with copies of functions for its mutants, where they are, and the
// name of its package.
func (b *binary) file(all []Mutant) (text []byte, at []lines, pkg string, err error) {
	source := all[0].original
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, all[0].File, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, "", err
	}
	offset := func(pos token.Pos) int { return set.Position(pos).Offset }
	var edits []edit
	var copied, names []string
	for _, decl := range file.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok || function.Body == nil || function.Name.Name == "init" || function.Name.Name == "_" {
			continue
		}
		var cases strings.Builder
		call, named := caller(function, offset)
		for _, m := range all {
			if m.from <= offset(function.Body.Lbrace) || m.to > offset(function.Body.Rbrace) {
				continue
			}
			number := len(b.numbers) + 1
			b.numbers[m.Name()] = number
			suffix := fmt.Sprintf("_mutant%d", number)
			after := offset(function.Name.End())
			copied = append(copied, source[offset(function.Pos()):after]+suffix+source[after:m.from]+m.code+source[m.to:offset(function.End())])
			names = append(names, m.Name())
			if function.Type.Results == nil {
				fmt.Fprintf(&cases, " case %d: %s; return;", number, call(suffix))
			} else {
				fmt.Fprintf(&cases, " case %d: return %s;", number, call(suffix))
			}
		}
		if cases.Len() > 0 {
			edits = append(edits, named...)
			after := offset(function.Body.Lbrace) + 1
			edits = append(edits, edit{after, after, " switch theMutant {" + cases.String() + " };"})
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.from - b.from })
	var out strings.Builder
	end := 0
	for _, e := range edits {
		out.WriteString(source[end:e.from])
		out.WriteString(e.text)
		end = e.to
	}
	out.WriteString(source[end:])
	line := strings.Count(out.String(), "\n") + 1
	for i, text := range copied {
		out.WriteString("\n" + text)
		last := line + 1 + strings.Count(text, "\n")
		at = append(at, lines{names[i], line + 1, last})
		line = last
	}
	out.WriteString("\n")
	return []byte(out.String()), at, file.Name.Name, nil
}

// caller returns code that calls a function's copy with the arguments of the function, and
// what has to be changed for it: each argument needs a name.
func caller(function *ast.FuncDecl, offset func(token.Pos) int) (call func(suffix string) string, named []edit) {
	name := func(field *ast.Field) (all []string) {
		for _, ident := range field.Names {
			name := ident.Name
			if name == "_" {
				name = fmt.Sprintf("mutantArgument%d", ident.Pos())
				named = append(named, edit{offset(ident.Pos()), offset(ident.End()), name})
			}
			all = append(all, name)
		}
		if len(all) == 0 {
			name := fmt.Sprintf("mutantArgument%d", field.Pos())
			named = append(named, edit{offset(field.Type.Pos()), offset(field.Type.Pos()), name + " "})
			all = []string{name}
		}
		return all
	}
	var receiver, types string
	if function.Recv != nil {
		receiver = name(function.Recv.List[0])[0] + "."
	}
	if list := function.Type.TypeParams; list != nil {
		var all []string
		for _, field := range list.List {
			for _, ident := range field.Names {
				all = append(all, ident.Name)
			}
		}
		types = "[" + strings.Join(all, ", ") + "]"
	}
	var arguments []string
	for _, field := range function.Type.Params.List {
		all := name(field)
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			all[len(all)-1] += "..."
		}
		arguments = append(arguments, all...)
	}
	return func(suffix string) string {
		return receiver + function.Name.Name + suffix + types + "(" + strings.Join(arguments, ", ") + ")"
	}, named
}

// took is how long a test took, as -test.v prints it.
var took = regexp.MustCompile(`(?m)^--- PASS: (\S+) \(([0-9.]+)s\)`)

// parallel is how many mutants are tried at a time: more than there are processors, for
// tests wait, too.
var parallel = 4 * runtime.NumCPU()

// slack is what tests may take beside five times what they take without a mutant: the machine may
// be busier then.
const slack = 10 * time.Second

// baseline runs the tests without a mutant, as many times at once as there will be mutants:
// this is how long they take, and they have to pass.
func (b *binary) baseline(ctx context.Context) error {
	out, err := b.run(ctx, 0, timeout, "-test.v")
	if err != nil {
		return fmt.Errorf("%s: the tests fail without a mutant, so they say nothing about mutants: %w: %s", b.folder, err, out)
	}
	var slow []string
	for _, one := range took.FindAllStringSubmatch(out, -1) {
		if seconds, err := strconv.ParseFloat(one[2], 64); err == nil && seconds >= .1 {
			slow = append(slow, one[1])
		}
	}
	if b.parts = []part{{}}; len(slow) > 0 {
		all := "^(" + strings.Join(slow, "|") + ")$"
		b.parts = []part{{flags: []string{"-test.skip", all}}, {flags: []string{"-test.run", all}}}
	}
	for i := range b.parts {
		part := &b.parts[i]
		part.timeout = timeout
		begin := time.Now()
		var group errgroup.Group
		for range parallel {
			group.Go(func() error {
				if out, err := b.test(ctx, 0, part); err != nil {
					return fmt.Errorf("%s: the tests fail without a mutant if %d run at once: %w: %s", b.folder, parallel, err, out)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		part.timeout = min(timeout, 5*time.Since(begin).Round(time.Second)+slack)
	}
	return nil
}

// try runs the tests with a mutant, and ends with the first that notices it.
func (b *binary) try(ctx context.Context, m Mutant) (Outcome, error) {
	if b.refused[m.Name()] {
		return NotCompiled, nil
	}
	for i := range b.parts {
		if outcome, err := judge(b.test(ctx, b.numbers[m.Name()], &b.parts[i])); outcome != Survived || err != nil {
			return outcome, err
		}
	}
	return Survived, nil
}

func (b *binary) test(ctx context.Context, number int, p *part) (string, error) {
	return b.run(ctx, number, p.timeout, append([]string{"-test.failfast"}, p.flags...)...)
}

// run runs the tests with the mutant of a number, or without one: 0.
func (b *binary) run(ctx context.Context, number int, timeout time.Duration, flags ...string) (string, error) {
	// The binary looks at its own limit when it runs tests, and not while it starts.
	ctx, cancel := context.WithTimeout(ctx, timeout+slack)
	defer cancel()
	args := append([]string{b.path, "-test.timeout", timeout.String()}, flags...)
	return command(ctx, b.folder, b.work, []string{fmt.Sprintf("%s=%d", variable, number)}, args...)
}

// judge tells what tests made of a mutant by what they printed and how they ended.
func judge(out string, err error) (Outcome, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return Survived, nil
	case errors.Is(err, context.DeadlineExceeded), strings.Contains(out, "panic: test timed out after "):
		return TimedOut, nil
	case !errors.As(err, &exit):
		return 0, err
	}
	return Killed, nil
}

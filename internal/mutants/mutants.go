// Package mutants tests tests: it changes one place of a package's code at a time, and
// reports the changes that the package's own unit tests do not notice.
package mutants

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Mutant is a package file with one change.
type Mutant struct {
	// File is the path of the changed file.
	File string
	Line int
	// Function is the declaration that it is in: Receiver.Name or Name of a function,
	// and the name of a variable, constant or type of the package.
	Function string
	// Change is what was changed, in one line: the old code and the new.
	Change string
	// Nth and Same tell apart mutants of a function with the same change: this is the
	// Nth, from 1, of Same.
	Nth, Same int
	// Locks tells that only the race detector may notice it.
	Locks bool

	// In the original file, code takes the place of what is between these offsets.
	original string
	from, to int
	code     string
}

// Name is what accepted.txt calls the mutant: "file: function: change", with
// " #2 of 3" where the function has this change three times. No other mutant has it.
func (m Mutant) Name() string {
	if m.Same > 1 {
		return fmt.Sprintf("%s #%d of %d", m.whole(), m.Nth, m.Same)
	}
	return m.whole()
}

// whole is the name of all mutants of the function with this change.
func (m Mutant) whole() string { return m.File + ": " + m.Function + ": " + m.Change }

func (m Mutant) String() string {
	return fmt.Sprintf("%s:%d%s", m.File, m.Line, strings.TrimPrefix(m.Name(), m.File))
}

// in tells whether the mutant has this name, with its number or without, or is of this
// file or function.
func (m Mutant) in(name string) bool {
	rest, ok := strings.CutPrefix(m.Name(), name)
	return ok && (rest == "" || strings.HasPrefix(rest, ": ") || strings.HasPrefix(rest, " #"))
}

// source is the whole changed file.
func (m Mutant) source() string { return m.original[:m.from] + m.code + m.original[m.to:] }

// Compare orders mutants by file and line.
func Compare(a, b Mutant) int { return cmp.Or(cmp.Compare(a.File, b.File), a.Line-b.Line) }

// Folders are those where a fault would be worst: what decides, what is shared among
// tenants, and what runs in upstream's processes.
var Folders = []string{
	"scheduler/index", "scheduler/locality", "scheduler/layerlocality",
	"resolver/controller", "resolver/registry", "crio/imagelayers", "crio/layershare", "kubelet/imagelayers",
}

// Of returns the mutants of the package in a folder, in the order of its files and
// lines. Test files and generated files have none. It fails if a file cannot be
// parsed.
func Of(folder string) ([]Mutant, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := ofFile(file, string(source))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func ofFile(name, source string) ([]Mutant, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	m := mutator{name: name, source: source, set: set}
	for _, part := range declarations(file) {
		m.function = part.name
		ast.Inspect(part.node, func(node ast.Node) bool {
			// With which tags of fields no unit test has to know.
			if field, ok := node.(*ast.Field); ok {
				return field.Tag == nil
			}
			m.expression(node)
			m.statements(node)
			return true
		})
	}
	slices.SortStableFunc(m.found, Compare)
	same := map[string]int{}
	for i := range m.found {
		whole := m.found[i].whole()
		same[whole]++
		m.found[i].Nth = same[whole]
	}
	for i := range m.found {
		m.found[i].Same = same[m.found[i].whole()]
	}
	return m.found, nil
}

type declaration struct {
	name string
	node ast.Node
}

// declarations returns what a file declares, but for imports.
func declarations(file *ast.File) []declaration {
	var all []declaration
	for _, one := range file.Decls {
		switch one := one.(type) {
		case *ast.FuncDecl:
			name := one.Name.Name
			if one.Recv != nil {
				name = receiver(one.Recv.List[0].Type) + "." + name
			}
			all = append(all, declaration{name, one})
		case *ast.GenDecl:
			for _, spec := range one.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					all = append(all, declaration{spec.Name.Name, spec})
				case *ast.ValueSpec:
					if spec.Type != nil {
						all = append(all, declaration{spec.Names[0].Name, spec.Type})
					}
					for i, value := range spec.Values {
						all = append(all, declaration{spec.Names[i].Name, value})
					}
				}
			}
		}
	}
	return all
}

// receiver is the name of a method's type, without * and type parameters.
func receiver(node ast.Expr) string {
	switch node := node.(type) {
	case *ast.StarExpr:
		return receiver(node.X)
	case *ast.ParenExpr:
		return receiver(node.X)
	case *ast.IndexExpr:
		return receiver(node.X)
	case *ast.IndexListExpr:
		return receiver(node.X)
	case *ast.Ident:
		return node.Name
	}
	return ""
}

type mutator struct {
	name     string
	source   string
	set      *token.FileSet
	function string
	found    []Mutant
}

// replace adds the mutant that has other code from one position to the other.
func (m *mutator) replace(from, to token.Pos, code string, locks bool) {
	start, end := m.set.Position(from), m.set.Position(to)
	line := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	before := line(m.source[start.Offset:end.Offset])
	change := before + " -> " + line(code)
	if code == "" {
		change = "without " + before
	}
	m.found = append(m.found, Mutant{
		File: m.name, Line: start.Line, Function: m.function, Change: change, Locks: locks,
		original: m.source, from: start.Offset, to: end.Offset, code: code,
	})
}

// instead is the operator that takes the place of another.
var instead = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL,
	token.REM: token.MUL,
}

func (m *mutator) expression(node ast.Node) {
	switch node := node.(type) {
	case *ast.BinaryExpr:
		if other, ok := instead[node.Op]; ok {
			m.replace(node.Pos(), node.End(), m.code(node.X)+" "+other.String()+" "+m.code(node.Y), false)
		}
	case *ast.UnaryExpr:
		if node.Op == token.NOT {
			m.replace(node.Pos(), node.End(), m.code(node.X), false)
		}
	case *ast.BasicLit:
		// A bound, a size or a time; 0 and 1 are mostly indices.
		if node.Kind == token.INT {
			if n, err := strconv.ParseInt(node.Value, 0, 64); err == nil && n > 1 {
				m.replace(node.Pos(), node.End(), strconv.FormatInt(n+1, 10), false)
			}
		}
	case *ast.IfStmt:
		// Negated comparisons are among the binary ones.
		if _, ok := node.Cond.(*ast.CallExpr); ok {
			m.replace(node.Cond.Pos(), node.Cond.End(), "!"+m.code(node.Cond), false)
		}
	}
}

// statements leaves out single statements of a block. One without which the code does
// not compile is no mutant; that shows later.
func (m *mutator) statements(node ast.Node) {
	var list []ast.Stmt
	switch node := node.(type) {
	case *ast.BlockStmt:
		list = node.List
	case *ast.CaseClause:
		list = node.Body
	case *ast.CommClause:
		list = node.Body
	}
	for _, statement := range list {
		switch statement := statement.(type) {
		case *ast.AssignStmt:
			if statement.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.DeferStmt, *ast.IncDecStmt, *ast.BranchStmt, *ast.GoStmt, *ast.SendStmt:
		default:
			continue
		}
		code := m.code(statement)
		m.replace(statement.Pos(), statement.End(), "", strings.Contains(code, "Lock()"))
	}
}

func (m *mutator) code(node ast.Node) string {
	var out bytes.Buffer
	if err := printer.Fprint(&out, m.set, node); err != nil {
		panic(err) // it was parsed
	}
	return out.String()
}

// Package shapes has functions of every form: their mutants are compiled together.
package shapes

var limit = 5

type number interface{ int | float64 }

type list[T number] struct{ all []T }

func (l *list[T]) add(more ...T) {
	l.all = append(l.all, more...)
	if len(l.all) > 3 {
		l.all = l.all[1:]
	}
}

// The receiver has no name.
func (*list[T]) top() int { return limit + 2 }

func sum[T number](all ...T) (total T) {
	for _, one := range all {
		total += one
	}
	return total * 2
}

func larger(a, _ int, _ string) (int, bool) {
	if a < 7 {
		return a, false
	}
	return 7, true
}

func first(int, string) int { return 4 }

// Without its increment it has no end.
func count(to int) int {
	n := 0
	for n != to {
		n++
	}
	return n
}

// Of its mutants one does not compile: n is not used then.
func unused() {
	n := 0
	_ = n
}

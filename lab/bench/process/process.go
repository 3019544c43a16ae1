// Package process measures what processes take of the machine.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Table is a folder like /proc, with a folder for each process.
type Table string

// Host has the processes as this process sees them.
const Host Table = "/proc"

// SeenBy returns the processes as another one of the Host sees them, with their ids there: those
// of its PID namespace and of what is in it.
func SeenBy(pid int) Table { return Table(fmt.Sprintf("/proc/%d/root/proc", pid)) }

func (t Table) path(pid int, file string) string {
	return filepath.Join(string(t), strconv.Itoa(pid), file)
}

// Running returns the ids of processes by their command lines: those that begin with a program,
// by its name without a path, and an argument.
func (t Table) Running(program, argument string) (pids []int, err error) {
	all, err := filepath.Glob(filepath.Join(string(t), "[1-9]*", "cmdline"))
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		line := strings.Split(string(text), "\x00")
		if filepath.Base(line[0]) != program || len(line) < 2 || line[1] != argument {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, err
}

// CPU returns the processor time of all threads of a process so far,
// to the nanosecond. It does not include threads that have ended, but Go keeps
// its threads.
func (t Table) CPU(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(t.path(pid, "task/*/schedstat"))
	if err != nil {
		return 0, err
	}
	if len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has no %s", pid, t.path(pid, "task/*/schedstat"))
	}
	var sum time.Duration
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		running, _, _ := strings.Cut(string(data), " ")
		ns, err := strconv.ParseInt(running, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", task, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// Memory of a process that is in RAM, in bytes.
type Memory struct {
	RSS int64 `json:"rss"` // all of it
	// Anonymous is the part that belongs to the process alone: heap and stacks.
	// The rest are pages of the program; the kernel decides how many of them it
	// maps.
	Anonymous int64 `json:"anonymous"`
}

// Memory returns the memory of a process.
func (t Table) Memory(pid int) (Memory, error) {
	var m Memory
	path := t.path(pid, "status")
	data, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	for _, field := range []struct {
		name  string
		value *int64
	}{{"VmRSS", &m.RSS}, {"RssAnon", &m.Anonymous}} {
		_, line, found := strings.Cut(string(data), "\n"+field.name+":")
		if !found {
			return m, fmt.Errorf("%s has no %s", path, field.name)
		}
		var kib int64
		if _, err := fmt.Sscanf(line, "%d kB", &kib); err != nil {
			return m, fmt.Errorf("%s: %s: %w", path, field.name, err)
		}
		*field.value = kib << 10
	}
	return m, nil
}

// Load returns the machine's load average over one minute.
func Load() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(first, 64)
}

package crio

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

// processorTime returns the processor time of all threads of a process so far,
// to the nanosecond. It does not include threads that have ended, but Go keeps
// its threads.
func processorTime(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	if len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has no /proc/%d/task/*/schedstat", pid, pid)
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

func residentMemory(pid int) (Memory, error) {
	var m Memory
	path := fmt.Sprintf("/proc/%d/status", pid)
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

// load returns the machine's load average over one minute.
func load() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(first, 64)
}

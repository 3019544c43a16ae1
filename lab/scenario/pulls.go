package scenario

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Bytes has the downloaded bytes by node.
type Bytes map[string]int64

// Total returns what all nodes downloaded together.
func (b Bytes) Total() int64 {
	var sum int64
	for _, n := range b {
		sum += n
	}
	return sum
}

func (b Bytes) String() string {
	var list []string
	for _, node := range slices.Sorted(maps.Keys(b)) {
		list = append(list, fmt.Sprintf("%s %.1f MB", node, float64(b[node])/1e6))
	}
	return strings.Join(list, ", ")
}

// Measured is what a node downloads at most, in bytes, while pulls of an image that wait for another one
// measure their own connection: 2 MiB each time, and what is on its way. They do so after 4 s, and again
// after 9 s and 19 s if those are slower; docs/layer-sharing.md.
const Measured = 3 * 4 << 20

// Pulled counts what the nodes of a cluster have downloaded from a repository
// so far: layers and configs, as the registry sent them. Only downloads by
// nodes count.
func Pulled(c *cluster.Cluster, repository string) (Bytes, error) {
	return PulledFrom(c, c.Registry().AccessLog, repository)
}

// PulledFrom is Pulled for a registry with another access log in the same
// format.
func PulledFrom(c *cluster.Cluster, accessLog, repository string) (Bytes, error) {
	file, err := os.Open(accessLog)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names := map[string]string{}
	for _, node := range c.Nodes() {
		names[node.Address.String()] = node.Name
	}
	for _, guest := range c.Guests() {
		names[guest.Address.Addr().String()] = guest.Name
	}
	bytes, err := pulled(file, repository, names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	return bytes, nil
}

// request is a line of the log: client, method, path, status, bytes.
var request = regexp.MustCompile(`^(\S+) \S+ \S+ \[[^\]]*\] "(\S+) (\S+) [^"]*" (\d+) (\d+)`)

var blob = regexp.MustCompile(`^/v2/(.+)/blobs/[a-z0-9]+:[0-9a-f]+$`)

// pulled reads an access log in Apache's combined format. names has the nodes
// by their address.
func pulled(log io.Reader, repository string, names map[string]string) (Bytes, error) {
	total := Bytes{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := request.FindStringSubmatch(lines.Text())
		if fields == nil || fields[2] != "GET" || fields[4] != "200" && fields[4] != "206" {
			continue
		}
		node, ok := names[fields[1]]
		path := blob.FindStringSubmatch(fields[3])
		if !ok || path == nil || path[1] != repository {
			continue
		}
		n, err := strconv.ParseInt(fields[5], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		total[node] += n
	}
	return total, lines.Err()
}

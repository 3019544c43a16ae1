package prefetch

import (
	"fmt"
	"time"
)

// Budget bounds what is pulled ahead. Bytes are compressed bytes that nodes lack.
type Budget struct {
	// Pods that pull at a time: in all, on a node, and of a namespace.
	Pods, PodsPerNode, PodsPerNamespace int
	// NodeBytes are those that a node pulls at a time; the others are for an hour: a node's, those of
	// a namespace, and all.
	NodeBytes, NodeBytesPerHour, NamespaceBytesPerHour, BytesPerHour int64
	// PendingBytes of other pods are how much a node's link may have to pull for them.
	PendingBytes int64
	// DiskShare is how much of a node's storage images may take after a pull, from 0 to 1.
	DiskShare float64
}

const (
	defaultPods, defaultPodsPerNode, defaultPodsPerNamespace = 50, 1, 20

	defaultNodeBytes             = 10 << 30
	defaultNodeBytesPerHour      = 20 << 30
	defaultNamespaceBytesPerHour = 100 << 30
	defaultBytesPerHour          = 500 << 30
	defaultPendingBytes          = 64 << 20
	defaultDiskShare             = 0.6
)

// DefaultBudget is what the command has by default.
func DefaultBudget() Budget {
	return Budget{
		defaultPods, defaultPodsPerNode, defaultPodsPerNamespace,
		defaultNodeBytes, defaultNodeBytesPerHour, defaultNamespaceBytesPerHour, defaultBytesPerHour,
		defaultPendingBytes, defaultDiskShare,
	}
}

// pull is what one pod pulls.
type pull struct {
	node, namespace, source string
	bytes                   int64
	began                   time.Time
}

// sum is what bytes of pulls are summed by: a node, a namespace, a source of it, or nothing.
type sum struct{ node, namespace, source string }

// addTo adds bytes to the sums that the pull is in.
func (p pull) addTo(sums map[sum]int64, bytes int64) {
	for _, of := range []sum{{}, {node: p.node}, {namespace: p.namespace}, {namespace: p.namespace, source: p.source}} {
		if sums[of] += bytes; sums[of] == 0 {
			delete(sums, of)
		}
	}
}

// refusal is why a pull may not begin. It never may if it exceeds a bound by itself.
type refusal struct {
	never  bool
	reason string
	// ofAll: it is not about the node, so other nodes are refused as well.
	ofAll bool
}

// allows returns nil if a pull may begin beside those that are active, and the sums of the last hour. The share is how much of
// NamespaceBytesPerHour its source may have.
func (b *Budget) allows(hour map[sum]int64, active []pull, next pull, share float64) *refusal {
	var ofNode, ofNamespace int
	var atOnce int64
	for _, p := range active {
		if p.namespace == next.namespace {
			ofNamespace++
		}
		if p.node == next.node {
			ofNode++
			atOnce += p.bytes
		}
	}
	ofHour := int64(share * float64(b.NamespaceBytesPerHour))
	for _, bound := range []struct {
		flag        string
		taken, next int64
		most        int64
		ofAll       bool
	}{
		{"max-pods", int64(len(active)), 1, int64(b.Pods), true},
		{"max-pods-per-node", int64(ofNode), 1, int64(b.PodsPerNode), false},
		{"max-pods-per-namespace", int64(ofNamespace), 1, int64(b.PodsPerNamespace), true},
		{"max-node-bytes", atOnce, next.bytes, b.NodeBytes, false},
		{"max-node-bytes-per-hour", hour[sum{node: next.node}], next.bytes, b.NodeBytesPerHour, false},
		{"max-namespace-bytes-per-hour", hour[sum{namespace: next.namespace}], next.bytes, b.NamespaceBytesPerHour, true},
		{"max-bytes-per-hour", hour[sum{}], next.bytes, b.BytesPerHour, true},
		// A source that wastes most still pulls something: one that is larger than its share, too.
		{"max-namespace-bytes-per-hour", hour[sum{namespace: next.namespace, source: next.source}], min(next.bytes, ofHour), ofHour, true},
	} {
		switch {
		case bound.next > bound.most:
			return &refusal{true, fmt.Sprintf("%d bytes are more than --%s=%d", bound.next, bound.flag, bound.most), false}
		case bound.taken+bound.next > bound.most: // the text is the same each time: it goes into the status
			return &refusal{false, fmt.Sprintf("--%s=%d is reached", bound.flag, bound.most), bound.ofAll}
		}
	}
	return nil
}

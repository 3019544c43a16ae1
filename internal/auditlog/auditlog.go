// Package auditlog reads an apiserver's audit log, to count who writes Nodes and
// how often, and to compare what a user asks for with its rights.
package auditlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// NodeWrites is an audit policy that records only writes of a Node or its
// status, each when it is answered.
const NodeWrites = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete]
  resources:
  - group: ""
    resources: [nodes, nodes/status]
- level: None
`

// Log holds the events of an audit log in the order they were written.
type Log []auditv1.Event

// Read reads the audit log in the file. An incomplete event is left out, because
// the apiserver may still be writing it.
func Read(name string) (Log, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	defer file.Close()
	log, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("audit log %s: %w", name, err)
	}
	return log, nil
}

func read(r io.Reader) (Log, error) {
	var log Log
	for decoder := json.NewDecoder(r); ; {
		var event auditv1.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return log, nil
		}
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", len(log)+1, err)
		}
		log = append(log, event)
	}
}

// StatusWrites returns the writes of the named Node's status by the kubelet of
// that node, whatever the answer: a refused write is also load on the apiserver.
func (l Log) StatusWrites(node string) Log {
	return l.filter(func(event auditv1.Event) bool {
		object := event.ObjectRef
		return event.Stage == auditv1.StageResponseComplete &&
			(event.Verb == "patch" || event.Verb == "update") &&
			event.User.Username == "system:node:"+node &&
			object != nil && object.Resource == "nodes" && object.Subresource == "status" && object.Name == node
	})
}

// Between returns the requests that arrived at or after the first time and
// before the second.
func (l Log) Between(from, to time.Time) Log {
	return l.filter(func(event auditv1.Event) bool {
		at := event.RequestReceivedTimestamp.Time
		return !at.Before(from) && at.Before(to)
	})
}

// Times returns when the requests arrived.
func (l Log) Times() []time.Time {
	times := make([]time.Time, 0, len(l))
	for _, event := range l {
		times = append(times, event.RequestReceivedTimestamp.Time)
	}
	return times
}

func (l Log) filter(keep func(auditv1.Event) bool) Log {
	var kept Log
	for _, event := range l {
		if keep(event) {
			kept = append(kept, event)
		}
	}
	return kept
}

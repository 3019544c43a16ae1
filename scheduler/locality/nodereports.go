package locality

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// nodeSink is what a Tracker lets its NodeSources report to.
type nodeSink struct {
	*index.Index
	tracker *Tracker
}

// SetReport implements NodeSink.
func (s nodeSink) SetReport(source, node string, report *NodeReport) {
	s.tracker.setReport(source, node, report)
}

// nodeReports has the reports of a NodeSource on nodes, in place of their NodeStatus. A report
// may come before its Node, and be of another Node than the one that is there.
type nodeReports struct {
	mu     sync.RWMutex
	byName map[string]*keptReport
	// indexed are the Nodes that the index has.
	indexed map[string]types.UID
}

// keptReport is a NodeReport, without images that are in the index already.
type keptReport struct {
	NodeReport
	source string
	// withoutLayers are those of the images that state no layers.
	withoutLayers []index.Image
	// written means that the other images are in the index. Tracker.reports guards it.
	written bool
}

// of returns the report on a Node; nil if there is none.
func (n *nodeReports) of(node *v1.Node) *keptReport {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if report := n.byName[node.Name]; report != nil && report.UID == node.UID {
		return report
	}
	return nil
}

// hasFresh reports whether there is a fresh report on a Node, which counts in place of its NodeStatus.
func (n *nodeReports) hasFresh(node *v1.Node) bool {
	report := n.of(node)
	return report != nil && report.Fresh
}

// enter notes that the index has a Node.
func (n *nodeReports) enter(node *v1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.indexed[node.Name] = node.UID
}

// has reports whether the index has the Node itself, not one before it of its name.
func (n *nodeReports) has(node *v1.Node) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	uid, ok := n.indexed[node.Name]
	return ok && uid == node.UID
}

// set replaces the report on the Nodes of a name; nil for none.
func (n *nodeReports) set(name string, report *keptReport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.byName, name); report != nil {
		n.byName[name] = report
	}
}

// leave notes that the index does not have a Node any more.
func (n *nodeReports) leave(node *v1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.indexed, node.Name)
}

// forgetNode has the index forget a Node that is gone. The report on it stays as long as its source has it: the Node may
// come back with its UID, after a restore for example.
func (t *Tracker) forgetNode(node *v1.Node) {
	t.reports.Lock()
	defer t.reports.Unlock()
	if report := t.nodeReports.of(node); report != nil && report.written {
		report.written, report.Images = false, nil
		for _, image := range t.index.NodeImages(node.Name) {
			if image.Report.Source == report.source {
				report.Images = append(report.Images, index.Image{Canonical: image.Names, Layers: image.Layers})
			}
		}
	}
	t.index.DeleteNode(node.Name)
	t.nodeReports.leave(node)
}

// setReport implements NodeSink.SetReport.
func (t *Tracker) setReport(source, name string, report *NodeReport) {
	var next *keptReport
	if report != nil {
		next = &keptReport{NodeReport: *report, source: source}
		for _, image := range report.Images {
			if !hasLayers(image) {
				next.withoutLayers = append(next.withoutLayers, image)
			}
		}
	}
	t.reports.Lock()
	t.nodeReports.set(name, next)
	node := t.node(name)
	known := node != nil && t.nodeReports.has(node) // otherwise it is reported when its turn comes
	if known {
		if next == nil || next.UID != node.UID {
			t.index.SetImages(source, name, nil)
		}
		t.writeReportLocked(node)
	}
	t.reports.Unlock()
	if known {
		t.updateUnlisted(nil, node)
	}
}

// Silent counts Ready Nodes without a fresh report: those without any, although others have one (missing;
// with Linux, and they state no layers themselves), and those with one that is not fresh (stale). Agents
// are not in use while there is no report at all.
func (t *Tracker) Silent() (missing, stale int) {
	reported := false
	for _, object := range t.nodeStore.List() {
		node, ok := object.(*v1.Node)
		if !ok {
			continue
		}
		report := t.nodeReports.of(node)
		reported = reported || report != nil
		switch {
		case !nodestatus.Ready(node):
		case report != nil && !report.Fresh:
			stale++
		case report == nil && nodestatus.Platform(node).OS == "linux" && !nodestatus.StatesLayers(node):
			missing++
		}
	}
	if !reported {
		return 0, 0
	}
	return missing, stale
}

// writeKeptReportLocked writes a report on a node into the index, and returns the images that are
// still to be written: those without layers, or those of NodeStatus, listed, if the report is
// not fresh.
func (t *Tracker) writeKeptReportLocked(name string, report *keptReport, listed []index.Image) []index.Image {
	if !report.Fresh {
		t.index.SetImages(report.source, name, nil)
		return listed
	}
	if !report.written {
		complete := make([]index.Image, 0, len(report.Images)-len(report.withoutLayers))
		for _, image := range report.Images {
			if hasLayers(image) {
				complete = append(complete, image)
			}
		}
		t.index.SetImages(report.source, name, complete)
		report.written, report.Images = true, nil
	}
	return report.withoutLayers
}

// joins returns what is known about a node's joining downloads; nil if nothing is.
func (t *Tracker) joins(node *v1.Node) *bool {
	var stated *bool
	if report := t.nodeReports.of(node); report != nil {
		stated = report.JoinsDownloads
	}
	joins, _ := nodestatus.JoinsDownloads(node, stated)
	return joins
}

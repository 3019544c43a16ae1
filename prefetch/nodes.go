package prefetch

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// The first versions that pull image volumes as they are configured by default.
var (
	firstKubelet    = version.MustParseGeneric("1.35.0")
	firstCRIO       = version.MustParseGeneric("1.31.0")
	firstContainerd = version.MustParseGeneric("2.1.0")
)

// suits reports whether a node takes pods with these tolerations now.
func suits(node *corev1.Node, tolerations []corev1.Toleration) bool {
	if node.DeletionTimestamp != nil || node.Spec.Unschedulable || !nodestatus.Ready(node) || node.Status.NodeInfo.OperatingSystem == "windows" {
		return false
	}
	if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeDiskPressure && c.Status == corev1.ConditionTrue
	}) {
		return false
	}
	_, repelled := v1helper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	return !repelled
}

// volumesServed returns why a node does not pull image volumes; empty if it does, as far as is known.
func volumesServed(node *corev1.Node) string {
	info := &node.Status.NodeInfo
	if kubelet, err := version.ParseGeneric(info.KubeletVersion); err == nil && kubelet.LessThan(firstKubelet) {
		return fmt.Sprintf("kubelet %s: image volumes are on by default from %s on", info.KubeletVersion, firstKubelet)
	}
	runtime, number, _ := strings.Cut(info.ContainerRuntimeVersion, "://")
	for name, first := range map[string]*version.Version{"cri-o": firstCRIO, "containerd": firstContainerd} {
		if has, err := version.ParseGeneric(number); runtime == name && err == nil && has.LessThan(first) {
			return fmt.Sprintf("%s: it has image volumes from %s on", info.ContainerRuntimeVersion, first)
		}
	}
	return ""
}

// A compressed byte takes as many on the disk: its own in containerd's content store, and those that it is unpacked to.
const unpacked = 3

// diskAllows reports whether the images of a node, as far as it lists them, take no more than the share of its storage after a
// pull of so many compressed bytes.
func diskAllows(node *corev1.Node, bytes int64, share float64) bool {
	capacity := node.Status.Capacity.StorageEphemeral().Value()
	if capacity <= 0 {
		return true // it states none
	}
	held := float64(bytes) * unpacked
	factor := 1.0
	if strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "containerd://") {
		factor = unpacked // it states compressed sizes
	}
	for i := range node.Status.Images {
		held += factor * float64(node.Status.Images[i].SizeBytes)
	}
	return held <= share*float64(capacity)
}

//go:build kubernetes1.35

package locality

import v1 "k8s.io/api/core/v1"

// imageOfVolume returns nothing: no kubelet reports it.
func imageOfVolume(*v1.VolumeMountStatus) string { return "" }

//go:build !kubernetes1.35

package locality

import v1 "k8s.io/api/core/v1"

// imageOfVolume returns the digest of the image that is mounted, if the kubelet reports it.
func imageOfVolume(mount *v1.VolumeMountStatus) string {
	if mount.VolumeStatus == nil || mount.VolumeStatus.Image == nil {
		return ""
	}
	return mount.VolumeStatus.Image.ImageRef
}

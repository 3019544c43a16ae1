// Package kubeadm makes what kubeadm makes of a configuration, with kubeadm's own code.
package kubeadm

import (
	"os"
	"path/filepath"

	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/controlplane"
	kubeadmconfig "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
)

// Scheduler returns the manifest of the static pod that
// "kubeadm init phase control-plane scheduler" writes with a configuration, and the version of
// Kubernetes in that. patches is the folder with patches of static pods; empty for none.
func Scheduler(config []byte, patches string) (manifest []byte, version string, err error) {
	loaded, err := kubeadmconfig.BytesToInitConfiguration(config, true)
	if err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp("", "kubeadm-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	const component = "kube-scheduler"
	if err := controlplane.CreateStaticPodFiles(dir, patches, &loaded.ClusterConfiguration, &kubeadmapi.APIEndpoint{}, false, component); err != nil {
		return nil, "", err
	}
	manifest, err = os.ReadFile(filepath.Join(dir, component+".yaml"))
	return manifest, loaded.KubernetesVersion, err
}

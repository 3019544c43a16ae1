// Package controlplane starts etcd and the patched kube-apiserver alone, for
// tests and benchmarks of what only talks to an API server.
package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/layer-locality/layer-locality/internal/auditlog"
)

// ControlPlane is a running API server with the CustomResourceDefinitions of
// this repository. There is no controller and no node.
type ControlPlane struct {
	// Config is that of an administrator, without a client-side rate limit.
	Config *rest.Config

	environment *envtest.Environment
}

// Settings are those of a control plane.
type Settings struct {
	// Stock has the stock kube-apiserver run instead of the patched one.
	Stock bool
	// FeatureGates of kube-apiserver, comma-separated.
	FeatureGates string
	// EmulatedVersion has kube-apiserver work as this minor version does, such as 1.34.
	EmulatedVersion string
	// NoCRDs leaves out the CustomResourceDefinitions of this repository.
	NoCRDs bool
	// NoFsync has etcd not wait for the disk, which differs from run to run.
	NoFsync bool
	// AuditLog is the file that has every request afterwards, without its content; empty for none.
	AuditLog string
}

// Start starts both from the binaries of the repository at root, on loopback.
func Start(root string) (*ControlPlane, error) { return StartWith(root, Settings{}) }

// StartWith does what Start does, with other settings.
func StartWith(root string, settings Settings) (*ControlPlane, error) {
	build := "patched"
	if settings.Stock {
		build = "stock"
	}
	etcd, apiServer := filepath.Join(root, "_build/bin/tools/etcd"), filepath.Join(root, "_build/bin", build, "kube-apiserver")
	for _, path := range []string{etcd, apiServer} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%w: 'scripts/build.sh tools etcd' and 'scripts/build.sh %s kube-apiserver' make them", err, build)
		}
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join(root, "deploy/resolver/crd"), filepath.Join(root, "deploy/agent/crd"), filepath.Join(root, "deploy/prefetcher/crd")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	if settings.NoCRDs {
		environment.CRDDirectoryPaths = nil
	}
	environment.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	environment.ControlPlane.GetAPIServer().Path = apiServer
	if settings.FeatureGates != "" {
		environment.ControlPlane.GetAPIServer().Configure().Set("feature-gates", settings.FeatureGates)
	}
	if settings.EmulatedVersion != "" {
		environment.ControlPlane.GetAPIServer().Configure().Set("emulated-version", settings.EmulatedVersion)
	}
	if settings.NoFsync {
		environment.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	}
	if settings.AuditLog != "" {
		policy := settings.AuditLog + ".policy"
		if err := os.WriteFile(policy, []byte(auditlog.Requests), 0o600); err != nil {
			return nil, err
		}
		environment.ControlPlane.GetAPIServer().Configure().Set("audit-policy-file", policy).Set("audit-log-path", settings.AuditLog)
	}
	config, err := environment.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control plane: %w", err), environment.Stop()) // what did start
	}
	config.QPS = -1
	return &ControlPlane{Config: config, environment: environment}, nil
}

// Kubeconfig returns a kubeconfig file of an administrator.
func (c *ControlPlane) Kubeconfig() []byte { return c.environment.KubeConfig }

// Stop ends both and removes what they stored.
func (c *ControlPlane) Stop() error { return c.environment.Stop() }

package main

import (
	"context"
	"fmt"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
)

// warnOfOldServer logs if the apiserver is older than the version that this scheduler
// emulates, by default its own: it may then wait for ever for resources that the server does
// not have, and place no pod.
func warnOfOldServer(ctx context.Context, server discovery.ServerVersionInterface) {
	logger := klog.FromContext(ctx)
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	if effective == nil {
		return
	}
	info, err := server.ServerVersion()
	if err != nil {
		logger.V(2).Info("The version of the apiserver is not known", "reason", err)
		return
	}
	if text := olderThan(info, effective.EmulationVersion()); text != "" {
		logger.Info(text)
	}
}

// olderThan returns what to say about a server that is older than the emulated version;
// empty if it is not, or if its version cannot be read.
func olderThan(info *version.Info, emulated *utilversion.Version) string {
	server, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil || server.Major() > emulated.Major() || server.Major() == emulated.Major() && server.Minor() >= emulated.Minor() {
		return ""
	}
	flag := fmt.Sprintf("%d.%d", server.Major(), server.Minor())
	return fmt.Sprintf("The apiserver is %s, and this scheduler works as %s does: it may place no pod at all. Set --emulated-version=%s, if it knows that version",
		info.GitVersion, emulated, flag)
}

package main

import (
	"context"
	"fmt"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
)

// askAgain is when the apiserver is asked again for its version.
const askAgain = 5 * time.Second

// checkServer logs if the apiserver is older than the version that this scheduler emulates, by
// default its own. If it lacks a resource for which the scheduler would wait for ever before it
// places any pod, checkServer says so and ends the process.
func checkServer(ctx context.Context, server discovery.DiscoveryInterface) {
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	if effective == nil {
		return
	}
	devices := utilfeature.DefaultFeatureGate.Enabled(features.DynamicResourceAllocation)
	_ = wait.PollUntilContextCancel(ctx, askAgain, true, func(ctx context.Context) (bool, error) {
		text, hopeless, err := judge(server, effective.EmulationVersion(), devices)
		switch logger := klog.FromContext(ctx); {
		case err != nil:
			logger.V(2).Info("The version of the apiserver is not known", "reason", err)
			return false, nil
		case hopeless:
			logger.Error(nil, text)
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		case text != "":
			logger.Info(text)
		}
		return true, nil
	})
}

// judge returns what to say about a server that is older than the emulated version, empty if it
// is not; and whether the scheduler would place no pod, because it has devices enabled
// (DynamicResourceAllocation) and the server does not have their resources.
func judge(server discovery.DiscoveryInterface, emulated *utilversion.Version, devices bool) (text string, hopeless bool, err error) {
	info, err := server.ServerVersion()
	if err != nil {
		return "", false, err
	}
	flag := olderThan(info, emulated)
	if flag == "" {
		return "", false, nil
	}
	if devices {
		_, err := server.ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		if apierrors.IsNotFound(err) {
			return fmt.Sprintf("The apiserver is %s and has no %s: this scheduler, which works as %s does, would wait for it for ever and place no pod. Set --emulated-version=%s, if it knows that version",
				info.GitVersion, resourcev1.SchemeGroupVersion, emulated, flag), true, nil
		}
		if err != nil {
			return "", false, err
		}
	}
	return fmt.Sprintf("The apiserver is %s, and this scheduler works as %s does: some of it may not work. Set --emulated-version=%s, if it knows that version",
		info.GitVersion, emulated, flag), false, nil
}

// olderThan returns the minor version of a server that is older than the emulated one; empty
// if it is not, or if its version cannot be read.
func olderThan(info *version.Info, emulated *utilversion.Version) string {
	server, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil || server.Major() > emulated.Major() || server.Major() == emulated.Major() && server.Minor() >= emulated.Minor() {
		return ""
	}
	return fmt.Sprintf("%d.%d", server.Major(), server.Minor())
}

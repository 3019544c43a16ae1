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
// places any pod, checkServer logs that and ends the process.
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

// judge returns the message about a server that is older than the emulated version, empty if it
// is not; and whether the scheduler would place no pod, because it has devices enabled
// (DynamicResourceAllocation) and the server does not have their resources.
func judge(server discovery.DiscoveryInterface, emulated *utilversion.Version, devices bool) (text string, hopeless bool, err error) {
	info, err := server.ServerVersion()
	if err != nil {
		return "", false, err
	}
	is, flag := olderThan(info, emulated)
	if flag == "" {
		return "", false, nil
	}
	if devices {
		_, err := server.ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		if apierrors.IsNotFound(err) {
			return fmt.Sprintf("The apiserver is %s and has no %s: this scheduler, which works as %s does, would wait for it for ever and place no pod. Set --emulated-version=%s, if it supports that version",
				is, resourcev1.SchemeGroupVersion, emulated, flag), true, nil
		}
		if err != nil {
			return "", false, err
		}
	}
	return fmt.Sprintf("The apiserver is %s, and this scheduler works as %s does: some of it may not work. Set --emulated-version=%s, if it supports that version",
		is, emulated, flag), false, nil
}

// olderThan returns, of a server that is older than the emulated version, or works as an older
// one does, what it is and the minor version that it works as; empty if it is not older, or if
// its version cannot be read.
func olderThan(info *version.Info, emulated *utilversion.Version) (is, minor string) {
	is = info.GitVersion
	server, err := utilversion.ParseGeneric(is)
	if err != nil {
		return "", ""
	}
	// Since 1.34, a server reports the version that it emulates.
	worksAs, err := utilversion.ParseGeneric(info.EmulationMajor + "." + info.EmulationMinor)
	if err == nil && worksAs.LessThan(utilversion.MajorMinor(server.Major(), server.Minor())) {
		server, is = worksAs, fmt.Sprintf("%s (it works as %s does)", is, worksAs)
	}
	if server.AtLeast(utilversion.MajorMinor(emulated.Major(), emulated.Minor())) {
		return "", ""
	}
	return is, fmt.Sprintf("%d.%d", server.Major(), server.Minor())
}

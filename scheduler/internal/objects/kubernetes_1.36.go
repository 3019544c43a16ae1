//go:build !kubernetes1.35

package objects

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// reflectorOptions returns those of a reflector.
func reflectorOptions(name string, logger *klog.Logger) cache.ReflectorOptions {
	return cache.ReflectorOptions{Name: name, Logger: logger}
}

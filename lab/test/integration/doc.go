// Package integration tests the plugin inside a real scheduler with a real
// apiserver and etcd, all in the process of the test, in the style of
// upstream's test/integration/scheduler. It needs the patched API type (build
// tag imagelayers), an etcd binary in PATH, and the build tag integration.
package integration

// Command pause does nothing until it gets a signal to stop. It is the
// entrypoint of test images and of the pod sandbox.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// PID 1 of a container has no default signal actions: without this handler,
	// every pod would have to be killed after its grace period.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}

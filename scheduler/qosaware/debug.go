package qosaware

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/internal/debugpage"
)

// DebugPath is where the debug table is served on the secure port.
const DebugPath = "/debug/qosaware"

// DebugHandler serves the table of all workloads, and with ?wide one of all pods.
func (f *Factory) DebugHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !debugpage.Gets(w, r) {
			return
		}
		host := f.host.Load()
		if host == nil {
			http.Error(w, "no profile of this scheduler enables "+Name, http.StatusNotFound)
			return
		}
		write, wide := writeTable, r.URL.Query().Has("wide")
		if wide {
			write = writeWide
		}
		var text bytes.Buffer // written at once, so that no slow reader holds anything up
		if err := write(&text, host.ledger.Rows(wide)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = text.WriteTo(w) // the client went away
	})
}

// serve serves the table without authentication at an address of the loopback device, until
// the context ends. A scheduler does not fail because a port is in use.
func serve(ctx context.Context, address string, handler http.Handler) {
	logger := klog.FromContext(ctx).WithValues("plugin", Name, "address", address)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		logger.Error(err, "The debug table is not served at debugBindAddress, only on the secure port, at "+DebugPath)
		return
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		logger.Error(err, "The debug table is not served at debugBindAddress any more")
	}
}

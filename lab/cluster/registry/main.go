// Command registry is a small image registry for clusters on this machine: go-containerregistry's, with
// blobs on disk and manifests in memory, so they are gone when it ends. It takes the configuration file of the
// registry of the distribution project, which tests run, and writes the same access log.
//
//	registry serve CONFIG
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 || os.Args[1] != "serve" {
		log.Fatal("usage: registry serve CONFIG")
	}
	if err := serve(os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// config has the fields of the distribution project's configuration file that this registry obeys.
type config struct {
	HTTP struct {
		Addr string `json:"addr"`
	} `json:"http"`
	Storage struct {
		Filesystem struct {
			RootDirectory string `json:"rootdirectory"`
		} `json:"filesystem"`
	} `json:"storage"`
}

func serve(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c config
	if err := yaml.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if c.HTTP.Addr == "" || c.Storage.Filesystem.RootDirectory == "" {
		return fmt.Errorf("%s: want http.addr and storage.filesystem.rootdirectory", path)
	}
	if err := os.MkdirAll(c.Storage.Filesystem.RootDirectory, 0o755); err != nil {
		return err
	}
	handler := registry.New(
		registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithBlobHandler(registry.NewDiskBlobHandler(c.Storage.Filesystem.RootDirectory)),
	)
	server := &http.Server{Addr: c.HTTP.Addr, Handler: logged(handler, os.Stdout), ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

// logged writes a line per request to w, in Apache's combined format.
func logged(handler http.Handler, w io.Writer) http.Handler {
	lines := log.New(w, "", 0)
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		counted := &counter{ResponseWriter: response, status: http.StatusOK}
		handler.ServeHTTP(counted, request)
		client, _, err := net.SplitHostPort(request.RemoteAddr)
		if err != nil {
			client = request.RemoteAddr
		}
		lines.Printf(`%s - - [%s] "%s %s %s" %d %d %q %q`, client, time.Now().Format("02/Jan/2006:15:04:05 -0700"),
			request.Method, request.RequestURI, request.Proto, counted.status, counted.bytes, request.Referer(), request.UserAgent())
	})
}

// counter notes the status and counts the bytes of an answer.
type counter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (c *counter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(data []byte) (int, error) {
	n, err := c.ResponseWriter.Write(data)
	c.bytes += int64(n)
	return n, err
}

// Command server replaces nginx and httpd in critest's images: it serves a
// page at the given address. If there is a second argument, it writes its
// process ID to that file. Further arguments are only for tests that look at
// its command line.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	address := os.Args[1]
	if len(os.Args) > 2 {
		if err := os.WriteFile(os.Args[2], fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	log.Printf("%s listens on %s", filepath.Base(os.Args[0]), address)
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "It works!\n")
	})))
}

// Command server stands in for nginx and httpd in critest's images: it serves
// a page at the address given and, given a second argument, writes its process
// id there. Further arguments are for those who look at its command line.
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

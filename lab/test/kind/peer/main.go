// Command peer is what pods of lab/test/kind/run.sh run to reach each other.
//
//	peer                serves its pod's name by HTTP
//	peer get HOST       prints what HOST serves
//	peer resolve NAME   prints the addresses of NAME
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		return serve()
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	case len(args) == 2 && args[0] == "resolve":
		addresses, err := net.LookupHost(args[1])
		for _, address := range addresses {
			fmt.Println(address)
		}
		return err
	}
	return errors.New("usage: peer [get HOST | resolve NAME]")
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := http.Server{
		Addr:              ":80",
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) }),
		ReadHeaderTimeout: 5 * time.Second,
	}
	return server.ListenAndServe()
}

func get(host string) error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + host + "/")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

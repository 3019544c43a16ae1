//go:build ignore

// Command md2man turns Markdown into a man page, with the library that CRI-O
// vendors: the spec file runs it in CRI-O's tree.
package main

import (
	"io"
	"log"
	"os"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

func main() {
	page, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(md2man.Render(page)); err != nil {
		log.Fatal(err)
	}
}

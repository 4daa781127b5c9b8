// Command site makes the web site of the documentation: a folder of HTML files that a browser opens without a server.
// It fails where a link, an anchor or a picture leads nowhere, and where docs/index.md does not lead to a page.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "the source tree")
	out := flag.String("out", "", "the folder to write, which is emptied first")
	source := flag.String("source", "https://github.com/fairlead-cni/fairlead/blob/main",
		"where the source tree is published")
	flag.Parse()
	if *out == "" {
		fmt.Fprintln(os.Stderr, "site: name the folder to write with -out")
		os.Exit(2)
	}
	n, err := build(*root, *out, *source)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d pages (documents, manual pages, examples): open %s/index.html in a browser\n", n, *out)
}

// Command apiserver runs etcd and kube-apiserver until it is terminated, and writes a kubeconfig of
// an administrator once they answer:
//
//	apiserver [-root FOLDER] [-stock] KUBECONFIG
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/layer-locality/layer-locality/internal/controlplane"
)

func main() {
	root := flag.String("root", ".", "`folder` of the repository, whose _build has the binaries")
	stock := flag.Bool("stock", false, "run the stock kube-apiserver")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: apiserver [-root FOLDER] [-stock] KUBECONFIG")
	}
	if err := run(*root, flag.Arg(0), *stock); err != nil {
		log.Fatal(err)
	}
}

func run(root, kubeconfig string, stock bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cluster, err := controlplane.StartWith(root, controlplane.Settings{Stock: stock, NoCRDs: true, NoFsync: true})
	if err != nil {
		return err
	}
	if err := os.WriteFile(kubeconfig, cluster.Kubeconfig(), 0o600); err != nil {
		return errors.Join(err, cluster.Stop())
	}
	<-ctx.Done()
	return cluster.Stop()
}

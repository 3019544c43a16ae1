package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/benchcrio"
)

func crioCommand() *cobra.Command {
	var config benchcrio.Config
	var out string
	c := &cobra.Command{
		Use:   "crio",
		Short: "Stock and patched CRI-O by turns on one store: ListImages, first list, pull, memory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			begin := time.Now()
			config.Logf = func(format string, args ...any) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
			}
			result, err := benchcrio.Run(cmd.Context(), config)
			if err != nil {
				return err
			}
			if err := writeJSON(out, result); err != nil {
				return err
			}
			config.Logf("raw numbers: %s", out)
			return result.Summary().Write(cmd.OutOrStdout())
		},
	}
	f := c.Flags()
	f.IntVar(&config.Images, "images", 1000, "images in the store")
	f.IntVar(&config.Layers, "layers", 10, "layers of an image")
	f.IntVar(&config.Rounds, "rounds", 6, "rounds; one measures stock and patched CRI-O once each")
	f.IntVar(&config.Lists, "lists", 150, "ListImages calls a measurement")
	f.IntVar(&config.Pulls, "pulls", 3, "pulls of the 100 MB image a measurement")
	f.IntVar(&config.Starts, "starts", 3, "starts of CRI-O a measurement, each with its first list")
	f.StringVar(&config.BinDir, "bin-dir", "", "folder that holds stock, patched and tools (default: _build/bin of this repository)")
	f.StringVar(&config.LogDir, "log-dir", "_out/bench/log", "folder for the logs of all components")
	f.StringVar(&config.ProfileDir, "profile-dir", "", "folder for CPU profiles of CRI-O, one a measurement (pprof); they cost time themselves")
	f.StringVar(&out, "out", "_out/bench/crio.json", "file for the raw numbers")
	return c
}

// writeJSON writes a result, and the folder it goes to.
func writeJSON(path string, result any) error {
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

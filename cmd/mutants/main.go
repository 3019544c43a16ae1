// Command mutants tests the unit tests of packages: it changes their code in one place
// at a time, and lists the changes that no test notices. Before that, the tests have to pass on
// the code as it is. It prints a line for each folder, and ends with one for all, such as
//
//	mutants killed=0.93 of=412 accepted=14 strict=0.90
//
// Of 412 changes tests notice 93 %. 14 more may survive, for the reasons in
// internal/mutants/accepted.txt: strict is the share that is noticed of these too.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/mutants"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var sample int
	var seed uint64
	var only []string
	command := &cobra.Command{
		Use:   "mutants [FOLDER...]",
		Short: "List changes of code that no unit test notices",
		RunE: func(cmd *cobra.Command, folders []string) error {
			accepted, err := mutants.ReadAccepted()
			if err == nil {
				err = accepted.Check()
			}
			if err != nil {
				return err
			}
			switch {
			case len(only) > 0 && len(folders) > 0:
				return errors.New("either folders or --only")
			case len(only) > 0:
				return runOnly(cmd.Context(), only, accepted)
			case len(folders) == 0:
				folders = mutants.Folders
			}
			return run(cmd.Context(), folders, sample, seed, accepted)
		},
	}
	command.Flags().IntVar(&sample, "sample", 0, "how many mutants of each folder, chosen at random; 0: all")
	command.Flags().Uint64Var(&seed, "seed", 1, "another seed chooses others")
	command.Flags().StringArrayVar(&only, "only", nil, "these mutants and no others: 'file: function: change', 'file: function' or 'file'")
	code := terminal.Run(ctx, command)
	stop()
	os.Exit(code)
}

// count is what became of the mutants of one folder, or of all.
type count struct{ killed, accepted, survived int }

func (c count) String() string {
	of := func(all int) float64 { return float64(c.killed) / float64(max(all, 1)) }
	all := c.killed + c.survived
	return fmt.Sprintf("killed=%.2f of=%d accepted=%d strict=%.2f", of(all), all, c.accepted, of(all+c.accepted))
}

func runOnly(ctx context.Context, only []string, accepted mutants.Accepted) error {
	all, err := mutants.Only(only)
	if err != nil {
		return err
	}
	total, err := tryAll(ctx, all, accepted)
	if err != nil {
		return err
	}
	fmt.Fprintf(terminal.Stdout, "mutants %s\n", total)
	return nil
}

func run(ctx context.Context, folders []string, sample int, seed uint64, accepted mutants.Accepted) error {
	var total count
	for _, folder := range folders {
		all, err := mutants.Of(filepath.Clean(folder))
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("%s has no Go code to change", folder)
		}
		if sample > 0 && sample < len(all) {
			random := rand.New(rand.NewPCG(seed, 0))
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			all = all[:sample]
			slices.SortFunc(all, mutants.Compare)
		}
		one, err := tryAll(ctx, all, accepted)
		if err != nil {
			return err
		}
		fmt.Fprintf(terminal.Stdout, "%s: %s\n", folder, one)
		total.killed += one.killed
		total.accepted += one.accepted
		total.survived += one.survived
	}
	fmt.Fprintf(terminal.Stdout, "mutants %s\n", total)
	return nil
}

// tryAll prints the survivors, and those for which the tests took too long.
func tryAll(ctx context.Context, all []mutants.Mutant, accepted mutants.Accepted) (count, error) {
	var c count
	err := mutants.TryAll(ctx, all, func(m mutants.Mutant, outcome mutants.Outcome) {
		switch {
		case outcome == mutants.Killed:
			c.killed++
			if accepted.Reason(m) != "" {
				fmt.Fprintf(terminal.Stdout, "killed, so accepted.txt need not name it: %s\n", m)
			}
		case outcome == mutants.TimedOut:
			c.killed++
			fmt.Fprintf(terminal.Stdout, "timed out: %s\n", m)
		case outcome == mutants.Survived && accepted.Reason(m) != "":
			c.accepted++
			fmt.Fprintf(terminal.Stdout, "accepted: %s (%s)\n", m, accepted.Reason(m))
		case outcome == mutants.Survived:
			c.survived++
			fmt.Fprintf(terminal.Stdout, "survived: %s\n", m)
		}
	})
	return c, err
}

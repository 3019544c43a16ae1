package qosaware

import (
	"fmt"
	"io"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// writeTable writes the published table: a line for each workload, with what its pods got,
// and for how long nothing of it could run (time to violate). Whether its SLO is admitted is new.
func writeTable(w io.Writer, rows []ledger.Row) error {
	line := func(columns ...any) error {
		_, err := fmt.Fprintf(w, "%20s  %9s  %20s  %20s  %20s  %20s  %8s\n", columns...)
		return err
	}
	if err := line("CONTROLLER", "QOS/SLO", "TTV", "RUNNING", "WAITING", "BINDING", "ADMITTED"); err != nil {
		return err
	}
	for _, row := range rows {
		if err := line(nameOf(row.Workload), service(row.Sums, row.Terms), duration(row.Left),
			duration(row.Sums.Running), duration(row.Sums.Waiting), duration(row.Sums.Binding), yesNo(!row.Refused)); err != nil {
			return err
		}
	}
	return nil
}

// writeWide writes a line for each pod, with all that decides about it.
func writeWide(w io.Writer, rows []ledger.Row) error {
	line := func(columns ...any) error {
		_, err := fmt.Fprintf(w, "%20s  %30s  %8s  %11s  %9s  %12s  %13s  %12s  %12s  %12s  %12s  %8s\n", columns...)
		return err
	}
	if err := line("CONTROLLER", "POD", "PHASE", "MEASURING", "QOS/SLO", "METRIC", "OVERHEAD/MAX", "RUNNING", "LOST", "WAITING", "BINDING", "ADMITTED"); err != nil {
		return err
	}
	for _, row := range rows {
		for _, pod := range row.Pods {
			if err := line(nameOf(row.Workload), pod.Name, pod.Phase, row.Terms.Measuring, service(pod.Sums, pod.Terms), duration(pod.Metric),
				fmt.Sprintf("%.3f/%.3f", pod.Overhead, pod.Terms.Acceptable()),
				duration(pod.Sums.Running), duration(pod.Sums.Lost), duration(pod.Sums.Waiting), duration(pod.Sums.Binding), yesNo(!pod.Refused)); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameOf returns the published column: the name alone in namespace default.
func nameOf(k ledger.Key) string {
	if k.Namespace == metav1.NamespaceDefault {
		return k.Name
	}
	return k.String()
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func service(s account.Sums, t account.Terms) string {
	return fmt.Sprintf("%4.2f/%4.2f", s.Service(), t.SLO)
}

// duration writes seconds as published: to the second above one, to the millisecond below,
// and if they are negative.
func duration(seconds float64) string {
	if math.Abs(seconds) > 1e9 { // longer than a Duration can be
		if seconds > 0 {
			return "never"
		}
		return "-never"
	}
	d := time.Duration(seconds * float64(time.Second))
	if d > time.Second {
		return d.Truncate(time.Second).String()
	}
	return d.Truncate(time.Millisecond).String()
}

package command

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/kubectllayers/output"
	"github.com/layer-locality/layer-locality/terminal"
)

// promise is a row of the table of QosAware that is not wide; with -o wide of one that is.
type promise struct {
	// Controller is the workload, with its namespace unless that is default; Pod is one of its pods, in wide tables.
	Controller string `json:"controller"`
	Pod        string `json:"pod,omitempty"`
	// QoS is the share of time that it got, SLO what it was promised.
	QoS float64 `json:"qos"`
	SLO float64 `json:"slo"`
	// TTVSeconds is for how long nothing of it could run until it misses its SLO, negative if it does; missing if it never
	// does. The others are the time of its pods.
	TTVSeconds     *float64 `json:"ttvSeconds,omitempty"`
	RunningSeconds *float64 `json:"runningSeconds,omitempty"`
	WaitingSeconds *float64 `json:"waitingSeconds,omitempty"`
	BindingSeconds *float64 `json:"bindingSeconds,omitempty"`
	// Admitted is whether its SLO is kept at present.
	Admitted bool `json:"admitted"`
}

var promiseColumns = []output.Column{
	{Title: "CONTROLLER", Means: "the workload; with its namespace, unless that is default"},
	{Title: "QOS/SLO", Means: "the share of time that it got, and what it was promised"},
	{Title: "TTV", Means: "for how long nothing of it could run until it misses its SLO; negative: it does"},
	{Title: "RUNNING", Means: "time of its pods"}, {Title: "WAITING", Means: "time of its pods"},
	{Title: "BINDING", Means: "time of its pods, from the choice of a node until the pod has it"},
	{Title: "ADMITTED", Means: "whether its SLO is kept at present"},
}

func (c *command) qos() *cobra.Command {
	return c.prints(c.watches(&cobra.Command{
		Use: "qos", Args: cobra.NoArgs,
		Short:             "What QosAware promised to workloads, and what they got",
		Long:              help("What QosAware promised to workloads, and what they got: the table that the scheduler serves. With -o wide, a row for each pod, with all that decides about it.", promiseColumns),
		Example:           "  kubectl layers qos\n  kubectl layers qos -w\n  kubectl layers qos --sort-by=.ttvSeconds\n  kubectl layers qos --sort-by=.qos -o wide",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.answers(func(ctx context.Context, r *collect.Reader, _ []string) (*answer, error) {
			scheduler, err := c.openScheduler(ctx, r)
			if err != nil {
				return nil, err
			}
			defer scheduler.Close()
			text, err := scheduler.Promises(ctx, c.output.Wide())
			if err != nil {
				return nil, err
			}
			promises, table, err := promisesIn(text)
			if err != nil {
				return nil, fmt.Errorf("the scheduler (%s) answers with something else than a table: %w: it may be of another version; see docs/upgrade.md", scheduler.Name, err)
			}
			return &answer{kind: "Qos", value: promises, table: table}, nil
		}),
	}))
}

// promisesIn reads the table that the scheduler writes: a line of titles, and cells without spaces.
func promisesIn(text string) ([]promise, output.Answer, error) {
	promises, t := []promise{}, output.Answer{}
	for line := range strings.Lines(text) {
		cells := strings.Fields(line)
		if t.Columns == nil {
			for _, title := range cells {
				t.Columns = append(t.Columns, output.Column{Title: terminal.Line(title, 50)})
			}
			if len(cells) < 2 || cells[0] != "CONTROLLER" {
				return nil, t, fmt.Errorf("its first line is %q", terminal.Line(line, 100))
			}
			continue
		}
		if len(cells) != len(t.Columns) {
			return nil, t, fmt.Errorf("%q has %d cells, want %d", terminal.Line(line, 300), len(cells), len(t.Columns))
		}
		var p promise
		for i, cell := range cells {
			if err := p.set(t.Columns[i].Title, terminal.Line(cell, 500)); err != nil {
				return nil, t, err
			}
		}
		promises = append(promises, p)
		t.Rows = append(t.Rows, output.Row{Object: p, Name: p.Controller, Cells: cells})
	}
	if len(promises) == 0 {
		t.Above = []string{"No workload has a promise (docs/qosaware.md)."}
	}
	return promises, t, nil
}

// set takes over a cell.
func (p *promise) set(title, cell string) (err error) {
	seconds := map[string]**float64{"TTV": &p.TTVSeconds, "RUNNING": &p.RunningSeconds, "WAITING": &p.WaitingSeconds, "BINDING": &p.BindingSeconds}[title]
	switch {
	case title == "CONTROLLER":
		p.Controller = cell
	case title == "POD":
		p.Pod = cell
	case title == "QOS/SLO":
		got, promised, _ := strings.Cut(cell, "/")
		if p.QoS, err = strconv.ParseFloat(got, 64); err == nil {
			p.SLO, err = strconv.ParseFloat(promised, 64)
		}
	case title == "ADMITTED":
		p.Admitted = cell == "yes"
	case seconds != nil && cell != "never" && cell != "-never":
		var d time.Duration
		d, err = time.ParseDuration(cell)
		s := d.Seconds()
		*seconds = &s
	}
	return err
}

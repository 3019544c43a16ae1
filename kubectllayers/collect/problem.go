package collect

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/layer-locality/layer-locality/terminal"
)

// Problem is something that could not be read, and what helps.
type Problem struct {
	// What could not be read, such as "nodes".
	What string `json:"what"`
	Why  string `json:"why"`
	Help string `json:"help"`
	// Err is the cause.
	Err error `json:"-"`
}

func (p *Problem) Error() string { return fmt.Sprintf("cannot read %s: %s: %s", p.What, p.Why, p.Help) }

// Partial reports whether an answer without this part is of use: the user may not read it, or the
// cluster does not have it.
func (p *Problem) Partial() bool { return p.Help == askFor || help[p.What] == p.Help }

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// help is what to do where a resource is missing.
var help = map[string]string{
	"NodeLayers":     "install layer-agent if nodes shall report more than their names of images (docs/agent.md)",
	imagePrefetches:  "install layer-prefetcher if nodes shall pull images ahead (docs/prefetch.md)",
	"ImageManifests": "install layer-resolver if images shall be known that no node has (docs/resolver-install.md)",
}

const askFor = "ask for the ClusterRole layer-locality-viewer (deploy/kubectl-layers)"

// maxWhy bounds a message of the server.
const maxWhy = 300

// explain makes one sentence of an error of the apiserver. read is how many objects came before.
func (r *Reader) explain(what string, read int, err error) *Problem {
	p := &Problem{What: what, Why: terminal.Line(err.Error(), maxWhy), Err: err}
	var status apierrors.APIStatus
	switch known := help[what]; {
	case errors.Is(err, context.Canceled):
		p.Why, p.Help = "interrupted", "run the command again"
	case apierrors.IsUnauthorized(err):
		p.Why, p.Help = "the apiserver does not accept your credentials", "log in, or name another user with --user or --context"
	case apierrors.IsForbidden(err):
		p.Why, p.Help = "you may not", askFor
	case apierrors.IsNotFound(err) && known != "":
		p.Why, p.Help = "the cluster has no such resource", known
	case apierrors.IsNotFound(err):
		p.Why, p.Help = "there is none", "see kubectl get "+strings.Fields(what)[0]
	case errors.As(err, &status):
		p.Help = "try again, and look at the apiserver's log if it stays"
	default:
		if read > 0 {
			p.Why = fmt.Sprintf("the apiserver went away after %d of them (%s)", read, p.Why)
		}
		p.Help = "check that " + terminal.Line(r.host, maxWhy) + " answers, and run the command again"
	}
	return p
}

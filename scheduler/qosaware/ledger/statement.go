package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/scheduling"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// The annotations of pods. Users write them, so nothing in them is trusted.
const (
	AnnotationSLO       = "qos.layerlocality.io/slo"
	AnnotationMeasuring = "qos.layerlocality.io/measuring"
	AnnotationOverhead  = "qos.layerlocality.io/acceptable-preemption-overhead"
)

// The published annotations, read with the argument legacyAnnotations.
const (
	legacySLO        = "slo"
	legacyMeasuring  = "qosMeasuring"
	legacyOverhead   = "acceptablePreemptionOverhead"
	legacyController = "controller"
)

// Statement is what a pod states about the service it wants.
type Statement struct {
	Terms account.Terms
	// Controller replaces the name of the workload; nearly always empty.
	Controller string
}

// Reader reads the annotations of pods.
type Reader struct {
	legacy     bool
	defaultSLO float64
	overhead   float64
}

// NewReader returns a reader for the arguments of the plugin.
func NewReader(args *config.QosAwareArgs) Reader {
	r := Reader{legacy: args.LegacyAnnotations, overhead: args.AcceptablePreemptionOverhead}
	if args.DefaultSLO != nil {
		r.defaultSLO = *args.DefaultSLO
	}
	return r
}

// annotations are all that are read.
var annotations = []string{AnnotationSLO, AnnotationMeasuring, AnnotationOverhead, legacySLO, legacyMeasuring, legacyOverhead, legacyController}

// SameStatement reports whether the annotations that are read are the same of two pods.
func SameStatement(a, b *v1.Pod) bool {
	return !slices.ContainsFunc(annotations, func(name string) bool {
		x, inA := a.Annotations[name]
		y, inB := b.Annotations[name]
		return x != y || inA != inB
	})
}

// MayTakePart reports whether a pod could have an SLO: pods that the cluster is run with are
// never delayed or preempted for one.
func MayTakePart(pod *v1.Pod) bool {
	return pod.Namespace != metav1.NamespaceSystem && (pod.Spec.Priority == nil || *pod.Spec.Priority < scheduling.SystemCriticalPriority)
}

// States reports, quickly, whether a pod may have an SLO; Read is certain.
func (r Reader) States(pod *v1.Pod) bool {
	if r.defaultSLO > 0 {
		return true
	}
	if len(pod.Annotations) == 0 {
		return false
	}
	_, ok := pod.Annotations[AnnotationSLO]
	if !ok && r.legacy {
		_, ok = pod.Annotations[legacySLO]
	}
	return ok
}

// Read returns what a pod states; its Terms have no SLO if it takes no part. The error is for
// the pod's owner: an annotation that is wrong counts as none.
func (r Reader) Read(pod *v1.Pod) (Statement, error) {
	if !MayTakePart(pod) || len(pod.Annotations) == 0 && r.defaultSLO == 0 {
		return Statement{}, nil
	}
	var errs []error
	get := func(name, legacy string, parse func(string) error) {
		value, ok := pod.Annotations[name]
		if !ok && r.legacy {
			name = legacy
			value, ok = pod.Annotations[name]
		}
		if !ok {
			return
		}
		if err := parse(value); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s is %s and counts as none: %w", name, short(value), err))
		}
	}
	s := Statement{Terms: account.Terms{SLO: r.defaultSLO, Measuring: account.Average, Overhead: r.overhead}}
	get(AnnotationSLO, legacySLO, func(value string) error {
		slo, ok := parseShare(value)
		if !ok || slo == 0 {
			s.Terms.SLO = 0
			return errors.New("it must be a decimal number above 0 and at most 1, such as 0.95")
		}
		s.Terms.SLO = slo
		return nil
	})
	get(AnnotationMeasuring, legacyMeasuring, func(value string) error {
		if !slices.Contains(account.Measurings, account.Measuring(value)) {
			return fmt.Errorf("it must be one of %v", account.Measurings)
		}
		s.Terms.Measuring = account.Measuring(value)
		return nil
	})
	get(AnnotationOverhead, legacyOverhead, func(value string) error {
		overhead, ok := parseShare(value)
		if !ok {
			return errors.New("it must be a decimal number from 0 to 1, such as 0.1")
		}
		s.Terms.Overhead = overhead
		return nil
	})
	if s.Terms.SLO == 0 {
		return Statement{}, errors.Join(errs...)
	}
	if name := pod.Annotations[legacyController]; r.legacy && name != "" {
		if !usable(name) {
			errs = append(errs, fmt.Errorf("annotation %s is %s and counts as none: it must be a name of at most %d bytes, without spaces and control characters", legacyController, short(name), maxName))
		} else {
			s.Controller = strings.Clone(name)
		}
	}
	return s, errors.Join(errs...)
}

// parseShare reads a decimal number from 0 to 1: digits and a point. What else Go takes for a
// number (1e-3, 0x1p-2, NaN, +Inf, 1_0) is refused.
func parseShare(text string) (float64, bool) {
	if len(text) > 20 || strings.Trim(text, ".0123456789") != "" {
		return 0, false
	}
	share, err := strconv.ParseFloat(text, 64)
	return share, err == nil && share >= 0 && share <= 1
}

// short quotes text of any length for a message.
func short(text string) string {
	const most = 40
	if len(text) > most {
		return fmt.Sprintf("%q... (%d bytes)", text[:most], len(text))
	}
	return strconv.Quote(text)
}

// origin is the pod that stated the terms of a workload: those of the newest count.
type origin struct {
	created int64 // Unix seconds, as in the API
	pod     string
}

func (o origin) compare(other origin) int {
	return cmp.Or(cmp.Compare(o.created, other.created), cmp.Compare(o.pod, other.pod))
}

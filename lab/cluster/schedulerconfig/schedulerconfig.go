// Package schedulerconfig reads a kube-scheduler's configuration file for a local cluster,
// and refuses what kube-scheduler would refuse. It is apart from package cluster because it
// is built on kube-scheduler's own code.
package schedulerconfig

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	configv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"sigs.k8s.io/yaml"

	// Arguments of LayerLocality are decoded strictly, as in our kube-scheduler.
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme"
)

// Read returns the fields of a KubeSchedulerConfiguration as cluster.Component.Config takes
// them. It decodes, defaults and validates the file with kube-scheduler's code. Whether the
// plugins that it names exist is known to the kube-scheduler that starts.
//
// The kubeconfig and the leader election of the file are left out: those of a cluster are
// its own.
func Read(path string) (map[string]any, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return fields, nil
}

func parse(data []byte) (map[string]any, error) {
	object, _, err := kubescheduler.Codecs.UniversalDecoder().Decode(data, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		return nil, fmt.Errorf("%w: want a KubeSchedulerConfiguration of %s", shorten(err), configv1.SchemeGroupVersion)
	case err != nil:
		return nil, fmt.Errorf("not as kube-scheduler reads it: %w", err)
	}
	decoded, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("%T: want a KubeSchedulerConfiguration of %s", object, configv1.SchemeGroupVersion)
	}
	if err := validation.ValidateKubeSchedulerConfiguration(decoded); err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "leaderElection")
	if connection, ok := fields["clientConnection"].(map[string]any); ok {
		delete(connection, "kubeconfig")
	}
	return fields, nil
}

// shorten removes where in kube-scheduler's code the scheme was made, which is of no use to
// the author of a file.
func shorten(err error) error {
	text, _, _ := strings.Cut(err.Error(), ` in scheme "`)
	return errors.New(text)
}

// +k8s:deepcopy-gen=package
// +groupName=kubescheduler.config.k8s.io

// Package config holds the arguments of the plugins as the plugins read them: defaulted and
// validated. Users write the v1 form.
package config

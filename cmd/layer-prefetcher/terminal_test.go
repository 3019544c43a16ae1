package main

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/deploy/prefetcher"
	"github.com/layer-locality/layer-locality/internal/terminaltest"
)

// What a user or a script passes on reaches the terminal as text.
func TestTerminal(t *testing.T) { terminaltest.Commands(t, newCommand) }

// The policy that is installed allows the image that is used unless a flag names another.
func TestPolicyNamesThePodImage(t *testing.T) {
	if image := newCommand().Flag("pod-image").DefValue; image != prefetcher.PodImage || !strings.Contains(string(prefetcher.Policy), "\"'"+image+"'\"") {
		t.Errorf("the default is %s, the policy has another", image)
	}
}

package main

import (
	"testing"

	"github.com/layer-locality/layer-locality/internal/terminaltest"
)

// What a user or a script passes on reaches the terminal as text.
func TestTerminal(t *testing.T) { terminaltest.Commands(t, newCommand) }

// Package deploy holds what users apply, and the tests of it.
package deploy

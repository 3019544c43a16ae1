// Package suites has what tests need that run test suites of other projects: small images like those that the suites
// pull, what Ginkgo reports, and lists of specs that are not run.
package suites

// Package chart tests deploy/helm, with Helm itself: what the chart installs is what the
// kustomizations install, and values that do not fit are refused with one clear sentence. It
// needs the build tag integration and the program that "scripts/build.sh tools helm" makes.
package chart
